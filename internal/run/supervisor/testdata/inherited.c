/*
 * SO_REUSEADDR, SO_BROADCAST and SO_DONTROUTE of connections, as libc's getsockopt says them and as the kernel has them: inherited CASE. With MOVED=1
 * connections are moved, and the library keeps the options in memory until others get the descriptor.
 */
#include "program.h"

#include <sys/socket.h>

static const int names[] = {SO_REUSEADDR, SO_BROADCAST, SO_DONTROUTE};
#define NAMES (sizeof(names) / sizeof(names[0]))

static bool moved(void)
{
	return getenv("MOVED") && atoi(getenv("MOVED"));
}

/* said is the value of an option as libc says it. */
static int said(int fd, int name)
{
	int v = -1;
	socklen_t len = sizeof(v);

	CHECK(getsockopt(fd, SOL_SOCKET, name, &v, &len) == 0 && len == sizeof(v));
	return v;
}

/* kernels is the kernel's value: the library does not see this call. */
static int kernels(int fd, int name)
{
	int v = -1;
	socklen_t len = sizeof(v);

	CHECK(syscall(SYS_getsockopt, fd, SOL_SOCKET, name, &v, &len) == 0);
	return v;
}

/* all checks that all options are on, and whether the kernel knows it. */
static void all(int fd, bool kernel)
{
	for (size_t i = 0; i < NAMES; i++)
		CHECK(said(fd, names[i]) == 1 && kernels(fd, names[i]) == kernel);
}

static void set(int fd, int name, int v)
{
	CHECK(setsockopt(fd, SOL_SOCKET, name, &v, sizeof(v)) == 0);
}

static int listener(struct sockaddr_in *a)
{
	int l = server(a);

	for (size_t i = 0; i < NAMES; i++)
		set(l, names[i], 1);
	return l;
}

/* accepted makes a connection to a listener, and returns the server's end. */
static int accepted(int l, const struct sockaddr_in *a)
{
	int c = connected_to(a), s = accept(l, NULL, NULL), domain = 0;
	socklen_t len = sizeof(domain);

	CHECK(c >= 0 && s >= 0 && syscall(SYS_getsockopt, s, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0);
	CHECK(domain == (moved() ? AF_UNIX : AF_INET));
	return s;
}

/* in_child has a process of its own check that all options are on. */
static void in_child(int fd)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		all(fd, true);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* passed returns a descriptor that was sent in a message. */
static int passed(int fd)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec iov = {"x", 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	char byte;
	int pair[2];

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && sendmsg(pair[0], &m, 0) == 1);
	iov.iov_base = &byte;
	CHECK(recvmsg(pair[1], &m, 0) == 1);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	return fd;
}

int main(int argc, char **argv)
{
	struct sockaddr_in a;
	const char *name = argv[1];
	bool kernel = !moved();
	int l, s, c, pair[2];

	CHECK(argc >= 2);
	if (strcmp(name, "executed") == 0) {
		all(atoi(argv[2]), true);
		return 0;
	}
	l = listener(&a);
	s = accepted(l, &a);
	all(s, kernel);
	if (strcmp(name, "connect") == 0) {
		c = socket(AF_INET, SOCK_STREAM, 0);
		for (size_t i = 0; i + 1 < NAMES; i++)
			set(c, names[i], 1);
		CHECK(connect(c, (struct sockaddr *)&a, sizeof(a)) == 0);
		CHECK(said(c, SO_REUSEADDR) == 1 && kernels(c, SO_REUSEADDR) == kernel && said(c, SO_BROADCAST) == 1 && said(c, SO_DONTROUTE) == 0);
	} else if (strcmp(name, "fork") == 0) {
		in_child(s);
		all(s, true);
	} else if (strcmp(name, "dup") == 0) {
		all(dup(s), true);
		all(s, true);
	} else if (strcmp(name, "passed") == 0) {
		all(passed(s), true);
	} else if (strcmp(name, "exec") == 0) {
		char number[16];

		snprintf(number, sizeof(number), "%d", s);
		execl("/proc/self/exe", "inherited", "executed", number, NULL);
		CHECK(false);
	} else if (strcmp(name, "shared") == 0) { /* others have the listener, and may have set its options */
		pid_t child = fork();

		if (child == 0) {
			pause();
			_exit(0);
		}
		for (int i = 0; i < 3; i++)
			all(accepted(l, &a), kernel);
		set(l, SO_BROADCAST, 0);
		s = accepted(l, &a);
		CHECK(said(s, SO_REUSEADDR) == 1 && said(s, SO_BROADCAST) == 0 && said(s, SO_DONTROUTE) == 1);
		kill(child, SIGKILL);
	} else if (strcmp(name, "off") == 0) {
		set(s, SO_BROADCAST, 0);
		CHECK(said(s, SO_REUSEADDR) == 1 && said(s, SO_BROADCAST) == 0 && kernels(s, SO_BROADCAST) == 0);
		set(l, SO_REUSEADDR, 0);
		s = accepted(l, &a);
		CHECK(said(s, SO_REUSEADDR) == 0 && said(s, SO_BROADCAST) == 1);
	} else if (strcmp(name, "number") == 0) { /* another socket that has the number, which the library has not seen */
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && system_call(SYS_dup3, pair[0], s, 0, 0) == s && said(s, SO_REUSEADDR) == 0);
	} else {
		CHECK(!"a case");
	}
	return 0;
}
