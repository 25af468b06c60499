/*
 * Programs that send much, and know nothing of gosmc: rings CASE [SEED]. All of it is what TCP does, too. With the
 * environment variable RINGS set to 1 the connections must have gone over to rings, with 0 they must not.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                            \
	do {                                                                                   \
		if (!(what)) {                                                                 \
			fprintf(stderr, "%s:%d: pid %d: %s (%s)\n", __FILE__, __LINE__, getpid(), #what, strerror(errno)); \
			_exit(1);                                                              \
		}                                                                              \
	} while (0)

#define PATIENCE 60000 /* milliseconds that nothing may take */
#define LARGE 32768

static unsigned long seed = 1;

static unsigned rnd(unsigned n)
{
	seed = seed * 6364136223846793005ul + 1442695040888963407ul;
	return (unsigned)(seed >> 33) % n;
}

/* A stream is what goes in one direction: every byte says where it belongs. */
struct stream {
	unsigned long at, dir;
};

static unsigned char byte_at(const struct stream *s, unsigned long i)
{
	i += s->at + s->dir * 77777;
	return (unsigned char)((i * 2654435761ul) >> 13 ^ i);
}

static char buf[1 << 20];

static void fill(const struct stream *s, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		buf[i] = (char)byte_at(s, i);
}

static void look(const struct stream *s, long n)
{
	for (long i = 0; i < n; i++)
		if ((unsigned char)buf[i] != byte_at(s, (unsigned long)i)) {
			fprintf(stderr, "pid %d: wrong byte at %lu of direction %lu\n", getpid(), s->at + (unsigned long)i, s->dir);
			_exit(1);
		}
}

static void await(int fd, short events)
{
	struct pollfd p = {.fd = fd, .events = events};

	CHECK(poll(&p, 1, PATIENCE) == 1);
}

/* put sends so many bytes, in parts of at most max. */
static void put(int fd, struct stream *s, unsigned long n, unsigned max)
{
	while (n) {
		unsigned k = 1 + rnd(max < n ? max : (unsigned)n);
		unsigned cut = rnd(k + 1);
		struct iovec v[3] = {{buf, cut}, {buf + cut, 0}, {buf + cut, k - cut}};
		struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
		ssize_t r;

		fill(s, k);
		switch (rnd(4)) {
		case 0:
			r = write(fd, buf, k);
			break;
		case 1:
			r = send(fd, buf, k, MSG_NOSIGNAL);
			break;
		case 2:
			r = writev(fd, v, 3);
			break;
		default:
			r = sendmsg(fd, &m, 0);
		}
		if (r < 0 && errno == EAGAIN) {
			await(fd, POLLOUT);
			continue;
		}
		CHECK(r > 0 && (r == (ssize_t)k || (fcntl(fd, F_GETFL) & O_NONBLOCK)));
		s->at += (unsigned long)r;
		n -= (unsigned long)r;
	}
}

/* take receives so many bytes, in parts of at most max. */
static void take(int fd, struct stream *s, unsigned long n, unsigned max)
{
	while (n) {
		unsigned k = 1 + rnd(max < n ? max : (unsigned)n);
		struct iovec v[2] = {{buf, k / 2}, {buf + k / 2, k - k / 2}};
		struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
		int flags = 0;
		ssize_t r;

		switch (rnd(6)) {
		case 0:
			r = read(fd, buf, k);
			break;
		case 1:
			r = readv(fd, v, 2);
			break;
		case 2:
			r = recvmsg(fd, &m, 0);
			break;
		case 3:
			flags = MSG_PEEK;
			r = recv(fd, buf, k, flags);
			break;
		case 4:
			if (!(fcntl(fd, F_GETFL) & O_NONBLOCK))
				flags = MSG_WAITALL;
			r = recv(fd, buf, k, flags);
			break;
		default:
			await(fd, POLLIN);
			r = recvfrom(fd, buf, k, 0, NULL, NULL);
		}
		if (r < 0 && errno == EAGAIN) {
			await(fd, POLLIN);
			continue;
		}
		CHECK(r > 0 && (flags != MSG_WAITALL || r == (ssize_t)k));
		look(s, r);
		if (flags == MSG_PEEK)
			continue;
		s->at += (unsigned long)r;
		n -= (unsigned long)r;
	}
}

