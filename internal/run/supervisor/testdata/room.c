/*
 * A program that knows nothing of gosmc: it writes a piece, waiting if it must, whenever it is told that it can write. Told that, none has waited on TCP.
 * HOW asks: with poll, select or epoll, or with poll late, when much was written. RINGS=1: the direction has to have a ring.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECE 9000 /* the size of a ring is no multiple of it */
#define LATE (1020 * 1024)

#define CHECK(x)                                                                                     \
	do {                                                                                         \
		if (!(x)) {                                                                          \
			fprintf(stderr, "%s:%d: %s: errno %d\n", __FILE__, __LINE__, #x, errno);     \
			_exit(1);                                                                    \
		}                                                                                    \
	} while (0)

static char buf[64 << 10];

static void late(int sig)
{
	static const char text[] = "a piece waits, and there was room\n";

	(void)sig;
	_exit(write(2, text, sizeof(text) - 1) < 0 ? 4 : 3);
}

static int can_write(const char *how, int fd, int ms)
{
	static int ep = -1;

	if (strcmp(how, "select") == 0) {
		struct timeval t = {.tv_sec = ms / 1000};
		fd_set set;

		FD_ZERO(&set);
		FD_SET(fd, &set);
		return select(fd + 1, NULL, &set, NULL, &t);
	}
	if (strcmp(how, "epoll") == 0) {
		struct epoll_event ev = {.events = EPOLLOUT};

		if (ep < 0) {
			CHECK((ep = epoll_create1(EPOLL_CLOEXEC)) >= 0);
			CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) == 0);
		}
		return epoll_wait(ep, &ev, 1, ms);
	}
	struct pollfd p = {.fd = fd, .events = POLLOUT};

	return poll(&p, 1, ms);
}

static void take(int fd, long n)
{
	while (n) {
		ssize_t r = read(fd, buf, n < (long)sizeof(buf) ? (size_t)n : sizeof(buf));

		CHECK(r > 0);
		n -= r;
	}
}

static int has_ring(void)
{
	char line[4096];
	FILE *f = fopen("/proc/self/maps", "re");
	int n = 0;

	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, "gosmc-ring") != NULL;
	if (f)
		fclose(f);
	return n > 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	const char *how = argc > 1 ? argv[1] : "poll";
	int l = socket(AF_INET, SOCK_STREAM, 0), to = socket(AF_INET, SOCK_STREAM, 0), from;
	long unread = 0;

	CHECK(bind(l, (struct sockaddr *)&a, len) == 0 && listen(l, 1) == 0 && getsockname(l, (struct sockaddr *)&a, &len) == 0);
	CHECK(connect(to, (struct sockaddr *)&a, len) == 0);
	CHECK((from = accept(l, NULL, NULL)) >= 0);
	for (int i = 0; i < 40 && !getenv("GOSMC_RUN_SHAKE"); i++) {
		CHECK(write(to, buf, 20000) == 20000);
		take(from, 20000);
	}
	signal(SIGALRM, late);
	for (int round = 0; round < 5; round++) {
		if (strcmp(how, "late") == 0) {
			while (unread < LATE) {
				CHECK(write(to, buf, 1020) == 1020);
				unread += 1020;
			}
		}
		while (can_write(how, to, 0) == 1) {
			alarm(20);
			CHECK(write(to, buf, PIECE) == PIECE);
			alarm(0);
			unread += PIECE;
			CHECK(unread < 1 << 28);
		}
		/* There is room again. */
		take(from, unread - 1000);
		CHECK(can_write(how, to, 20000) == 1);
		unread = 1000;
	}
	if (getenv("RINGS"))
		CHECK(has_ring() == atoi(getenv("RINGS")));
	take(from, unread);
	return 0;
}
