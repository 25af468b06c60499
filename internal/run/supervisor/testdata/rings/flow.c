/* Much, little, in turns, in both directions, in many parts, with peeks, polls and signals in between. */
#include "rings.h"

#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/time.h>

void one_way(unsigned long n, unsigned send, unsigned receive, int flags)
{
	int fd;
	pid_t child = both(&fd);

	CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | flags) == 0);
	if (child) {
		put(fd, &ab, n, send);
		have(1);
		CHECK(shutdown(fd, SHUT_WR) == 0);
		ended(fd);
	} else {
		take(fd, &ab, n, receive);
		ended(fd);
	}
	close(fd);
	have(0);
	done(child);
}

void phases(int flags)
{
	int fd;
	pid_t child = both(&fd);

	CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | flags) == 0);
	for (unsigned long i = 0; i < 60; i++) {
		unsigned long n = 1 + i * 7919 % (i % 5 ? 3000 : 300000);

		if (child) {
			put(fd, &ab, n, 100000);
			take(fd, &ba, n / 2 + 1, 50000);
		} else {
			take(fd, &ab, n, 50000);
			put(fd, &ba, n / 2 + 1, 100000);
		}
	}
	done(child);
}

/* duplex goes by edges alone, as nginx does: a short read or write, and EAGAIN, mean that there will be one. */
void duplex(void)
{
	const unsigned long all = 8000000;
	struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
	int fd, can_read = 1, can_write = 1;
	pid_t child = both(&fd);
	struct stream *out = child ? &ab : &ba, *in = child ? &ba : &ab;
	int ep = epoll_create1(0);

	CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) == 0);
	while (out->at < all || in->at < all) {
		if (can_read && in->at < all) {
			unsigned k = 1 + rnd(100000);
			ssize_t r = read(fd, buf, k);

			CHECK(r > 0 || (r < 0 && errno == EAGAIN));
			if (r > 0) {
				look(in, r);
				in->at += (unsigned long)r;
			}
			can_read = r == (ssize_t)k;
		}
		if (can_write && out->at < all) {
			unsigned k = 1 + rnd(100000);
			ssize_t r;

			if (k > all - out->at)
				k = (unsigned)(all - out->at);
			fill(out, k);
			r = write(fd, buf, k);
			CHECK(r > 0 || (r < 0 && errno == EAGAIN));
			if (r > 0)
				out->at += (unsigned long)r;
			can_write = r == (ssize_t)k;
		}
		if ((can_read && in->at < all) || (can_write && out->at < all) || (out->at == all && in->at == all))
			continue;
		CHECK(epoll_wait(ep, &ev, 1, PATIENCE) == 1);
		can_read |= (ev.events & EPOLLIN) != 0;
		can_write |= (ev.events & EPOLLOUT) != 0;
	}
	shutdown(fd, SHUT_WR);
	done(child);
}