static void ended(int fd)
{
	ssize_t r;

	while ((r = read(fd, buf, 1)) < 0 && errno == EAGAIN)
		await(fd, POLLIN);
	CHECK(r == 0);
}

static int server(struct sockaddr_in *a)
{
	socklen_t len = sizeof(*a);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	*a = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	CHECK(bind(l, (struct sockaddr *)a, len) == 0 && listen(l, 5) == 0 && getsockname(l, (struct sockaddr *)a, &len) == 0);
	return l;
}

static void pair(int *c, int *s)
{
	struct sockaddr_in a;
	int l = server(&a);

	*c = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(*c, (struct sockaddr *)&a, sizeof(a)) == 0);
	*s = accept(l, NULL, NULL);
	CHECK(*s >= 0);
	close(l);
}

/* mapped is how many rings this process has. */
static int mapped(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	while (fgets(line, sizeof(line), f))
		n += strstr(line, "gosmc-ring") != NULL;
	fclose(f);
	return n;
}

static int on_rings(void)
{
	const char *v = getenv("RINGS");

	return v && atoi(v);
}

/* have looks behind the curtain. */
static void have(int rings)
{
	if (getenv("RINGS") && !getenv("GOSMC_RUN_SHAKE"))
		CHECK(mapped() == (on_rings() ? rings : 0));
}

static struct stream ab = {0, 0}, ba = {0, 1};	      /* as they are sent */
static struct stream ab_in = {0, 0}, ba_in = {0, 1}; /* as they are received, where one process does both */

/* joined makes a connection whose first direction has its ring. */
static void joined(int *a, int *b)
{
	pair(a, b);
	for (int i = 0; i < 4; i++) {
		put(*a, &ab, LARGE, LARGE);
		take(*b, &ab_in, LARGE, LARGE);
	}
	have(2);
}

/* In two processes, each of which makes its own end. */
static int both(int *fd)
{
	struct sockaddr_in a;
	int l = server(&a);
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		*fd = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(connect(*fd, (struct sockaddr *)&a, sizeof(a)) == 0);
		seed ^= 0x5555;
	} else {
		*fd = accept(l, NULL, NULL);
		CHECK(*fd >= 0);
	}
	close(l);
	return child;
}

