/*
 * A program that knows nothing of gosmc, and talks to itself over TCP: sockets CASE. It succeeds bare and under
 * 'gosmc run'. With the environment variable MOVED set it looks behind the curtain: the connections must be Unix
 * sockets if it is 1, and TCP if it is 0.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                            \
	do {                                                                                   \
		if (!(what)) {                                                                 \
			fprintf(stderr, "%s:%d: %s (errno %s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
			_exit(1);                                                              \
		}                                                                              \
	} while (0)

static int domain(int fd) /* as the kernel has it */
{
	int v = -1;
	socklen_t len = sizeof(v);

	syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &v, &len);
	return v;
}

/* as_moved says whether a socket is where MOVED says that it has to be; 0 for want: TCP in any case. */
static int as_moved(int fd, int want)
{
	const char *m = getenv("MOVED");

	return !m || (domain(fd) == AF_UNIX) == (want && atoi(m));
}

#define moved(fd, want) CHECK(as_moved(fd, want))

static struct sockaddr_in v4(const char *ip, int port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

	CHECK(inet_pton(AF_INET, ip, &a.sin_addr) == 1);
	return a;
}

static int port_of(int fd)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);

	CHECK(getsockname(fd, (struct sockaddr *)&ss, &len) == 0);
	return ntohs(((struct sockaddr_in *)&ss)->sin_port);
}

static int listener(int backlog)
{
	int l = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = v4("127.0.0.1", 0);

	CHECK(l >= 0 && bind(l, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(l, backlog) == 0);
	return l;
}

static void dial(int c, int l)
{
	struct sockaddr_in a = v4("127.0.0.1", port_of(l));

	CHECK(connect(c, (struct sockaddr *)&a, sizeof(a)) == 0);
}

static void pair(int *c, int *s)
{
	int l = listener(5);

	*c = socket(AF_INET, SOCK_STREAM, 0);
	dial(*c, l);
	*s = accept(l, NULL, NULL);
	CHECK(*s >= 0);
	close(l);
}

static void echo(int a, int b)
{
	char buf[8] = {0};

	CHECK(write(a, "there", 5) == 5 && read(b, buf, 8) == 5 && memcmp(buf, "there", 5) == 0);
	CHECK(write(b, "back", 4) == 4 && read(a, buf, 8) == 4 && memcmp(buf, "back", 4) == 0);
}

static int number(int fd, int level, int name)
{
	int v = -1;
	socklen_t len = sizeof(v);

	CHECK(getsockopt(fd, level, name, &v, &len) == 0 && len == sizeof(v));
	return v;
}

static void test_addresses(void)
{
	int l = listener(5);
	int c = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a, b, p;
	socklen_t len = sizeof(a);
	char small[3] = {0, 0, 7};
	int s;

	dial(c, l);
	s = accept(l, (struct sockaddr *)&a, &len);
	CHECK(s >= 0 && len == sizeof(a));
	moved(c, 1);
	moved(s, 1);
	moved(l, 0);
	len = sizeof(b);
	CHECK(getsockname(c, (struct sockaddr *)&b, &len) == 0 && len == sizeof(b) && b.sin_family == AF_INET);
	CHECK(b.sin_port == a.sin_port && b.sin_addr.s_addr == a.sin_addr.s_addr && a.sin_port != 0);
	len = sizeof(b);
	CHECK(getpeername(s, (struct sockaddr *)&b, &len) == 0 && b.sin_port == a.sin_port);
	len = sizeof(p);
	CHECK(getsockname(s, (struct sockaddr *)&p, &len) == 0 && ntohs(p.sin_port) == port_of(l));
	len = sizeof(b);
	CHECK(getpeername(c, (struct sockaddr *)&b, &len) == 0 && b.sin_port == p.sin_port && b.sin_addr.s_addr == p.sin_addr.s_addr);
	len = 2; /* cut, with the length that there is */
	CHECK(getsockname(c, (struct sockaddr *)small, &len) == 0 && len == sizeof(b) && small[2] == 7 && small[0] == AF_INET);
	len = 0;
	CHECK(getpeername(c, (struct sockaddr *)small, &len) == 0 && len == sizeof(b) && small[2] == 7);
	CHECK(connect(c, (struct sockaddr *)&b, sizeof(b)) == -1 && errno == EISCONN);
	echo(c, s);
	/* An address is not looked at, and there is none to be had. */
	CHECK(sendto(c, "x", 1, 0, (struct sockaddr *)&b, sizeof(b)) == 1);
	len = sizeof(a);
	CHECK(recvfrom(s, small, 1, 0, (struct sockaddr *)&a, &len) == 1 && len == 0);
	struct iovec iov = {small, 1};
	struct msghdr m = {.msg_name = &b, .msg_namelen = sizeof(b), .msg_iov = &iov, .msg_iovlen = 1};
	CHECK(sendmsg(c, &m, 0) == 1);
	struct mmsghdr mm[2] = {{.msg_hdr = m}, {.msg_hdr = m}};
	CHECK(sendmmsg(c, mm, 2, 0) == 2 && mm[1].msg_len == 1);
	m.msg_namelen = sizeof(b);
	CHECK(recvmsg(s, &m, 0) == 1 && m.msg_namelen == 0);
	mm[0].msg_hdr.msg_namelen = sizeof(b);
	CHECK(recvmmsg(s, mm, 1, 0, NULL) == 1 && mm[0].msg_hdr.msg_namelen == 0);
	/* A socket that is no TCP stays as it is. */
	int u[2];
	struct sockaddr_un sun;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, u) == 0);
	len = sizeof(sun);
	CHECK(getsockname(u[0], (struct sockaddr *)&sun, &len) == 0 && sun.sun_family == AF_UNIX);
	CHECK(number(u[0], SOL_SOCKET, SO_DOMAIN) == AF_UNIX);
	CHECK(getsockname(-1, (struct sockaddr *)&a, &len) == -1 && errno == EBADF);
}

