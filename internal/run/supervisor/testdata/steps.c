/*
 * A signal that comes after each instruction of a call on a connection in turn, as a tracer has it: its handler leaves the call by siglongjmp, uses the connection itself, or forks.
 * steps CASE: the call, and, for handlers that return, their stack. Bytes that a call had read when it was left are lost, as with TCP, and
 * it may have sent any part; nothing else is lost, nothing comes twice, and poll reports the bytes that are there.
 */
#include "program.h"

#include <alloca.h>
#include <dirent.h>
#include <setjmp.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <ucontext.h>

#define SURE 32	   /* bytes that cannot be alike by chance */
#define SOME 100   /* of a call */
#define LARGE (4u << 20)
#define STREAK 16  /* sends after which a ring is offered */

static struct {
	long steps; /* after which the signal comes */
	bool came;  /* before the call was over */
} *plan;

static int a, b; /* the two ends: a writes, b reads */
static int empty[2]; /* a pipe */
static sigjmp_buf back;
static unsigned long seed = 1;
static bool shows;
static size_t filled, taken; /* bytes that a has written, and that b has read of them, in states that say so */
static unsigned char buf[LARGE], got[LARGE], first[SOME], second[SOME], sure[SURE];

/* random_bytes makes bytes of a kind, so that none is taken for one of another kind. */
static void random_bytes(unsigned char *p, size_t n, unsigned kind)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (unsigned char)(kind << 6 | random_of(&seed, 64));
}

/* The tracer. */

static int trace(pid_t child)
{
	int status;

	for (;;) {
		int sig;

		CHECK(waitpid(child, &status, 0) == child);
		if (!WIFSTOPPED(status))
			return status;
		sig = WSTOPSIG(status);
		if (sig == SIGUSR1) {
			plan->came = true;
			for (long i = 0; i < plan->steps && plan->came; i++) {
				CHECK(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0 && waitpid(child, &status, 0) == child && WIFSTOPPED(status));
				if (WSTOPSIG(status) == SIGUSR2)
					plan->came = false;
			}
			sig = plan->came ? SIGALRM : 0;
		} else if (sig == SIGUSR2 || sig == SIGSTOP) {
			sig = 0;
		}
		CHECK(ptrace(PTRACE_CONT, child, NULL, (void *)(long)sig) == 0);
	}
}

/* stepped makes a call and has the signal come after so many instructions. It is false if the call was over before. */
static bool stepped(long steps, void (*call)(void))
{
	plan->steps = steps;
	if (sigsetjmp(back, 1) == 0) {
		kill(getpid(), SIGUSR1);
		call();
		kill(getpid(), SIGUSR2);
	}
	return plan->came;
}

static void jump(int sig)
{
	(void)sig;
	siglongjmp(back, 1);
}

/* States of a connection. */

static void anew(void)
{
	if (a > 0) {
		close(a);
		close(b);
	}
	both_ends(&a, &b);
	CHECK(fcntl(a, F_SETFL, O_NONBLOCK) == 0 && fcntl(b, F_SETFL, O_NONBLOCK) == 0);
}

static void exchange(size_t n)
{
	CHECK(write(a, buf, n) == (ssize_t)n);
	for (size_t have = 0; have < n;) {
		ssize_t r;

		await(b, POLLIN);
		r = read(b, got, n - have);
		CHECK(r > 0);
		have += (size_t)r;
	}
}

/* about_to_offer has the next write come with a ring. */
static void about_to_offer(void)
{
	anew();
	for (int i = 1; i < STREAK; i++)
		exchange(SOME);
}

static void offered(void)
{
	about_to_offer();
	CHECK(write(a, buf, SOME) == SOME);
}

/* about_to_join has the next write go over to the ring. */
static void about_to_join(void)
{
	about_to_offer();
	exchange(SOME);
}

static void marked(void)
{
	about_to_join();
	CHECK(write(a, buf, SOME) == SOME);
}