static void done(pid_t child)
{
	int status;

	if (child == 0)
		_exit(0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void one_way(unsigned long n, unsigned send, unsigned receive, int flags)
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

static void phases(int flags)
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
static void duplex(void)
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

static void test_poll(void)
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

static void test_signal(void)
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

/* Copies of a descriptor are the same descriptor. */
static void test_dup(void)
{
	int a, b, c, d;

	joined(&a, &b);
	c = dup(b);
	d = fcntl(a, F_DUPFD, 100);
	CHECK(c >= 0 && d >= 100);
	put(a, &ab, 1000, 1000);
	take(c, &ab_in, 500, 500);
	take(b, &ab_in, 500, 500);
	close(a);
	close(b);
	put(d, &ab, 300000, 1000);
	take(c, &ab_in, 300000, 100000);
	CHECK(dup2(c, b) == b);
	close(c);
	put(d, &ab, 1000, 1000);
	take(b, &ab_in, 1000, 1000);
	close(d);
	ended(b);
	close(b);
	have(0);
}

/* Processes that were one share their end. */
static void test_fork(void)
{
	int a, b;
	pid_t child;

	joined(&a, &b);
	for (int i = 0; i < 10; i++) {
		put(a, &ab, 2000, 100);
		child = fork();
		if (child == 0) {
			take(b, &ab_in, 2000, 3000);
			put(a, &ab, 1500, 1000);
			_exit(0);
		}
		CHECK(waitpid(child, NULL, 0) == child);
		ab_in.at += 2000;
		take(b, &ab_in, 1500, 1000);
		ab.at += 1500;
	}
	/* One that dies while it waits, and while it is somewhere in between. */
	for (int i = 0; i < 30; i++) {
		child = fork();
		if (child == 0) {
			if (i % 2)
				(void)!read(b, buf, 1);
			for (;;)
				(void)!recv(b, buf, 10, MSG_DONTWAIT | MSG_PEEK);
		}
		usleep(rnd(3000));
		kill(child, SIGKILL);
		CHECK(waitpid(child, NULL, 0) == child);
	}
	fill(&ab, 100);
	ssize_t r = send(a, buf, 100, MSG_NOSIGNAL);
	CHECK(r == 100 || (r < 0 && (errno == EPIPE || errno == ECONNRESET)));
	if (r == 100) {
		r = recv(b, buf, 100, MSG_WAITALL);
		CHECK(r == 100 || (r <= 0 && errno == ECONNRESET));
		look(&ab_in, r);
	}
}

/* A program without us gets the descriptor: rings CASE heir. */
static void test_exec(const char *self)
{
	char number[16], ten[11] = {0};
	int a, b, status;
	pid_t child;

	joined(&a, &b);
	CHECK(fcntl(a, F_SETFD, FD_CLOEXEC) == 0);
	snprintf(number, sizeof(number), "%d", b);
	child = fork();
	if (child == 0) {
		unsetenv("LD_PRELOAD");
		execl(self, self, "heir", number, NULL);
		_exit(9);
	}
	/* It reads ten bytes by itself, and answers. */
	memcpy(ten, "0123456789", 10);
	usleep(100000);
	CHECK(write(a, ten, 10) == 10);
	CHECK(recv(a, buf, 4, MSG_WAITALL) == 4 && memcmp(buf, "fine", 4) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	put(a, &ab, 100000, 20000);
	take(b, &ab_in, 100000, 20000);
	close(a);
	ended(b);
}

static void heir(const char *number)
{
	char ten[10];
	int fd = atoi(number);

	CHECK(recv(fd, ten, 10, MSG_WAITALL) == 10 && memcmp(ten, "0123456789", 10) == 0);
	CHECK(write(fd, "fine", 4) == 4);
}

static ssize_t pass(int over, int fd)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec v = {"x", 1};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control.room)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	return sendmsg(over, &m, 0);
}

/* So does one to which it is passed. */
static void test_passed(const char *self)
{
	int a, b, over[2], status;
	pid_t child;

	joined(&a, &b);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, over) == 0);
	child = fork();
	if (child == 0) {
		char number[16];

		close(a);
		close(b);
		unsetenv("LD_PRELOAD");
		snprintf(number, sizeof(number), "%d", over[1]);
		execl(self, self, "passed-heir", number, NULL);
		_exit(9);
	}
	/* What has been read by nobody stays where only we can read it. */
	put(a, &ab, 10, 10);
	if (on_rings() && !getenv("GOSMC_RUN_SHAKE"))
		CHECK(pass(over[0], b) == -1 && errno == ETOOMANYREFS);
	take(b, &ab_in, 10, 10);
	CHECK(pass(over[0], b) == 1);
	CHECK(write(a, "0123456789", 10) == 10);
	CHECK(recv(a, buf, 4, MSG_WAITALL) == 4 && memcmp(buf, "fine", 4) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void passed_heir(const char *number)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char x;
	struct iovec v = {&x, 1};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control.room)};
	char text[16];
	int fd;

	CHECK(recvmsg(atoi(number), &m, 0) == 1 && CMSG_FIRSTHDR(&m));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	snprintf(text, sizeof(text), "%d", fd);
	heir(text);
}

/* libc and the kernel move bytes by themselves. */
static void test_others(void)
{
	char path[] = "/tmp/gosmc-rings-XXXXXX", line[64];
	int a, b, f = mkstemp(path);
	FILE *in;

	CHECK(f >= 0 && unlink(path) == 0);
	joined(&a, &b);
	fill(&ab, 5000);
	CHECK(pwrite(f, buf, 5000, 0) == 5000);
	CHECK(lseek(f, 0, SEEK_SET) == 0 && sendfile(a, f, NULL, 5000) == 5000);
	ab.at += 5000;
	take(b, &ab_in, 5000, 5000);
	put(a, &ab, 200000, 2000);
	take(b, &ab_in, 200000, 20000);
	CHECK(dprintf(a, "%s %d\n", "hello", 7) == 8);
	in = fdopen(b, "r");
	CHECK(in && fgets(line, sizeof(line), in) && strcmp(line, "hello 7\n") == 0);
	fclose(in);
	close(a);
	have(0);
}

