/*
 * Programs that know how many bytes they have moved: tally CASE. A line of standard output has, for each end of a connection, the cookie of its socket and the bytes
 * received and sent, -1 for numbers that nobody can know. Then the program waits for a line.
 */
#include "moved.h"

#include <spawn.h>
#include <sys/sendfile.h>

#define LARGE 32768

static char buf[1 << 20];
static char *self;

struct side {
	int fd;
	long in, out;
};

static unsigned long long cookie(int fd)
{
	unsigned long long c = 0;
	socklen_t len = sizeof(c);

	CHECK(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_COOKIE, &c, &len) == 0);
	return c;
}

static void wait_line(void)
{
	char c;

	do
		CHECK(read(0, &c, 1) == 1);
	while (c != '\n');
}

static void say(const char *what, const struct side *a, const struct side *b)
{
	printf("%s", what);
	for (const struct side *s = a; s; s = s == a ? b : NULL)
		printf(" %llu %ld %ld", cookie(s->fd), s->in, s->out);
	printf("\n");
	fflush(stdout);
	wait_line();
}

static void begin(struct side *a, struct side *b)
{
	*a = *b = (struct side){0};
	both_ends(&a->fd, &b->fd);
	CHECK(as_it_should(a->fd) && as_it_should(b->fd));
}

static void sent(struct side *a, ssize_t n, ssize_t want)
{
	CHECK(n == want);
	a->out += n;
}

static void took(struct side *b, ssize_t n)
{
	CHECK(n > 0);
	b->in += n;
}

/* take reads exactly n bytes. */
static void take(struct side *b, size_t n)
{
	while (n) {
		ssize_t r = read(b->fd, buf, n < sizeof(buf) ? n : sizeof(buf));

		took(b, r);
		n -= (size_t)r;
	}
}

static void exchange(struct side *a, struct side *b, size_t n)
{
	sent(a, write(a->fd, buf, n), (ssize_t)n);
	take(b, n);
}

/* joined has both directions go over to rings. */
static void joined(struct side *a, struct side *b)
{
	for (int i = 0; i < 8; i++) {
		exchange(a, b, LARGE);
		exchange(b, a, LARGE);
	}
	CHECK(used_rings() >= 2);
}

static int file(size_t n)
{
	int fd = memfd_create("file", MFD_CLOEXEC);

	CHECK(fd >= 0 && ftruncate(fd, (off_t)n) == 0);
	return fd;
}

/* calls moves bytes by every call that moves some. */
static void calls(struct side *a, struct side *b)
{
	struct iovec parts[3] = {{buf, 10}, {buf, 0}, {buf, 20}};
	struct msghdr m = {.msg_iov = parts, .msg_iovlen = 3};
	struct mmsghdr many[2] = {{.msg_hdr = m}, {.msg_hdr = m}};
	int fd = file(100000), p[2];
	off_t at = 0;
	ssize_t n;

	exchange(a, b, 100);
	sent(a, send(a->fd, buf, 7, MSG_NOSIGNAL), 7);
	sent(a, sendto(a->fd, buf, 7, 0, NULL, 0), 7);
	sent(a, writev(a->fd, parts, 3), 30);
	sent(a, sendmsg(a->fd, &m, 0), 30);
	sent(a, pwritev2(a->fd, parts, 3, -1, 0), 30);
	CHECK(sendmmsg(a->fd, many, 2, 0) == 2);
	a->out += 60;
	sent(a, dprintf(a->fd, "%05d", 12), 5);
	CHECK(recv(b->fd, buf, 100, MSG_PEEK) > 0 && recv(b->fd, buf, 50, MSG_PEEK | MSG_WAITALL) > 0);
	took(b, recv(b->fd, buf, 50, MSG_WAITALL));
	took(b, recv(b->fd, NULL, 40, MSG_TRUNC));
	took(b, readv(b->fd, parts, 3));
	took(b, recvmsg(b->fd, &m, 0));
	took(b, recvfrom(b->fd, buf, 10, 0, NULL, NULL));
	CHECK(recv(b->fd, buf, 0, MSG_DONTWAIT) <= 0);
	take(b, (size_t)(a->out - b->in));
	at = 0;
	sent(a, sendfile(a->fd, fd, &at, 1000), 1000); /* a small one is sent as other bytes are */
	at = 0;
	sent(a, sendfile(a->fd, fd, &at, 50000), 50000);
	take(b, 51000);
	CHECK(pipe(p) == 0 && write(p[1], buf, 3000) == 3000);
	sent(a, splice(p[0], NULL, a->fd, NULL, 3000, 0), 3000);
	for (size_t left = 3000; left; left -= (size_t)n)
		took(b, n = splice(b->fd, NULL, p[1], NULL, left, 0));
	sent(a, send(a->fd, "u", 1, MSG_OOB), 1);
	took(b, recv(b->fd, buf, 1, MSG_OOB));
	CHECK(send(a->fd, buf, 1000, MSG_DONTWAIT) == 1000);
	a->out += 1000;
	take(b, 1000);
	close(fd);
	close(p[0]);
	close(p[1]);
}

