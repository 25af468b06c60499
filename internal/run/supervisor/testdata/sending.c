/*
 * Bytes that are sent arrive whole and in their order, however they are sent: sending CASE. Bare, with TCP, it behaves the same. With the environment
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
 * A message that is sent in part is the last one of its sendmmsg: a later one would be in the place of its rest. The reader begins when the time limit
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

#define SENDS 400
#define BESIDE 90000
#define WRITES 2000

/* beside sends messages that the kernel has to send, as they come with control data, which TCP takes no notice of. */
static void *beside(void *fd)
{
	static char buf[BESIDE];
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec v = {buf, sizeof(buf)};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.buf)};
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);

	h->cmsg_level = IPPROTO_IP;
	h->cmsg_type = IP_TOS;
	h->cmsg_len = CMSG_LEN(sizeof(int));
	memset(buf, 1, sizeof(buf));
	for (int i = 0; i < SENDS; i++)
		CHECK(sendmsg(*(int *)fd, &m, 0) == BESIDE);
	return NULL;
}

/* urges does the same with urgent data: the last byte of each send. */
static void *urges(void *fd)
{
	static char buf[BESIDE + 1];

	memset(buf, 1, sizeof(buf));
	for (int i = 0; i < SENDS; i++)
		CHECK(send(*(int *)fd, buf, sizeof(buf), MSG_OOB) == (ssize_t)sizeof(buf));
	return NULL;
}

static size_t size_of(int i)
{
	return 1 + (size_t)i * 977 % 40000;
}

static void *writes(void *fd)
{
	static char buf[40000];

	memset(buf, 2, sizeof(buf));
	for (int i = 0; i < WRITES; i++)
		CHECK(write(*(int *)fd, buf, size_of(i)) == (ssize_t)size_of(i));
	return NULL;
}

/* The bytes that one thread sends outside of a ring, and others in it, are all the bytes that arrive. */
static void mixed(void *(*other)(void *fd), size_t each)
{
	static unsigned char in[100000];
	int one = 1;

	for (int i = 0; i < 8; i++) {
		size_t left[3] = {0, SENDS * each, 0};
		pthread_t t[2];
		int c, s;

		for (int k = 0; k < WRITES; k++)
			left[2] += size_of(k);
		pair(&c, &s);
		CHECK(setsockopt(s, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one)) == 0);
		CHECK(pthread_create(&t[0], NULL, other, &c) == 0 && pthread_create(&t[1], NULL, writes, &c) == 0);
		while (left[1] || left[2]) {
			ssize_t n;

			await(s, POLLIN);
			n = read(s, in, sizeof(in));
			CHECK(n > 0);
			for (ssize_t k = 0; k < n; k++) {
				CHECK((in[k] == 1 || in[k] == 2) && left[in[k]] > 0);
				left[in[k]]--;
			}
		}
		CHECK(pthread_join(t[0], NULL) == 0 && pthread_join(t[1], NULL) == 0);
		close(c);
		close(s);
	}
}

static void test_beside(void)
{
	mixed(beside, BESIDE);
}

static void test_urgent(void)
{
	mixed(urges, BESIDE + 1);
}

#define WRITERS 4
#define RECORD 64
#define RECORDS 200 /* of each */

static void *records(void *fd)
{
	static int writers;
	unsigned char record[RECORD];

	memset(record, __atomic_fetch_add(&writers, 1, __ATOMIC_RELAXED), sizeof(record));
	for (int i = 0; i < RECORDS; i++)
		CHECK(write(*(int *)fd, record, sizeof(record)) == sizeof(record));
	return NULL;
}

/* Small records that several threads write to one connection, without a lock of their own, are not torn. */
static void test_whole(void)
{
	for (int i = 0; i < 400; i++) {
		pthread_t t[WRITERS];
		int c, s;

		pair(&c, &s);
		for (int k = 0; k < WRITERS; k++)
			CHECK(pthread_create(&t[k], NULL, records, &c) == 0);
		for (int k = 0; k < WRITERS * RECORDS; k++) {
			unsigned char record[RECORD];

			for (size_t got = 0; got < RECORD;) {
				ssize_t n = read(s, record + got, RECORD - got);

				CHECK(n > 0);
				got += (size_t)n;
			}
			for (int at = 1; at < RECORD; at++)
				CHECK(record[at] == record[0]);
		}
		for (int k = 0; k < WRITERS; k++)
			CHECK(pthread_join(t[k], NULL) == 0);
		close(c);
		close(s);
	}
}

#define BRIEF 4

static uint32_t begun;

static void *brief(void *fd)
{
	unsigned char record[RECORD] = {0};

	__atomic_fetch_add(&begun, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&begun, __ATOMIC_SEQ_CST) < BRIEF)
		sched_yield();
	for (int i = 0; i < 4; i++)
		CHECK(write(*(int *)fd, record, sizeof(record)) == sizeof(record));
	return NULL;
}

/* A thread that has written and ends at once keeps no other from writing, which waited for it. */
static void test_brief(void)
{
	int c, s;

	pair(&c, &s);
	for (int i = 0; i < 4000; i++) {
		unsigned char in[BRIEF * 4 * RECORD];
		pthread_t t[BRIEF];

		begun = 0;
		for (int k = 0; k < BRIEF; k++)
			CHECK(pthread_create(&t[k], NULL, brief, &c) == 0);
		CHECK(recv(s, in, sizeof(in), MSG_WAITALL) == sizeof(in));
		for (int k = 0; k < BRIEF; k++)
			CHECK(pthread_join(t[k], NULL) == 0);
	}
	close(c);
	close(s);
}

static const struct {
	const char *name;
	void (*test)(void);
} cases[] = {
	{"partly", test_partly},
	{"beside", test_beside},
	{"urgent", test_urgent},
	{"whole", test_whole},
	{"brief", test_brief},
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