/* The peer is killed: what it has sent can be read, and it is told apart from what it has not. */
static void test_killed(void)
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

static void *reader(void *arg)
{
	static char mine[1000];
	long n = 0;
	ssize_t r;

	while ((r = read(*(int *)arg, mine, sizeof(mine))) > 0)
		n += r;
	return (void *)n;
}

/* Two threads read and two write: no byte is lost, whoever gets it. */
static void test_threads(void)
{
	int a, b;
	pthread_t t[2];
	void *n[2];

	pair(&a, &b);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&t[i], NULL, reader, &b) == 0);
	put(a, &ab, 20000000, 40000);
	CHECK(shutdown(a, SHUT_WR) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(t[i], &n[i]) == 0);
	CHECK((long)n[0] + (long)n[1] == 20000000);
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
}

/* What a peek shows grows with what has come, wherever a direction goes over to a ring, and back. */
static void test_peek(void)
{
	char path[] = "/tmp/gosmc-rings-XXXXXX";
	int a, b, f = mkstemp(path);

	CHECK(f >= 0 && unlink(path) == 0);
	pair(&a, &b);
	fill(&ab, LARGE);
	CHECK(write(a, buf, LARGE) == LARGE);
	ab.at += LARGE;
	peeked(b, &ab_in, 1);
	peeked(b, &ab_in, 5);
	peeked(b, &ab_in, LARGE);
	take(b, &ab_in, 10, 10);
	fill(&ab, LARGE);
	CHECK(write(a, buf, LARGE) == LARGE);
	ab.at += LARGE;
	have(2);
	peeked(b, &ab_in, LARGE + 1000);
	peeked(b, &ab_in, 2 * LARGE - 10);
	take(b, &ab_in, 2 * LARGE - 10, LARGE);
	fill(&ab, 5000);
	CHECK(write(a, buf, 1000) == 1000 && pwrite(f, buf + 1000, 4000, 0) == 4000);
	CHECK(lseek(f, 0, SEEK_SET) == 0 && sendfile(a, f, NULL, 4000) == 4000);
	ab.at += 5000;
	peeked(b, &ab_in, 1000);
	peeked(b, &ab_in, 5000);
	take(b, &ab_in, 5000, 5000);
	close(a);
	ended(b);
}

/* The reader has no descriptor left when the writer switches. */
static void test_starved(void)
{
	struct rlimit few = {50, 50};
	int a, b;

	pair(&a, &b);
	for (int i = 0; i < 4; i++) {
		fill(&ab, LARGE);
		CHECK(write(a, buf, LARGE) == LARGE);
		ab.at += LARGE;
		if (i == 1) {
			CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
			while (dup(0) >= 0)
				;
			CHECK(errno == EMFILE);
		}
		take(b, &ab_in, LARGE, LARGE);
	}
}

/* No file may be so large: that is no reason to get SIGXFSZ for a ring. */
static void test_small_files(void)
{
	struct rlimit small = {100000, 100000};
	int a, b;

	CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
	pair(&a, &b);
	for (int i = 0; i < 3; i++) {
		fill(&ab, LARGE);
		CHECK(write(a, buf, LARGE) == LARGE);
		ab.at += LARGE;
		take(b, &ab_in, LARGE, LARGE);
	}
}

int __dprintf_chk(int fd, int flag, const char *format, ...);

/* What dprintf is in programs that were compiled with _FORTIFY_SOURCE. */
static void test_fortified(void)
{
	int a, b;

	joined(&a, &b);
	CHECK(__dprintf_chk(a, 1, "%s %d\n", "hello", 7) == 8);
	CHECK(recv(b, buf, 8, MSG_WAITALL) == 8 && memcmp(buf, "hello 7\n", 8) == 0);
	put(a, &ab, LARGE, LARGE);
	take(b, &ab_in, LARGE, LARGE);
}

