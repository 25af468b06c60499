/*
 * What 'gosmc bench' measures of 'gosmc run' where no program of others does the same: two processes that
 *know nothing of gosmc and talk over TCP.
 *
 *	talk serve ADDR CPU                          prints its port and serves one connection after the
 *other, for ever talk serve-all ADDR CPU                      prints its port and sends back what comes, on
 *all connections at a time talk pingpong ADDR PORT CPU SECONDS SIZE     round trips of SIZE bytes talk stream
 *ADDR PORT CPU SECONDS SIZE       writes of SIZE bytes, one way talk connect ADDR PORT CPU SECONDS MOST N
 *connections made, used for N round trips of a byte, and closed; MOST at most talk fanout ADDR PORT CPU
 *SECONDS N ROUNDS   4 bytes to each of N connections, then the answers from all; ROUNDS at most
 *
 * ADDR is an IPv4 address, CPU the processor to run on, -1 for any. serve-all is for fanout, serve for the
 *others. A client prints how much it has done, the seconds that took, and the median of the round trips in
 *nanoseconds, 0 where they are not timed; then, of its connections, how many are not TCP as the kernel has
 *them.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* What a client says first: what it wants, and how long its messages are. */
struct hello {
	uint32_t what;
	uint32_t size;
};
enum { PINGPONG, STREAM };

#define MAX_SIZE 65536

static char buf[MAX_SIZE];
static long moved;
static struct sockaddr_in addr = {.sin_family = AF_INET}; /* of the server */

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void stay_on(int cpu)
{
	cpu_set_t set;

	if (cpu < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0)
		die("sched_setaffinity");
}

static int socket_new(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	int one = 1;

	if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) != 0)
		die("socket");
	return fd;
}

/* read_all reads n bytes. False: the end has come before. */
static int read_all(int fd, char *b, size_t n)
{
	while (n > 0) {
		ssize_t r = read(fd, b, n);

		if (r <= 0)
			return 0;
		b += r;
		n -= (size_t)r;
	}
	return 1;
}

static void write_all(int fd, const char *b, size_t n)
{
	while (n > 0) {
		ssize_t r = write(fd, b, n);

		if (r <= 0)
			die("write");
		b += r;
		n -= (size_t)r;
	}
}

static void serve_one(int fd)
{
	struct hello h;
	uint64_t total = 0;
	ssize_t n;

	if (!read_all(fd, (char *)&h, sizeof(h)) || h.size == 0 || h.size > MAX_SIZE)
		return;
	if (h.what == PINGPONG) {
		while (read_all(fd, buf, h.size))
			write_all(fd, buf, h.size);
		return;
	}
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		total += (uint64_t)n;
	write_all(fd, (char *)&total, sizeof(total));
}

/* listener listens on a port that it prints. */
static int listener(void)
{
	socklen_t len = sizeof(addr);
	int l = socket_new();

	if (bind(l, (struct sockaddr *)&addr, sizeof(addr)) != 0 || listen(l, 4096) != 0 ||
	    getsockname(l, (struct sockaddr *)&addr, &len) != 0)
		die("listen");
	printf("%d\n", ntohs(addr.sin_port));
	fflush(stdout);
	return l;
}

static int accept_one(int l)
{
	int fd = accept(l, NULL, NULL);
	int one = 1;

	if (fd < 0)
		die("accept");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static void serve(void)
{
	int l = listener();

	for (;;) {
		int fd = accept_one(l);

		serve_one(fd);
		close(fd);
	}
}

/* unlimited lets this process have as many files as it may. */
static void unlimited(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) != 0)
		die("getrlimit");
	files.rlim_cur = files.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &files) != 0)
		die("setrlimit");
}

enum { MAX_EVENTS = 256 };

static void watch(int ep, int fd)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};

	if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) != 0)
		die("epoll_ctl");
}

static int wait_events(int ep, struct epoll_event *evs)
{
	int n = epoll_wait(ep, evs, MAX_EVENTS, -1);

	if (n < 0)
		die("epoll_wait");
	return n;
}

static void serve_all(void)
{
	struct epoll_event evs[MAX_EVENTS];
	int l = listener(), ep = epoll_create1(0);

	watch(ep, l);
	for (;;) {
		int n = wait_events(ep, evs);

		for (int i = 0; i < n; i++) {
			int fd = evs[i].data.fd;
			ssize_t got;

			if (fd == l) {
				watch(ep, accept_one(l));
				continue;
			}
			got = read(fd, buf, sizeof(buf));
			if (got <= 0)
				close(fd);
			else
				write_all(fd, buf, (size_t)got);
		}
	}
}

