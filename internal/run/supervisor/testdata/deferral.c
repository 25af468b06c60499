/*
 * A server that asks with TCP_DEFER_ACCEPT for clients that have sent something: deferral CASE. The case names the setter of the option. With MOVED=1
 * a client that waits for the server must be accepted, with MOVED=0 the kernel must have the option; bare, without MOVED, the rest has to be so.
 */
#include "program.h"

#define LONG 900 /* seconds: more than a test waits */

static const char *self;

static int number(int fd, int level, int name)
{
	int v = -1;
	socklen_t len = sizeof(v);

	CHECK(getsockopt(fd, level, name, &v, &len) == 0 && len == sizeof(v));
	return v;
}

/* in_kernel is the kernel's value. */
static int in_kernel(int fd)
{
	int v = -1;
	socklen_t len = sizeof(v);

	CHECK(syscall(SYS_getsockopt, fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &v, &len) == 0);
	return v;
}

static void defer(int fd, int seconds)
{
	CHECK(setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof(seconds)) == 0);
}

/* expected is TCP's value for so many seconds. */
static int expected(int seconds)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), v;

	defer(fd, seconds);
	v = in_kernel(fd);
	close(fd);
	return v;
}

static void await_child(pid_t child)
{
	int status;

	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

/* through passes a descriptor on and receives another one of the same socket. */
static int through(int fd)
{
	union { struct cmsghdr align; char buf[CMSG_SPACE(sizeof(int))]; } control = {0};
	char byte = 'x';
	struct iovec one = {&byte, 1};
	struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control.buf, .msg_controllen = sizeof(control.buf)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	int pair[2];

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && sendmsg(pair[0], &m, 0) == 1 && recvmsg(pair[1], &m, 0) == 1);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	close(pair[0]);
	close(pair[1]);
	return fd;
}

static int opened(struct sockaddr_in *a, int early)
{
	socklen_t len = sizeof(*a);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	*a = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	CHECK(bind(l, (struct sockaddr *)a, len) == 0);
	if (early)
		defer(l, LONG);
	CHECK(listen(l, 5) == 0 && getsockname(l, (struct sockaddr *)a, &len) == 0);
	return l;
}

/* The listener is given to another process, by exec: it sets the option, or reads it. */
static void executed(int l, const char *what)
{
	char number_of[16];
	pid_t child;

	snprintf(number_of, sizeof(number_of), "%d", l);
	child = fork();
	if (child == 0) {
		execl(self, self, what, number_of, (char *)NULL);
		_exit(1);
	}
	await_child(child);
}

/* set sets the option, in the way of a case. */
static int set(const char *name, struct sockaddr_in *a)
{
	socklen_t len = sizeof(*a);
	int l, copy;
	pid_t child;

	if (strcmp(name, "again") == 0) {
		/* It listens before the library could see that, as one does that was inherited from elsewhere. */
		l = socket(AF_INET, SOCK_STREAM, 0);
		*a = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
		CHECK(bind(l, (struct sockaddr *)a, len) == 0 && syscall(SYS_listen, l, 5) == 0);
		CHECK(getsockname(l, (struct sockaddr *)a, &len) == 0);
		defer(l, LONG);
		CHECK(in_kernel(l) == expected(LONG));
		CHECK(listen(l, 6) == 0);
		return l;
	}
	l = opened(a, strcmp(name, "early") == 0);
	if (strcmp(name, "late") == 0) {
		defer(l, LONG);
	} else if (strcmp(name, "copy") == 0) {
		copy = dup(l);
		defer(copy, LONG);
		close(copy);
	} else if (strcmp(name, "child") == 0) {
		child = fork();
		if (child == 0) {
			defer(l, LONG);
			_exit(0);
		}
		await_child(child);
	} else if (strcmp(name, "exec") == 0) {
		executed(l, "set");
	} else if (strcmp(name, "passed") == 0) {
		copy = through(l);
		defer(copy, LONG);
		close(copy);
	} else {
		CHECK(strcmp(name, "early") == 0);
	}
	return l;
}

