/*
 * What 'gosmc bench' measures of 'gosmc run' where no program of others does the same: two processes that know nothing of gosmc and
 * talk over TCP.
 *
 *	talk serve CPU                         prints its port and serves one connection after the other, for ever
 *	talk pingpong PORT CPU SECONDS SIZE    round trips of SIZE bytes
 *	talk stream PORT CPU SECONDS SIZE      writes of SIZE bytes, one way
 *	talk connect PORT CPU SECONDS MOST N   connections made, used for N round trips of a byte, and closed; MOST at most
 *
 * CPU is the processor to run on, -1 for any. A client prints how much it has done, the seconds that took, and the median of the
 * round trips in nanoseconds, 0 where they are not timed; then, of its connections, how many are not TCP as the kernel has them.
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

static void serve(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	int l = socket_new();

	if (bind(l, (struct sockaddr *)&a, sizeof(a)) != 0 || listen(l, 128) != 0 || getsockname(l, (struct sockaddr *)&a, &len) != 0)
		die("listen");
	printf("%d\n", ntohs(a.sin_port));
	fflush(stdout);
	for (;;) {
		int fd = accept(l, NULL, NULL);
		int one = 1;

		if (fd < 0)
			die("accept");
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		serve_one(fd);
		close(fd);
	}
}

static int dial(int port, uint32_t what, uint32_t size)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct hello h = {what, size};
	int fd = socket_new();
	int domain = AF_INET;
	socklen_t len = sizeof(domain);

	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) != 0)
		die("connect");
	write_all(fd, (char *)&h, sizeof(h));
	syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &len);
	moved += domain != AF_INET;
	return fd;
}

static int less(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static void pingpong(int port, double seconds, uint32_t size)
{
	enum { MAX_TIMES = 1 << 22 };
	uint32_t *times = calloc(MAX_TIMES, sizeof(*times));
	int fd = dial(port, PINGPONG, size);
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

static void stream(int port, double seconds, uint32_t size)
{
	int fd = dial(port, STREAM, size);
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

static void connections(int port, double seconds, long most, int trips)
{
	double start = now(), end = start + seconds;
	long n = 0;

	for (; n < most && now() < end; n++) {
		int fd = dial(port, PINGPONG, 1);

		for (int i = 0; i < trips; i++) {
			write_all(fd, buf, 1);
			if (!read_all(fd, buf, 1))
				die("read");
		}
		close(fd);
	}
	printf("%ld %.9f 0 %ld\n", n, now() - start, moved);
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	if (argc == 3 && strcmp(argv[1], "serve") == 0) {
		stay_on(atoi(argv[2]));
		serve();
	}
	if (argc < 6) {
		fprintf(stderr, "talk: see its source for the arguments\n");
		return 2;
	}
	stay_on(atoi(argv[3]));
	if (strcmp(argv[1], "pingpong") == 0)
		pingpong(atoi(argv[2]), atof(argv[4]), (uint32_t)atoi(argv[5]));
	else if (strcmp(argv[1], "stream") == 0)
		stream(atoi(argv[2]), atof(argv[4]), (uint32_t)atoi(argv[5]));
	else if (strcmp(argv[1], "connect") == 0 && argc == 7)
		connections(atoi(argv[2]), atof(argv[4]), atol(argv[5]), atoi(argv[6]));
	else
		return 2;
	return 0;
}