static int dial(void)
{
	int fd = socket_new();
	int domain = AF_INET;
	socklen_t len = sizeof(domain);

	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0)
		die("connect");
	syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &len);
	moved += domain != AF_INET;
	return fd;
}

/* ask dials a server that wants to know what comes. */
static int ask(uint32_t what, uint32_t size)
{
	struct hello h = {what, size};
	int fd = dial();

	write_all(fd, (char *)&h, sizeof(h));
	return fd;
}

static int less(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static void pingpong(double seconds, uint32_t size)
{
	enum { MAX_TIMES = 1 << 22 };
	uint32_t *times = calloc(MAX_TIMES, sizeof(*times));
	int fd = ask(PINGPONG, size);
	size_t n = 0;
	double warm = now() + seconds / 5, start = 0, t = now(), before;

	if (!times)
		die("calloc");
	for (;;) {
		before = t;
		write_all(fd, buf, size);
		if (!read_all(fd, buf, size))
			die("read");
		t = now();
		if (start == 0) {
			if (t >= warm)
				start = t;
			continue;
		}
		if (n < MAX_TIMES)
			times[n++] = (uint32_t)((t - before) * 1e9);
		if (t - start >= seconds)
			break;
	}
	qsort(times, n, sizeof(*times), less);
	printf("%zu %.9f %u %ld\n", n, t - start, times[n / 2], moved);
}

static void stream(double seconds, uint32_t size)
{
	int fd = ask(STREAM, size);
	double start = now(), end = start + seconds;
	uint64_t total;

	while (now() < end)
		for (int i = 0; i < 64; i++)
			write_all(fd, buf, size);
	shutdown(fd, SHUT_WR);
	if (!read_all(fd, (char *)&total, sizeof(total)))
		die("read");
	printf("%llu %.9f 0 %ld\n", (unsigned long long)(total / size), now() - start, moved);
}

static void connections(double seconds, long most, int trips)
{
	double start = now(), end = start + seconds;
	long n = 0;

	for (; n < most && now() < end; n++) {
		int fd = ask(PINGPONG, 1);

		for (int i = 0; i < trips; i++) {
			write_all(fd, buf, 1);
			if (!read_all(fd, buf, 1))
				die("read");
		}
		close(fd);
	}
	printf("%ld %.9f 0 %ld\n", n, now() - start, moved);
}

/* fanout counts a message and its answer as one. Its connections stand before the time begins. */
static void fanout(double seconds, long conns, long rounds)
{
	struct epoll_event evs[MAX_EVENTS];
	int *fds = calloc((size_t)conns, sizeof(*fds));
	int ep = epoll_create1(0);
	double start, end;
	long n = 0;

	if (!fds)
		die("calloc");
	for (long i = 0; i < conns; i++)
		watch(ep, fds[i] = dial());
	start = now();
	for (end = start + seconds; n < rounds && now() < end; n++) {
		for (long i = 0; i < conns; i++)
			write_all(fds[i], (char *)&n, 4);
		for (long left = conns; left > 0;) {
			int ready = wait_events(ep, evs);

			for (int i = 0; i < ready; i++) {
				if (!read_all(evs[i].data.fd, buf, 4) || memcmp(buf, &n, 4) != 0)
					die("read");
				left--;
			}
		}
	}
	printf("%ld %.9f 0 %ld\n", n * conns, now() - start, moved);
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	if (argc < 4 || inet_pton(AF_INET, argv[2], &addr.sin_addr) != 1)
		goto usage;
	if (argc == 4) {
		stay_on(atoi(argv[3]));
		if (strcmp(argv[1], "serve") == 0)
			serve();
		if (strcmp(argv[1], "serve-all") == 0) {
			unlimited();
			serve_all();
		}
	}
	if (argc < 7)
		goto usage;
	addr.sin_port = htons((uint16_t)atoi(argv[3]));
	stay_on(atoi(argv[4]));
	if (strcmp(argv[1], "pingpong") == 0) {
		pingpong(atof(argv[5]), (uint32_t)atoi(argv[6]));
	} else if (strcmp(argv[1], "stream") == 0) {
		stream(atof(argv[5]), (uint32_t)atoi(argv[6]));
	} else if (strcmp(argv[1], "connect") == 0 && argc == 8) {
		connections(atof(argv[5]), atol(argv[6]), atoi(argv[7]));
	} else if (strcmp(argv[1], "fanout") == 0 && argc == 8) {
		unlimited();
		fanout(atof(argv[5]), atol(argv[6]), atol(argv[7]));
	} else {
		goto usage;
	}
	return 0;
usage:
	fprintf(stderr, "talk: see its source for the arguments\n");
	return 2;
}