void test_poll(void)
{
	struct timeval quick = {.tv_usec = 20000};
	int a, b, n = -1;

	joined(&a, &b);
	/* Nothing is there, and that is said. */
	struct pollfd p = {.fd = b, .events = POLLIN};
	CHECK(poll(&p, 1, 0) == 0);
	CHECK(recv(b, buf, 10, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	CHECK(setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &quick, sizeof(quick)) == 0);
	CHECK(read(b, buf, 10) == -1 && errno == EAGAIN);
	/* A part is read: the rest can be, too. */
	put(a, &ab, 1000, 1000);
	while (n < 1000)
		CHECK(ioctl(b, FIONREAD, &n) == 0 && n <= 1000);
	take(b, &ab_in, 400, 400);
	CHECK(poll(&p, 1, 0) == 1);
	CHECK(ioctl(b, FIONREAD, &n) == 0 && n == 600);
	take(b, &ab_in, 600, 600);
	CHECK(poll(&p, 1, 0) == 0);
	CHECK(ioctl(b, FIONREAD, &n) == 0 && n == 0);
	/* It is full. */
	for (;;) {
		fill(&ab, LARGE);
		ssize_t r = send(a, buf, LARGE, MSG_DONTWAIT);
		if (r < 0)
			break;
		ab.at += (unsigned long)r;
	}
	CHECK(errno == EAGAIN);
	p = (struct pollfd){.fd = a, .events = POLLOUT};
	CHECK(poll(&p, 1, 0) == 0);
	CHECK(setsockopt(a, SOL_SOCKET, SO_SNDTIMEO, &quick, sizeof(quick)) == 0);
	CHECK(write(a, buf, LARGE) == -1 && errno == EAGAIN);
	unsigned long unread = ab.at - ab_in.at;
	take(b, &ab_in, unread - 100000, LARGE);
	CHECK(poll(&p, 1, PATIENCE) == 1 && p.revents == POLLOUT);
	p = (struct pollfd){.fd = b, .events = POLLIN};
	CHECK(poll(&p, 1, 0) == 1);
	take(b, &ab_in, 100000, LARGE);
	put(a, &ab, 10, 10);
	take(b, &ab_in, 10, 10);
	have(2);
	/* Half a close: the other direction, in which nothing has gone yet, goes on. */
	put(a, &ab, 100, 100);
	CHECK(shutdown(a, SHUT_WR) == 0);
	CHECK(send(a, buf, 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
	take(b, &ab_in, 100, 100);
	ended(b);
	put(b, &ba, 5, 5);
	take(a, &ba_in, 5, 5);
	close(b);
	ended(a);
	close(a);
	have(0);
}

static void nothing(int sig)
{
	(void)sig;
}

void test_signal(void)
{
	struct sigaction sa = {.sa_handler = nothing};
	struct itimerval soon = {.it_value = {.tv_usec = 20000}, .it_interval = {.tv_usec = 20000}};
	struct itimerval never = {0};
	int a, b;

	joined(&a, &b);
	CHECK(sigaction(SIGALRM, &sa, NULL) == 0 && setitimer(ITIMER_REAL, &soon, NULL) == 0);
	CHECK(read(b, buf, 1) == -1 && errno == EINTR);
	ssize_t r;
	do {
		fill(&ab, LARGE);
		r = write(a, buf, LARGE);
		if (r > 0)
			ab.at += (unsigned long)r;
	} while (r == LARGE); /* until a signal comes while it waits */
	CHECK(r > 0 || errno == EINTR);
	setitimer(ITIMER_REAL, &never, NULL);
	unsigned long unread = ab.at - ab_in.at;
	take(b, &ab_in, unread, LARGE);
}

/* peeked looks at so many bytes, which are there or will be, and takes none of them. */
static void peeked(int fd, const struct stream *s, size_t n)
{
	ssize_t r = 0;

	for (int i = 0; i < 2000 && r < (ssize_t)n; i++) {
		r = recv(fd, buf, n, MSG_PEEK);
		CHECK(r > 0);
		look(s, r);
		if (r < (ssize_t)n)
			usleep(1000);
	}
	CHECK(r == (ssize_t)n);
	CHECK(recv(fd, NULL, n, MSG_PEEK | MSG_TRUNC) == r);
}

/* discarded reads n bytes without having them, and touches no buffer. */
static void discarded(int fd, struct stream *s, size_t n)
{
	char small[2][8] = {"before", "behind"};
	struct iovec v[2] = {{small[0], 4}, {NULL, 5}};
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};

	CHECK(recv(fd, NULL, 1, MSG_TRUNC) == 1);
	CHECK(recv(fd, small[0], n - 10, MSG_TRUNC) == (ssize_t)n - 10);
	CHECK(recvmsg(fd, &m, MSG_TRUNC) == 9 && m.msg_flags == 0);
	CHECK(strcmp(small[0], "before") == 0 && strcmp(small[1], "behind") == 0);
	s->at += n;
}

/* peeked_over has a direction go over to a ring and back before anybody reads on: a peek sees it all. */
static void peeked_over(int f)
{
	int a, b;

	both_ends(&a, &b);
	fill(&ab, LARGE);
	CHECK(write(a, buf, LARGE) == LARGE);
	ab.at += LARGE;
	take(b, &ab_in, LARGE, LARGE);
	fill(&ab, LARGE + 5000);
	CHECK(write(a, buf, LARGE) == LARGE && pwrite(f, buf + LARGE, 5000, 0) == 5000 && sendfile(a, f, &(off_t){0}, 5000) == 5000);
	ab.at += LARGE + 5000;
	peeked(b, &ab_in, 1);
	peeked(b, &ab_in, LARGE);
	peeked(b, &ab_in, LARGE + 5000);
	take(b, &ab_in, LARGE + 5000, LARGE);
	close(a);
	ended(b);
	close(b);
	ab.at = ab_in.at = 0;
}

/* A peek shows more as more bytes come, wherever a direction goes over to a ring, and back. */
void test_peek(void)
{
	char path[] = "/tmp/gosmc-rings-XXXXXX";
	int a, b, copy, f = mkstemp(path);

	CHECK(f >= 0 && unlink(path) == 0);
	peeked_over(f);
	both_ends(&a, &b);
	fill(&ab, LARGE);
	CHECK(write(a, buf, LARGE) == LARGE);
	ab.at += LARGE;
	peeked(b, &ab_in, 1);
	peeked(b, &ab_in, 5);
	peeked(b, &ab_in, LARGE);
	discarded(b, &ab_in, 20);
	fill(&ab, LARGE);
	CHECK(write(a, buf, LARGE) == LARGE);
	ab.at += LARGE;
	have(2);
	peeked(b, &ab_in, LARGE + 1000);
	peeked(b, &ab_in, 2 * LARGE - 20);
	take(b, &ab_in, LARGE, LARGE);
	discarded(b, &ab_in, LARGE - 20);
	fill(&ab, 5000);
	CHECK(write(a, buf, 1000) == 1000 && pwrite(f, buf + 1000, 4000, 0) == 4000);
	CHECK(lseek(f, 0, SEEK_SET) == 0 && sendfile(a, f, NULL, 4000) == 4000);
	ab.at += 5000;
	peeked(b, &ab_in, 1000);
	peeked(b, &ab_in, 5000);
	take(b, &ab_in, 4000, 4000);
	copy = dup(b);
	CHECK(copy >= 0);
	discarded(copy, &ab_in, 500);
	discarded(b, &ab_in, 500);
	close(copy);
	close(a);
	ended(b);
}

/* Many parts are one call, also where the first ones are empty. */
void test_parts(void)
{
	static struct iovec v[1000];
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 1000};
	int a, b;

	both_ends(&a, &b);
	for (int i = 0; i < 10; i++) {
		v[200] = (struct iovec){buf, 50};
		fill(&ab, 50);
		CHECK(i % 4 < 2 ? writev(a, v, 201) == 50 : sendmsg(a, &m, 0) == 50);
		ab.at += 50;
		memset(buf, 0, 50);
		CHECK(i % 2 ? readv(b, v, 201) == 50 : recvmsg(b, &m, 0) == 50);
		look(&ab_in, 50);
		ab_in.at += 50;
		CHECK(recvmsg(b, &m, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	}
	for (int i = 0; i < 1000; i++)
		v[i] = (struct iovec){buf + 5 * i, 5};
	for (int i = 0; i < 6; i++) {
		fill(&ab, 5000);
		CHECK(sendmsg(a, &m, 0) == 5000);
		ab.at += 5000;
		memset(buf, 0, 5000);
		CHECK(i % 2 ? readv(b, v, 1000) == 5000 : recvmsg(b, &m, MSG_WAITALL) == 5000);
		look(&ab_in, 5000);
		ab_in.at += 5000;
		put(a, &ab, LARGE, LARGE);
		take(b, &ab_in, LARGE, LARGE);
	}
}
