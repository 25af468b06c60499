/*
 * A program whose event loop looks into its rings, with bytes in a ring of which the kernel does not know: busy CASE. Bare, with TCP, it behaves the same.
 * With the environment variable MOVED set to 1 there have to be such bytes.
 */
#include "moved.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/time.h>

#define TURNS 200 /* more than a loop takes until it has rings */

static int c, s;    /* the ends */
static int ec, es;  /* the instances that have them */
static uint32_t how = EPOLLIN;
static bool polling; /* the loop is one of poll, and has no instances */
static int strike; /* looks at the clock until a signal comes */
static int arrival[2] = {-1, -1}; /* a pipe into which something comes right before */

/* clock_gettime has a signal come while the library looks. */
int clock_gettime(clockid_t id, struct timespec *t)
{
	if (id == CLOCK_MONOTONIC && strike && --strike == 0) {
		if (arrival[1] >= 0)
			system_call(SYS_write, arrival[1], (long)"x", 1, 0);
		system_call(SYS_tgkill, getpid(), system_call(SYS_gettid, 0, 0, 0, 0), SIGUSR1, 0);
	}
	return (int)system_call(SYS_clock_gettime, id, (long)t, 0, 0);
}

static int control(int ep, int op, int fd, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.u64 = (uint64_t)fd};

	return epoll_ctl(ep, op, fd, &ev);
}

/* told is which events an instance tells of a descriptor, 0 for none. */
static uint32_t told_of(int ep, int fd, int timeout)
{
	struct epoll_event ev[4];
	struct pollfd p = {.fd = fd, .events = (short)(fd == s ? how & (EPOLLIN | EPOLLOUT) : EPOLLIN)};
	int n;

	if (polling) {
		n = poll(&p, 1, timeout);
		CHECK(n == (p.revents != 0));
		return (uint32_t)p.revents;
	}
	n = epoll_wait(ep, ev, 4, timeout);
	CHECK(n == 0 || (n == 1 && ev[0].data.u64 == (uint64_t)fd));
	return n ? ev[0].events : 0;
}

static uint32_t told(int ep, int timeout)
{
	return told_of(ep, s, timeout);
}

static void put(int fd)
{
	CHECK(write(fd, "x", 1) == 1);
}

static void get(int fd)
{
	char b[100];

	CHECK(read(fd, b, sizeof(b)) == 1 && b[0] == 'x');
}

/* hidden says whether the kernel has nothing to read at a descriptor. */
static bool hidden(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	struct timespec none = {0, 0};

	return syscall(SYS_ppoll, &p, 1, &none, NULL, 0) == 0;
}

/* known says that the kernel has, or will have soon. */
static bool known(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	struct timespec patience = {PATIENCE / 1000, 0};

	return syscall(SYS_ppoll, &p, 1, &patience, NULL, 0) == 1;
}

/* both makes the ends of a connection. */
static void both(void)
{
	for (int i = 0; i < 100; i++) {
		both_ends(&c, &s);
		if (as_it_should(s))
			break;
		close(c);
		close(s);
	}
	CHECK(as_it_should(s) && as_it_should(c));
	CHECK(fcntl(c, F_SETFL, O_NONBLOCK) == 0 && fcntl(s, F_SETFL, O_NONBLOCK) == 0);
	CHECK(setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0); /* two writes in a row take TCP 40 ms */
}

/* talk has both ends take turns. */
static void talk(int turns)
{
	for (int i = 0; i < turns; i++) {
		put(c);
		CHECK(told(es, PATIENCE) & EPOLLIN);
		get(s);
		put(s);
		CHECK(told_of(ec, c, PATIENCE) == EPOLLIN);
		get(c);
	}
}

/* begin has both ends talk until they have rings, and are looked at. */
static void begin(void)
{
	both();
	if (!polling) {
		ec = epoll_create1(0);
		es = epoll_create1(0);
		CHECK(control(ec, EPOLL_CTL_ADD, c, EPOLLIN) == 0 && control(es, EPOLL_CTL_ADD, s, how) == 0);
	}
	talk(TURNS);
	CHECK(mapped_rings() == (moved() ? 4 : 0)); /* each as its writer and as its reader has it */
}

