/*
 * Handlers of signals that leave a call on a connection by siglongjmp, or use the connection themselves: jumps CASE SEED, with JUMPS in the environment. Bytes that a
 * call had read when it was left are lost, as with TCP; nothing else is, nothing comes twice, and poll reports the bytes that are there.
 */
#include "program.h"

#include <alloca.h>
#include <setjmp.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/time.h>

#define MOST (40u << 10) /* of one call */
#define SURE 32		 /* bytes that cannot be alike by chance */
#define JUMPS 100000
#define QUIET 300	 /* calls, before signals come */

static unsigned long seed;
static sigjmp_buf back;
static volatile sig_atomic_t armed;
static volatile unsigned long signals;
static int had_rings;
static unsigned char buf[MOST], other[MOST];

/* The record of the writer, for the reader. */
static struct log {
	uint64_t total;
	uint64_t done[JUMPS]; /* bytes of the epoch that writes have returned */
	uint64_t more[JUMPS]; /* that a write may have sent which was left */
} *notes;

/* byte_at is the byte of a stream that has its place only there. */
static unsigned char byte_at(uint64_t epoch, uint64_t at)
{
	uint64_t x = (epoch << 40 ^ at) + 0x9e3779b97f4a7c15ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return (unsigned char)(x ^ x >> 31);
}

static void fill(unsigned char *b, size_t n, uint64_t epoch, uint64_t at)
{
	for (size_t i = 0; i < n; i++)
		b[i] = byte_at(epoch, at + i);
}

static bool is(const unsigned char *b, size_t n, uint64_t epoch, uint64_t at)
{
	for (size_t i = 0; i < n; i++)
		if (b[i] != byte_at(epoch, at + i))
			return false;
	return true;
}

static void jump(int sig)
{
	(void)sig;
	signals++;
	if (armed) {
		armed = 0;
		siglongjmp(back, 1);
	}
}

static void on_alarm(void (*handler)(int), int flags)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = flags};

	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
}

static void timer(unsigned microseconds)
{
	struct itimerval t = {.it_value.tv_usec = microseconds};

	CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
}

static unsigned size(void)
{
	static const unsigned most[] = {10, 300, 5000, MOST - SURE};

	return SURE + random_of(&seed, most[random_of(&seed, 4)]);
}

static ssize_t receive(int fd, void *b, size_t n)
{
	struct iovec parts[2] = {{b, n / 2}, {(char *)b + n / 2, n - n / 2}};

	switch (random_of(&seed, 4)) {
	case 0:
		return recv(fd, b, n, MSG_WAITALL);
	case 1:
		return readv(fd, parts, 2);
	default:
		return read(fd, b, n);
	}
}

/* all reads so many bytes, or up to the end. Each has to be said to be there. */
static size_t all(int fd, unsigned char *b, size_t n)
{
	size_t have = 0;

	while (have < n) {
		ssize_t r;

		await(fd, POLLIN);
		r = read(fd, b + have, n - have);
		CHECK(r >= 0);
		if (r == 0)
			break;
		have += (size_t)r;
	}
	return have;
}

/* deeply calls with a part of the stack in between that nobody writes to. */
static size_t __attribute__((noinline)) deeply(int fd, unsigned char *b, size_t n)
{
	volatile char *gap = alloca(1000 + random_of(&seed, 200000));

	gap[0] = 0; /* or there would be none */
	return all(fd, b, n);
}

/* writes sends the stream until it is told to stop. */
static void writes(int fd)
{
	uint64_t at = 0;
	struct pollfd p = {.fd = fd, .events = POLLIN};

	while (poll(&p, 1, 0) == 0) {
		unsigned n = size();

		fill(buf, n, 0, at);
		CHECK(write(fd, buf, n) == (ssize_t)n);
		at += n;
		if (random_of(&seed, 4) == 0)
			for (volatile unsigned i = random_of(&seed, 40000); i > 0; i--)
				;
	}
	notes->total = at;
	CHECK(close(fd) == 0);
}

/* leaves_reads leaves reads of a stream. */
static void leaves_reads(int fd, int jumps, bool deep)
{
	static uint64_t at; /* not in a register when a handler jumps */
	static unsigned asked;
	static int jumped;

	for (int i = 0; i < QUIET; i++) {
		ssize_t n = read(fd, buf, sizeof(buf));

		CHECK(n > 0 && is(buf, (size_t)n, 0, at));
		at += (uint64_t)n;
	}
	had_rings = mapped_rings();

	while (jumped < jumps) {
		asked = size();
		if (sigsetjmp(back, 1) == 0) {
			ssize_t n;

			armed = 1;
			timer(1 + random_of(&seed, 150));
			n = receive(fd, buf, asked);
			armed = 0;
			timer(0);
			CHECK(n > 0 && is(buf, (size_t)n, 0, at));
			at += (uint64_t)n;
		} else {
			uint64_t lost = 0;

			jumped++;
			CHECK((deep ? deeply : all)(fd, buf, SURE) == SURE);
			while (lost <= asked && !is(buf, SURE, 0, at + lost))
				lost++;
			CHECK(lost <= asked);
			at += lost + SURE;
		}
	}
	CHECK(shutdown(fd, SHUT_WR) == 0);
	for (size_t n; (n = all(fd, buf, sizeof(buf))) > 0; at += n)
		CHECK(is(buf, n, 0, at));
	CHECK(at == notes->total);
}

