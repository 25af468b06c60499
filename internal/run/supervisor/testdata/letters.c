/*
 * Connections of a program to itself, whose offers may be letters. It says its port, waits for a line, makes connections in the way that its
 * argument names, and says how many of them were moved.
 */
#include "program.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static struct sockaddr_in to = {.sin_family = AF_INET};
static int listener;

/* moved asks the kernel, which knows the kind of socket that we are not to know. */
static int moved(int fd)
{
	int domain = 0;
	socklen_t len = sizeof(domain);

	CHECK(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0);
	return domain != AF_INET;
}

static int dial(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(fd >= 0);
	CHECK(connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
	return fd;
}

static uint16_t port_of(int fd, int peer)
{
	struct sockaddr_in a;
	socklen_t len = sizeof(a);

	CHECK((peer ? getpeername : getsockname)(fd, (struct sockaddr *)&a, &len) == 0 && a.sin_family == AF_INET);
	return ntohs(a.sin_port);
}

/* exchange sends our port, and reads the port that the other end has for us. */
static void exchange(int fd)
{
	uint16_t me = port_of(fd, 0), heard = 0;

	CHECK(write(fd, &me, sizeof(me)) == sizeof(me));
	CHECK(read(fd, &heard, sizeof(heard)) == sizeof(heard) && heard == me);
}

static void answer(int fd)
{
	uint16_t from = 0, is = port_of(fd, 1);
	struct linger linger;
	socklen_t len = sizeof(linger);

	CHECK(getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len) == 0 && !linger.l_onoff);
	CHECK(read(fd, &from, sizeof(from)) == sizeof(from) && from == is);
	CHECK(write(fd, &is, sizeof(is)) == sizeof(is));
	CHECK(read(fd, &from, 1) == 0);
	CHECK(close(fd) == 0);
}

/* Servers, which accept until they are killed. */

static void echoes(void)
{
	for (;;) {
		int fd = accept(listener, NULL, NULL);

		CHECK(fd >= 0);
		answer(fd);
	}
}

static void closes(void)
{
	for (;;) {
		int fd = accept4(listener, NULL, NULL, 0);

		CHECK(fd >= 0);
		CHECK(write(fd, "bye", 3) == 3);
		CHECK(close(fd) == 0);
	}
}

/* by_itself accepts as a program without the library does. */
static void by_itself(void)
{
	for (;;) {
		int fd = (int)syscall(SYS_accept4, listener, NULL, NULL, 0);

		CHECK(fd >= 0 && !moved(fd));
		answer(fd);
	}
}

/* filters is killed if it asks for descriptors of another process. */
static void filters(void)
{
	struct sock_filter list[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_getfd, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(list) / sizeof(list[0]), list};

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && filter_unseen(&program) == 0);
	echoes();
}

/* narrow has few descriptors from its eleventh connection on, one more for each. */
static void narrow(void)
{
	struct rlimit limit;
	rlim_t free = (rlim_t)dup(0);

	close((int)free);
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	for (rlim_t n = 0;; n++) {
		int fd;

		if (n >= 10)
			limit.rlim_cur = free + n - 9;
		CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
		fd = accept(listener, NULL, NULL);
		CHECK(fd >= 0);
		answer(fd);
	}
}

static pid_t start(void (*server)(void))
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		for (int fd = 3; fd < 64; fd++) /* or nobody would see that they end */
			if (fd != listener)
				close(fd);
		server();
		exit(0);
	}
	return pid;
}