static void test_in_band(void)
{
	struct side a, b;

	begin(&a, &b);
	say("new", &a, &b);
	calls(&a, &b);
	say("calls", &a, &b);
	calls(&b, &a);
	say("back", &a, &b);
	exchange(&a, &b, 5);
	say("last", &a, &b);
	close(a.fd);
	close(b.fd);
}

static void test_rings(void)
{
	struct side a, b;

	begin(&a, &b);
	joined(&a, &b);
	say("joined", &a, &b);
	for (int i = 0; i < 100; i++)
		exchange(&a, &b, (size_t)(1 + i * 311));
	sent(&a, write(a.fd, buf, 40000), 40000);
	CHECK(recv(b.fd, buf, 40000, MSG_PEEK) > 0);
	say("unread", &a, &b);
	took(&b, recv(b.fd, NULL, 30000, MSG_TRUNC));
	take(&b, (size_t)(a.out - b.in));
	for (ssize_t n; (n = send(a.fd, buf, LARGE, MSG_DONTWAIT)) > 0;) /* until it is full */
		a.out += n;
	say("full", &a, &b);
	take(&b, (size_t)(a.out - b.in));
	calls(&a, &b);
	calls(&b, &a);
	say("calls", &a, &b);
	close(a.fd);
	close(b.fd);
}

static void *writes(void *at)
{
	struct side *a = at;

	for (int i = 0; i < 20000; i++)
		CHECK(write(a->fd, "x", 1) == 1);
	return NULL;
}

static void threads(bool rings)
{
	struct side a, b;
	pthread_t t[3];

	begin(&a, &b);
	if (rings && !getenv("GOSMC_RUN_SHAKE")) /* small rings, and nobody reads meanwhile */
		joined(&a, &b);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&t[i], NULL, writes, &a) == 0);
	take(&b, 60000);
	a.out += 60000;
	for (int i = 0; i < 3; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	say("threads", &a, &b);
}

static void test_threads(void)
{
	threads(false);
	threads(true);
}

/* A process that was forked has the same ends; the last one that closes an end ends its count. */
static void forks(bool rings)
{
	struct side a, b;
	pid_t child;

	begin(&a, &b);
	if (rings && !getenv("GOSMC_RUN_SHAKE")) /* small rings, and nobody reads meanwhile */
		joined(&a, &b);
	for (int i = 0; i < 2; i++) {
		CHECK((child = fork()) >= 0);
		if (child == 0) {
			writes(&a);
			_exit(0);
		}
	}
	a.out += 40000;
	take(&b, 40000);
	for (int i = 0; i < 2; i++)
		CHECK(wait(NULL) > 0);
	exchange(&a, &b, 8);
	say("forked", &a, &b);
	CHECK((child = fork()) >= 0);
	if (child == 0) { /* closes an end that its parent goes on with */
		close(a.fd);
		exit(0);
	}
	CHECK(waitpid(child, NULL, 0) == child);
	exchange(&a, &b, 9);
	say("once more", &a, &b);
	close(a.fd);
	close(b.fd);
}

