/*
 * What few programs do, and some rely on: corners CASE. Bare, with TCP, it behaves the same. With the environment variable
 * MOVED set to 1 its connections are not TCP.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                            \
	do {                                                                                   \
		if (!(what)) {                                                                 \
			fprintf(stderr, "%s:%d: pid %d: %s (%s)\n", __FILE__, __LINE__, getpid(), #what, strerror(errno)); \
			_exit(1);                                                              \
		}                                                                              \
	} while (0)

#define LARGE 32768

static char buf[LARGE];

static void connected(int *c, int *s)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(bind(l, (struct sockaddr *)&a, len) == 0 && listen(l, 5) == 0 && getsockname(l, (struct sockaddr *)&a, &len) == 0);
	*c = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(*c, (struct sockaddr *)&a, sizeof(a)) == 0);
	*s = accept(l, NULL, NULL);
	CHECK(*s >= 0);
	close(l);
}

static int moved(void)
{
	return getenv("MOVED") && atoi(getenv("MOVED"));
}

static void pair(int *c, int *s)
{
	int domain = 0;
	socklen_t len = sizeof(domain);

	connected(c, s);
	CHECK(syscall(SYS_getsockopt, *c, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain == (moved() ? AF_UNIX : AF_INET));
}

/* rings is how many of them this process has mapped. */
static int rings(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	while (fgets(line, sizeof(line), f))
		n += strstr(line, "gosmc-ring") != NULL;
	fclose(f);
	return n;
}

static void exchange(int from, int to, size_t n)
{
	CHECK(write(from, buf, n) == (ssize_t)n);
	for (ssize_t r; n; n -= (size_t)r)
		CHECK((r = read(to, buf, n)) > 0);
}

/* stream has a direction go over to its ring, if it can. */
static void stream(int from, int to)
{
	for (int i = 0; i < 4; i++)
		exchange(from, to, LARGE);
}

/* A program with room for two rings, those of a connection within it, gets no third one, and others when these are gone. */
static void test_bounded(void)
{
	int a[2], b[2];

	for (int i = 0; i < 5; i++) {
		pair(&a[0], &a[1]);
		pair(&b[0], &b[1]);
		stream(a[0], a[1]);
		CHECK(rings() == 2 * moved());
		stream(b[0], b[1]);
		stream(a[1], a[0]);
		CHECK(rings() == 2 * moved());
		for (int k = 0; k < 2; k++) {
			close(a[k]);
			close(b[k]);
		}
		CHECK(rings() == 0);
	}
}

static const struct {
	const char *name;
	void (*test)(void);
} cases[] = {
	{"bounded", test_bounded},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < sizeof(cases) / sizeof(cases[0]); i++)
		if (strcmp(argv[1], cases[i].name) == 0) {
			cases[i].test();
			return 0;
		}
	return 2;
}
