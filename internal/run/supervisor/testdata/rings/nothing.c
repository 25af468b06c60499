/* Receives that bring nothing, and take nothing away. */
#include "rings.h"

/* none receives 0 bytes in one of the ways that there are. */
static ssize_t none(int fd, int way, int flags)
{
	struct iovec empty[2] = {{buf, 0}, {NULL, 0}};
	struct msghdr m = {.msg_iov = empty, .msg_iovlen = (size_t)(way % 3)};

	switch (way % 6) {
	case 0:
		return recv(fd, buf, 0, flags);
	case 1:
		return recvfrom(fd, NULL, 0, flags | MSG_PEEK, NULL, NULL);
	case 2:
	case 3:
		return recvmsg(fd, &m, flags);
	case 4:
		return recv(fd, buf, 0, flags | MSG_WAITALL);
	default:
		return recv(fd, NULL, 0, flags | MSG_TRUNC);
	}
}

/* errors asks for errors, of which there are none, whatever else there is. */
static void errors(int fd)
{
	char control[100];
	struct iovec part = {buf, 3};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};

	CHECK(recvmsg(fd, &m, MSG_ERRQUEUE) == -1 && errno == EAGAIN);
	CHECK(recv(fd, buf, 3, MSG_ERRQUEUE) == -1 && errno == EAGAIN);
	CHECK(recv(fd, buf, 0, MSG_ERRQUEUE | MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

static int later_to;

static void *later(void *arg)
{
	usleep(50000);
	put(later_to, &ab, 10, 10);
	return arg;
}

/* A direction goes over to its ring, with a receive of 0 bytes, or of errors, between all that is sent and all that is read. */
static void over(int what)
{
	struct timeval quick = {.tv_usec = 20000};
	int a, b, copy, ends;
	pthread_t writes;
	char seen[10];

	both_ends(&a, &b);
	for (int i = 0; i < 40; i++) {
		unsigned long n = i % 2 ? LARGE : 100;

		put(a, &ab, n, LARGE);
		await(b, POLLIN);
		if (what == 6)
			errors(b);
		else
			CHECK(none(b, what, i % 4 < 2 ? MSG_DONTWAIT : 0) == 0 && read(b, buf, 0) == 0);
		take(b, &ab_in, n, LARGE);
		CHECK(recv(b, buf, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
		if (what == 6)
			errors(b);
		else
			CHECK(none(b, what, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	}
	have(2);
	CHECK(setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &quick, sizeof(quick)) == 0);
	if (what == 6) {
		errors(b);
	} else {
		errno = 0;
		CHECK(none(b, what, 0) == 0 && errno == 0);
		CHECK(setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0}, sizeof(quick)) == 0);
		later_to = a;
		CHECK(pthread_create(&writes, NULL, later, NULL) == 0);
		CHECK(none(b, what, 0) == 0 && recv(b, seen, sizeof(seen), MSG_DONTWAIT | MSG_PEEK) > 0); /* buf is the other thread's */
		CHECK(pthread_join(writes, NULL) == 0);
		take(b, &ab_in, 10, 10);
	}
	copy = dup(b);
	put(a, &ab, 100, 100);
	if (what == 6)
		errors(copy);
	else
		CHECK(none(copy, what, 0) == 0);
	take(b, &ab_in, 100, 100);
	close(copy);
	close(a);
	ends = what == 6 ? 0 : (int)none(b, what, 0);
	CHECK(ends == 0);
	ended(b);
	close(b);
	ab.at = ab_in.at = 0;
}

void test_nothing(void)
{
	for (int what = 0; what < 7; what++)
		over(what);
}

/* Many messages of 0 bytes are many messages, and so are many ends. */
void test_no_messages(void)
{
	struct iovec part = {buf, 0};
	struct mmsghdr m[3];
	int a, b;

	joined(&a, &b);
	for (int i = 0; i < 3; i++)
		m[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
	put(a, &ab, 10, 10);
	await(b, POLLIN);
	CHECK(recvmmsg(b, m, 3, 0, NULL) == 3 && m[0].msg_len == 0 && m[2].msg_len == 0);
	take(b, &ab_in, 10, 10);
	close(a);
	part.iov_len = 10;
	CHECK(recvmmsg(b, m, 3, 0, NULL) == 3 && m[0].msg_len == 0 && m[2].msg_len == 0);
}