static void test_options(void)
{
	int l = listener(5);
	int c = socket(AF_INET, SOCK_STREAM, 0);
	int one = 1;
	struct linger linger = {1, 7};
	struct timeval t = {3, 0};
	struct tcp_info info;
	char text[16];
	socklen_t len;
	int s;

	CHECK(setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
	CHECK(setsockopt(c, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
	CHECK(setsockopt(l, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one)) == 0);
	CHECK(setsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)) == 0);
	dial(c, l);
	s = accept(l, NULL, NULL);
	moved(c, 1);
	CHECK(number(c, SOL_SOCKET, SO_DOMAIN) == AF_INET && number(c, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP);
	CHECK(number(c, SOL_SOCKET, SO_TYPE) == SOCK_STREAM && number(c, SOL_SOCKET, SO_ERROR) == 0);
	CHECK(number(c, IPPROTO_TCP, TCP_NODELAY) == 1 && number(s, IPPROTO_TCP, TCP_NODELAY) == 0);
	CHECK(number(s, SOL_SOCKET, SO_KEEPALIVE) == 1 && number(c, SOL_SOCKET, SO_KEEPALIVE) == 0);
	len = sizeof(linger);
	linger.l_linger = 0;
	CHECK(getsockopt(c, SOL_SOCKET, SO_LINGER, &linger, &len) == 0 && linger.l_linger == 7);
	len = sizeof(t);
	t.tv_sec = 0;
	CHECK(getsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &t, &len) == 0 && t.tv_sec == 3);
	CHECK(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0 && number(s, IPPROTO_TCP, TCP_NODELAY) == 1);
	CHECK(setsockopt(s, IPPROTO_TCP, TCP_CORK, &one, sizeof(one)) == 0 && number(s, IPPROTO_TCP, TCP_CORK) == 1);
	one = 0;
	CHECK(setsockopt(s, IPPROTO_TCP, TCP_CORK, &one, sizeof(one)) == 0 && number(s, IPPROTO_TCP, TCP_CORK) == 0);
	CHECK(number(s, IPPROTO_TCP, TCP_NODELAY) == 1);
	CHECK(setsockopt(c, IPPROTO_TCP, TCP_KEEPIDLE, &(int){10}, sizeof(int)) == 0);
	CHECK(setsockopt(c, IPPROTO_IP, IP_TOS, &(int){0x10}, sizeof(int)) == 0);
	CHECK(number(c, IPPROTO_TCP, TCP_MAXSEG) > 500);
	len = sizeof(info);
	CHECK(getsockopt(c, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_state == TCP_ESTABLISHED);
	len = sizeof(text);
	CHECK(getsockopt(c, IPPROTO_TCP, TCP_CONGESTION, text, &len) == 0 && len > 0);
	CHECK(setsockopt(c, IPPROTO_TCP, TCP_NODELAY, NULL, sizeof(int)) == -1 && errno == EFAULT);
}

/* The setter of an option: it is on both ends of the connection then, or on one, with any setter. */
enum who { CLIENT, LISTENER, COPY, CHILD, PASSED, SYSCALL, WHOS };

/* passed sends a descriptor and receives it. */
static int passed(int fd)
{
	union { struct cmsghdr align; char buf[CMSG_SPACE(sizeof(int))]; } control = {0};
	struct iovec one = {"x", 1};
	struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control.buf, .msg_controllen = sizeof(control.buf)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	char byte;
	int pair[2];

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && sendmsg(pair[0], &m, 0) == 1);
	one.iov_base = &byte;
	CHECK(recvmsg(pair[1], &m, 0) == 1);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	close(pair[0]);
	close(pair[1]);
	return fd;
}

