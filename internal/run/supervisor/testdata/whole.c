/*
 * A program whose receives with MSG_WAITALL are ended early: whole CASE. Bare, with TCP, it behaves the same. With the environment variable MOVED set to 1
 * its connections are not TCP.
 */
#include "moved.h"

#include <sys/time.h>
#include <time.h>

#define SIGNALS 2000 /* that are sent until the receive has ended: the first ones may come before it waits */

static int a, b;
static char buf[100000];
static pthread_t receiver;

static void connect_both(bool joins)
{
	both_ends(&a, &b);
	for (int i = 0; i < 100 && !as_it_should(a); i++) { /* on a busy machine one may stay TCP */
		close(a);
		close(b);
		both_ends(&a, &b);
	}
	CHECK(as_it_should(a));
	for (int i = 0; joins && i < 10; i++)
		CHECK(send(b, buf, 20000, 0) == 20000 && recv(a, buf, 20000, MSG_WAITALL) == 20000);
	CHECK(!joins || !moved() || mapped_rings() == 2);
}

static void sleeps(long milliseconds)
{
	struct timespec t = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};

	CHECK(nanosleep(&t, NULL) == 0);
}

/* A thread that does something while another one waits. */
static void meanwhile(void *(*f)(void *))
{
	pthread_t t;

	receiver = pthread_self();
	CHECK(pthread_create(&t, NULL, f, NULL) == 0 && pthread_detach(t) == 0);
}

static void *resets(void *arg)
{
	sleeps(50);
	CHECK(send(b, "12345", 5, 0) == 5);
	sleeps(50);
	close(b); /* with a byte unread */
	return arg;
}

/* The bytes that have come before a reset are returned, and the reset afterwards. */
static void test_reset(bool joins, bool nonblocking)
{
	int error = 0;
	socklen_t len = sizeof(error);

	for (int asks = 0; asks < 2; asks++) {
		connect_both(joins);
		CHECK(send(a, "x", 1, 0) == 1);
		if (nonblocking) {
			CHECK(send(b, "12345", 5, 0) == 5);
			close(b);
			await(a, POLLRDHUP);
			CHECK(fcntl(a, F_SETFL, O_NONBLOCK) == 0);
		} else {
			meanwhile(resets);
		}
		CHECK(recv(a, buf, 10, MSG_WAITALL) == 5);
		await(a, POLLIN);
		if (asks) {
			struct pollfd p = {.fd = a, .events = POLLIN};

			CHECK(poll(&p, 1, 0) == 1 && (p.revents & POLLERR));
			CHECK(getsockopt(a, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == ECONNRESET);
		} else {
			CHECK(recv(a, buf, 10, 0) == -1 && errno == ECONNRESET);
		}
		CHECK(recv(a, buf, 10, 0) == 0);
		close(a);
	}
}

static void handles(int sig) { (void)sig; }

static bool done;

static void *signals(void *arg)
{
	sleeps(50);
	CHECK(send(b, "12345", 5, 0) == 5);
	sleeps(100);
	for (int i = 0; i < SIGNALS && !__atomic_load_n(&done, __ATOMIC_SEQ_CST); i++) {
		CHECK(pthread_kill(receiver, SIGUSR1) == 0);
		sleeps(10);
	}
	CHECK(__atomic_load_n(&done, __ATOMIC_SEQ_CST));
	return arg;
}

/* A signal ends a receive that has got something, also with SA_RESTART. */
static void test_signal(bool joins)
{
	struct sigaction act = {.sa_handler = handles, .sa_flags = SA_RESTART};
	sigset_t before, after;

	CHECK(sigaction(SIGUSR1, &act, NULL) == 0 && pthread_sigmask(SIG_SETMASK, NULL, &before) == 0);
	connect_both(joins);
	__atomic_store_n(&done, false, __ATOMIC_SEQ_CST);
	meanwhile(signals);
	CHECK(recv(a, buf, 10, MSG_WAITALL) == 5);
	__atomic_store_n(&done, true, __ATOMIC_SEQ_CST);
	CHECK(pthread_sigmask(SIG_SETMASK, NULL, &after) == 0);
	for (int sig = 1; sig < 32; sig++)
		CHECK(sigismember(&before, sig) == sigismember(&after, sig));
	sleeps(50);
	close(a);
	close(b);
}

static void *dribbles(void *arg)
{
	for (int i = 0; i < 8; i++) {
		sleeps(100);
		CHECK(send(b, "1", 1, MSG_NOSIGNAL) == 1);
	}
	return arg;
}

/* The time limit is that of the whole receive. */
static void test_limit(bool joins)
{
	struct timeval limit = {.tv_usec = 450000};
	struct timespec from, to;
	long took;
	ssize_t n;

	connect_both(joins);
	CHECK(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0 && clock_gettime(CLOCK_MONOTONIC, &from) == 0);
	meanwhile(dribbles);
	n = recv(a, buf, 10, MSG_WAITALL);
	CHECK(clock_gettime(CLOCK_MONOTONIC, &to) == 0);
	took = (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000;
	CHECK(n >= 1 && n <= 4 && took >= 440);
	CHECK(recv(a, buf, (size_t)(8 - n), MSG_WAITALL) > 0);
	sleeps(1000);
	close(a);
	close(b);
}

static void *pieces(void *arg)
{
	for (int i = 0; i < 50; i++) {
		if (i % 10 == 0)
			sleeps(5);
		memset(buf + 50000, i, 1000);
		CHECK(send(b, buf + 50000, 1000, 0) == 1000);
	}
	return arg;
}

/* All is returned that comes in pieces, in order, and in as many parts as there are. */
static void test_all(bool joins)
{
	struct iovec parts[50];

	for (int i = 0; i < 50; i++)
		parts[i] = (struct iovec){buf + 1000 * (49 - i), 1000};
	connect_both(joins);
	meanwhile(pieces);
	CHECK(recvmsg(a, &(struct msghdr){.msg_iov = parts, .msg_iovlen = 50}, MSG_WAITALL) == 50000);
	for (int i = 0; i < 50000; i++)
		CHECK(buf[i] == 49 - i / 1000);
	close(a);
	close(b);
}

static void *hurries(void *arg)
{
	sleeps(50);
	CHECK(send(b, "12345", 5, 0) == 5);
	sleeps(50);
	CHECK(send(b, "678", 3, MSG_OOB) == 3);
	return arg;
}

/* The receive ends before urgent data. */
static void test_urgent(void)
{
	char c;

	connect_both(false);
	meanwhile(hurries);
	CHECK(recv(a, buf, 10, MSG_WAITALL) == 7 && recv(a, &c, 1, MSG_OOB) == 1 && c == '8');
	close(a);
	close(b);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 2);
	signal(SIGPIPE, SIG_IGN);
	for (int joins = 0; joins < 2; joins++) {
		if (strcmp(argv[1], "reset") == 0) {
			test_reset(joins, false);
			test_reset(joins, true);
		} else if (strcmp(argv[1], "signal") == 0) {
			test_signal(joins);
		} else if (strcmp(argv[1], "limit") == 0) {
			test_limit(joins);
		} else if (strcmp(argv[1], "all") == 0) {
			test_all(joins);
		} else if (strcmp(argv[1], "urgent") == 0) {
			if (!joins)
				test_urgent();
		} else {
			return 2;
		}
	}
	return 0;
}
