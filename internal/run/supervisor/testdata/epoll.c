/*
 * A program that changes its mind about the events of epoll all the time: epoll CASE [SEED]. Bare, with TCP, it
 * behaves the same. With the environment variable MOVED set to 1 its connections are not TCP, and much costs no system call.
 */
#include "moved.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <time.h>

#include "filters.h"

#define COUNT 6

static unsigned long seed = 1;
static char buf[65536];

static unsigned rnd(unsigned n)
{
	return random_of(&seed, n);
}

static int is_tcp(int fd)
{
	int domain = 0;
	socklen_t len = sizeof(domain);

	CHECK(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0);
	return domain == AF_INET;
}

/* pair makes a connection. Where the machine is busy one may stay TCP that could be moved. */
static void pair(int *c, int *s)
{
	both_ends(c, s);
	for (int i = 0; i < 100 && moved() && is_tcp(*s); i++) {
		close(*c);
		close(*s);
		both_ends(c, s);
	}
	CHECK(is_tcp(*s) == !moved());
}

static int control(int ep, int op, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event ev = {.events = events, .data.u64 = data};

	return epoll_ctl(ep, op, fd, &ev);
}

static int wait_for(int ep, struct epoll_event *e, int max, int timeout)
{
	struct timespec t = {timeout / 1000, 0};

	switch (rnd(3)) {
	case 0:
		return epoll_wait(ep, e, max, timeout);
	case 1:
		return epoll_pwait(ep, e, max, timeout, NULL);
	default:
		return epoll_pwait2(ep, e, max, &t, NULL);
	}
}

/* A connection, and the events that its end a should be registered for. */
struct one {
	int a, b;
	int registered, disabled;
	uint32_t events;
	uint64_t data;
	unsigned seen; /* in this round */
};

static struct one ones[COUNT];

static uint32_t ready(const struct one *o)
{
	struct pollfd p = {.fd = o->a, .events = (short)(o->events & 0xffff)};

	if (!o->registered || o->disabled)
		return 0;
	CHECK(poll(&p, 1, 0) >= 0);
	return (uint32_t)p.revents;
}

/* compare waits, and returns whether the events that come are those that poll reports. */
static int compare(int ep, int max)
{
	struct epoll_event e[64];
	int n = wait_for(ep, e, max, 0);
	int expected = 0, right = 1;

	CHECK(n >= 0 && n <= max);
	for (int i = 0; i < COUNT; i++)
		ones[i].seen = 0;
	for (int k = 0; k < n; k++) {
		struct one *o = NULL;

		for (int i = 0; i < COUNT; i++)
			if (ones[i].registered && ones[i].data == e[k].data.u64)
				o = &ones[i];
		if (!o) {
			right = 0; /* of one that is not registered, or with the data of before */
			continue;
		}
		if (o->seen++ || e[k].events != ready(o))
			right = 0;
	}
	for (int i = 0; i < COUNT; i++) {
		int is = ready(&ones[i]) != 0;

		expected += is;
		if (is != (int)ones[i].seen && (max == 64 || !is)) /* fewer than there are is right, too */
			right = 0;
		if (ones[i].seen && (ones[i].events & EPOLLONESHOT))
			ones[i].disabled = 1;
	}
	return right && (expected == 0) == (n == 0);
}

static void look(int ep)
{
	int max = rnd(4) ? 64 : 1 + (int)rnd(3);

	/* TCP takes its time. In one process the events of a pair have to be right at once. */
	for (int i = 0; !compare(ep, max); i++) {
		CHECK(!moved() && i < 10000);
		usleep(100);
	}
}

static void change(int ep, int same_data)
{
	static const uint32_t what[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLRDHUP, 0, EPOLLIN | EPOLLONESHOT, EPOLLOUT | EPOLLONESHOT};
	struct one *o = &ones[rnd(COUNT)];
	uint32_t events = what[rnd(rnd(4) ? 4 : moved() ? 7 : 5)];
	uint64_t data = same_data ? (uint64_t)o->a : (uint64_t)o->a << 32 | (rnd(4) == 0);
	int r;

	switch (rnd(3)) {
	case 0:
		r = control(ep, EPOLL_CTL_ADD, o->a, events, data);
		CHECK(o->registered ? r == -1 && errno == EEXIST : r == 0);
		break;
	case 1:
		r = control(ep, EPOLL_CTL_MOD, o->a, events, data);
		CHECK(o->registered ? r == 0 : r == -1 && errno == ENOENT);
		break;
	default:
		r = epoll_ctl(ep, EPOLL_CTL_DEL, o->a, rnd(2) ? NULL : &(struct epoll_event){0});
		CHECK(o->registered ? r == 0 : r == -1 && errno == ENOENT);
		if (r == 0)
			o->registered = 0;
		return;
	}
	if (r == 0) {
		o->registered = 1;
		o->disabled = 0;
		o->events = events;
		o->data = data;
	}
}