static void set_as(enum who who, int c, int l, int level, int name, const void *v, socklen_t len)
{
	int copy, status;
	pid_t child;

	switch (who) {
	case CLIENT:
		CHECK(setsockopt(c, level, name, v, len) == 0);
		break;
	case LISTENER:
		CHECK(setsockopt(l, level, name, v, len) == 0);
		break;
	case COPY:
		copy = dup(l);
		CHECK(setsockopt(copy, level, name, v, len) == 0);
		close(copy);
		break;
	case CHILD:
		child = fork();
		if (child == 0)
			_exit(setsockopt(l, level, name, v, len) != 0);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		break;
	case PASSED:
		copy = passed(l);
		CHECK(setsockopt(copy, level, name, v, len) == 0);
		close(copy);
		break;
	default:
		CHECK(syscall(SYS_setsockopt, c, level, name, v, len) == 0);
		CHECK(syscall(SYS_setsockopt, l, level, name, v, len) == 0);
	}
}

static void test_copied(void)
{
	static const struct { int level, name; socklen_t len; } options[] = {
		{SOL_SOCKET, SO_KEEPALIVE, 4}, {SOL_SOCKET, SO_LINGER, 8}, {SOL_SOCKET, SO_RCVTIMEO, 16}, {SOL_SOCKET, SO_SNDTIMEO, 16},
		{SOL_SOCKET, SO_OOBINLINE, 4}, {SOL_SOCKET, SO_RCVLOWAT, 4}, {IPPROTO_TCP, TCP_NODELAY, 4}, {IPPROTO_TCP, TCP_CORK, 4},
	};
	static const int four[4] = {1, 0, 4}; /* the values of a new socket that are not 0 are other ones */
	static const int low[1] = {3};

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		for (enum who who = CLIENT; who < WHOS; who++) {
			int l = listener(5), c = -1, s, got[2][4] = {{0}};
			const int *v = options[i].name == SO_RCVLOWAT && options[i].level == SOL_SOCKET ? low : four;

			if (who == CLIENT || who == SYSCALL)
				c = socket(AF_INET, SOCK_STREAM, 0);
			set_as(who, c, l, options[i].level, options[i].name, v, options[i].len);
			if (c < 0)
				c = socket(AF_INET, SOCK_STREAM, 0); /* after the fork */
			dial(c, l);
			s = accept(l, NULL, NULL);
			/* Only TCP has poll wait for more than a byte, where the library sees that it is to. */
			moved(c, v != low || (who != CLIENT && who != SYSCALL));
			for (int end = 0; end < 2; end++) {
				socklen_t len = options[i].len;

				CHECK(getsockopt(end ? s : c, options[i].level, options[i].name, got[end], &len) == 0);
			}
			CHECK((got[0][0] == v[0]) == (who == CLIENT || who == SYSCALL));
			CHECK((got[1][0] == v[0]) == (who != CLIENT));
			close(c);
			close(s);
			close(l);
		}
	}
}

/* Accepted sockets have options of their listener: where only TCP can honour one, they stay TCP. */
static void test_told(void)
{
	static const int names[] = {SO_ZEROCOPY, SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		int l = listener(5), c = socket(AF_INET, SOCK_STREAM, 0), s, one = 1;
		struct sockaddr_in a = v4("127.0.0.1", port_of(l));

		/* One that has listened at its port before has nothing to say. */
		dial(c, l);
		s = accept(l, NULL, NULL);
		moved(c, 1);
		close(c);
		close(s);
		close(l);
		l = socket(AF_INET, SOCK_STREAM, 0);
		c = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 && bind(l, (struct sockaddr *)&a, sizeof(a)) == 0);
		CHECK(setsockopt(l, SOL_SOCKET, names[i], &one, sizeof(one)) == 0 && listen(l, 5) == 0);
		dial(c, l);
		s = accept(l, NULL, NULL);
		moved(c, 0);
		moved(s, 0);
		CHECK(number(s, SOL_SOCKET, names[i]) == 1);
		close(l);
		/* The same of a client. */
		l = listener(5);
		c = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(setsockopt(c, SOL_SOCKET, names[i], &one, sizeof(one)) == 0);
		dial(c, l);
		moved(c, 0);
		CHECK(accept(l, NULL, NULL) >= 0);
		close(l);
	}
}