static void test_fork(void)
{
	forks(false);
	forks(true);
}

/* The parent closes its descriptor, as a server does that forks a process for each connection. */
static void test_served(void)
{
	struct side a, b;
	int go[2];
	pid_t child;

	begin(&a, &b);
	exchange(&a, &b, 111);
	CHECK(pipe(go) == 0 && (child = fork()) >= 0);
	if (child == 0) {
		char c;

		CHECK(read(go[0], &c, 1) == 1);
		take(&b, 222);
		a.out += 222;
		exchange(&b, &a, 33);
		say("child", &a, &b);
		_exit(0);
	}
	close(b.fd);
	sent(&a, write(a.fd, buf, 222), 222);
	CHECK(write(go[1], "x", 1) == 1 && waitpid(child, NULL, 0) == child);
	a.in += 33;
	say("parent", &a, NULL);
	close(a.fd);
}

/* tally heir FD: a program that was executed with a connection. */
static void heir(const char *number)
{
	int fd = atoi(number);

	CHECK(write(fd, buf, 1000) == 1000);
}

static void runs(const char *program, struct side *a, struct side *b)
{
	char number[16];
	pid_t child;

	snprintf(number, sizeof(number), "%d", a->fd);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		execl(program, program, "heir", number, NULL);
		_exit(9);
	}
	take(b, 1000);
	a->out += 1000;
	CHECK(waitpid(child, NULL, 0) == child);
}

/* Programs get an end by exec: one with the library counts, and of a static one nobody knows. */
static void test_exec(void)
{
	struct side a, b;
	pid_t child;
	int status;
	char *none[] = {NULL};

	begin(&a, &b);
	exchange(&a, &b, 5000);
	runs(self, &a, &b);
	say("dynamic", &a, &b);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		CHECK(execve("/nowhere", none, none) < 0 && errno == ENOENT);
		exchange(&a, &b, 77);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	a.out += 77;
	b.in += 77;
	say("not executed", &a, &b);
	CHECK(posix_spawn(&child, "/nowhere", NULL, NULL, none, none) != 0);
	say("not spawned", &a, &b);
	runs(getenv("STATIC"), &a, &b);
	a.in = a.out = -1;
	say("static", &a, NULL);
}

static int passes(int over, int fd)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec one = {(char[1]){'x'}, 1};
	struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	return (int)sendmsg(over, &m, MSG_NOSIGNAL);
}

static int passed(int over)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec one = {(char[1]){0}, 1};
	struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	int fd;

	CHECK(recvmsg(over, &m, 0) == 1 && CMSG_FIRSTHDR(&m));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	return fd;
}

/* A message takes an end along. As long as nobody has received it nobody knows. */
static void test_passed(void)
{
	int over[2], gone[2];
	struct side a, b;
	pid_t child;

	begin(&a, &b);
	exchange(&a, &b, 400);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, over) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, gone) == 0);
	close(gone[1]);
	CHECK(passes(gone[0], a.fd) < 0);
	say("not passed", &a, &b);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		close(a.fd);
		close(b.fd);
		wait_line();
		a.fd = passed(over[1]);
		CHECK(write(a.fd, buf, 50) == 50 && write(over[1], "x", 1) == 1);
		pause();
	}
	CHECK(passes(over[0], a.fd) == 1);
	printf("on its way %llu -1 -1\n", cookie(a.fd));
	fflush(stdout);
	a.out += 50;
	take(&b, 50);
	CHECK(read(over[0], buf, 1) == 1); /* it is counted */
	say("passed", &a, &b);
	close(a.fd);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

static void test_copies(void)
{
	struct side a, b;
	int fd;

	begin(&a, &b);
	joined(&a, &b);
	fd = a.fd;
	a.fd = dup(fd);
	exchange(&a, &b, 10);
	close(fd);
	exchange(&a, &b, 20);
	say("dup", &a, &b);
	CHECK(dup2(a.fd, 50) == 50);
	close(a.fd);
	a.fd = 50;
	exchange(&b, &a, 30);
	exchange(&a, &b, LARGE);
	say("dup2", &a, &b);
	CHECK(fdopen(dup(b.fd), "w"));
	b.in = b.out = -1;
	say("stream", &a, &b);
}

