/* One of the two goes. */
#include "rings.h"

/* The peer is killed: bytes that it has sent can be read, and are told apart from bytes that it has not sent. */
void test_killed(void)
{
	for (int i = 0; i < 20; i++) {
		struct stream s = ab;
		ssize_t r;
		int fd;
		pid_t child = both(&fd);

		if (child == 0) {
			put(fd, &s, 1ul << 40, 1 + rnd(100000));
			_exit(0);
		}
		take(fd, &s, 1 + rnd(3000000), 100000);
		kill(child, i % 4 ? SIGKILL : SIGSTOP);
		if (i % 4 == 0) {
			usleep(1000);
			kill(child, SIGKILL);
		}
		while ((r = read(fd, buf, 1 + rnd(100000))) > 0) {
			look(&s, r);
			s.at += (unsigned long)r;
		}
		CHECK(r == 0 || errno == ECONNRESET);
		CHECK(waitpid(child, NULL, 0) == child);
		close(fd);
		have(0);
	}
	for (int i = 0; i < 20; i++) { /* and the reader */
		struct stream s = ab;
		int fd;
		pid_t child = both(&fd);
		ssize_t r;

		if (child == 0) {
			take(fd, &s, 1ul << 40, 1 + rnd(100000));
			_exit(0);
		}
		put(fd, &s, 1 + rnd(3000000), 100000);
		kill(child, SIGKILL);
		while ((r = send(fd, buf, 1 + rnd(100000), MSG_NOSIGNAL)) > 0)
			;
		CHECK(errno == EPIPE || errno == ECONNRESET);
		CHECK(waitpid(child, NULL, 0) == child);
		close(fd);
		have(0);
	}
}

/* The peer has closed, and a sender hears of it, with room in the ring and a token not read. */
void test_gone(void)
{
	int a, b, failed = 0;

	signal(SIGPIPE, SIG_IGN);
	joined(&a, &b);
	put(a, &ab, 100, 100);
	close(b);
	for (int i = 0; i < 3 && !failed; i++) {
		usleep(20000);
		failed = send(a, buf, 10, MSG_DONTWAIT) < 0;
	}
	CHECK(failed && (errno == EPIPE || errno == ECONNRESET));
}

/*
 * The closing program has read all, but for the end, and for the tokens that a ring puts into the socket to say that something is there: to the peer it is no reset.
 */
void test_unread(void)
{
	int a, b;

	for (int i = 0; i < 4; i++) {
		joined(&a, &b);
		fill(&ab, 100);
		CHECK(send(a, buf, 100, 0) == 100);
		if (i & 1)
			CHECK(shutdown(a, SHUT_WR) == 0);
		if (i & 2)
			CHECK(recv(b, buf, 60, 0) == 60 && recv(b, buf + 60, 40, 0) == 40);
		else
			CHECK(recv(b, buf, 100, MSG_WAITALL) == 100);
		look(&ab, 100);
		ab.at += 100;
		ab_in.at += 100;
		close(b);
		await(a, POLLRDHUP);
		ended(a);
		close(a);
	}
}

static volatile int pipes;

static void count_pipe(int sig)
{
	(void)sig;
	pipes++;
}

static int connected(int fd)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);

	return getpeername(fd, (struct sockaddr *)&ss, &len) == 0;
}

/* refused sends until the peer's answer is there, and returns how many sends were taken before. */
static int refused(int fd, size_t n, int flags)
{
	int taken = 0;

	while (send(fd, buf, n, flags) > 0) {
		CHECK(++taken < 2000);
		usleep(1000);
	}
	return taken;
}

/*
 * Sends after the peer has closed: 0 bytes are no reason to complain, the first bytes are taken, and the peer's answer to them makes
 * it EPIPE, with the signal. A peer that had not read all has answered before. A program that sends no more itself needs no answer.
 */