static void joined(void)
{
	about_to_join();
	exchange(SOME);
	exchange(SOME);
}

static void has_some(void)
{
	if (a == 0 || random_of(&seed, 16) == 0)
		joined();
	CHECK(write(a, buf, SOME) == SOME);
}

static void has_none(void)
{
	if (a == 0 || random_of(&seed, 16) == 0)
		joined();
}

/* full has the writer wait. */
static size_t full(void)
{
	size_t filled = 0;
	ssize_t n;

	has_none();
	while ((n = write(a, buf + filled, 65536)) > 0)
		filled += (size_t)n;
	CHECK(errno == EAGAIN && filled <= LARGE - 65536);
	return filled;
}

static void takes(size_t n)
{
	for (ssize_t r; n > 0; n -= (size_t)r) {
		await(b, POLLIN);
		CHECK((r = read(b, got, n)) > 0);
	}
}

/* nearly_full has some room for the next write, and not enough. */
static void nearly_full(void)
{
	filled = full();
	taken = SOME / 2;
	takes(taken);
}

/* nearly_half has the writer wait until the next read. */
static void nearly_half(void)
{
	filled = full();
	taken = filled / 2 - SOME / 5;
	takes(taken);
}

static void all_full(void)
{
	filled = full();
	taken = 0;
}

/* Calls. */

static void writes(void)
{
	(void)!write(a, first, SOME);
}

static void writes_again(void)
{
	(void)!write(a, second, SOME);
}

static void reads_all(void)
{
	(void)!read(b, got, sizeof(got));
}

static void reads_part(void)
{
	(void)!read(b, got, SOME / 3);
}

/* takes_all reads all at once, and copies nothing, which would be a million steps. */
static void takes_all(void)
{
	(void)!recv(b, got, sizeof(got), MSG_TRUNC);
}

static void leaves_out(void)
{
	(void)!splice(empty[0], NULL, a, NULL, 1, SPLICE_F_NONBLOCK);
}

static void leaves_in(void)
{
	(void)!splice(b, NULL, empty[1], NULL, 1, SPLICE_F_NONBLOCK);
}

enum { NOTHING, LAST, FILLED };

static unsigned apart = 1; /* how much further than it could be from one place to the next */

static const struct kind {
	const char *name;
	void (*state)(void);
	void (*call)(void);
	bool out;
	bool fresh; /* the state is one of a new connection */
	int there;  /* to be read before the call: nothing, the bytes written last, or the bytes written and not taken */
	unsigned stride;
} cases[] = {
	{"write", has_none, writes, true, false, NOTHING, 5},
	{"write-more", has_some, writes, true, false, LAST, 7},
	{"write-full", nearly_full, writes, true, false, FILLED, 4},
	{"offer", about_to_offer, writes, true, true, NOTHING, 48},
	{"join", about_to_join, writes, true, true, NOTHING, 48},
	{"leave-out", joined, leaves_out, true, true, NOTHING, 3},
	{"read", has_some, reads_all, false, false, LAST, 5},
	{"read-part", has_some, reads_part, false, false, LAST, 7},
	{"read-half", nearly_half, reads_part, false, false, FILLED, 4},
	{"read-full", all_full, takes_all, false, false, FILLED, 8},
	{"attach", offered, reads_all, false, true, LAST, 48},
	{"mark", marked, reads_all, false, true, LAST, 6},
	{"leave-in", joined, leaves_in, false, true, NOTHING, 3},
};