static void check_errors(int l)
{
	int v = 1;

	CHECK(setsockopt(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, &v, 3) == -1 && errno == EINVAL);
	CHECK(setsockopt(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, &v, (socklen_t)-1) == -1 && errno == EINVAL);
	CHECK(setsockopt(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, NULL, 4) == -1 && errno == EFAULT);
	CHECK(setsockopt(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, (void *)-1, 4) == -1 && errno == EFAULT);
}

/* check_values has a listener read back the values that TCP would have. */
static void check_values(int l)
{
	static const int values[] = {-5, 0, 1, 2, 3, 4, 7, 8, 30, 63, 64, 120, 127, 128, 247, 248, 1000, 29000, 100000, INT32_MAX};
	char little[3] = {7, 7, 7};
	socklen_t len = 2;

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		defer(l, values[i]);
		CHECK(number(l, IPPROTO_TCP, TCP_DEFER_ACCEPT) == expected(values[i]));
		CHECK(number(l, SOL_SOCKET, SO_INCOMING_CPU) == -1);
	}
	defer(l, LONG);
	CHECK(getsockopt(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, little, &len) == 0 && len == 2 && little[2] == 7);
	CHECK((little[0] & 0xff) == (expected(LONG) & 0xff));
}

int main(int argc, char **argv)
{
	const char *m = getenv("MOVED");
	struct sockaddr_in a;
	char b[8] = {0};
	int l, c, s;

	CHECK(argc >= 2);
	self = argv[0];
	if (strcmp(argv[1], "set") == 0) {
		defer(atoi(argv[2]), LONG);
		return 0;
	}
	if (strcmp(argv[1], "read") == 0) {
		CHECK(number(atoi(argv[2]), IPPROTO_TCP, TCP_DEFER_ACCEPT) == expected(LONG));
		return 0;
	}
	l = set(argv[1], &a);
	CHECK(number(l, IPPROTO_TCP, TCP_DEFER_ACCEPT) == expected(LONG));
	CHECK(!m || in_kernel(l) == (atoi(m) ? 0 : expected(LONG))); /* also if it was set before the listener was announced */
	check_errors(l);
	check_values(l);
	executed(l, "read");
	CHECK(!m || in_kernel(l) == (atoi(m) ? 0 : expected(LONG)));
	c = connected_to(&a);
	if (!m || !atoi(m))
		CHECK(send(c, "early", 5, 0) == 5); /* over TCP nobody is accepted before */
	await(l, POLLIN);
	s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	/* Accepted sockets have none of it. */
	CHECK(number(s, IPPROTO_TCP, TCP_DEFER_ACCEPT) == 0 && number(c, IPPROTO_TCP, TCP_DEFER_ACCEPT) == 0);
	CHECK(number(s, SOL_SOCKET, SO_INCOMING_CPU) >= 0);
	if (m && atoi(m))
		CHECK(send(s, "early", 5, 0) == 5 && recv(c, b, 8, 0) == 5);
	else
		CHECK(recv(s, b, 8, 0) == 5);
	CHECK(memcmp(b, "early", 5) == 0);
	/* The option goes away as it came. */
	defer(l, 0);
	CHECK(number(l, IPPROTO_TCP, TCP_DEFER_ACCEPT) == 0 && in_kernel(l) == 0);
	close(c);
	close(s);
	if (m && atoi(m)) {
		/* Clients of plain TCP come to it as to a listener without the option. */
		defer(l, LONG);
		c = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
		CHECK(syscall(SYS_connect, c, &a, sizeof(a)) == 0);
		await(l, POLLIN);
		s = accept(l, NULL, NULL);
		CHECK(s >= 0 && number(s, IPPROTO_TCP, TCP_DEFER_ACCEPT) == 0);
		CHECK(write(s, "hello", 5) == 5 && read(c, b, 8) == 5 && memcmp(b, "hello", 5) == 0);
	}
	return 0;
}