/* AF_UNSPEC takes a connection apart, and the socket can connect again. */
static void test_again(void)
{
	struct sockaddr_storage none = {.ss_family = AF_UNSPEC};
	struct sockaddr_in a;
	socklen_t len = sizeof(a);
	int l = listener(5), c = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, s;
	char b[8];

	CHECK(setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
	for (int i = 0; i < 3; i++) {
		dial(c, l);
		s = accept(l, NULL, NULL);
		moved(c, 1);
		moved(s, 1);
		echo(c, s);
		CHECK(setsockopt(c, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one)) == 0);
		CHECK(i == 0 || write(s, "unread", 6) == 6);
		CHECK(connect(c, (struct sockaddr *)&none, 1) == -1 && errno == EINVAL);
		CHECK(connect(c, (struct sockaddr *)&none, i == 1 ? sizeof(sa_family_t) : sizeof(a)) == 0);
		len = sizeof(a);
		CHECK(getpeername(c, (struct sockaddr *)&a, &len) == -1 && errno == ENOTCONN);
		CHECK(recv(s, b, sizeof(b), 0) == -1 && errno == ECONNRESET);
		number(c, SOL_SOCKET, SO_ERROR); /* TCP has ECONNRESET there */
		CHECK(recv(c, b, sizeof(b), 0) == -1 && errno == ENOTCONN);
		CHECK(send(c, b, sizeof(b), MSG_NOSIGNAL) == -1 && errno == EPIPE);
		CHECK(number(c, IPPROTO_TCP, TCP_NODELAY) == 1 && number(c, SOL_SOCKET, SO_KEEPALIVE) == 1);
		CHECK((fcntl(c, F_GETFD) & FD_CLOEXEC) && !(fcntl(c, F_GETFL) & O_NONBLOCK));
		CHECK(connect(c, (struct sockaddr *)&none, sizeof(a)) == 0); /* of nothing that is there */
		close(s);
	}
}

#define MANY (UIO_MAXIOV + 1)