/* strand leaves a byte of which the kernel does not know. */
static void strand(void)
{
	begin();
	put(c);
	CHECK(moved() ? hidden(s) : known(s));
}

static void on_again(void)
{
	strand();
	CHECK(told(es, 0) == EPOLLIN && told(es, -1) == EPOLLIN && told(es, 100) == EPOLLIN);
	get(s);
	CHECK(told(es, 0) == 0 && told(es, 20) == 0);
	put(c);
	CHECK(known(s)); /* it has slept */
	CHECK(told(es, -1) == EPOLLIN);
}

static void on_edge(void)
{
	how = EPOLLIN | EPOLLET;
	strand();
	CHECK(told(es, PATIENCE) == EPOLLIN && told(es, 0) == 0 && told(es, 20) == 0);
	put(c);
	CHECK(told(es, PATIENCE) == EPOLLIN && told(es, 0) == 0);
	CHECK(control(es, EPOLL_CTL_MOD, s, how) == 0);
	CHECK(told(es, PATIENCE) == EPOLLIN);
	CHECK(told(es, 0) == 0);
	CHECK(told(es, 20) == 0);
}

static void on_edge_again(void)
{
	how = EPOLLIN | EPOLLET;
	strand();
	CHECK(told(es, PATIENCE) == EPOLLIN);
	CHECK(control(es, EPOLL_CTL_MOD, s, how) == 0);
	CHECK(told(es, PATIENCE) == EPOLLIN && told(es, 0) == 0);
}

static void on_writable(void)
{
	how = EPOLLIN | EPOLLOUT | EPOLLET;
	strand();
	CHECK(told(es, PATIENCE) == (EPOLLIN | EPOLLOUT));
}

static void on_gone(void)
{
	strand();
	CHECK(control(es, EPOLL_CTL_DEL, s, 0) == 0 && told(es, 0) == 0 && told(es, 20) == 0);
	CHECK(control(es, EPOLL_CTL_ADD, s, EPOLLIN) == 0 && told(es, PATIENCE) == EPOLLIN);
	CHECK(control(es, EPOLL_CTL_MOD, s, 0) == 0 && told(es, 0) == 0);
	CHECK(control(es, EPOLL_CTL_MOD, s, EPOLLIN) == 0 && told(es, PATIENCE) == EPOLLIN);
}

static void on_oneshot(void)
{
	strand();
	CHECK(control(es, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLONESHOT) == 0);
	CHECK(told(es, PATIENCE) == EPOLLIN && told(es, 0) == 0 && told(es, 20) == 0);
	CHECK(control(es, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLONESHOT) == 0);
	CHECK(told(es, PATIENCE) == EPOLLIN && told(es, 0) == 0);
}

static void on_poll(void)
{
	struct pollfd p = {.fd = s, .events = POLLIN};

	strand();
	p.fd = s;
	CHECK(poll(&p, 1, PATIENCE) == 1 && p.revents == POLLIN && ppoll(&p, 1, NULL, NULL) == 1 && p.revents == POLLIN);
	get(s);
	CHECK(poll(&p, 1, 0) == 0);
	put(c);
	CHECK(known(s));
	get(s);
	put(c);
	CHECK(known(s)); /* it may be polled again */
	CHECK(told(es, PATIENCE) == EPOLLIN);
}

static void on_select(void)
{
	struct timeval limit = {PATIENCE / 1000, 0};
	struct timespec spec = {PATIENCE / 1000, 0};
	fd_set in;

	strand();
	FD_ZERO(&in);
	FD_SET(s, &in);
	CHECK(select(s + 1, &in, NULL, NULL, &limit) == 1 && FD_ISSET(s, &in));
	CHECK(pselect(s + 1, &in, NULL, NULL, &spec, NULL) == 1 && FD_ISSET(s, &in));
	get(s);
	put(c);
	CHECK(known(s)); /* it may be selected again */
	get(s);
	limit = (struct timeval){0, 0};
	CHECK(select(s + 1, &in, NULL, NULL, &limit) == 0);
}