/* A program without us has the descriptor since before there was a ring, and writes later: rings late-heir. */
static void test_spawned(char *self)
{
	char number[16], wait[16];
	char *argv[] = {self, "late-heir", number, wait, NULL}, *environment[] = {NULL};
	int a, b, go[2], status;
	pid_t child;

	pair(&a, &b);
	CHECK(pipe(go) == 0);
	snprintf(number, sizeof(number), "%d", a);
	snprintf(wait, sizeof(wait), "%d", go[0]);
	CHECK(posix_spawn(&child, self, NULL, NULL, argv, environment) == 0);
	for (int i = 0; i < 4; i++) {
		put(a, &ab, LARGE, LARGE);
		take(b, &ab_in, LARGE, LARGE);
	}
	CHECK(write(go[1], "x", 1) == 1);
	CHECK(recv(b, buf, 10, MSG_WAITALL) == 10 && memcmp(buf, "0123456789", 10) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	put(a, &ab, LARGE, LARGE);
	take(b, &ab_in, LARGE, LARGE);
}

/* Many parts are one call. */
static void test_parts(void)
{
	static struct iovec v[1000];
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 1000};
	int a, b;

	pair(&a, &b);
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

/* The peer has closed, and whoever sends hears of it, with room in the ring and a token not read. */
static void test_gone(void)
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
 * Who closes has read all, but for the end, and for what a ring puts into the socket to say that something is there: to the peer it is no reset.
 */
static void test_unread(void)
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
 * What is sent after the peer has closed: nothing at all is no reason to complain, the first bytes are taken, and the peer's answer to them makes
 * it EPIPE, with the signal. A peer that had not read all has answered before. Who sends no more himself needs no answer.
 */
static void test_after_close(void)
{
	int a, b;

	CHECK(signal(SIGPIPE, count_pipe) != SIG_ERR);
	for (int i = 0; i < 16; i++) {
		int on_ring = i & 1, unread = i & 2, shut = i & 4, quiet = i & 8 ? MSG_NOSIGNAL : 0;

		if (on_ring)
			joined(&a, &b);
		else
			pair(&a, &b);
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
	/* Who reads no more has not closed. */
	joined(&a, &b);
	CHECK(shutdown(b, SHUT_RD) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(send(a, buf, 10, 0) == 10);
	put(b, &ba, 10, 10);
	take(a, &ba_in, 10, 10);
	close(a);
	/* A receive that was told of the reset is no less the end of it. */
	pair(&a, &b);
	CHECK(send(a, buf, 5, 0) == 5);
	close(b);
	await(a, POLLRDHUP);
	CHECK(read(a, buf, 1) == -1 && errno == ECONNRESET && !connected(a) && read(a, buf, 1) == 0);
	pipes = 0;
	CHECK(send(a, buf, 10, 0) == -1 && errno == EPIPE && pipes == 1);
}

/* A stream of libc reads by itself what comes after fdopen. */
static void test_stream(void)
{
	FILE *in;
	int a, b;

	joined(&a, &b);
	put(a, &ab, 10, 10);
	if (on_rings() && !getenv("GOSMC_RUN_SHAKE"))
		CHECK(!fdopen(b, "r") && errno == ENOMEM);
	take(b, &ab_in, 10, 10);
	in = fdopen(b, "r");
	CHECK(in);
	put(a, &ab, LARGE, LARGE);
	CHECK(fread(buf, 1, LARGE, in) == LARGE);
	look(&ab_in, LARGE);
	close(a);
	CHECK(fread(buf, 1, 1, in) == 0 && feof(in));
}

/* A program that has become a daemon is one like others: what it was before is not there any more. */
static void test_daemon(void)
{
	int status[2];
	char c = 0;
	pid_t child;

	CHECK(pipe(status) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		int a, b;

		CHECK(daemon(1, 1) == 0);
		joined(&a, &b);
		child = fork();
		if (child == 0) {
			put(a, &ab, LARGE, LARGE);
			_exit(0);
		}
		take(b, &ab_in, LARGE, LARGE);
		CHECK(waitpid(child, NULL, 0) == child);
		close(a);
		ended(b);
		close(b);
		have(0);
		CHECK(write(status[1], "x", 1) == 1);
		_exit(0);
	}
	close(status[1]);
	CHECK(waitpid(child, NULL, 0) == child);
	CHECK(read(status[0], &c, 1) == 1);
}

/* ring_memory is where this process has a ring. */
static char *ring_memory(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	unsigned long at = 0;

	while (fgets(line, sizeof(line), f))
		if (strstr(line, "gosmc-ring"))
			at = strtoul(line, NULL, 16);
	fclose(f);
	return (char *)at;
}

static void quick(ssize_t r)
{
	CHECK(r >= 0 || errno == EAGAIN || errno == EPIPE || errno == ECONNRESET);
}

/*
 * A peer writes what it must not into the memory that both have. There may be wrong bytes, which it could have sent as well,
 * and a reset; nothing waits that must not, and nothing is touched that is not the ring's.
 */
static void test_scribble(void)
{
	static const uint64_t values[] = {0, ~0ull, 1, 1ull << 39, (1ull << 40) - 1, 1ull << 40, 1ull << 41, 0xffffull << 41, 1ull << 57,
					  1ull << 58, 1ull << 59, 7ull << 57, 1ull << 63, 1 << 20, 2 << 20, (1 << 20) + 1};
	static const int places[] = {0, 8, 64, 128, 192, 256};

	signal(SIGPIPE, SIG_IGN);
	alarm(50);
	for (unsigned i = 0; i < 3 * sizeof(places) / sizeof(places[0]) * sizeof(values) / sizeof(values[0]); i++) {
		int place = places[i % 6], full = i / 6 / 16, a, b;
		uint64_t value = values[i / 6 % 16], old;
		char *ring;

		joined(&a, &b);
		ring = ring_memory();
		if (!ring)
			return;
		if (full) /* a part of the ring, or all */
			while (send(a, buf, LARGE, MSG_DONTWAIT) > 0 && full == 2)
				;
		memcpy(&old, ring + place, 8);
		if (i % 5 == 0)
			value ^= old;
		if (i % 5 == 1)
			value += old;
		memcpy(ring + place, &value, place > 128 || place == 8 ? 4 : 8);
		for (int j = 0; j < 40; j++) {
			if (j == 20) /* let it be, and see */
				memcpy(ring + place, &old, place > 128 || place == 8 ? 4 : 8);
			quick(send(a, buf, LARGE, MSG_DONTWAIT));
			if (!full || j >= 10) {
				quick(recv(b, buf, LARGE, MSG_DONTWAIT | MSG_PEEK));
				quick(recv(b, buf, LARGE / 2, MSG_DONTWAIT));
			}
		}
		close(a);
		for (ssize_t r = 1; r > 0;) {
			r = recv(b, buf, LARGE, MSG_DONTWAIT);
			quick(r);
		}
		close(b);
		have(0);
	}
	/* It has taken the tokens, and says that it has read everything, with the ring as full as it was. */
	int a, b;

	joined(&a, &b);
	while (send(a, buf, LARGE, MSG_DONTWAIT) > 0)
		;
	while (syscall(SYS_recvfrom, b, buf, 100, MSG_DONTWAIT, NULL, NULL) > 0)
		;
	*(uint64_t *)(ring_memory() + 64) |= 1ull << 40;
	CHECK(send(a, buf, LARGE, MSG_DONTWAIT) < 0 && errno == ECONNRESET);
	CHECK(recv(b, buf, LARGE, MSG_DONTWAIT) >= 0);
}

static void at_once(int fd)
{
	int on = 1;

	CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
}

/* stay keeps the two processes apart, each on a processor, or has them share one. */
static void stay(pid_t child, int apart)
{
	cpu_set_t all, mine;
	int first = -1, last = 0;

	CHECK(sched_getaffinity(0, sizeof(all), &all) == 0);
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &all)) {
			first = first < 0 ? i : first;
			last = i;
		}
	CPU_ZERO(&mine);
	CPU_SET(apart && child ? last : first, &mine);
	CHECK(sched_setaffinity(0, sizeof(mine), &mine) == 0);
}

/* turn sends to the other end and waits for as much to come back, or the other way round. */
static void turn(int fd, pid_t child, unsigned n)
{
	if (child)
		put(fd, &ab, n, n);
	take(fd, child ? &ba_in : &ab_in, n, n);
	if (!child)
		put(fd, &ba, n, n);
}

/* Two programs that wait for each other go over to rings, and see to them without system calls for as long as that pays. */
static void test_turns(void)
{
	pid_t child;
	cpu_set_t all;
	int fd;

	CHECK(sched_getaffinity(0, sizeof(all), &all) == 0);
	child = both(&fd);
	at_once(fd);
	stay(child, 1);
	for (int i = 0; i < 200; i++)
		turn(fd, child, 64);
	have(2);
	for (int i = 0; i < 10000; i++)
		turn(fd, child, 1 + (unsigned)i * 7 % 3000);
	/* A part is read, and poll says that there is more: the writer must not think that all of it was waited for. */
	for (int i = 0; i < 3000; i++) {
		unsigned n = 20 + (unsigned)i % 300, part = 1 + (unsigned)i % 19;

		if (child) {
			put(fd, &ab, n, n);
			take(fd, &ba_in, n, n);
		} else {
			struct pollfd p = {.fd = fd, .events = POLLIN};
			int more = 0;

			take(fd, &ab_in, part, part);
			CHECK(poll(&p, 1, 20000) == 1 && p.revents == POLLIN);
			while (more < (int)(n - part))
				CHECK(ioctl(fd, FIONREAD, &more) == 0 && more <= (int)(n - part));
			take(fd, &ab_in, n - part, n - part);
			CHECK(poll(&p, 1, 0) == 0);
			put(fd, &ba, n, n);
		}
	}
	close(fd);
	done(child);
	/* On one processor it does not pay. */
	ab = ba = ab_in = ba_in = (struct stream){0, 0};
	ba.dir = ba_in.dir = 1;
	CHECK(sched_setaffinity(0, sizeof(all), &all) == 0);
	child = both(&fd);
	at_once(fd);
	stay(child, 0);
	for (int i = 0; i < 5000; i++)
		turn(fd, child, 64);
	have(0);
	close(fd);
	done(child);
}

/* Two threads read, as soon as something is there, and one of them only after poll has said so. */
static int look_at;

static void *polls(void *arg)
{
	struct pollfd p = {.fd = look_at, .events = POLLIN};
	char part[16];
	long n = 0;

	for (;;) {
		CHECK(poll(&p, 1, 20000) == 1);
		ssize_t r = recv(look_at, part, 1 + (unsigned)n % sizeof(part), MSG_DONTWAIT);
		if (r == 0)
			break;
		CHECK(r > 0 || errno == EAGAIN);
		n += r > 0 ? r : 0;
	}
	*(long *)arg = n;
	return NULL;
}

static void test_readers(void)
{
	long n = 0, other = 0;
	pthread_t t;
	pid_t child = both(&look_at);

	at_once(look_at);
	stay(child, 1);
	for (int i = 0; i < 200; i++)
		turn(look_at, child, 64);
	if (child) {
		for (int i = 0; i < 20000; i++) {
			CHECK(write(look_at, buf, 40) == 40);
			if (i % 16 == 0)
				sched_yield();
		}
		shutdown(look_at, SHUT_WR);
		CHECK(read(look_at, buf, 1) == 0);
	} else {
		CHECK(pthread_create(&t, NULL, polls, &other) == 0);
		for (ssize_t r; (r = read(look_at, buf, 50)) > 0;)
			n += r;
		CHECK(pthread_join(t, NULL) == 0 && n + other == 20000 * 40);
	}
	close(look_at);
	done(child);
}

/* forbid has the kernel refuse a system call. */
static void forbid(int number)
{
	struct sock_filter f[] = {
		{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)},
		{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (unsigned)number},
		{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
		{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
	};
	struct sock_fprog all = {sizeof(f) / sizeof(f[0]), f};

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0);
}

static int option(int fd, int name)
{
	int v = -1;
	socklen_t len = sizeof(v);

	CHECK(getsockopt(fd, IPPROTO_TCP, name, &v, &len) == 0 && len == sizeof(v));
	return v;
}

/* Some set TCP_CORK twice with every answer. Whoever gets the socket finds it as it was left. */
static void test_cork(void)
{
	int on = 1, off = 0, a, b, c;

	pair(&a, &b);
	CHECK(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
	CHECK(setsockopt(a, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)) == 0 && option(a, TCP_CORK) == 1 && option(a, TCP_NODELAY) == 1);
	CHECK(option(b, TCP_CORK) == 0);
	c = dup(a);
	CHECK(c >= 0 && option(c, TCP_CORK) == 1 && option(a, TCP_CORK) == 1);
	CHECK(setsockopt(c, IPPROTO_TCP, TCP_CORK, &off, sizeof(off)) == 0 && option(a, TCP_CORK) == 0);
	CHECK(setsockopt(b, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(option(b, TCP_CORK) == 1 && setsockopt(b, IPPROTO_TCP, TCP_CORK, &off, sizeof(off)) == 0);
		_exit(0);
	}
	done(child);
	CHECK(option(b, TCP_CORK) == 0 && option(a, TCP_NODELAY) == 1);
	pair(&a, &b);
	if (on_rings()) {
		forbid(SYS_setsockopt);
		forbid(SYS_getsockname);
	}
	for (int i = 0; i < 100; i++) {
		CHECK(setsockopt(a, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)) == 0 && option(a, TCP_CORK) == 1);
		CHECK(setsockopt(a, IPPROTO_TCP, TCP_CORK, &off, sizeof(off)) == 0 && option(a, TCP_CORK) == 0);
	}
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	if (strcmp(name, "heir") == 0)
		return heir(argv[2]), 0;
	if (strcmp(name, "passed-heir") == 0)
		return passed_heir(argv[2]), 0;
	if (strcmp(name, "late-heir") == 0) {
		CHECK(read(atoi(argv[3]), buf, 1) == 1 && write(atoi(argv[2]), "0123456789", 10) == 10);
		return 0;
	}
	if (argc > 2)
		seed = strtoul(argv[2], NULL, 10) * 1234567 + 1;
	if (strcmp(name, "large") == 0)
		one_way(30000000, 200000, 300000, 0);
	else if (strcmp(name, "large-nonblocking") == 0)
		one_way(30000000, 200000, 300000, O_NONBLOCK);
	else if (strcmp(name, "small") == 0)
		one_way(3000000, 200, 3000, 0);
	else if (strcmp(name, "small-nonblocking") == 0)
		one_way(3000000, 200, 3000, O_NONBLOCK);
	else if (strcmp(name, "phases") == 0)
		phases(0);
	else if (strcmp(name, "phases-nonblocking") == 0)
		phases(O_NONBLOCK);
	else if (strcmp(name, "duplex") == 0)
		duplex();
	else if (strcmp(name, "poll") == 0)
		test_poll();
	else if (strcmp(name, "signal") == 0)
		test_signal();
	else if (strcmp(name, "dup") == 0)
		test_dup();
	else if (strcmp(name, "fork") == 0)
		test_fork();
	else if (strcmp(name, "exec") == 0)
		test_exec(argv[0]);
	else if (strcmp(name, "passed") == 0)
		test_passed(argv[0]);
	else if (strcmp(name, "others") == 0)
		test_others();
	else if (strcmp(name, "killed") == 0)
		test_killed();
	else if (strcmp(name, "threads") == 0)
		test_threads();
	else if (strcmp(name, "peek") == 0)
		test_peek();
	else if (strcmp(name, "starved") == 0)
		test_starved();
	else if (strcmp(name, "small-files") == 0)
		test_small_files();
	else if (strcmp(name, "fortified") == 0)
		test_fortified();
	else if (strcmp(name, "spawned") == 0)
		test_spawned(argv[0]);
	else if (strcmp(name, "parts") == 0)
		test_parts();
	else if (strcmp(name, "gone") == 0)
		test_gone();
	else if (strcmp(name, "unread") == 0)
		test_unread();
	else if (strcmp(name, "after-close") == 0)
		test_after_close();
	else if (strcmp(name, "stream") == 0)
		test_stream();
	else if (strcmp(name, "daemon") == 0)
		test_daemon();
	else if (strcmp(name, "scribble") == 0)
		test_scribble();
	else if (strcmp(name, "turns") == 0)
		test_turns();
	else if (strcmp(name, "readers") == 0)
		test_readers();
	else if (strcmp(name, "cork") == 0)
		test_cork();
	else
		return 2;
	return 0;
}