static void traffic(void)
{
	struct one *o = &ones[rnd(COUNT)];

	switch (rnd(8)) {
	case 0:
	case 1:
		send(o->b, buf, 1 + rnd(100), MSG_DONTWAIT | MSG_NOSIGNAL);
		break;
	case 2:
	case 3:
		while (recv(o->a, buf, sizeof(buf), MSG_DONTWAIT) > 0)
			;
		break;
	case 4: /* it cannot be written to any more */
		while (send(o->a, buf, rnd(2) ? sizeof(buf) : 1000, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
			;
		break;
	case 5:
		while (recv(o->b, buf, sizeof(buf), MSG_DONTWAIT) > 0)
			;
		break;
	case 6:
		if (rnd(8) == 0)
			shutdown(o->b, SHUT_WR);
		break;
	default:
		if (rnd(4) == 0) {
			close(o->a);
			close(o->b);
			o->registered = 0;
			pair(&o->a, &o->b);
		}
		break;
	}
}

/* After any change the events are those that poll reports. */
static void test_random(int same_data)
{
	int ep = epoll_create1(EPOLL_CLOEXEC);

	CHECK(ep >= 0);
	for (int i = 0; i < COUNT; i++)
		pair(&ones[i].a, &ones[i].b);
	for (int i = 0; i < 10000; i++) {
		for (unsigned k = rnd(6); k > 0; k--)
			change(ep, same_data);
		if (rnd(2))
			traffic();
		look(ep);
		if (i % 1000 == 999) { /* one that nobody has seen do anything special */
			close(ep);
			ep = epoll_create1(0);
			CHECK(ep >= 0);
			for (int k = 0; k < COUNT; k++)
				ones[k].registered = 0;
		}
	}
}

/* turned makes an instance that has been told to report that a can be written to, after a was registered for reading. */
static int turned(int *a, int *b)
{
	struct epoll_event e;
	int ep = epoll_create(1);

	CHECK(ep >= 0);
	pair(a, b);
	CHECK(epoll_wait(ep, &e, 1, 0) == 0);
	CHECK(control(ep, EPOLL_CTL_ADD, *a, EPOLLIN, (uint64_t)*a) == 0);
	CHECK(epoll_wait(ep, &e, 1, 0) == 0);
	CHECK(control(ep, EPOLL_CTL_MOD, *a, EPOLLOUT, (uint64_t)*a) == 0);
	return ep;
}

static void reports(int ep, int fd)
{
	struct epoll_event e[2];

	CHECK(epoll_wait(ep, e, 2, PATIENCE) == 1 && e[0].events == EPOLLOUT && e[0].data.u64 == (uint64_t)fd);
}

static int shared_ep;
static pthread_barrier_t barrier;

static void *other_waits(void *arg)
{
	struct epoll_event e;

	CHECK(epoll_wait(shared_ep, &e, 1, PATIENCE) == 1 && e.events == EPOLLOUT);
	CHECK(control(shared_ep, EPOLL_CTL_MOD, e.data.fd, EPOLLIN, e.data.u64) == 0);
	pthread_barrier_wait(&barrier);
	CHECK(epoll_wait(shared_ep, &e, 1, PATIENCE) == 1 && e.events == EPOLLOUT);
	return arg;
}

static void *other_changes(void *arg)
{
	CHECK(control(shared_ep, EPOLL_CTL_MOD, *(int *)arg, EPOLLOUT, (uint64_t)*(int *)arg) == 0);
	return arg;
}

/* While a child waits, its parent changes the events that it waits for. */
static void parent_changes(int ep, int fd)
{
	int status, go[2];
	pid_t child;
	char c;

	CHECK(pipe(go) == 0 && (child = fork()) >= 0);
	if (child == 0) {
		CHECK(write(go[1], "", 1) == 1);
		reports(ep, fd);
		_exit(0);
	}
	CHECK(read(go[0], &c, 1) == 1);
	usleep(1000); /* so that it waits, most of the time */
	CHECK(control(ep, EPOLL_CTL_MOD, fd, EPOLLOUT, (uint64_t)fd) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* A child registers a descriptor again that its parent has taken out. */
static void child_registers(int ep, int fd)
{
	pid_t child;
	int status;

	CHECK(epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL) == 0 && (child = fork()) >= 0);
	if (child == 0) {
		CHECK(control(ep, EPOLL_CTL_ADD, fd, EPOLLOUT, (uint64_t)fd) == 0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	reports(ep, fd);
}

/* A child has a socket that its parent registers, takes out and closes. */
static void child_has(void)
{
	struct epoll_event e;
	int a, b, ep, stay[2];
	pid_t child;
	char c;

	pair(&a, &b);
	CHECK(pipe(stay) == 0 && (child = fork()) >= 0);
	if (child == 0) {
		close(stay[1]);
		(void)!read(stay[0], &c, 1);
		_exit(0);
	}
	ep = epoll_create1(EPOLL_CLOEXEC);
	CHECK(epoll_wait(ep, &e, 1, 0) == 0 && control(ep, EPOLL_CTL_ADD, a, EPOLLIN, (uint64_t)a) == 0 && epoll_wait(ep, &e, 1, 0) == 0);
	CHECK(epoll_ctl(ep, EPOLL_CTL_DEL, a, NULL) == 0 && send(b, buf, 1, 0) == 1);
	close(a);
	CHECK(epoll_wait(ep, &e, 1, 0) == 0);
	close(stay[1]);
	CHECK(waitpid(child, NULL, 0) == child);
}

/* A child has the instance, but not the socket. */
static void child_has_instance(void)
{
	struct epoll_event e;
	int a, b, status, ep = epoll_create1(0);
	pid_t child;

	CHECK(epoll_wait(ep, &e, 1, 0) == 0 && (child = fork()) >= 0);
	if (child == 0) {
		CHECK(epoll_wait(ep, &e, 1, PATIENCE) == 1 && e.events == EPOLLOUT);
		_exit(0);
	}
	pair(&a, &b);
	CHECK(control(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1) == 0 && control(ep, EPOLL_CTL_MOD, a, EPOLLOUT, 1) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void child_waits(int ep, int fd)
{
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (child == 0) {
		reports(ep, fd);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Other observers find the registrations as the program has made them. */
static void test_others(void)
{
	struct epoll_event e;
	pthread_t t;
	int a, b, ep, copy;

	ep = turned(&a, &b);
	struct pollfd p = {.fd = ep, .events = POLLIN};
	CHECK(poll(&p, 1, 0) == 1);
	ep = turned(&a, &b);
	p.fd = ep;
	CHECK(ppoll(&p, 1, NULL, NULL) == 1);
	ep = turned(&a, &b);
	fd_set set;
	FD_ZERO(&set);
	FD_SET(ep, &set);
	CHECK(select(ep + 1, &set, NULL, NULL, &(struct timeval){0}) == 1);
	ep = turned(&a, &b);
	FD_ZERO(&set);
	FD_SET(ep, &set);
	CHECK(pselect(ep + 1, &set, NULL, NULL, &(struct timespec){0}, NULL) == 1);

	int outer = epoll_create1(0);
	ep = turned(&a, &b);
	CHECK(control(outer, EPOLL_CTL_ADD, ep, EPOLLIN, 7) == 0);
	CHECK(epoll_wait(outer, &e, 1, 0) == 1 && e.data.u64 == 7);
	CHECK(control(ep, EPOLL_CTL_MOD, a, EPOLLIN, (uint64_t)a) == 0 && epoll_wait(outer, &e, 1, 0) == 0);
	CHECK(control(ep, EPOLL_CTL_MOD, a, EPOLLOUT, (uint64_t)a) == 0 && epoll_wait(outer, &e, 1, 0) == 1);

	ep = turned(&a, &b);
	child_waits(ep, a);
	CHECK(control(ep, EPOLL_CTL_MOD, a, EPOLLIN, (uint64_t)a) == 0 && control(ep, EPOLL_CTL_MOD, a, EPOLLOUT, (uint64_t)a) == 0);
	child_waits(ep, a);
	reports(ep, a);

	child_has();
	child_has_instance();
	ep = turned(&a, &b);
	child_registers(ep, a);
	ep = turned(&a, &b);
	CHECK(control(ep, EPOLL_CTL_MOD, a, EPOLLIN, (uint64_t)a) == 0 && epoll_wait(ep, &e, 1, 0) == 0);
	parent_changes(ep, a);

	ep = turned(&a, &b);
	copy = dup(ep);
	CHECK(syscall(SYS_epoll_pwait, copy, &e, 1, 0, NULL, 8) == 1);
	CHECK(syscall(SYS_epoll_pwait, ep, &e, 1, 0, NULL, 8) == 1);
	CHECK(syscall(SYS_epoll_ctl, ep, EPOLL_CTL_DEL, a, NULL) == 0 && epoll_wait(copy, &e, 1, 0) == 0);

	/* Another thread waits, and this one changes the events that it waits for. */
	shared_ep = turned(&a, &b);
	pthread_barrier_init(&barrier, NULL, 2);
	CHECK(pthread_create(&t, NULL, other_waits, NULL) == 0);
	pthread_barrier_wait(&barrier);
	usleep(1000); /* so that it waits, most of the time */
	CHECK(control(shared_ep, EPOLL_CTL_MOD, a, EPOLLOUT, (uint64_t)a) == 0);
	CHECK(pthread_join(t, NULL) == 0);

	/* This one waits, and another thread changes the events that it waits for. */
	shared_ep = turned(&a, &b);
	CHECK(control(shared_ep, EPOLL_CTL_MOD, a, EPOLLIN, (uint64_t)a) == 0 && epoll_wait(shared_ep, &e, 1, 0) == 0);
	CHECK(pthread_create(&t, NULL, other_changes, &a) == 0);
	reports(shared_ep, a);
	CHECK(pthread_join(t, NULL) == 0);
}

/* A socket that is taken out, and lives on elsewhere, is not reported; nor is another one that gets its number. */
static void test_gone(void)
{
	struct epoll_event e;
	int a, b, c, d, copy, ep = turned(&a, &b);

	CHECK(epoll_ctl(ep, EPOLL_CTL_DEL, a, NULL) == 0);
	copy = dup(a);
	CHECK(copy >= 0 && send(b, buf, 1, 0) == 1);
	close(a);
	CHECK(epoll_wait(ep, &e, 1, 0) == 0);
	ep = turned(&c, &d);
	close(c);
	CHECK(epoll_wait(ep, &e, 1, 0) == 0);
	CHECK(dup2(copy, c) == c && epoll_wait(ep, &e, 1, 0) == 0);
	CHECK(control(ep, EPOLL_CTL_MOD, c, EPOLLOUT, 1) == -1 && errno == ENOENT);
	CHECK(control(ep, EPOLL_CTL_ADD, c, EPOLLOUT, (uint64_t)c) == 0);
	reports(ep, c);
	/* An instance in the place of another. */
	ep = turned(&a, &b);
	close(ep);
	CHECK(epoll_create1(0) == ep && epoll_wait(ep, &e, 1, 0) == 0);
	CHECK(control(ep, EPOLL_CTL_MOD, a, EPOLLOUT, 1) == -1 && errno == ENOENT);
	/* One socket in two instances, and calls that are wrong for any. */
	CHECK(control(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1) == 0);
	int second = epoll_create1(0);
	CHECK(epoll_wait(ep, &e, 1, 0) == 0 && control(ep, EPOLL_CTL_MOD, a, EPOLLOUT, 1) == 0);
	CHECK(epoll_wait(second, &e, 1, 0) == 0 && control(second, EPOLL_CTL_ADD, a, EPOLLIN, 2) == 0);
	CHECK(epoll_wait(ep, &e, 1, 0) == 1 && e.data.u64 == 1);
	CHECK(control(ep, EPOLL_CTL_MOD, a, EPOLLOUT, 3) == 0 && control(second, EPOLL_CTL_MOD, a, EPOLLOUT | EPOLLIN, 4) == 0);
	CHECK(epoll_wait(ep, &e, 1, 0) == 1 && e.data.u64 == 3 && epoll_wait(second, &e, 1, 0) == 1 && e.data.u64 == 4);
	CHECK(epoll_ctl(ep, EPOLL_CTL_DEL, a, NULL) == 0 && epoll_wait(ep, &e, 1, 0) == 0 && epoll_wait(second, &e, 1, 0) == 1);
	CHECK(control(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1) == 0 && epoll_ctl(ep, EPOLL_CTL_MOD, a, NULL) == -1 && errno == EFAULT);
	CHECK(epoll_ctl(ep, 77, a, &e) == -1 && errno == EINVAL);
	CHECK(epoll_wait(ep, &e, 0, 0) == -1 && errno == EINVAL);
}

#define PASSED 300

static int passed = -1;

static void *closes(void *arg)
{
	for (int i = 0, fd; i < PASSED; i++) {
		while ((fd = __atomic_load_n(&passed, __ATOMIC_ACQUIRE)) < 0)
			;
		close(fd);
		__atomic_store_n(&passed, -1, __ATOMIC_RELEASE);
	}
	return arg;
}

/*
 * The thread that waits takes a socket out, or wants no events of it any more, and another thread closes it, as the workers of apache do: it is not reported from then on,
 * as the program may have freed whatever it knows it by.
 */
static void test_passed(void)
{
	struct epoll_event e;
	int ep = epoll_create1(0), a, b;
	pthread_t t;

	CHECK(pthread_create(&t, NULL, closes, NULL) == 0);
	for (uint64_t i = 1; i <= PASSED; i++) {
		pair(&a, &b);
		CHECK(control(ep, EPOLL_CTL_ADD, a, EPOLLIN, i << 32) == 0 && send(b, buf, 1, 0) == 1);
		CHECK(wait_for(ep, &e, 1, 10000) == 1 && e.data.u64 == i << 32);
		CHECK(control(ep, i % 2 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, a, 0, 0) == 0);
		__atomic_store_n(&passed, a, __ATOMIC_RELEASE);
		do
			CHECK(wait_for(ep, &e, 1, 0) == 0);
		while (__atomic_load_n(&passed, __ATOMIC_ACQUIRE) >= 0);
		close(b);
	}
	CHECK(pthread_join(t, NULL) == 0);
}

/* A program that turns to writing and back with each message does not trouble the kernel. */
static void test_quiet(void)
{
	struct epoll_event e;
	struct sock_filter f[] = {
		{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)},
		{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_epoll_ctl},
		{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
		{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
	};
	struct sock_fprog all = {sizeof(f) / sizeof(f[0]), f};
	int a, b, ep = turned(&a, &b);

	reports(ep, a);
	CHECK(control(ep, EPOLL_CTL_MOD, a, EPOLLIN, (uint64_t)a) == 0);
	if (moved())
		CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && filter_unseen(&all) == 0);
	for (int i = 0; i < 1000; i++) {
		CHECK(epoll_ctl(ep, EPOLL_CTL_DEL, a, NULL) == 0 && control(ep, EPOLL_CTL_ADD, a, EPOLLOUT, (uint64_t)a) == 0);
		reports(ep, a);
		CHECK(send(a, buf, 10, 0) == 10 && control(ep, EPOLL_CTL_MOD, a, EPOLLIN, (uint64_t)a) == 0);
		CHECK(recv(b, buf, 10, MSG_WAITALL) == 10 && send(b, buf, 10, 0) == 10);
		CHECK(epoll_wait(ep, &e, 1, PATIENCE) == 1 && e.events == EPOLLIN && e.data.u64 == (uint64_t)a);
		CHECK(recv(a, buf, 10, MSG_WAITALL) == 10);
	}
}

/* More sockets than are kept in mind, or said, at once. */
static void test_many(void)
{
	enum { MANY = 200 };
	static int a[MANY], b[MANY], seen[1024];
	struct epoll_event e[MANY];
	int ep = epoll_create1(0), n = 0;

	CHECK(epoll_wait(ep, e, 1, 0) == 0);
	for (int i = 0; i < MANY; i++) {
		pair(&a[i], &b[i]);
		CHECK(a[i] < 1024 && control(ep, EPOLL_CTL_ADD, a[i], EPOLLIN, (uint64_t)a[i]) == 0);
	}
	CHECK(epoll_wait(ep, e, MANY, 0) == 0);
	for (int i = 0; i < MANY; i++)
		CHECK(control(ep, EPOLL_CTL_MOD, a[i], EPOLLOUT, (uint64_t)a[i]) == 0);
	while (n < MANY) {
		int got = epoll_wait(ep, e, 77, 0);

		CHECK(got > 0);
		for (int i = 0; i < got; i++) {
			CHECK(e[i].events == EPOLLOUT && !seen[e[i].data.fd]++);
			CHECK(control(ep, EPOLL_CTL_MOD, e[i].data.fd, EPOLLIN, e[i].data.u64) == 0);
			n++;
		}
	}
	for (int i = 0; i < MANY; i++)
		CHECK(send(b[i], buf, 1, 0) == 1 && epoll_ctl(ep, EPOLL_CTL_DEL, a[i], NULL) == 0);
	CHECK(epoll_wait(ep, e, MANY, 0) == 0);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	if (argc > 2)
		seed = strtoul(argv[2], NULL, 10) * 1234567 + 1;
	if (strcmp(name, "random") == 0)
		test_random(1);
	else if (strcmp(name, "random-data") == 0)
		test_random(0);
	else if (strcmp(name, "others") == 0)
		test_others();
	else if (strcmp(name, "gone") == 0)
		test_gone();
	else if (strcmp(name, "passed") == 0)
		test_passed();
	else if (strcmp(name, "many") == 0)
		test_many();
	else if (strcmp(name, "quiet") == 0)
		test_quiet();
	else
		return 2;
	return 0;
}