/* leaves_writes leaves writes, and begins a new epoch each time. */
static void leaves_writes(int fd, int jumps)
{
	static uint64_t at, epoch;
	static unsigned asked;

	for (int i = 0; i < QUIET; i++) {
		asked = size();
		fill(buf, asked, 0, at);
		CHECK(write(fd, buf, asked) == (ssize_t)asked);
		at += asked;
	}
	had_rings = mapped_rings();

	while ((int)epoch < jumps) {
		asked = size();
		fill(buf, asked, epoch, at);
		if (sigsetjmp(back, 1) == 0) {
			ssize_t n;

			armed = 1;
			timer(1 + random_of(&seed, 150));
			n = write(fd, buf, asked);
			armed = 0;
			timer(0);
			CHECK(n > 0);
			at += (uint64_t)n;
		} else {
			notes->done[epoch] = at;
			notes->more[epoch] = asked;
			epoch++;
			fill(buf, SURE, epoch, 0);
			CHECK(write(fd, buf, SURE) == SURE);
			at = SURE;
			if (random_of(&seed, 4) == 0)
				await(fd, POLLOUT);
		}
	}
	notes->done[epoch] = at;
	CHECK(close(fd) == 0);
}

/* reads takes the bytes that leaves_writes sends. */
static void reads(int fd, int jumps)
{
	static unsigned char b[2 * MOST];
	uint64_t epoch = 0, at = 0;
	uint64_t *ends = calloc(JUMPS, sizeof(*ends));
	size_t have = 0, seen = 0, n;

	do {
		await(fd, POLLIN);
		n = (size_t)read(fd, b + have, sizeof(b) - have);
		CHECK((ssize_t)n >= 0);
		have += n;
		/* The bytes that follow say where an epoch has ended. */
		while (seen + SURE < have || (n == 0 && seen < have)) {
			size_t back_by = 0;

			if (b[seen] == byte_at(epoch, at)) {
				seen++;
				at++;
				continue;
			}
			while (back_by < 8 && !(back_by <= at && seen >= back_by && have - seen + back_by >= SURE && is(b + seen - back_by, SURE, epoch + 1, 0)))
				back_by++;
			CHECK(back_by < 8);
			ends[epoch++] = at - back_by;
			seen += SURE - back_by;
			at = SURE;
		}
		if (seen > SURE) {
			memmove(b, b + seen - SURE, have - seen + SURE);
			have -= seen - SURE;
			seen = SURE;
		}
	} while (n > 0);
	ends[epoch] = at;
	CHECK(epoch == (uint64_t)jumps);
	for (uint64_t i = 0; i <= epoch; i++)
		CHECK(ends[i] >= notes->done[i] && ends[i] <= notes->done[i] + notes->more[i]);
}

/* stay_on has a program stay on one of two processors: a program that looks does so where the other one is not. */
static void stay_on(int which)
{
	cpu_set_t all, one;

	CHECK(sched_getaffinity(0, sizeof(all), &all) == 0);
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &all) && which-- == 0) {
			CPU_ZERO(&one);
			CPU_SET(i, &one);
			CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
		}
}

/* answers sends bytes back that come, after some time. */
static void answers(int fd)
{
	stay_on(1);
	for (;;) {
		ssize_t n = read(fd, buf, 64);

		CHECK(n >= 0);
		if (n == 0)
			return;
		for (volatile unsigned i = random_of(&seed, 40000); i > 0; i--)
			;
		CHECK(write(fd, buf, (size_t)n) == n);
	}
}