void test_after_close(void)
{
	int a, b;

	CHECK(signal(SIGPIPE, count_pipe) != SIG_ERR);
	for (int i = 0; i < 16; i++) {
		int on_ring = i & 1, unread = i & 2, shut = i & 4, quiet = i & 8 ? MSG_NOSIGNAL : 0;

		if (on_ring)
			joined(&a, &b);
		else
			both_ends(&a, &b);
		pipes = 0;
		if (unread)
			CHECK(send(a, buf, 5, 0) == 5);
		if (shut)
			CHECK(shutdown(a, SHUT_WR) == 0);
		close(b);
		await(a, POLLRDHUP);
		if (shut && !unread) {
			CHECK(send(a, buf, 10, quiet) == -1 && errno == EPIPE && pipes == !quiet);
		} else if (unread) {
			CHECK(!connected(a));
			CHECK(refused(a, 10, quiet) >= 0 && errno == ECONNRESET && pipes == 0); /* on a ring it is seen some milliseconds later */
			CHECK(send(a, buf, 10, quiet) == -1 && errno == EPIPE && pipes == !quiet);
		} else {
			CHECK(connected(a));
			CHECK(send(a, buf, 0, quiet) == 0 && write(a, buf, 0) == 0);
			CHECK(refused(a, on_ring ? LARGE : 10, quiet) >= 1 && errno == EPIPE && pipes == !quiet);
			CHECK(write(a, buf, 10) == -1 && errno == EPIPE && pipes == !quiet + 1);
			CHECK(send(a, buf, 0, quiet) == -1 && errno == EPIPE);
			CHECK(!connected(a));
			ended(a);
		}
		close(a);
	}
	/* A peer that reads no more has not closed. */
	joined(&a, &b);
	CHECK(shutdown(b, SHUT_RD) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(send(a, buf, 10, 0) == 10);
	put(b, &ba, 10, 10);
	take(a, &ba_in, 10, 10);
	close(a);
	/* A receive that was told of the reset is no less the end of it. */
	both_ends(&a, &b);
	CHECK(send(a, buf, 5, 0) == 5);
	close(b);
	await(a, POLLRDHUP);
	CHECK(read(a, buf, 1) == -1 && errno == ECONNRESET && !connected(a) && read(a, buf, 1) == 0);
	pipes = 0;
	CHECK(send(a, buf, 10, 0) == -1 && errno == EPIPE && pipes == 1);
}

/* A call that has bytes to return keeps the error that the kernel reports once for the next call, whichever that is. */
void test_told(void)
{
	int a, b;

	for (int sends = 0; sends < 2; sends++) {
		joined(&a, &b);
		put(a, &ab, 100, 100);
		CHECK(send(b, buf, 5, 0) == 5);
		close(a);
		await(b, POLLRDHUP);
		CHECK(recv(b, buf, 1000, MSG_WAITALL) == 100);
		look(&ab_in, 100);
		ab_in.at += 100;
		CHECK((sends ? send(b, buf, 1, MSG_NOSIGNAL) : read(b, buf, 1)) == -1 && errno == ECONNRESET);
		CHECK(read(b, buf, 1) == 0);
		CHECK(send(b, buf, 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
		close(b);
	}
}

/* A copy knows the state of the descriptor that was copied: that it sends no more, and that the peer has answered. */
void test_copy_after(void)
{
	int a, b, copy;

	for (int shut = 0; shut < 2; shut++) {
		joined(&a, &b);
		if (shut)
			CHECK(shutdown(b, SHUT_WR) == 0);
		close(a);
		await(b, POLLRDHUP);
		if (!shut) {
			CHECK(send(b, buf, 1, MSG_NOSIGNAL) == 1);
			await(b, 0); /* the answer */
		}
		copy = dup(b);
		CHECK(send(copy, buf, 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
		CHECK(send(b, buf, 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
		close(b);
		close(copy);
	}
}

/* Sending is shut down for all that have the connection: by another descriptor, or in another process. */
void test_shut_elsewhere(void)
{
	int a, b, copy;
	pid_t child;

	for (int i = 0; i < 4; i++) {
		int *sender = i & 1 ? &a : &b; /* with a ring for its sends, or without */

		joined(&a, &b);
		if (i & 2) {
			child = fork();
			CHECK(child >= 0);
			if (child == 0) {
				CHECK(shutdown(*sender, SHUT_WR) == 0);
				_exit(0);
			}
			done(child);
		} else {
			copy = dup(*sender);
			CHECK(copy >= 0 && shutdown(copy, SHUT_WR) == 0 && close(copy) == 0);
		}
		CHECK(send(*sender, buf, 10, MSG_NOSIGNAL) == -1 && errno == EPIPE);
		ended(sender == &a ? b : a);
		close(a);
		close(b);
	}
}
