/* A program that has signals tell it of arrivals at a connection: signals CASE. It succeeds bare, and with connections that are moved. */
#include "moved.h"

#define TIMES 200

static int l;
static struct sockaddr_in where;

/* await_signal waits for a signal, of input at a descriptor if that is not below 0. */
static void await_signal(int sig, int fd)
{
	struct timespec most = {PATIENCE / 1000, 0};
	siginfo_t info;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, sig);
	for (;;) {
		CHECK(sigtimedwait(&set, &info, &most) == sig);
		CHECK(fd < 0 || info.si_fd == fd || info.si_code <= 0);
		if (fd < 0 || info.si_code == POLL_IN)
			return;
	}
}

/* forget takes off the signals that have come. */
static void forget(int sig)
{
	struct timespec none = {0};
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, sig);
	while (sigtimedwait(&set, NULL, &none) > 0)
		;
}

static void send_all(int fd, const char *b, size_t n, int flags)
{
	CHECK(send(fd, b, n, flags) == (ssize_t)n);
}

/* before: the client says it before it connects, in a way. */
static void test_before(int way)
{
	int c = socket(AF_INET, SOCK_STREAM, 0), s, sig = SIGIO, on = 1, self = getpid();
	struct f_owner_ex owner = {F_OWNER_TID, (pid_t)syscall(SYS_gettid)};
	char b[8];

	switch (way) {
	case 0:
		CHECK(fcntl(c, F_SETOWN, self) == 0 && fcntl(c, F_SETFL, O_ASYNC) == 0);
		break;
	case 1:
		sig = SIGRTMIN;
		CHECK(fcntl(c, F_SETSIG, sig) == 0 && fcntl(c, F_SETOWN_EX, &owner) == 0 && fcntl(c, F_SETFL, O_ASYNC | O_NONBLOCK) == 0);
		break;
	case 2:
		CHECK(ioctl(c, FIOSETOWN, &self) == 0 && ioctl(c, FIOASYNC, &on) == 0);
		break;
	default:
		CHECK(fcntl(c, F_SETFL, O_ASYNC) == 0 && ioctl(c, SIOCSPGRP, &self) == 0);
	}
	CHECK(connect(c, (struct sockaddr *)&where, sizeof(where)) == 0 || errno == EINPROGRESS);
	s = accept(l, NULL, NULL);
	CHECK(s >= 0 && as_it_should(c) && as_it_should(s));
	CHECK(fcntl(c, F_GETOWN) == self || way == 1);
	memset(&owner, 0, sizeof(owner));
	CHECK(fcntl(c, F_GETOWN_EX, &owner) == 0 && owner.pid == self && (owner.type == F_OWNER_TID) == (way == 1));
	CHECK(fcntl(c, F_GETSIG) == (way == 1 ? sig : 0) && (fcntl(c, F_GETFL) & O_ASYNC));
	for (int i = 0; i < TIMES; i++) { /* enough to have a ring, if that was possible */
		forget(sig);
		send_all(s, "hello", 5, 0);
		await_signal(sig, way == 1 ? c : -1);
		await(c, POLLIN);
		CHECK(recv(c, b, i % 2 ? 5 : 3, 0) == (i % 2 ? 5 : 3) && (i % 2 || recv(c, b, 5, 0) == 2));
	}
	forget(SIGURG);
	send_all(s, "!", 1, MSG_OOB);
	await_signal(way == 1 ? sig : SIGURG, -1);
	forget(sig);
	close(s); /* an end is told, too */
	await_signal(sig, -1);
	close(c);
}

/* after: an end that is there already, and may have rings. */
static void test_after(void)
{
	int c = connected_to(&where), s = accept(l, NULL, NULL);
	char b[8];

	CHECK(as_it_should(c) && as_it_should(s));
	for (int i = 0; i < TIMES; i++) {
		send_all(c, "hello", 5, 0);
		CHECK(recv(s, b, 5, MSG_WAITALL) == 5);
	}
	CHECK(fcntl(s, F_SETOWN, getpid()) == 0 && fcntl(s, F_SETSIG, SIGRTMIN) == 0 && fcntl(s, F_SETFL, O_ASYNC) == 0);
	for (int i = 0; i < TIMES; i++) {
		forget(SIGRTMIN);
		send_all(c, "hello", 5, 0);
		await_signal(SIGRTMIN, s);
		CHECK(recv(s, b, 2, MSG_WAITALL) == 2);
	}
	close(c);
	close(s);
}

static void *speaks(void *arg)
{
	(void)arg;
	for (int i = 0; i < TIMES; i++) {
		int s = accept(l, NULL, NULL);
		char b;

		CHECK(s >= 0);
		send_all(s, "first", 5, 0);
		recv(s, &b, 1, 0); /* until the client has closed */
		close(s);
	}
	return NULL;
}

/* first: the server speaks at once, so that its bytes may come while connect is at work. */
static void test_first(void)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, speaks, NULL) == 0);
	for (int i = 0; i < TIMES; i++) {
		int c = socket(AF_INET, SOCK_STREAM, 0);

		CHECK(fcntl(c, F_SETOWN, getpid()) == 0 && fcntl(c, F_SETSIG, SIGRTMIN) == 0 && fcntl(c, F_SETFL, O_ASYNC) == 0);
		CHECK(connect(c, (struct sockaddr *)&where, sizeof(where)) == 0);
		await_signal(SIGRTMIN, c);
		await(c, POLLIN);
		close(c);
		forget(SIGRTMIN);
	}
	CHECK(pthread_join(thread, NULL) == 0);
}

/* accepted: the server accepts, of which the client hears nothing. */
static void test_accepted(void)
{
	struct timespec moment = {0, 50000000};
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	for (int i = 0; i < TIMES / 20; i++) {
		int c = socket(AF_INET, SOCK_STREAM, 0), s;

		CHECK(fcntl(c, F_SETOWN, getpid()) == 0 && fcntl(c, F_SETSIG, SIGRTMIN) == 0 && fcntl(c, F_SETFL, O_ASYNC) == 0);
		CHECK(connect(c, (struct sockaddr *)&where, sizeof(where)) == 0);
		forget(SIGRTMIN);
		s = accept(l, NULL, NULL);
		CHECK(s >= 0 && as_it_should(c));
		CHECK(sigtimedwait(&set, NULL, &moment) == -1 && errno == EAGAIN);
		/* They stay open: after short ones others would be TCP. */
	}
}

int main(int argc, char **argv)
{
	sigset_t set;

	CHECK(argc == 2);
	sigemptyset(&set);
	sigaddset(&set, SIGIO);
	sigaddset(&set, SIGURG);
	sigaddset(&set, SIGRTMIN);
	CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	l = server(&where);
	if (strcmp(argv[1], "before") == 0)
		for (int way = 0; way < 4; way++)
			test_before(way);
	else if (strcmp(argv[1], "after") == 0)
		test_after();
	else if (strcmp(argv[1], "accepted") == 0)
		test_accepted();
	else
		test_first();
	return 0;
}
