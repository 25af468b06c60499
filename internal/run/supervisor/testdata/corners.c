/*
 * Actions that few programs do, and some rely on: corners CASE. Bare, with TCP, it behaves the same. With the environment variable
 * MOVED set to 1 its connections are not TCP.
 */
#include "moved.h"


#define LARGE 32768

static char buf[LARGE];

static void pair(int *c, int *s)
{
	both_ends(c, s);
	CHECK(as_it_should(*c));
}

static void exchange(int from, int to, size_t n)
{
	CHECK(write(from, buf, n) == (ssize_t)n);
	for (ssize_t r; n; n -= (size_t)r)
		CHECK((r = read(to, buf, n)) > 0);
}

/* stream has a direction go over to its ring, if it can. */
static void stream(int from, int to)
{
	for (int i = 0; i < 4; i++)
		exchange(from, to, LARGE);
}

/* A program with room for two rings, those of a connection within it, gets no third one, and others when these are gone. */
static void test_bounded(void)
{
	int a[2], b[2];

	for (int i = 0; i < 5; i++) {
		pair(&a[0], &a[1]);
		pair(&b[0], &b[1]);
		stream(a[0], a[1]);
		CHECK(mapped_rings() == 2 * moved());
		stream(b[0], b[1]);
		stream(a[1], a[0]);
		CHECK(mapped_rings() == 2 * moved());
		for (int k = 0; k < 2; k++) {
			close(a[k]);
			close(b[k]);
		}
		CHECK(mapped_rings() == 0);
	}
}

static void linger(int fd, int on)
{
	struct linger l = {.l_onoff = on};

	CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l)) == 0);
}

static int error_of(int fd)
{
	int v = -1;
	socklen_t len = sizeof(v);

	CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &v, &len) == 0);
	return v;
}

static int quiet(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN | POLLRDHUP};

	return poll(&p, 1, 0) == 0;
}

static void await_hangup(int fd)
{
	struct pollfd p = {.fd = fd};

	CHECK(poll(&p, 1, 60000) == 1 && (p.revents & POLLHUP));
}

static void was_reset(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	CHECK(poll(&p, 1, 60000) == 1 && (p.revents & (POLLIN | POLLHUP)) == (POLLIN | POLLHUP));
	CHECK(read(fd, buf, 10) < 0 && errno == ECONNRESET);
	CHECK(read(fd, buf, 10) == 0 && error_of(fd) == 0);
	CHECK(send(fd, buf, 1, MSG_NOSIGNAL) < 0 && errno == EPIPE);
	close(fd);
}

static void was_ended(int fd)
{
	CHECK(read(fd, buf, 10) == 0 && error_of(fd) == 0 && read(fd, buf, 10) == 0);
	close(fd);
}