/* A process that is killed has moved what it has. */
static void test_killed(void)
{
	struct sockaddr_in at;
	struct side b = {0};
	int l = server(&at), ready[2];
	pid_t child;
	char c;

	CHECK(pipe(ready) == 0 && (child = fork()) >= 0);
	if (child == 0) {
		struct side a = {.fd = connected_to(&at)};

		for (int i = 0; i < 8; i++)
			sent(&a, write(a.fd, buf, LARGE), LARGE);
		take(&a, 999);
		CHECK(write(ready[1], "x", 1) == 1);
		pause();
	}
	CHECK((b.fd = accept(l, NULL, NULL)) >= 0);
	sent(&b, write(b.fd, buf, 999), 999);
	take(&b, 8 * LARGE);
	CHECK(read(ready[0], &c, 1) == 1 && kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	say("killed", &b, NULL);
	close(b.fd);
	printf("total %d %d\n", 999 + 8 * LARGE, 8 * LARGE + 999);
	fflush(stdout);
	wait_line();
}

/* A descriptor is handed over with bytes in its ring, and the count goes on. */
static void test_handed(void)
{
	struct sockaddr_in at;
	struct side a = {0}, b = {0};
	int l = server(&at);
	char number[16];
	pid_t child;

	CHECK((child = fork()) >= 0);
	if (child == 0) { /* the client */
		a.fd = connected_to(&at);
		for (int i = 0; i < 6; i++) {
			sent(&a, write(a.fd, buf, LARGE), LARGE);
			take(&a, 1);
		}
		sent(&a, write(a.fd, buf, 200000), 200000);
		CHECK(recv(a.fd, buf, 4, MSG_WAITALL) == 4);
		exit(0);
	}
	CHECK((b.fd = accept(l, NULL, NULL)) >= 0);
	close(l);
	for (int i = 0; i < 6; i++) {
		take(&b, LARGE);
		sent(&b, write(b.fd, "x", 1), 1);
	}
	usleep(100000);
	snprintf(number, sizeof(number), "%d", b.fd);
	execl(self, self, "handed-heir", number, NULL);
	_exit(9);
}

static void handed_heir(const char *number)
{
	struct side b = {.fd = atoi(number), .in = 6 * LARGE, .out = 6};

	take(&b, 200000);
	sent(&b, write(b.fd, "fine", 4), 4);
	say("handed", &b, NULL);
}

/* Many connections, one after another. */
static void test_many(void)
{
	struct sockaddr_in at;
	int l = server(&at);

	for (int i = 0; i < 2000; i++) {
		int c = connected_to(&at), s = accept(l, NULL, NULL);

		CHECK(s >= 0 && write(c, "abc", 3) == 3 && read(s, buf, 10) == 3);
		close(c);
		close(s);
	}
	printf("total 6000 6000\n");
	fflush(stdout);
	wait_line();
}

static const struct {
	const char *name;
	void (*test)(void);
} cases[] = {
	{"in-band", test_in_band}, {"rings", test_rings}, {"threads", test_threads}, {"fork", test_fork}, {"served", test_served}, {"exec", test_exec},
	{"passed", test_passed}, {"copies", test_copies}, {"killed", test_killed}, {"handed", test_handed}, {"many", test_many},
};

int main(int argc, char **argv)
{
	self = argv[0];
	if (argc == 3 && strcmp(argv[1], "heir") == 0) {
		heir(argv[2]);
		return 0;
	}
	if (argc == 3 && strcmp(argv[1], "handed-heir") == 0) {
		handed_heir(argv[2]);
		return 0;
	}
	for (size_t i = 0; argc > 1 && i < sizeof(cases) / sizeof(cases[0]); i++)
		if (strcmp(argv[1], cases[i].name) == 0) {
			cases[i].test();
			return 0;
		}
	return 2;
}
