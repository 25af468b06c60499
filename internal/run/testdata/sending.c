/*
 * What is sent arrives whole and in its order, however it is sent: sending CASE. Bare, with TCP, it behaves the same. With the environment
 * variable MOVED set to 1 its connections are not TCP.
 */
#include "program.h"

static void pair(int *c, int *s)
{
	int domain = 0;
	socklen_t len = sizeof(domain);

	both_ends(c, s);
	CHECK(syscall(SYS_getsockopt, *c, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0);
	CHECK(domain == (getenv("MOVED") ? AF_UNIX : AF_INET));
}

struct reader {
	int fd;
	useconds_t after; /* so many microseconds it begins */
	size_t got;
};

/* reads reads to the end of the stream. */
static void *reads(void *arg)
{
	static char in[1 << 20];
	struct reader *to = arg;
	ssize_t n;

	usleep(to->after);
	while ((n = read(to->fd, in, sizeof(in))) > 0)
		to->got += (size_t)n;
	CHECK(n == 0);
	return NULL;
}

#define PARTS 3
#define MESSAGE (32u << 20) /* more than any socket takes while nobody reads */

/*
 * A message that is sent in part is the last one of its sendmmsg: what follows would be in the place of its rest. The reader begins when the time limit
 * of the first message is over, and that of a second one would not be.
 */
static void test_partly(void)
{
	struct timeval most = {.tv_usec = 200000};
	char *buf = calloc(1, MESSAGE);

	CHECK(buf);
	for (int ways = 0, cut = 0; ways < 2 || !cut; ways++) {
		struct mmsghdr m[PARTS] = {0};
		struct iovec v = {buf, MESSAGE};
		struct reader reader = {.after = 300000};
		pthread_t t;
		int c, n;

		CHECK(ways < 20);
		pair(&c, &reader.fd);
		CHECK(setsockopt(c, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof(most)) == 0);
		CHECK(pthread_create(&t, NULL, reads, &reader) == 0);
		for (int k = 0; k < PARTS; k++)
			m[k].msg_hdr = (struct msghdr){.msg_iov = &v, .msg_iovlen = 1};
		n = sendmmsg(c, m, PARTS, 0);
		CHECK(n > 0);
		for (int k = 0; k < n; k++) {
			CHECK(m[k].msg_len == MESSAGE || k == n - 1);
			cut += m[k].msg_len < MESSAGE;
			reader.got -= m[k].msg_len;
		}
		CHECK(shutdown(c, SHUT_WR) == 0 && pthread_join(t, NULL) == 0 && reader.got == 0);
		close(c);
		close(reader.fd);
	}
	free(buf);
}

static const struct {
	const char *name;
	void (*test)(void);
} cases[] = {
	{"partly", test_partly},
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