/* Lingering for 0 seconds means that the last close, by any process, resets the connection, after the bytes that were sent. */
static void test_reset(void)
{
	struct sockaddr_in at;
	socklen_t len = sizeof(at);
	int a, b, c;

	for (int side = 0; side < 2; side++) {
		side ? pair(&b, &a) : pair(&a, &b);
		linger(a, 1);
		CHECK(quiet(b) && error_of(b) == 0);
		close(a);
		was_reset(b);
	}
	pair(&a, &b);
	linger(a, 1);
	CHECK(write(a, "abc", 3) == 3);
	close(a);
	await_hangup(b);
	CHECK(getpeername(b, (struct sockaddr *)&at, &len) < 0 && errno == ENOTCONN);
	CHECK(read(b, buf, 10) == 3);
	was_reset(b);
	/* Each of these hears of it first. */
	pair(&a, &b);
	linger(a, 1);
	close(a);
	await_hangup(b);
	CHECK(error_of(b) == ECONNRESET);
	was_ended(b);
	pair(&a, &b);
	linger(a, 1);
	close(a);
	CHECK(send(b, buf, 1, 0) < 0 && errno == ECONNRESET); /* and no signal */
	was_ended(b);
	pair(&a, &b);
	linger(a, 1);
	close(a);
	CHECK(recv(b, buf, 1, MSG_PEEK) < 0 && errno == ECONNRESET);
	was_ended(b);
	/* That it sends no more does not keep it from hearing of it. */
	pair(&a, &b);
	linger(a, 1);
	CHECK(shutdown(b, SHUT_WR) == 0 && read(a, buf, 1) == 0);
	close(a);
	await_hangup(b);
	CHECK(send(b, buf, 1, MSG_NOSIGNAL) < 0 && errno == ECONNRESET);
	was_ended(b);
	/* Only the last close counts. */
	pair(&a, &b);
	linger(a, 1);
	c = dup(a);
	close(a);
	CHECK(quiet(b));
	close(c);
	was_reset(b);
	pair(&a, &b);
	linger(a, 1);
	linger(a, 0);
	close(a);
	was_ended(b);
	/* Bytes that were read are not reset any more. */
	pair(&a, &b);
	linger(a, 1);
	shutdown(a, SHUT_WR);
	CHECK(read(b, buf, 1) == 0);
	close(a);
	CHECK(read(b, buf, 1) == 0 && read(b, buf, 1) == 0);
	close(b);
}

/* One that has bytes unread is reset by all means, but once. */
static void test_reset_unread(void)
{
	int a, b;

	pair(&a, &b);
	linger(a, 1);
	CHECK(write(b, "abc", 3) == 3);
	close(a);
	was_reset(b);
}

/* The option is the socket's, and so the reset comes where its last owner ends, or is killed. */
static void test_reset_processes(void)
{
	int a, b, go[2];
	pid_t child;

	for (int killed = 0; killed < 2; killed++) {
		pair(&a, &b);
		linger(a, 1);
		CHECK(pipe(go) == 0);
		child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			close(b);
			CHECK(read(go[0], buf, 1) == 1);
			if (killed)
				raise(SIGKILL);
			_exit(0);
		}
		close(a);
		CHECK(quiet(b));
		CHECK(write(go[1], "x", 1) == 1 && waitpid(child, NULL, 0) == child);
		was_reset(b);
	}
	/* A reader that waits is woken up by it. */
	pair(&a, &b);
	linger(a, 1);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		close(a);
		CHECK(read(b, buf, 1) < 0 && errno == ECONNRESET);
		_exit(0);
	}
	close(b);
	close(a);
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* SO_LINGER of a listener, and of a socket before connect, is true of their connections. */
static void test_reset_inherited(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(at);

	for (int side = 0; side < 2; side++) {
		int l = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0), s;

		CHECK(bind(l, (struct sockaddr *)&at, len) == 0 && getsockname(l, (struct sockaddr *)&at, &len) == 0);
		linger(side ? l : c, 1);
		CHECK(listen(l, 5) == 0 && connect(c, (struct sockaddr *)&at, sizeof(at)) == 0);
		s = accept(l, NULL, NULL);
		close(side ? s : c);
		was_reset(side ? c : s);
		close(l);
		at.sin_port = 0;
	}
}

/* A ring is read to its end before that. */
static void test_reset_ring(void)
{
	int a, b;

	pair(&a, &b);
	linger(a, 1);
	stream(a, b);
	CHECK(mapped_rings() == 2 * moved());
	CHECK(write(a, buf, 1000) == 1000);
	close(a);
	CHECK(recv(b, buf, 1000, MSG_WAITALL) == 1000);
	was_reset(b);
}

/* A process that can write to the table can cut it off: then it is an end of file. */
static void test_reset_cut(void)
{
	char path[200], *slash;
	int a, b;

	if (!getenv("GOSMC_RUN"))
		return;
	snprintf(path, sizeof(path) - 10, "%s", getenv("GOSMC_RUN"));
	slash = strrchr(path, '/');
	strcpy(slash + 1, "resets");
	pair(&a, &b);
	linger(a, 1);
	CHECK(truncate(path, 0) == 0);
	close(a);
	was_ended(b);
	pair(&a, &b);
	linger(a, 1);
	close(a);
	was_ended(b);
}