static void on_copy(void)
{
	int d;

	strand();
	d = dup(es);
	CHECK(close(es) == 0);
	CHECK(told(d, PATIENCE) == EPOLLIN);
	get(s);
	CHECK(told(d, 20) == 0);
	put(c);
	CHECK(told(d, PATIENCE) == EPOLLIN);
}

static void on_other(void)
{
	int other = epoll_create1(0), copy = fcntl(other, F_DUPFD, 100);

	strand();
	CHECK(control(copy, EPOLL_CTL_ADD, s, EPOLLIN) == 0);
	CHECK(told(copy, PATIENCE) == EPOLLIN && told(es, PATIENCE) == EPOLLIN);
	get(s);
	CHECK(told(copy, 20) == 0 && told(es, 20) == 0);
	put(c);
	CHECK(told(copy, PATIENCE) == EPOLLIN && told(es, PATIENCE) == EPOLLIN);
}

static void on_nested(void)
{
	int outer = epoll_create1(0);

	strand();
	CHECK(control(outer, EPOLL_CTL_ADD, es, EPOLLIN) == 0);
	CHECK(told_of(outer, es, PATIENCE) == EPOLLIN && told(es, PATIENCE) == EPOLLIN);
	get(s);
	CHECK(told_of(outer, es, 20) == 0);
	put(c);
	CHECK(told_of(outer, es, PATIENCE) == EPOLLIN);
}

/* on_nested_else has the outer instance tell of nothing, as the inner one waits for something else than bytes. */
static void on_nested_else(void)
{
	int outer = epoll_create1(0);

	strand();
	CHECK(control(es, EPOLL_CTL_MOD, s, EPOLLRDHUP) == 0);
	CHECK(control(outer, EPOLL_CTL_ADD, es, EPOLLIN) == 0);
	CHECK(told_of(outer, es, 0) == 0 && told_of(outer, es, 20) == 0 && told(es, 20) == 0);
	CHECK(close(c) == 0);
	CHECK(told_of(outer, es, PATIENCE) == EPOLLIN && (told(es, PATIENCE) & EPOLLRDHUP));
}

static void on_polled(void)
{
	struct pollfd p;

	strand();
	p = (struct pollfd){.fd = es, .events = POLLIN};
	CHECK(poll(&p, 1, PATIENCE) == 1 && p.revents == POLLIN);
	get(s);
	CHECK(poll(&p, 1, 20) == 0);
	put(c);
	CHECK(poll(&p, 1, PATIENCE) == 1 && p.revents == POLLIN);
}