/* Messages that the kernel refuses without looking at the socket. */
static void refused_messages(int c, int s)
{
	static struct iovec parts[MANY];
	static struct mmsghdr lot[MANY];
	char b[8] = "x";
	struct iovec one = {b, 1};
	struct msghdr m = {.msg_iov = parts, .msg_iovlen = MANY};
	struct msghdr bad[] = {
		{.msg_iov = parts, .msg_iovlen = (size_t)1 << 60}, {.msg_iov = parts, .msg_iovlen = SIZE_MAX}, {.msg_iov = NULL, .msg_iovlen = 1},
		{.msg_iov = (void *)-1, .msg_iovlen = 1}, {.msg_iov = &one, .msg_iovlen = 1, .msg_name = b, .msg_namelen = (socklen_t)-1},
	};
	static const int errors[] = {EMSGSIZE, EMSGSIZE, EFAULT, EFAULT, EINVAL};
	struct mmsghdr mm = {.msg_hdr = m};
	void *volatile nowhere = (void *)-1, *volatile null = NULL; /* the compiler would complain */
	volatile int few = -1;

	for (int i = 0; i < MANY; i++)
		parts[i] = one;
	CHECK(sendmsg(c, &m, 0) == -1 && errno == EMSGSIZE);
	CHECK(recvmsg(s, &m, MSG_DONTWAIT) == -1 && errno == EMSGSIZE);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		m = bad[i];
		CHECK(sendmsg(c, &m, 0) == -1 && errno == errors[i]);
		m = bad[i];
		CHECK(recvmsg(s, &m, MSG_DONTWAIT) == -1 && errno == errors[i]);
		mm.msg_hdr = bad[i];
		CHECK(sendmmsg(c, &mm, 1, 0) == -1 && errno == errors[i]);
		mm.msg_hdr = bad[i];
		CHECK(recvmmsg(s, &mm, 1, MSG_DONTWAIT, NULL) == -1 && errno == errors[i]);
	}
	CHECK(sendmsg(c, null, 0) == -1 && errno == EFAULT);
	CHECK(sendmsg(c, nowhere, 0) == -1 && errno == EFAULT);
	CHECK(recvmsg(s, nowhere, MSG_DONTWAIT) == -1 && errno == EFAULT);
	CHECK(sendmmsg(c, nowhere, 1, 0) == -1 && errno == EFAULT);
	CHECK(recvmmsg(s, nowhere, 1, MSG_DONTWAIT, NULL) == -1 && errno == EFAULT);
	m = (struct msghdr){.msg_iov = &one, .msg_iovlen = 1, .msg_control = NULL, .msg_controllen = 64};
	CHECK(sendmsg(c, &m, 0) == -1 && errno == EFAULT);
	m.msg_control = (void *)-1;
	CHECK(sendmsg(c, &m, 0) == -1 && errno == EFAULT);
	CHECK(recvmmsg(s, &mm, 1, MSG_DONTWAIT, &(struct timespec){.tv_nsec = -1}) == -1 && errno == EINVAL);
	CHECK(writev(c, parts, MANY) == -1 && errno == EINVAL);
	CHECK(readv(s, parts, MANY) == -1 && errno == EINVAL);
	CHECK(writev(c, parts, few) == -1 && errno == EINVAL);
	CHECK(writev(c, nowhere, 1) == -1 && errno == EFAULT);
	CHECK(readv(s, null, 1) == -1 && errno == EFAULT);
	/* There are only so many messages in a call. */
	for (int i = 0; i < MANY; i++)
		lot[i].msg_hdr = (struct msghdr){.msg_iov = &one, .msg_iovlen = 1};
	CHECK(sendmmsg(c, lot, MANY, 0) == UIO_MAXIOV);
	for (int left = UIO_MAXIOV; left > 0;) {
		char some[UIO_MAXIOV];
		ssize_t n = read(s, some, sizeof(some));

		CHECK(n > 0);
		left -= (int)n;
	}
	CHECK(recv(s, b, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

/* stream sends so much that the connection has a ring if it is moved. */
static void stream(int c, int s)
{
	static char b[20000];
	char line[512];
	const char *m = getenv("MOVED");
	int rings = 0;
	FILE *f;

	for (int i = 0; i < 10; i++) {
		for (int j = 0; j < 20; j++)
			CHECK(send(c, b, sizeof(b) / 20, 0) == sizeof(b) / 20);
		CHECK(recv(s, b, sizeof(b), MSG_WAITALL) == sizeof(b));
	}
	f = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof(line), f))
		rings += strstr(line, "gosmc-ring") != NULL;
	fclose(f);
	CHECK(!m || (rings != 0) == (atoi(m) != 0));
}

static void test_messages(void)
{
	int c, s;

	pair(&c, &s);
	moved(c, 1);
	refused_messages(c, s);
	echo(c, s);
	stream(c, s);
	refused_messages(c, s);
	echo(c, s);
}

/* Flags of preadv2 and pwritev2: those that sockets have no use for are taken, others are refused before anything is read. */
static void test_flags(void)
{
	static const int good[] = {0, RWF_NOWAIT, RWF_HIPRI, RWF_SYNC, RWF_DSYNC, RWF_APPEND, RWF_NOWAIT | RWF_SYNC};
	static const int bad[] = {0x20000000, 0x40000000, 1 << 16, RWF_NOWAIT | 1 << 20, 0x40, RWF_NOWAIT | 0x80};
	char b[4] = "abc";
	struct iovec one = {b, 3};
	struct pollfd p = {.events = POLLIN};
	int c, s;

	pair(&c, &s);
	moved(c, 1);
	p.fd = s;
	for (int turn = 0; turn < 2; turn++) {
		for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
			CHECK(pwritev2(c, &one, 1, -1, good[i]) == 3);
			CHECK(poll(&p, 1, 60000) == 1); /* TCP may deliver them later on a busy machine */
			CHECK(preadv2(s, &one, 1, -1, good[i]) == 3 && memcmp(b, "abc", 3) == 0);
		}
		for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
			CHECK(pwritev2(c, &one, 1, -1, bad[i]) == -1 && errno == EOPNOTSUPP);
			CHECK(write(c, "xyz", 3) == 3);
			CHECK(preadv2(s, &one, 1, -1, bad[i]) == -1 && errno == EOPNOTSUPP);
			CHECK(read(s, b, 3) == 3 && memcmp(b, "xyz", 3) == 0);
			memcpy(b, "abc", 3);
		}
		CHECK(preadv2(s, &one, 1, -1, RWF_NOWAIT) == -1 && errno == EAGAIN);
		CHECK(preadv2(s, &one, 1, 0, 0) == -1 && errno == ESPIPE);
		stream(c, s);
	}
}