struct dialling {
	int fd;
	struct sockaddr_in to;
};

static void *dial(void *arg)
{
	struct dialling *d = arg;

	CHECK(connect(d->fd, (struct sockaddr *)&d->to, sizeof(d->to)) == 0);
	return NULL;
}

/* Another thread uses a socket as soon as the server has accepted, which may be before connect has returned. */
static void test_meanwhile(void)
{
	struct dialling d;
	int l = server(&d.to);

	for (int i = 0; i < 600; i++) {
		struct pollfd p;
		pthread_t t;
		int s;

		d.fd = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(pthread_create(&t, NULL, dial, &d) == 0);
		s = accept(l, NULL, NULL);
		CHECK(s >= 0);
		p = (struct pollfd){.fd = d.fd, .events = POLLIN};
		switch (i % 3) {
		case 0: /* the server closes */
			close(s);
			CHECK(poll(&p, 1, 60000) == 1 && recv(d.fd, buf, 1, 0) == 0);
			break;
		case 1: /* it sends, and closes */
			CHECK(send(s, "abc", 3, 0) == 3);
			close(s);
			CHECK(recv(d.fd, buf, 3, MSG_WAITALL) == 3 && read(d.fd, buf, 1) == 0);
			break;
		case 2: /* this one sends */
			CHECK(write(d.fd, "abc", 3) == 3 && recv(s, buf, 3, MSG_WAITALL) == 3);
			close(s);
		}
		CHECK(pthread_join(t, NULL) == 0);
		close(d.fd);
	}
	close(l);
}

/* Two sockets that could have been one of ours each, but for a copy: of the first two before connect. It stays until it is told to go. */
static void test_loop(void)
{
	struct sockaddr_in at;
	int l = server(&at);

	for (int i = 0; i < 3; i++) {
		int c = socket(AF_INET, SOCK_STREAM, 0);

		if (i < 2)
			CHECK(dup(c) >= 0);
		CHECK(connect(c, (struct sockaddr *)&at, sizeof(at)) == 0 && accept(l, NULL, NULL) >= 0);
	}
	printf("%d\n", ntohs(at.sin_port));
	fflush(stdout);
	CHECK(read(0, buf, 1) == 0);
}

/* A client sees that its server has closed, also where both supervisors were asked. */
static void test_parted(void)
{
	for (int i = 0; i < 100; i++) {
		struct sockaddr_in at;
		int l = server(&at);
		int c = socket(AF_INET, SOCK_STREAM, 0), s;
		int small = 16384; /* not for the segments that letters need */
		struct pollfd p = {.events = POLLRDHUP};

		CHECK(setsockopt(c, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)) == 0);
		CHECK(connect(c, (struct sockaddr *)&at, sizeof(at)) == 0 && (s = accept(l, NULL, NULL)) >= 0 && as_it_should(c));
		close(s);
		p.fd = c;
		CHECK(poll(&p, 1, moved() ? 0 : PATIENCE) == 1); /* TCP's may take a moment */
		close(c);
		close(l);
	}
}

static const struct {
	const char *name;
	void (*test)(void);
} cases[] = {
	{"bounded", test_bounded},
	{"reset", test_reset},
	{"reset-unread", test_reset_unread},
	{"reset-processes", test_reset_processes},
	{"reset-inherited", test_reset_inherited},
	{"reset-ring", test_reset_ring},
	{"reset-cut", test_reset_cut},
	{"meanwhile", test_meanwhile},
	{"parted", test_parted},
	{"loop", test_loop},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < sizeof(cases) / sizeof(cases[0]); i++)
		if (strcmp(argv[1], cases[i].name) == 0) {
			cases[i].test();
			return 0;
		}
	return 2;
}