static int descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* rest reads up to the bytes of sure, which only the end has, and returns how much came before. */
static size_t rest(void)
{
	size_t have = 0;

	random_bytes(sure, SURE, 3);
	for (bool sent = false; have < SURE || memcmp(got + have - SURE, sure, SURE) != 0 || !sent;) {
		struct pollfd p[2] = {{.fd = a, .events = sent ? 0 : POLLOUT}, {.fd = b, .events = POLLIN}};
		ssize_t n;

		CHECK(poll(p, 2, PATIENCE) > 0);
		if (p[0].revents & POLLOUT) {
			n = write(a, sure, SURE);
			CHECK(n == SURE || (n < 0 && errno == EAGAIN));
			sent = n == SURE;
		}
		if (p[1].revents & POLLIN) {
			n = read(b, got + have, sizeof(got) - have);
			CHECK(n > 0);
			have += (size_t)n;
		}
	}
	return have - SURE;
}

static size_t common(const unsigned char *p, const unsigned char *q, size_t n)
{
	size_t i = 0;

	while (i < n && p[i] == q[i])
		i++;
	return i;
}

/* checks looks at the result of a call that was left, and of another one, after so many bytes from a place. */
static void checks(bool out, const unsigned char *from, size_t before)
{
	struct pollfd p = {.fd = b, .events = POLLIN};
	size_t n = rest(), at, more;

	if (out) {
		CHECK(n >= before && memcmp(got, from, before) == 0);
		at = before + common(got + before, first, n - before < SOME ? n - before : SOME);
		more = common(got + at, second, n - at < SOME ? n - at : SOME);
		CHECK(at + more == n);
	} else {
		CHECK(n <= before && memcmp(got, from + before - n, n) == 0);
	}
	CHECK(read(b, got, 1) == -1 && errno == EAGAIN && poll(&p, 1, 0) == 0);
}

/* deeply is checks with a part of the stack in between that nobody writes to. */
static void __attribute__((noinline)) deeply(bool out, const unsigned char *from, size_t before)
{
	volatile char *gap = alloca(2000 + random_of(&seed, 20000));

	gap[0] = 0; /* or there would be none */
	checks(out, from, before);
}

/* has_room sees to it that a writer which has waited is told of room, if there is any: by whatever comes next. */
static void has_room(void)
{
	struct pollfd p = {.fd = b, .events = POLLIN};
	int n;

	poll(&p, 1, 0);
	CHECK(ioctl(b, FIONREAD, &n) == 0);
	if ((size_t)n <= filled / 2)
		await(a, POLLOUT);
}

static void leave(const struct kind *c)
{
	long k = 0, rounds = 0, left = 0, bare = 0;

	for (bool more = true; more; k += 1 + random_of(&seed, 2 * apart * c->stride - 1), rounds++) {
		size_t before = 0;
		int have, rings;

		if (c->fresh && a > 0) {
			close(a);
			close(b);
			a = 0;
		}
		have = descriptors();
		rings = mapped_rings();
		c->state();
		if (c->there == LAST)
			before = SOME;
		else if (c->there == FILLED)
			before = filled - taken;
		random_bytes(first, SOME, 1);
		random_bytes(second, SOME, 2);
		more = stepped(k, c->call);
		if (c->state == nearly_half || c->state == all_full)
			has_room();
		if (random_of(&seed, 4) == 0) /* the next one is left as well */
			stepped(random_of(&seed, 1500), c->out ? writes_again : reads_part);
		(random_of(&seed, 2) ? checks : deeply)(c->out, buf + (c->there == FILLED ? taken : 0), before);
		if (c->fresh && c->call == writes) { /* it is as fit as before */
			for (int i = 0; i < 2 * STREAK; i++)
				exchange(SOME);
			bare += mapped_rings() == rings;
		}
		if (c->fresh) {
			close(a);
			close(b);
			a = 0;
		}
		left += descriptors() - have;
		CHECK(c->state != about_to_offer || dup(empty[0]) >= 0); /* others get other numbers, as its counts may stay */
	}
	if (shows)
		printf("%s: %ld rounds, %ld steps, %ld descriptors left, %ld without a ring\n", c->name, rounds, k, left, bare);
	CHECK(c->state != about_to_join || left < 8); /* one between two instructions is lost */
	CHECK(!getenv("RINGS") || bare <= rounds / 5); /* the same with counts between two */
}