static int queued(int fd, unsigned long request)
{
	int v = -1;

	CHECK(ioctl(fd, request, &v) == 0);
	return v;
}

/* Bytes that the peer's side has are not in the queue, whether the peer reads them or not: some programs wait for that. */
static void test_queued(void)
{
	int c, s;

	pair(&c, &s);
	moved(c, 1);
	for (int turn = 0; turn < 2; turn++) {
		for (int i = 0; i < 40; i++)
			CHECK(write(c, "something", 9) == 9);
		while (queued(c, SIOCOUTQ) != 0) /* TCP has it acknowledged soon */
			sched_yield();
		CHECK(queued(c, SIOCOUTQNSD) == 0 && queued(s, SIOCOUTQ) == 0 && queued(s, SIOCOUTQNSD) == 0);
		for (int left = 360; left > 0;) {
			char b[360];
			ssize_t n = read(s, b, sizeof(b));

			CHECK(n > 0);
			left -= (int)n;
		}
		CHECK(ioctl(c, SIOCOUTQ, (void *)-1) == -1 && errno == EFAULT && ioctl(c, SIOCOUTQNSD, (void *)-1) == -1 && errno == EFAULT);
		stream(c, s);
	}
}

static void test_ipv6(void)
{
	int l = socket(AF_INET6, SOCK_STREAM, 0);
	struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT}, b;
	struct sockaddr_in four;
	socklen_t len = sizeof(b);
	int zero = 0;
	int c, s;

	CHECK(setsockopt(l, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero)) == 0);
	CHECK(bind(l, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(l, 5) == 0);
	c = socket(AF_INET6, SOCK_STREAM, 0);
	a.sin6_addr = in6addr_loopback;
	a.sin6_port = htons((uint16_t)port_of(l));
	CHECK(connect(c, (struct sockaddr *)&a, sizeof(a)) == 0);
	s = accept(l, (struct sockaddr *)&b, &len);
	CHECK(s >= 0 && len == sizeof(b) && b.sin6_family == AF_INET6);
	moved(c, 1);
	moved(s, 1);
	CHECK(number(c, SOL_SOCKET, SO_DOMAIN) == AF_INET6);
	len = sizeof(a);
	CHECK(getsockname(c, (struct sockaddr *)&a, &len) == 0 && len == sizeof(a) && a.sin6_port == b.sin6_port);
	CHECK(memcmp(&a.sin6_addr, &in6addr_loopback, 16) == 0);
	echo(c, s);
	/* A client of IPv4 is a mapped address to such a server, and IPv4 to itself. */
	c = socket(AF_INET, SOCK_STREAM, 0);
	four = v4("0.0.0.0", port_of(l));
	CHECK(connect(c, (struct sockaddr *)&four, sizeof(four)) == 0);
	len = sizeof(b);
	s = accept4(l, (struct sockaddr *)&b, &len, 0);
	CHECK(s >= 0 && IN6_IS_ADDR_V4MAPPED(&b.sin6_addr));
	moved(s, 1);
	len = sizeof(a);
	CHECK(getpeername(s, (struct sockaddr *)&a, &len) == 0 && a.sin6_family == AF_INET6 && memcmp(&a.sin6_addr, &b.sin6_addr, 16) == 0);
	len = sizeof(four);
	CHECK(getpeername(c, (struct sockaddr *)&four, &len) == 0 && four.sin_family == AF_INET && four.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	echo(c, s);
}

static void test_epoll(void)
{
	int l = listener(5);
	int c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int ep = epoll_create1(EPOLL_CLOEXEC);
	struct sockaddr_in a = v4("127.0.0.1", port_of(l));
	struct epoll_event e = {.events = EPOLLIN, .data.u64 = 1};
	int s;

	/* As nginx: registered before it connects, and changed. */
	CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, c, &e) == 0);
	e = (struct epoll_event){.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u64 = 0x123456789abcdef};
	CHECK(epoll_ctl(ep, EPOLL_CTL_MOD, c, &e) == 0);
	CHECK(connect(c, (struct sockaddr *)&a, sizeof(a)) == -1 && errno == EINPROGRESS);
	moved(c, 1);
	memset(&e, 0, sizeof(e));
	CHECK(epoll_wait(ep, &e, 1, 10000) == 1 && e.data.u64 == 0x123456789abcdef && e.events == EPOLLOUT);
	CHECK(number(c, SOL_SOCKET, SO_ERROR) == 0);
	CHECK((fcntl(c, F_GETFL) & O_NONBLOCK) && (fcntl(c, F_GETFD) & FD_CLOEXEC));
	s = accept4(l, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	CHECK(s >= 0 && (fcntl(s, F_GETFL) & O_NONBLOCK) && (fcntl(s, F_GETFD) & FD_CLOEXEC));
	CHECK(read(s, &e, 1) == -1 && errno == EAGAIN);
	CHECK(write(s, "x", 1) == 1 && epoll_wait(ep, &e, 1, 10000) == 1 && (e.events & EPOLLIN));
	CHECK(epoll_ctl(ep, EPOLL_CTL_MOD, c, &e) == 0 && epoll_ctl(ep, EPOLL_CTL_DEL, c, &e) == 0);
	close(s);
	/* Accepted without flags. */
	c = socket(AF_INET, SOCK_STREAM, 0);
	dial(c, l);
	s = accept(l, NULL, NULL);
	CHECK(!(fcntl(s, F_GETFL) & O_NONBLOCK) && !(fcntl(s, F_GETFD) & FD_CLOEXEC) && !(fcntl(c, F_GETFD) & FD_CLOEXEC));
	/* In two sets: that cannot be done again, so it stays. */
	int ep2 = epoll_create1(0);
	c = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, c, &e) == 0 && epoll_ctl(ep2, EPOLL_CTL_ADD, c, &e) == 0);
	dial(c, l);
	moved(c, 0);
	s = accept(l, NULL, NULL);
	echo(c, s);
}