static void on_fork(void)
{
	int status;
	pid_t pid;

	strand();
	pid = fork();
	if (pid == 0) {
		CHECK(told(es, PATIENCE) == EPOLLIN);
		get(s);
		CHECK(told(es, PATIENCE) == EPOLLIN); /* the parent has sent another byte meanwhile, or will */
		get(s);
		_exit(0);
	}
	usleep(50000);
	put(c);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void *waits(void *none)
{
	CHECK(told(es, PATIENCE) == EPOLLIN);
	return none;
}

static void *receives(void *none)
{
	char b;

	CHECK(fcntl(s, F_SETFL, 0) == 0 && recv(s, &b, 1, 0) == 1);
	return none;
}

static void *polls(void *none)
{
	struct pollfd p = {.fd = s, .events = POLLIN};

	CHECK(poll(&p, 1, PATIENCE) == 1);
	return none;
}

/* beside has another thread wait, before a byte comes, or with one of which the kernel does not know. */
static void beside(void *(*what)(void *))
{
	pthread_t thread;

	strand();
	CHECK(pthread_create(&thread, NULL, what, NULL) == 0 && pthread_join(thread, NULL) == 0);
	while (told(es, 0))
		read(s, &(char[9]){0}, 9);
	CHECK(pthread_create(&thread, NULL, what, NULL) == 0);
	usleep(50000);
	put(c);
	CHECK(pthread_join(thread, NULL) == 0);
}

static void on_thread(void)
{
	beside(waits);
}

static void on_receiver(void)
{
	beside(receives);
}

static void on_poller(void)
{
	beside(polls);
}

static void on_reset(void)
{
	char b;

	strand();
	CHECK(close(s) == 0);
	CHECK(told_of(ec, c, PATIENCE) & EPOLLIN);
	CHECK(read(c, &b, 1) == -1 && errno == ECONNRESET);
	CHECK(read(c, &b, 1) == 0);
}

/* on_shut closes with bytes unread after it has shut receiving down. */
static void on_shut(void)
{
	char b;

	strand();
	CHECK(shutdown(s, SHUT_RD) == 0 && close(s) == 0);
	CHECK(told_of(ec, c, PATIENCE) & EPOLLIN);
	CHECK(read(c, &b, 1) == -1 && errno == ECONNRESET);
}

/* on_passed passes the descriptor on, when a process that was forked has closed what it has of it. */
static void on_passed(void)
{
	int way[2], status;
	char data, control_data[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec one = {&data, 1};
	struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control_data, .msg_controllen = sizeof(control_data)};
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	pid_t pid;

	strand();
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, way) == 0);
	pid = fork();
	if (pid == 0) {
		close(way[0]);
		close(c);
		close(s);
		CHECK(write(way[1], "c", 1) == 1 && recvmsg(way[1], &m, 0) == 1);
		s = *(int *)(void *)CMSG_DATA(h);
		await(s, POLLIN);
		get(s);
		_exit(0);
	}
	CHECK(read(way[0], &data, 1) == 1);
	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof(int));
	*(int *)(void *)CMSG_DATA(h) = s;
	CHECK(sendmsg(way[0], &m, 0) == 1);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void on_exec(void)
{
	int out[2], status;
	char b[9];
	pid_t pid;

	strand();
	CHECK(pipe(out) == 0);
	pid = fork();
	if (pid == 0) {
		CHECK(dup2(s, 0) == 0 && fcntl(0, F_SETFL, 0) == 0 && dup2(out[1], 1) == 1);
		execlp("head", "head", "-c", "1", NULL);
		_exit(1);
	}
	close(s);
	close(out[1]);
	CHECK(read(out[0], b, sizeof(b)) == 1 && b[0] == 'x');
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void caught(int sig)
{
	(void)sig;
}

/* struck waits until a signal ends that. If something has come right before, it is told of that, as by the kernel. */
static void struck(void)
{
	struct pollfd p[2] = {{.fd = s, .events = POLLIN}, {.fd = arrival[0], .events = POLLIN}};
	struct epoll_event ev;
	int looks = strike, n = polling ? poll(p, 2, -1) : epoll_wait(es, &ev, 1, -1);

	if (looks && strike == 0 && arrival[0] >= 0)
		CHECK(n == 1 && (polling ? p[1].revents == POLLIN : ev.data.u64 == (uint64_t)arrival[0]));
	else
		CHECK(n == -1 && errno == EINTR);
}

static void on_signal(void)
{
	struct itimerval soon = {.it_value = {0, 30000}};
	struct sigaction a = {.sa_handler = caught, .sa_flags = SA_RESTART};

	begin();
	CHECK(sigaction(SIGALRM, &a, NULL) == 0 && setitimer(ITIMER_REAL, &soon, NULL) == 0);
	struck();
}

static volatile sig_atomic_t late;

static void caught_late(int sig)
{
	(void)sig;
	late++;
}

/* elsewhere has this thread go on on another processor than where it has written. */
static void elsewhere(void)
{
	static cpu_set_t all;
	int now = sched_getcpu();
	cpu_set_t other;

	if (CPU_COUNT(&all) == 0)
		CHECK(sched_getaffinity(0, sizeof(all), &all) == 0);
	for (int i = 0; i < CPU_SETSIZE; i++) {
		CPU_ZERO(&other);
		CPU_SET(i, &other);
		if (i != now && CPU_ISSET(i, &all) && sched_setaffinity(0, sizeof(other), &other) == 0)
			return;
	}
}

#define TRIES 20

static struct strikes {
	int looks, flags; /* at which look at the clock the signal comes, and how it is handled */
	bool arrives;	  /* something else comes with it */
	int done, missed; /* waits in which it came, and that it did not end */
} strikes;

/* try_strike has a signal come while a wait looks. If none does, as TCP does not look, or the look was over before, another one ends the wait. */
static void *try_strike(void *none)
{
	struct itimerval soon = {.it_value = {0, 500000}};
	struct sigaction a = {.sa_handler = caught, .sa_flags = SA_RESTART | strikes.flags}, b = {.sa_handler = caught_late};
	static char memory[64 << 10];
	stack_t own = {.ss_sp = memory, .ss_size = sizeof(memory)}, was;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	CHECK(sigaction(SIGUSR1, &a, NULL) == 0 && sigaction(SIGALRM, &b, NULL) == 0 && pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
	CHECK(!(strikes.flags & SA_ONSTACK) || sigaltstack(&own, &was) == 0);
	begin();
	if (strikes.arrives)
		CHECK(pipe(arrival) == 0 && (polling || control(es, EPOLL_CTL_ADD, arrival[0], EPOLLIN) == 0));
	elsewhere();
	CHECK(told(es, 20) == 0); /* the first look of a program finds out more */
	put(c);
	CHECK(told(es, PATIENCE) & EPOLLIN);
	get(s);
	elsewhere();
	strike = strikes.looks;
	late = 0;
	CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
	struck();
	strikes.done += strike == 0;
	strikes.missed += strike == 0 && late != 0;
	strike = 0;
	CHECK(setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL) == 0);
	CHECK(!(strikes.flags & SA_ONSTACK) || sigaltstack(&was, NULL) == 0); /* a sanitizer unmaps the one that it finds at the thread's end */
	close(c);
	close(s);
	close(arrival[0]);
	close(arrival[1]);
	arrival[0] = arrival[1] = -1;
	return none;
}

/* strikes_at tries it in threads of their own, which have not found out yet that it does not pay to look. */
static void strikes_at(int looks, int flags)
{
	pthread_t thread;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
	strikes.looks = looks;
	strikes.flags = flags;
	for (int i = 0; i < (moved() ? TRIES : 2) && strikes.done < 2; i++)
		CHECK(pthread_create(&thread, NULL, try_strike, NULL) == 0 && pthread_join(thread, NULL) == 0);
	CHECK(strikes.done == 0 || strikes.missed < strikes.done);
}

#define LATER 30 /* looks at the clock, after which signals are kept out where it is not seen whether handlers have run */
#if defined(__x86_64__)
#define EARLY 2
#else
#define EARLY LATER
#endif

static void on_struck(void)
{
	strikes_at(getenv("ASAN_OPTIONS") ? LATER : EARLY, 0); /* sanitizers take as much of the stack as they like */
}

/* on_apart is the same with a handler that has a stack of its own. */
static void on_apart(void)
{
	strikes_at(LATER, SA_ONSTACK);
}

/* on_arrived is on_struck where something else has come by then. */
static void on_arrived(void)
{
	strikes.arrives = true;
	on_struck();
}

/* on_turning has the program turn to writing, with bytes to read of which the kernel knows, and does not know. */
static void on_turning(void)
{
	begin();
	CHECK(told(es, 20) == 0);
	put(c);
	CHECK(known(s));
	CHECK(control(es, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLOUT) == 0 && told(es, PATIENCE) == (EPOLLIN | EPOLLOUT));
	CHECK(control(es, EPOLL_CTL_MOD, s, EPOLLIN) == 0 && told(es, PATIENCE) == EPOLLIN);
	get(s);
	put(c);
	CHECK(moved() ? hidden(s) : known(s));
	for (int i = 0; i < 10; i++) {
		CHECK(control(es, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLOUT) == 0 && told(es, PATIENCE) == (EPOLLIN | EPOLLOUT));
		CHECK(control(es, EPOLL_CTL_MOD, s, EPOLLOUT) == 0 && told(es, PATIENCE) == EPOLLOUT);
		CHECK(control(es, EPOLL_CTL_MOD, s, EPOLLIN) == 0 && told(es, PATIENCE) == EPOLLIN);
	}
	CHECK(close(c) == 0);
	CHECK(control(es, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLOUT) == 0);
	while (!(told(es, PATIENCE) & EPOLLIN)) /* which is there still */
		;
	get(s);
	CHECK(read(s, &(char){0}, 1) == 0);
}

/* on_beside has a pipe be told of beside a ring in which there is always something. */
static void on_beside(void)
{
	struct pollfd p[3] = {{.events = POLLIN}, {.events = POLLIN}, {.fd = -1, .events = POLLIN}};
	int ends[2];

	begin();
	CHECK(pipe(ends) == 0);
	p[0].fd = s;
	p[1].fd = ends[0];
	put(c);
	for (int i = 0; i < 1000; i++)
		CHECK(poll(p, 3, PATIENCE) == 1 && p[0].revents == POLLIN && p[1].revents == 0 && p[2].revents == 0);
	put(ends[1]);
	while (poll(p, 3, PATIENCE) == 1)
		CHECK(p[0].revents == POLLIN);
	CHECK(p[0].revents == POLLIN && p[1].revents == POLLIN && p[2].revents == 0);
}

/* on_instance has an epoll instance get a descriptor that was polled. */
static void on_instance(void)
{
	strand();
	polling = false;
	es = epoll_create1(0);
	CHECK(control(es, EPOLL_CTL_ADD, s, EPOLLIN) == 0 && told(es, PATIENCE) == EPOLLIN);
	get(s);
	put(c);
	CHECK(known(s)); /* it may be polled again */
	CHECK(told(es, PATIENCE) == EPOLLIN);
	get(s);
	CHECK(told(es, 20) == 0);
	put(c);
	CHECK(told(es, PATIENCE) == EPOLLIN);
}

/* on_parent has another process that may poll a descriptor. */
static void on_parent(void)
{
	int status;
	pid_t pid;

	begin();
	pid = fork();
	if (pid == 0)
		for (;;)
			pause();
	CHECK(told(es, 0) == 0);
	put(c);
	CHECK(known(s));
	get(s);
	put(c);
	CHECK(known(s));
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
}

static void *glances(void *none)
{
	struct pollfd p = {.fd = s, .events = POLLIN};

	CHECK(poll(&p, 1, 0) == 0);
	return none;
}

/* on_company has another thread poll a descriptor, which it may do again. */
static void on_company(void)
{
	pthread_t thread;

	begin();
	CHECK(pthread_create(&thread, NULL, glances, NULL) == 0 && pthread_join(thread, NULL) == 0);
	put(c);
	CHECK(known(s));
	get(s);
	put(c);
	CHECK(known(s));
}

#define MANY 300 /* connections, with four rings each, as both ends are here */
#define FEW 128 /* rings that may stay */
#define PART 50000

static int many_c[MANY], many_s[MANY];

/* large says whether this process has a ring for much. */
static bool large(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	unsigned long from, to;
	char line[512];
	bool is = false;

	while (fgets(line, sizeof(line), f))
		is |= strstr(line, "gosmc-ring") && sscanf(line, "%lx-%lx", &from, &to) == 2 && to - from > 1 << 20;
	fclose(f);
	return is;
}

/* carry sends so many bytes, and receives them. */
static void carry(int from, int to, int bytes)
{
	static unsigned char out[PART], in[PART];

	for (int sent = 0, taken = 0; taken < bytes;) {
		int part = bytes - sent < PART ? bytes - sent : PART;
		ssize_t n;

		for (int i = 0; i < part; i++)
			out[i] = (unsigned char)((sent + i) * 7 + (sent + i) / 251);
		n = part ? send(from, out, (size_t)part, MSG_DONTWAIT) : 0;
		CHECK(n >= 0 || errno == EAGAIN);
		sent += n > 0 ? (int)n : 0;
		n = recv(to, in, sizeof(in), MSG_DONTWAIT);
		CHECK(n > 0 || (n < 0 && errno == EAGAIN));
		for (int i = 0; i < n; i++)
			CHECK(in[i] == (unsigned char)((taken + i) * 7 + (taken + i) / 251));
		taken += n > 0 ? (int)n : 0;
	}
}

/* many has so many connections of event loops talk. */
static void many(void)
{
	struct rlimit most;

	CHECK(getrlimit(RLIMIT_NOFILE, &most) == 0);
	most.rlim_cur = most.rlim_max;
	CHECK(setrlimit(RLIMIT_NOFILE, &most) == 0 && most.rlim_max >= 3 * MANY);
	ec = epoll_create1(0);
	es = epoll_create1(0);
	for (int i = 0; i < MANY; i++) {
		both();
		many_c[i] = c;
		many_s[i] = s;
		CHECK(control(ec, EPOLL_CTL_ADD, c, EPOLLIN) == 0 && control(es, EPOLL_CTL_ADD, s, how) == 0);
		talk(TURNS);
	}
}

/* on_many has much go over a connection that comes after many. */
static void on_many(void)
{
	many();
	both();
	carry(c, s, 4 << 20);
	CHECK(large() == moved());
}

/* on_resting has many be quiet, and go on. */
static void on_resting(void)
{
	struct epoll_event ev;
	int rested;
	bool all;

	many();
	CHECK(mapped_rings() > 0 || !moved());
	/* On a busy machine the first ones are quiet before the last ones talk, and leave so many rings that these stay. */
	for (int i = 0; mapped_rings() > FEW; i++)
		CHECK(i < PATIENCE / 1500 && epoll_wait(i % 2 ? es : ec, &ev, 1, 1500) == 0);
	rested = mapped_rings();
	all = rested < 8;
	for (int i = 0; i < MANY; i++) {
		c = many_c[i];
		s = many_s[i];
		put(c);
		CHECK(!all || known(s)); /* it is in-band */
		CHECK(told(es, PATIENCE) == EPOLLIN);
		get(s);
		talk(3);
		CHECK(i || mapped_rings() <= rested); /* and stays so until it has been used for a while */
		talk(TURNS);
		put(c);
		CHECK(!moved() || hidden(s));
		CHECK(told(es, PATIENCE) == EPOLLIN);
		get(s);
		if (i % 10 == 0) {
			carry(c, s, 3 * PART);
			carry(s, c, 3 * PART);
		}
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {
		{"again", on_again}, {"edge", on_edge}, {"edge-again", on_edge_again}, {"writable", on_writable}, {"gone", on_gone}, {"oneshot", on_oneshot},
		{"poll", on_poll}, {"select", on_select}, {"copy", on_copy}, {"other", on_other}, {"nested", on_nested}, {"nested-else", on_nested_else}, {"polled", on_polled},
		{"fork", on_fork}, {"thread", on_thread}, {"receiver", on_receiver}, {"poller", on_poller}, {"reset", on_reset}, {"shut", on_shut}, {"passed", on_passed}, {"exec", on_exec},
		{"signal", on_signal}, {"struck", on_struck}, {"apart", on_apart}, {"arrived", on_arrived}, {"turning", on_turning}, {"beside", on_beside}, {"instance", on_instance}, {"company", on_company}, {"parent", on_parent}, {"many", on_many}, {"resting", on_resting},
	};

	polling = argc > 1 && strncmp(argv[1], "poll-", 5) == 0;
	for (size_t i = 0; argc > 1 && i < sizeof(cases) / sizeof(*cases); i++)
		if (strcmp(cases[i].name, argv[1] + (polling ? 5 : 0)) == 0) {
			cases[i].run();
			return 0;
		}
	return 2;
}
