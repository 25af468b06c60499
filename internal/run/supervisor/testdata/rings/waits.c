/* The bytes that wait to be read, the calls that look at them, and how long a call waits for them. */
#include "rings.h"

#include <sys/sendfile.h>

/* counted has FIONREAD say how many bytes of a stream are there, as soon as all have come. */
static void counted(int fd, size_t n)
{
	int there = -1;

	for (int i = 0; i < 2000 && there != (int)n; i++) {
		CHECK(ioctl(fd, FIONREAD, &there) == 0 && there <= (int)n);
		if (there != (int)n)
			usleep(1000);
	}
	CHECK(there == (int)n);
}

/* behind writes in a way that does not go by a ring. */
static void behind(int fd, int way, size_t n)
{
	char path[] = "/tmp/gosmc-rings-XXXXXX";
	int p[2], f;

	fill(&ab, (unsigned)n);
	if (way == 0) {
		CHECK(pipe(p) == 0 && write(p[1], buf, n) == (ssize_t)n && splice(p[0], NULL, fd, NULL, n, 0) == (ssize_t)n);
		close(p[0]);
		close(p[1]);
	} else if (way == 1) {
		f = mkstemp(path);
		CHECK(f >= 0 && unlink(path) == 0 && write(f, buf, n) == (ssize_t)n && sendfile(fd, f, &(off_t){0}, n) == (ssize_t)n);
		close(f);
	} else {
		FILE *stream = fdopen(fd, "w");

		CHECK(stream && fwrite(buf, 1, n, stream) == n && fflush(stream) == 0);
	}
	ab.at += n;
}

void test_counted(void)
{
	int a, b;

	for (int way = 0; way < 3; way++) {
		joined(&a, &b);
		counted(b, 0);
		put(a, &ab, 5000, 5000);
		counted(b, 5000);
		behind(a, way, 6000);
		counted(b, 11000);
		take(b, &ab_in, 1000, 1000);
		counted(b, 10000);
		take(b, &ab_in, 4000, 4000);
		counted(b, 6000);
		take(b, &ab_in, 6000, 6000);
		counted(b, 0);
		behind(a, way, 5000);
		counted(b, 5000);
		take(b, &ab_in, 5000, 5000);
		close(a);
		close(b);
		ab.at = ab_in.at = 0;
	}
	/* It goes over before anybody reads on. */
	both_ends(&a, &b);
	put(a, &ab, LARGE, LARGE);
	counted(b, LARGE);
	take(b, &ab_in, LARGE, LARGE);
	put(a, &ab, 2 * LARGE, LARGE);
	counted(b, 2 * LARGE);
	behind(a, 0, 1000);
	counted(b, 2 * LARGE + 1000);
	take(b, &ab_in, 2 * LARGE + 1000, LARGE);
	counted(b, 0);
}

static int peeked_at;

/* peeks looks often at the bytes that are there, of which nobody takes any. */
static void *peeks(void *arg)
{
	char seen[500];

	for (int i = 0; i < 60000; i++) {
		ssize_t n = recv(peeked_at, seen, sizeof(seen), MSG_PEEK | MSG_DONTWAIT);

		CHECK(n >= 10);
		for (ssize_t k = 0; k < n; k++)
			CHECK(seen[k] == 'a' + k / 10);
	}
	return arg;
}

/* Two threads peek, while a mark is among the bytes. */
void test_peekers(void)
{
	pthread_t others[2];
	char ten[10];
	int a;

	both_ends(&a, &peeked_at);
	for (int i = 0; i < 26; i++) {
		memset(ten, 'a' + i, sizeof(ten));
		CHECK(write(a, ten, sizeof(ten)) == sizeof(ten));
	}
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&others[i], NULL, peeks, NULL) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(others[i], NULL) == 0);
	CHECK(recv(peeked_at, buf, 500, MSG_PEEK) == 260 && read(peeked_at, buf, 500) == 260);
}

static int trickle_to;

static void *trickles(void *arg)
{
	for (int i = 0; i < 8; i++) {
		usleep(100000);
		CHECK(write(trickle_to, "x", 1) == 1);
	}
	return arg;
}

/* However often a receive waits that wants all, it waits no longer than the socket's time limit. */
void test_limit(void)
{
	struct timeval limit = {.tv_usec = 300000};
	pthread_t other;
	ssize_t n;
	int b;

	joined(&trickle_to, &b);
	CHECK(setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
	CHECK(pthread_create(&other, NULL, trickles, NULL) == 0);
	n = recv(b, buf, 20, MSG_WAITALL);
	CHECK((n > 0 && n < 7) || (n == -1 && errno == EAGAIN));
	CHECK(pthread_join(other, NULL) == 0);
	n = n > 0 ? n : 0;
	CHECK(recv(b, buf, (size_t)(8 - n), MSG_WAITALL) == 8 - n);
	CHECK(recv(b, buf, 20, MSG_WAITALL) == -1 && errno == EAGAIN);
	CHECK(write(trickle_to, "12345", 5) == 5 && recv(b, buf, 20, MSG_WAITALL) == 5);
}

/* preadv2 and pwritev2 wait where they may. */
void test_nowait(void)
{
	struct iovec part = {buf, LARGE};
	int a, b;

	alarm(20);
	for (int ring = 0; ring < 2; ring++) {
		if (ring)
			joined(&a, &b);
		else
			both_ends(&a, &b);
		CHECK(preadv2(b, &part, 1, -1, RWF_NOWAIT) == -1 && errno == EAGAIN);
		CHECK(write(a, "0123456789", 10) == 10);
		await(b, POLLIN);
		CHECK(preadv2(b, &part, 1, -1, RWF_NOWAIT) == 10 && memcmp(buf, "0123456789", 10) == 0);
		CHECK(write(a, "0123456789", 10) == 10 && preadv2(b, &part, 1, -1, 0) == 10);
		while (pwritev2(a, &part, 1, -1, RWF_NOWAIT) > 0)
			;
		CHECK(errno == EAGAIN);
		close(a);
		close(b);
	}
}