static void test_shared(void)
{
	int l = listener(5);
	int c = socket(AF_INET, SOCK_STREAM, 0);
	int d = dup(c);
	int s, status;

	/* Somebody else has the socket too: it stays. */
	dial(c, l);
	moved(c, 0);
	s = accept(l, NULL, NULL);
	echo(d, s);
	c = socket(AF_INET, SOCK_STREAM, 0);
	d = fcntl(c, F_DUPFD, 100);
	dial(c, l);
	s = accept(l, NULL, NULL);
	echo(d, s);
	c = socket(AF_INET, SOCK_STREAM, 0);
	pid_t pid = fork();
	if (pid == 0)
		_exit(0);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	dial(c, l);
	moved(c, 0);
	s = accept(l, NULL, NULL);
	echo(c, s);
	/* A number that is used again is another socket. */
	close(c);
	CHECK(socket(AF_INET, SOCK_STREAM, 0) == c);
	dial(c, l);
	moved(c, 1);
	s = accept(l, NULL, NULL);
	echo(c, s);
}

static void test_heirs(const char *self)
{
	int c, s, u[2], status;
	char text[16];
	struct sockaddr_in a;
	socklen_t len = sizeof(a);

	pair(&c, &s);
	/* dup and fork */
	int d = dup(s);
	CHECK(getpeername(d, (struct sockaddr *)&a, &len) == 0 && ntohs(a.sin_port) == port_of(c));
	pid_t pid = fork();
	if (pid == 0) {
		CHECK(port_of(c) == ntohs(a.sin_port));
		echo(c, s);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	/* passed to somebody */
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, u) == 0);
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec iov = {text, 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.buf)};
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(h), &s, sizeof(int));
	CHECK(sendmsg(u[0], &m, 0) == 1 && recvmsg(u[1], &m, 0) == 1);
	memcpy(&d, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(int));
	len = sizeof(a);
	CHECK(getpeername(d, (struct sockaddr *)&a, &len) == 0 && ntohs(a.sin_port) == port_of(c));
	/* executed */
	CHECK(write(c, "for the heir", 12) == 12);
	pid = fork();
	if (pid == 0) {
		dup2(s, 0);
		snprintf(text, sizeof(text), "%d", port_of(c));
		execl(self, self, "heir", text, (char *)NULL);
		_exit(1);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(read(c, text, sizeof(text)) == 6 && memcmp(text, "thanks", 6) == 0);
	/* The last close ends the connection. */
	close(d);
	close(s);
	CHECK(recv(c, text, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	s = dup(c);
	close(s);
}

static void heir(const char *port)
{
	char text[16];
	struct sockaddr_in a;
	socklen_t len = sizeof(a);

	moved(0, 1);
	CHECK(getpeername(0, (struct sockaddr *)&a, &len) == 0 && ntohs(a.sin_port) == atoi(port));
	CHECK(read(0, text, sizeof(text)) == 12 && write(0, "thanks", 6) == 6);
}

static void test_ends(void)
{
	int c, s;
	char b[4];
	struct pollfd p;

	pair(&c, &s);
	CHECK(write(c, "abc", 3) == 3 && shutdown(c, SHUT_WR) == 0);
	CHECK(read(s, b, 4) == 3 && read(s, b, 4) == 0);
	CHECK(write(s, "def", 3) == 3 && read(c, b, 4) == 3);
	p = (struct pollfd){.fd = c, .events = POLLIN};
	CHECK(poll(&p, 1, 0) == 0);
	close(s);
	CHECK(poll(&p, 1, 10000) == 1 && read(c, b, 4) == 0);
	close(c);
	/* Bytes that nobody has read: a reset. */
	pair(&c, &s);
	CHECK(write(c, "abc", 3) == 3);
	p = (struct pollfd){.fd = s, .events = POLLIN};
	CHECK(poll(&p, 1, 10000) == 1);
	close(s);
	p = (struct pollfd){.fd = c, .events = POLLIN};
	CHECK(poll(&p, 1, 10000) == 1 && read(c, b, 4) == -1 && errno == ECONNRESET);
}

static void test_refused(void)
{
	int l = listener(5);
	struct sockaddr_in a = v4("127.0.0.1", port_of(l));
	int c = socket(AF_INET, SOCK_STREAM, 0);
	int zero = 0, s;
	socklen_t len = sizeof(a);

	/* A listener that has gone, though it was announced. */
	close(l);
	CHECK(connect(c, (struct sockaddr *)&a, sizeof(a)) == -1 && errno == ECONNREFUSED);
	CHECK(domain(c) == AF_INET);
	close(c);
	/* A queue that is full: the connection comes later, as TCP. */
	l = listener(zero);
	a = v4("127.0.0.1", port_of(l));
	int first = socket(AF_INET, SOCK_STREAM, 0);
	dial(first, l);
	moved(first, 1);
	c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(connect(c, (struct sockaddr *)&a, sizeof(a)) == -1 && errno == EINPROGRESS);
	moved(c, 0);
	s = accept(l, NULL, NULL);
	moved(s, 1);
	echo(first, s);
	struct pollfd p = {.fd = c, .events = POLLOUT};
	CHECK(poll(&p, 1, 20000) == 1 && (p.revents & POLLOUT));
	CHECK(fcntl(c, F_SETFL, 0) == 0);
	s = accept(l, NULL, NULL);
	moved(s, 0);
	echo(c, s);
	/* A client that has chosen its port. */
	c = socket(AF_INET, SOCK_STREAM, 0);
	a = v4("127.0.0.1", 0);
	CHECK(bind(c, (struct sockaddr *)&a, sizeof(a)) == 0);
	int port = port_of(c);
	dial(c, l);
	moved(c, 1);
	CHECK(port_of(c) == port);
	s = accept(l, (struct sockaddr *)&a, &len);
	CHECK(ntohs(a.sin_port) == port);
	echo(c, s);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	if (strcmp(name, "addresses") == 0)
		test_addresses();
	else if (strcmp(name, "copied") == 0)
		test_copied();
	else if (strcmp(name, "options") == 0)
		test_options();
	else if (strcmp(name, "told") == 0)
		test_told();
	else if (strcmp(name, "again") == 0)
		test_again();
	else if (strcmp(name, "messages") == 0)
		test_messages();
	else if (strcmp(name, "flags") == 0)
		test_flags();
	else if (strcmp(name, "queued") == 0)
		test_queued();
	else if (strcmp(name, "ipv6") == 0)
		test_ipv6();
	else if (strcmp(name, "epoll") == 0)
		test_epoll();
	else if (strcmp(name, "shared") == 0)
		test_shared();
	else if (strcmp(name, "heirs") == 0)
		test_heirs(argv[0]);
	else if (strcmp(name, "heir") == 0)
		heir(argv[2]);
	else if (strcmp(name, "ends") == 0)
		test_ends();
	else if (strcmp(name, "refused") == 0)
		test_refused();
	else
		return 2;
	return 0;
}