/* Handlers that return. */

static uint64_t sent_sum, sent_count, read_sum, read_count;

static void add(uint64_t *sum, uint64_t *count, const unsigned char *p, ssize_t n)
{
	CHECK(n >= 0 || errno == EAGAIN);
	for (ssize_t i = 0; i < n; i++) {
		++*count;
		*sum += p[i];
	}
}

/* The calls that are interrupted: their results are counted afterwards. */
static unsigned char into[SOME];
static ssize_t result;
static int error;

static void plain_write(void)
{
	result = write(a, first, SOME);
	error = errno;
}

static void plain_read(void)
{
	result = read(b, into, SOME / 2);
	error = errno;
}

static void count(bool out)
{
	errno = error;
	if (out)
		add(&sent_sum, &sent_count, first, result);
	else
		add(&read_sum, &read_count, into, result);
}

static bool used_out;
static ucontext_t interrupted, other;

static void both(void)
{
	static unsigned char to[SOME];

	if (used_out)
		add(&sent_sum, &sent_count, second, send(a, second, SOME / 2, MSG_DONTWAIT));
	else
		add(&read_sum, &read_count, to, recv(b, to, SOME / 2, MSG_DONTWAIT));
}

static void uses(int sig)
{
	(void)sig;
	both();
}

static void other_stack(void)
{
	for (;;) {
		both();
		CHECK(swapcontext(&other, &interrupted) == 0);
	}
}

static void switches(int sig)
{
	(void)sig;
	CHECK(swapcontext(&interrupted, &other) == 0);
}

static void use(void)
{
	static unsigned char to[4096];
	long k = 0;

	for (bool more = true; more; k += 1 + random_of(&seed, 4 * apart - 1)) {
		struct pollfd p = {.events = POLLIN};

		used_out = random_of(&seed, 2);
		random_bytes(first, SOME, 1);
		random_bytes(second, SOME, 2);
		has_none();
		p.fd = b;
		sent_sum = sent_count = read_sum = read_count = 0;
		if (random_of(&seed, 2)) {
			plain_write();
			count(true);
		}
		more = stepped(k, used_out ? plain_write : plain_read);
		count(used_out);
		while (read_count < sent_count) {
			await(b, POLLIN);
			add(&read_sum, &read_count, to, read(b, to, sizeof(to)));
		}
		CHECK(read_count == sent_count && read_sum == sent_sum && read(b, to, 1) == -1 && poll(&p, 1, 0) == 0);
		more |= k < 200; /* where nothing was there to read it is short */
	}
	if (shows)
		printf("%ld steps\n", k);
}

/* Event loops, whose epoll_wait looks into the rings of both ends. */

#define TALK 200 /* turns until it does */

static int loop_a, loop_b; /* the instances */

static int control(int op, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.fd = b};

	return epoll_ctl(loop_b, op, b, &ev);
}

/* has waits until an instance tells of its one descriptor, which is to have a byte then. */
static void has(int loop, int fd)
{
	struct epoll_event ev;

	CHECK(epoll_wait(loop, &ev, 1, PATIENCE) == 1 && (ev.events & EPOLLIN) && ev.data.fd == fd);
	CHECK(read(fd, got, 2) == 1);
}

static void loops(void)
{
	struct epoll_event ev = {.events = EPOLLIN};

	if (a > 0) {
		close(loop_a);
		close(loop_b);
	}
	anew();
	loop_a = epoll_create1(0);
	loop_b = epoll_create1(0);
	ev.data.fd = a;
	CHECK(control(EPOLL_CTL_ADD, EPOLLIN) == 0 && epoll_ctl(loop_a, EPOLL_CTL_ADD, a, &ev) == 0);
	for (int i = 0; i < TALK; i++) {
		CHECK(write(a, buf, 1) == 1);
		has(loop_b, b);
		CHECK(write(b, buf, 1) == 1);
		has(loop_a, a);
	}
}