/* stop ends a server, which must not have ended by itself. */
static void stop(pid_t pid)
{
	int status;

	kill(pid, SIGKILL);
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static int in_turn(void (*server)(void), int n)
{
	pid_t pid = start(server);
	int count = 0;

	for (int i = 0; i < n; i++) {
		int fd = dial();

		count += moved(fd);
		exchange(fd);
		CHECK(close(fd) == 0);
	}
	stop(pid);
	return count;
}

/* many has several processes accept, and several connect. */
static int many(void)
{
	enum { SERVERS = 3, CLIENTS = 6, EACH = 300, OPEN = 5 };
	pid_t servers[SERVERS], clients[CLIENTS];
	int status, count = 0;
	int results[2];

	CHECK(pipe(results) == 0);
	for (int i = 0; i < SERVERS; i++)
		servers[i] = start(echoes);
	for (int i = 0; i < CLIENTS; i++) {
		clients[i] = fork();
		CHECK(clients[i] >= 0);
		if (clients[i] == 0) {
			for (int j = 0; j < EACH; j++) {
				int fd = dial(), m = moved(fd);

				exchange(fd);
				CHECK(write(results[1], &m, sizeof(m)) == sizeof(m));
				CHECK(close(fd) == 0);
			}
			exit(0);
		}
	}
	for (int i = 0; i < CLIENTS * EACH; i++) {
		int m;
		struct pollfd p = {.fd = results[0], .events = POLLIN};

		CHECK(poll(&p, 1, 30000) == 1);
		CHECK(read(results[0], &m, sizeof(m)) == sizeof(m));
		count += m;
	}
	for (int i = 0; i < CLIENTS; i++)
		CHECK(waitpid(clients[i], &status, 0) == clients[i] && status == 0);
	for (int i = 0; i < SERVERS; i++)
		stop(servers[i]);
	return count;
}

/* closed has the server say something and close, which may be before the client knows that it is connected. */
static int closed(void)
{
	pid_t pid = start(closes);
	int count = 0;

	for (int i = 0; i < 2000; i++) {
		char b[8];
		int fd = dial();

		count += moved(fd);
		CHECK(recv(fd, b, sizeof(b), MSG_WAITALL) == 3 && memcmp(b, "bye", 3) == 0);
		CHECK(close(fd) == 0);
	}
	stop(pid);
	return count;
}

/* fill makes connections until the queue of the listener is full, and returns how many. The last one is not there yet. */
static int fill(int fds[16])
{
	CHECK(listen(listener, 0) == 0);
	for (int n = 0; n < 16; n++) {
		fds[n] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		CHECK(fds[n] >= 0);
		if (connect(fds[n], (struct sockaddr *)&to, sizeof(to)) != 0) {
			CHECK(errno == EINPROGRESS);
			if (!moved(fds[n]))
				return n;
		}
		CHECK(fcntl(fds[n], F_SETFL, 0) == 0);
	}
	CHECK(!"the queue is full");
	return -1;
}

/* again has a socket connect once more that was in vain at first. */
static int again(void)
{
	pid_t pid = start(echoes); /* first, as sockets that were there before a fork stay TCP */
	int fds[16], n, status;
	struct sockaddr none = {.sa_family = AF_UNSPEC};

	CHECK(kill(pid, SIGSTOP) == 0 && waitpid(pid, &status, WUNTRACED) == pid);
	n = fill(fds);
	CHECK(connect(fds[n], &none, sizeof(none)) == 0 && fcntl(fds[n], F_SETFL, 0) == 0);
	CHECK(kill(pid, SIGCONT) == 0);
	for (int i = 0; i < n; i++) {
		exchange(fds[i]);
		CHECK(close(fds[i]) == 0);
	}
	CHECK(connect(fds[n], (struct sockaddr *)&to, sizeof(to)) == 0);
	exchange(fds[n]);
	CHECK(close(fds[n]) == 0);
	stop(pid);
	return n;
}

/* withdrawn has a connection that is not there at once, as the queue of the listener is full. */
static int withdrawn(void)
{
	int fds[16], n = fill(fds), error = 0;
	socklen_t len = sizeof(error);
	struct pollfd p = {.events = POLLOUT};
	pid_t pid = start(echoes);

	for (int i = 0; i < n; i++) {
		exchange(fds[i]);
		CHECK(close(fds[i]) == 0);
	}
	p.fd = fds[n];
	CHECK(poll(&p, 1, 30000) == 1);
	CHECK(getsockopt(fds[n], SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0);
	CHECK(fcntl(fds[n], F_SETFL, 0) == 0);
	CHECK(!moved(fds[n]));
	exchange(fds[n]);
	CHECK(close(fds[n]) == 0);
	stop(pid);
	return n;
}

/* marked has a connection with the mark of an offer, and none. */
static int marked(void)
{
	int fd = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
	int size = 16381;
	pid_t pid = start(echoes);

	CHECK(fd >= 0 && setsockopt(fd, IPPROTO_TCP, 2 /* TCP_MAXSEG */, &size, sizeof(size)) == 0);
	CHECK(syscall(SYS_connect, fd, &to, sizeof(to)) == 0);
	exchange(fd);
	CHECK(close(fd) == 0);
	stop(pid);
	return 0;
}

static int from_port(uint16_t *port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(*port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0);
	*port = port_of(fd, 0);
	CHECK(connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
	return fd;
}

/* stale has a connection come after another one with the same ports, which nobody has accepted before the listener closed. */
static int stale(void)
{
	uint16_t port = 0;
	int one = 1, first = from_port(&port), second, accepted;
	char b = 0;

	CHECK(close(listener) == 0);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(listener >= 0 && setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	CHECK(bind(listener, (struct sockaddr *)&to, sizeof(to)) == 0 && listen(listener, 128) == 0);
	second = from_port(&port);
	accepted = accept(listener, NULL, NULL);
	CHECK(accepted >= 0 && write(second, "2", 1) == 1 && read(accepted, &b, 1) == 1 && b == '2');
	CHECK(close(first) == 0 && close(second) == 0 && close(accepted) == 0);
	return 1;
}

/* filtering has a connection whose packets the program filters: that is for TCP only. */
static int filtering(void)
{
	struct sock_filter all[] = {BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0), BPF_STMT(BPF_RET | BPF_K, ~0u)};
	struct sock_fprog program = {2, all};
	pid_t pid = start(echoes);
	int fd = socket(AF_INET, SOCK_STREAM, 0), count;
	socklen_t n = 0;

	CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0);
	CHECK(connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
	exchange(fd);
	count = moved(fd);
	CHECK(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_GET_FILTER, NULL, &n) == 0 && n == 2);
	CHECK(close(fd) == 0);
	stop(pid);
	return count;
}

/* mapped has a listener of AF_INET6 that takes IPv4, and its connections say that they are IPv4. */
static void sees_mapped(void)
{
	for (;;) {
		struct sockaddr_in6 a;
		socklen_t len = sizeof(a);
		int fd = accept(listener, (struct sockaddr *)&a, &len);

		CHECK(fd >= 0 && len == sizeof(a) && a.sin6_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&a.sin6_addr));
		CHECK(getsockname(fd, (struct sockaddr *)&a, &len) == 0 && a.sin6_family == AF_INET6 && a.sin6_port == to.sin_port);
		CHECK(getpeername(fd, (struct sockaddr *)&a, &len) == 0 && a.sin6_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&a.sin6_addr));
		CHECK(write(fd, &a.sin6_port, sizeof(a.sin6_port)) == sizeof(a.sin6_port) && close(fd) == 0);
	}
}

