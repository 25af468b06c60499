/*
 * A program that may open no more files (RLIMIT_NOFILE), as some do that have all descriptors that they need: nofile CASE. The kernel polls no more descriptors at a time than
 * the process may have open, and none with 0. A case with ring in its name is about rings.
 */
#include "program.h"

#include <sys/epoll.h>
#include <sys/resource.h>

#define LAST 20	     /* seconds */
#define TURNS 200    /* after which there are rings */
#define MOST 1000000 /* writes to a peer that has gone */
#define FEW 20	     /* less than the numbers that are looked at for instances */

static void limit(rlim_t n)
{
	struct rlimit most = {n, n};

	CHECK(setrlimit(RLIMIT_NOFILE, &most) == 0);
}

static void ends(int *c, int *s, bool ring)
{
	char b;

	both_ends(c, s);
	for (int i = 0; ring && i < TURNS; i++)
		CHECK(write(*c, "a", 1) == 1 && read(*s, &b, 1) == 1 && write(*s, "b", 1) == 1 && read(*c, &b, 1) == 1);
	if (ring && getenv("RINGS"))
		CHECK(mapped_rings() > 0);
}

static void *later(void *arg)
{
	usleep(100000);
	CHECK(write(*(int *)arg, "456", 3) == 3);
	return NULL;
}

/* whole receives bytes that come in two parts, and are to be complete. limited: within a time. */
static void whole(bool ring, bool limited)
{
	struct timeval limit_of = {LAST, 0};
	char b[6];
	int c, s;
	pthread_t t;

	ends(&c, &s, ring);
	if (limited)
		CHECK(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit_of, sizeof(limit_of)) == 0);
	limit(0);
	CHECK(write(c, "123", 3) == 3 && pthread_create(&t, NULL, later, &c) == 0);
	CHECK(recv(s, b, sizeof(b), MSG_WAITALL) == sizeof(b) && memcmp(b, "123456", sizeof(b)) == 0);
	CHECK(pthread_join(t, NULL) == 0);
}

/* closed writes to a peer that has closed, until it is refused. */
static void closed(bool ring)
{
	int c, s, writes = 0;

	ends(&c, &s, ring);
	limit(0);
	close(c);
	while (send(s, "lost", 4, MSG_NOSIGNAL) == 4)
		CHECK(writes++ < MOST);
	CHECK(errno == EPIPE);
}

/* unseen connects a socket that an instance has by a system call that no library sees. */
static void unseen(void)
{
	struct epoll_event event = {.events = EPOLLIN};
	int ep = epoll_create1(0), l, fd, s;
	struct sockaddr_in a;

	l = server(&a);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	limit(FEW);
	CHECK(system_call(SYS_epoll_ctl, ep, EPOLL_CTL_ADD, fd, (long)&event) == 0);
	CHECK(connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && (s = accept(l, NULL, NULL)) >= 0);
	CHECK(write(s, "x", 1) == 1);
	CHECK(epoll_wait(ep, &event, 1, PATIENCE) == 1 && event.events == EPOLLIN);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";
	bool ring = strstr(name, "ring");

	alarm(LAST);
	if (strncmp(name, "whole", 5) == 0)
		whole(ring, strstr(name, "limited"));
	else if (strncmp(name, "closed", 6) == 0)
		closed(ring);
	else
		unseen();
	return 0;
}