static void loop_waits(void)
{
	struct epoll_event ev;

	(void)!epoll_wait(loop_b, &ev, 1, 0);
}

static void loop_turns(void)
{
	(void)!control(EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
	loop_waits();
}

/* forks has a process that was forked in the middle of a call close what it has. */
static void forks(int sig)
{
	int status;
	pid_t pid = fork();

	(void)sig;
	if (pid == 0) {
		alarm(PATIENCE / 1000);
		signal(SIGALRM, SIG_DFL);
		close(a);
		close(b);
		close(loop_a);
		close(loop_b);
		_exit(0);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

/* loop has epoll_wait tell of a byte when a call was left, or a process forked in it. */
static void loop(const char *what)
{
	bool turns = strcmp(what, "loop-turns") == 0, forking = strcmp(what, "loop-forks") == 0;
	long k = 0, rounds = 0;

	if (forking)
		signal(SIGALRM, forks);
	for (bool more = true; more; k += 1 + random_of(&seed, (turns ? 16 : 4) * apart - 1), rounds++) {
		if (forking || rounds % 16 == 0)
			loops();
		CHECK(write(a, buf, 1) == 1);
		more = stepped(k, turns ? loop_turns : loop_waits);
		if (turns)
			CHECK(control(EPOLL_CTL_MOD, EPOLLIN) == 0);
		has(loop_b, b);
	}
	if (shows)
		printf("%s: %ld rounds, %ld steps\n", what, rounds, k);
}

/* on_one_cpu keeps the tracer and the traced process on one processor: a step between two takes ten times as long. */
static void on_one_cpu(void)
{
	cpu_set_t all, one;

	CHECK(sched_getaffinity(0, sizeof(all), &all) == 0);
	CPU_ZERO(&one);
	for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
		if (CPU_ISSET(i, &all))
			CPU_SET(i, &one);
	CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
}

static void run(const char *what)
{
	unsigned char above[65536]; /* than any call's frame */
	static unsigned char below[65536], third[65536];
	stack_t stack = {.ss_size = sizeof(above)};
	struct sigaction action = {.sa_handler = uses};

	random_bytes(buf, sizeof(buf), 0);
	CHECK(pipe2(empty, O_NONBLOCK) == 0);
	if (strcmp(what, "use-nodefer") == 0) {
		action.sa_flags = SA_NODEFER;
	} else if (strcmp(what, "use-above") == 0 || strcmp(what, "use-below") == 0) {
		action.sa_flags = SA_ONSTACK;
		stack.ss_sp = strcmp(what, "use-above") ? below : above;
		CHECK(sigaltstack(&stack, NULL) == 0);
	} else if (strcmp(what, "use-third") == 0) {
		action.sa_handler = switches;
		CHECK(getcontext(&other) == 0);
		other.uc_stack = (stack_t){.ss_sp = third, .ss_size = sizeof(third)};
		makecontext(&other, other_stack, 0);
	} else if (strcmp(what, "use") != 0) {
		action.sa_handler = jump;
	}
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	if (strncmp(what, "use", 3) == 0) {
		use();
		return;
	}
	if (strncmp(what, "loop", 4) == 0) {
		loop(what);
		return;
	}
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (strcmp(what, cases[i].name) == 0) {
			leave(&cases[i]);
			return;
		}
	CHECK(!"a case");
}

int main(int argc, char **argv)
{
	pid_t child;

	CHECK(argc > 1);
	shows = getenv("SAY");
	if (getenv("APART"))
		apart = (unsigned)atoi(getenv("APART"));
	CHECK(apart > 0);
	plan = mmap(NULL, sizeof(*plan), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(plan != MAP_FAILED);
	on_one_cpu();
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
		run(argv[1]);
		fflush(stdout);
		_exit(0);
	}
	return trace(child) != 0;
}