static int mapped(void)
{
	struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
	socklen_t len = sizeof(any);
	int off = 0, count = 0;
	pid_t pid;

	CHECK(close(listener) == 0);
	listener = socket(AF_INET6, SOCK_STREAM, 0);
	CHECK(listener >= 0 && setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) == 0);
	CHECK(bind(listener, (struct sockaddr *)&any, len) == 0 && listen(listener, 128) == 0 && getsockname(listener, (struct sockaddr *)&any, &len) == 0);
	to.sin_port = any.sin6_port;
	pid = start(sees_mapped);
	for (int i = 0; i < 20; i++) {
		int fd = dial();
		uint16_t port;

		count += moved(fd);
		CHECK(read(fd, &port, sizeof(port)) == sizeof(port) && ntohs(port) == port_of(fd, 0) && close(fd) == 0);
	}
	stop(pid);
	return count;
}

int main(int argc, char **argv)
{
	socklen_t len = sizeof(to);
	char line[8];
	int n = -1;

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(argc == 2 && listener >= 0);
	CHECK(bind(listener, (struct sockaddr *)&to, sizeof(to)) == 0 && listen(listener, 128) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&to, &len) == 0);
	printf("%d\n", ntohs(to.sin_port));
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), stdin));
	if (strcmp(argv[1], "turn") == 0)
		n = in_turn(echoes, 100);
	else if (strcmp(argv[1], "foreign") == 0)
		n = in_turn(by_itself, 3);
	else if (strcmp(argv[1], "filtered") == 0)
		n = in_turn(filters, 50);
	else if (strcmp(argv[1], "narrow") == 0)
		n = in_turn(narrow, 20);
	else if (strcmp(argv[1], "many") == 0)
		n = many();
	else if (strcmp(argv[1], "closed") == 0)
		n = closed();
	else if (strcmp(argv[1], "withdrawn") == 0)
		n = withdrawn();
	else if (strcmp(argv[1], "stale") == 0)
		n = stale();
	else if (strcmp(argv[1], "again") == 0)
		n = again();
	else if (strcmp(argv[1], "marked") == 0)
		n = marked();
	else if (strcmp(argv[1], "filtering") == 0)
		n = filtering();
	else if (strcmp(argv[1], "mapped") == 0)
		n = mapped();
	CHECK(n >= 0);
	printf("%d\n", n);
	return 0;
}
