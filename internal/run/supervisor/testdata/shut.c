/*
 * A program that shuts reading down, and reads on: shut CASE. Bare, with TCP, it behaves the same. With the environment variable MOVED set to 1 its
 * connections are not TCP.
 */
#include "moved.h"

#include <sys/epoll.h>
#include <sys/select.h>

static int a, b;
static char buf[100000];

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

static void waiting(int n)
{
	int have = -1;

	do
		CHECK(ioctl(a, FIONREAD, &have) == 0 && have <= n);
	while (have < n);
}

static short ready(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN | POLLRDHUP | POLLRDNORM};

	CHECK(poll(&p, 1, 0) >= 0);
	return p.revents;
}

static bool selects(int fd)
{
	struct timeval none = {0};
	fd_set in;

	FD_ZERO(&in);
	FD_SET(fd, &in);
	CHECK(select(fd + 1, &in, NULL, NULL, &none) >= 0);
	return FD_ISSET(fd, &in);
}

/* Bytes that have come and bytes that come are read, and nothing is waited for. The peer can send. */
static void test_reads(bool joins, bool nonblocking)
{
	struct iovec part = {buf, sizeof(buf)};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};

	connect_both(joins);
	if (nonblocking)
		CHECK(fcntl(b, F_SETFL, O_NONBLOCK) == 0);
	CHECK(ready(a) == 0 && !selects(a));
	CHECK(send(b, buf, 50, 0) == 50);
	CHECK(shutdown(a, SHUT_RD) == 0 && shutdown(a, SHUT_RD) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(send(b, buf, 100, MSG_NOSIGNAL) == 100);
	waiting(450);
	CHECK(ready(a) == (POLLIN | POLLRDHUP | POLLRDNORM) && selects(a) && ready(b) == 0);
	CHECK(recv(a, buf, 10, MSG_PEEK) == 10 && recv(a, buf, sizeof(buf), MSG_WAITALL) == 450);
	CHECK(recv(a, buf, sizeof(buf), 0) == 0 && read(a, buf, 1) == 0 && recv(a, buf, 1, MSG_PEEK) == 0 && recvmsg(a, &m, 0) == 0);
	CHECK(fcntl(a, F_SETFL, O_NONBLOCK) == 0 && recv(a, buf, 1, 0) == 0);
	CHECK(ready(a) == (POLLIN | POLLRDHUP | POLLRDNORM) && selects(a));
	CHECK(send(b, buf, 30000, MSG_NOSIGNAL) == 30000);
	waiting(30000);
	for (int n = 0; n < 30000; n += 1000)
		CHECK(recv(a, buf, 1000, 0) == 1000);
	CHECK(recv(a, buf, 1000, 0) == 0);
	CHECK(send(a, "x", 1, 0) == 1 && recv(b, buf, 10, 0) == 1);
	CHECK(shutdown(a, SHUT_WR) == 0);
	await(b, POLLRDHUP);
	CHECK(recv(b, buf, 1, 0) == 0 && (ready(a) & POLLHUP));
	close(a);
	close(b);
}

/* A copy, a child and an epoll instance may have it afterwards: then nothing is waited for, either. */
static void test_shared(void)
{
	struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP}, e;
	int ep = epoll_create1(0), c, status;
	pid_t child;

	connect_both(false);
	CHECK(send(b, buf, 50, 0) == 50 && shutdown(a, SHUT_RD) == 0);
	waiting(50);
	CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, a, &ev) == 0);
	CHECK(epoll_wait(ep, &e, 1, 0) == 1 && e.events == (EPOLLIN | EPOLLRDHUP) && recv(a, buf, 100, 0) == 50);
	CHECK(epoll_wait(ep, &e, 1, 0) == 1 && recv(a, buf, 100, 0) == 0);
	close(a);
	close(b);

	connect_both(false);
	CHECK(shutdown(a, SHUT_RD) == 0 && (c = dup(a)) >= 0);
	CHECK(recv(c, buf, 1, 0) == 0 && recv(a, buf, 1, 0) == 0 && (ready(c) & POLLRDHUP));
	close(c);
	close(a);
	close(b);

	connect_both(false);
	CHECK(shutdown(a, SHUT_RD) == 0 && (child = fork()) >= 0);
	if (child == 0)
		_exit(recv(a, buf, 1, 0) != 0 || !(ready(a) & POLLRDHUP));
	CHECK(waitpid(child, &status, 0) == child && status == 0 && recv(a, buf, 1, 0) == 0);
}

/* A splice into a pipe does not wait for bytes, either. */
static void test_spliced(bool joins)
{
	int p[2];

	connect_both(joins);
	CHECK(pipe(p) == 0 && send(b, buf, 50, 0) == 50 && shutdown(a, SHUT_RD) == 0);
	waiting(50);
	CHECK(splice(a, NULL, p[1], NULL, 100, 0) == 50 && splice(a, NULL, p[1], NULL, 100, 0) == 0);
	CHECK(recv(a, buf, 1, 0) == 0 && (ready(a) & POLLRDHUP));
	close(a);
	close(b);
}

static void *reads(void *arg)
{
	CHECK(recv(*(int *)arg, buf, 1, 0) == 0);
	return arg;
}

/* A thread that waits is woken up. */
static void test_wakes(void)
{
	pthread_t t;

	connect_both(false);
	CHECK(pthread_create(&t, NULL, reads, &a) == 0);
	sched_yield();
	CHECK(shutdown(a, SHUT_RD) == 0 && pthread_join(t, NULL) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 2);
	signal(SIGPIPE, SIG_IGN);
	if (strcmp(argv[1], "reads") == 0)
		for (int i = 0; i < 4; i++)
			test_reads(i & 1, i & 2);
	else if (strcmp(argv[1], "shared") == 0)
		test_shared();
	else if (strcmp(argv[1], "spliced") == 0)
		for (int i = 0; i < 2; i++)
			test_spliced(i & 1);
	else if (strcmp(argv[1], "wakes") == 0)
		test_wakes();
	else
		return 2;
	return 0;
}
