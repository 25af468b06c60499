/*
 * The speed of a connection. A server that does as each client says, in one process, and clients:
 *
 *	speed serve ADDRESS			listens, and says at which port
 *	speed turns ADDRESS PORT SIZE N		N round trips of SIZE bytes
 *	speed stream ADDRESS PORT SIZE N	N writes of SIZE bytes, and an answer
 *	speed connect ADDRESS PORT SIZE N	N connections that are closed at once; with a SIZE, with one request and its answer
 *
 * A client says how many nanoseconds one took, and how many connections were none of TCP.
 */
#include "program.h"

#include <time.h>

#define MOST (1 << 20)

struct order {
	char kind; /* t, s or c */
	uint32_t size, n;
};

static char b[MOST];

static void whole(int fd, size_t n, bool out)
{
	for (size_t at = 0; at < n;) {
		ssize_t r = out ? write(fd, b + at, n - at) : read(fd, b + at, n - at);

		CHECK(r > 0);
		at += (size_t)r;
	}
}

static bool moved(int fd)
{
	int domain = 0;
	socklen_t len = sizeof(domain);

	CHECK(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0);
	return domain == AF_UNIX;
}

static void answer(int fd)
{
	struct order o;
	ssize_t n = read(fd, &o, sizeof(o));
	size_t all;

	if (n == 0)
		return;
	CHECK(n == sizeof(o) && o.size <= MOST);
	if (o.kind == 's')
		for (all = (size_t)o.size * o.n; all; all -= (size_t)n) {
			n = read(fd, b, all < MOST / 8 ? all : MOST / 8);
			CHECK(n > 0);
		}
	else
		for (uint32_t i = 0; i < o.n; i++) {
			whole(fd, o.size, false);
			whole(fd, o.size, true);
		}
	if (o.kind == 's')
		whole(fd, 1, true);
	CHECK(read(fd, b, 1) == 0);
}

static int dial(const struct sockaddr_in *to)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)to, sizeof(*to)) == 0);
	CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
	return fd;
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = {.sin_family = AF_INET};
	socklen_t len = sizeof(to);
	struct order o;
	uint64_t begin;
	uint32_t n;
	int fd, are = 0;

	CHECK(argc >= 3 && inet_pton(AF_INET, argv[2], &to.sin_addr) == 1);
	if (strcmp(argv[1], "serve") == 0) {
		int l = socket(AF_INET, SOCK_STREAM, 0), one = 1;

		CHECK(bind(l, (struct sockaddr *)&to, sizeof(to)) == 0 && listen(l, 128) == 0);
		CHECK(getsockname(l, (struct sockaddr *)&to, &len) == 0);
		printf("listening %d\n", ntohs(to.sin_port));
		fflush(stdout);
		for (;;) {
			CHECK((fd = accept(l, NULL, NULL)) >= 0);
			setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
			answer(fd);
			close(fd);
		}
	}
	CHECK(argc == 6);
	to.sin_port = htons((uint16_t)atoi(argv[3]));
	n = (uint32_t)atoi(argv[5]);
	o = (struct order){argv[1][0], (uint32_t)atoi(argv[4]), n};
	CHECK(o.size <= MOST);
	if (o.kind == 'c') {
		o.n = 1;
		begin = now();
		for (uint32_t i = 0; i < n; i++) {
			fd = dial(&to);
			are += moved(fd);
			if (o.size) {
				CHECK(write(fd, &o, sizeof(o)) == sizeof(o));
				whole(fd, o.size, true);
				whole(fd, o.size, false);
			}
			close(fd);
		}
	} else {
		fd = dial(&to);
		are = moved(fd);
		CHECK(write(fd, &o, sizeof(o)) == sizeof(o));
		begin = now();
		for (uint32_t i = 0; i < n; i++) {
			whole(fd, o.size, true);
			if (o.kind == 't')
				whole(fd, o.size, false);
		}
		if (o.kind == 's')
			whole(fd, 1, false);
	}
	printf("took %.0f moved %d\n", (double)(now() - begin) / n, are);
	return 0;
}