/* asks leaves reads of answers, and waits by poll or epoll for the bytes that are there then. */
static void asks(int fd, int jumps)
{
	static uint64_t round;
	static int jumped, set;
	static size_t have;
	struct pollfd p = {.fd = fd, .events = POLLIN};
	struct epoll_event ev = {.events = EPOLLIN};

	stay_on(0);
	set = epoll_create1(0);
	CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &ev) == 0);
	for (; jumped < jumps; round++) {
		ssize_t n;

		fill(buf, 64, 0, 64 * round);
		CHECK(write(fd, buf, 64) == 64);
		if (sigsetjmp(back, 1) == 0) {
			armed = 1;
			if (round > QUIET)
				timer(1 + random_of(&seed, 90));
			had_rings |= round == QUIET && mapped_rings();
			n = recv(fd, other, 64, MSG_WAITALL);
			armed = 0;
			timer(0);
			CHECK(n == 64 && is(other, 64, 0, 64 * round));
			continue;
		}
		jumped++;
		/* Some of the answer was read, or it comes: then that is to be said. The next one follows. */
		if (poll(&p, 1, 2) == 0 && recv(fd, other, 1, MSG_PEEK | MSG_DONTWAIT) == 1)
			await(fd, POLLIN);
		have = 0;
		fill(buf, 64, 0, 64 * ++round);
		CHECK(write(fd, buf, 64) == 64);
		do {
			if (random_of(&seed, 2))
				await(fd, POLLIN);
			else
				CHECK(epoll_wait(set, &ev, 1, PATIENCE) == 1);
			n = read(fd, other + have, sizeof(other) - have);
			CHECK(n > 0);
			have += (size_t)n;
		} while (have < 64 || !is(other, have, 0, 64 * (round + 1) - have));
	}
	CHECK(close(fd) == 0);
}

/* A handler that uses the connection that it has interrupted a call on. */
static int used_fd;
static volatile uint64_t used_count, used_sum, used_busy;

static void uses(int sig)
{
	static unsigned char b[300];
	ssize_t n = recv(used_fd, b, sizeof(b), MSG_DONTWAIT);

	(void)sig;
	CHECK(n >= 0 || errno == EAGAIN);
	used_busy += n < 0;
	for (ssize_t i = 0; i < n; i++) {
		used_count++;
		used_sum += b[i];
	}
}

/* interrupted reads a stream, of which a handler takes some. */
static void interrupted(int fd, int times)
{
	struct itimerval often = {{0, 50}, {0, 50}};
	uint64_t count = 0, sum = 0, should = 0;
	ssize_t n;

	for (int i = 0; i < QUIET; i++) {
		n = read(fd, buf, sizeof(buf));
		CHECK(n > 0);
		count += (uint64_t)n;
		for (ssize_t k = 0; k < n; k++)
			sum += buf[k];
	}
	had_rings = mapped_rings();
	used_fd = fd;
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	for (int i = 0; i < 20 * times; i++) {
		n = read(fd, buf, size());
		CHECK(n > 0);
		count += (uint64_t)n;
		for (ssize_t k = 0; k < n; k++)
			sum += buf[k];
	}
	timer(0);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	while ((n = read(fd, buf, sizeof(buf))) > 0) {
		count += (uint64_t)n;
		for (ssize_t k = 0; k < n; k++)
			sum += buf[k];
	}
	CHECK(n == 0 && count + used_count == notes->total);
	for (uint64_t at = 0; at < notes->total; at++)
		should += byte_at(0, at);
	CHECK(sum + used_sum == should);
}

int main(int argc, char **argv)
{
	static unsigned char stack[256 << 10];
	stack_t own = {.ss_sp = stack, .ss_size = sizeof(stack)};
	const char *what = argc == 3 ? argv[1] : "";
	int jumps = atoi(getenv("JUMPS"));
	int c, s, status, flags = 0;
	pid_t pid;

	signal(SIGPIPE, SIG_IGN);
	CHECK(argc == 3 && jumps < JUMPS);
	seed = strtoul(argv[2], NULL, 10);
	notes = mmap(NULL, sizeof(*notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(notes != MAP_FAILED);
	struct sockaddr_in a;
	int l = server(&a);

	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		c = connected_to(&a);
		seed += 12345;
		if (!strcmp(what, "write"))
			reads(c, jumps);
		else if (!strcmp(what, "ask"))
			answers(c);
		else
			writes(c);
		_exit(0);
	}
	s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	if (strstr(what, "nodefer"))
		flags |= SA_NODEFER;
	if (strstr(what, "stack")) {
		CHECK(sigaltstack(&own, NULL) == 0);
		flags |= SA_ONSTACK;
	}
	on_alarm(strncmp(what, "use", 3) ? jump : uses, flags | (strncmp(what, "use", 3) ? 0 : SA_RESTART));
	if (!strcmp(what, "write"))
		leaves_writes(s, jumps);
	else if (!strcmp(what, "ask"))
		asks(s, jumps / 4);
	else if (!strncmp(what, "use", 3))
		interrupted(s, jumps);
	else
		leaves_reads(s, jumps, strstr(what, "deep"));
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	if (getenv("RINGS"))
		CHECK(had_rings);
	if (getenv("SAY"))
		printf("%s: %lu signals, %d jumps, %lu in the handler, %lu busy, rings %d\n", what, signals, jumps, used_count, used_busy, had_rings);
	return 0;
}
