/* Others get a descriptor: copies of it, processes, programs, libc. */
#include "rings.h"

#include <spawn.h>
#include <sys/sendfile.h>

/* Copies of a descriptor are the same descriptor. */
void test_dup(void)
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

/* print_stream writes through a standard stream, whose bytes libc writes by itself. */
static void print_stream(FILE *f, struct stream *s, unsigned n)
{
	fill(s, n);
	CHECK(fwrite(buf, 1, n, f) == n && fflush(f) == 0);
	s->at += n;
}

/* read_stream is the same for reading. */
static void read_stream(FILE *f, struct stream *s, unsigned n)
{
	CHECK(fread(buf, 1, n, f) == n);
	look(s, n);
	s->at += n;
}

/* A connection with rings becomes a standard stream, with bytes in the ring or without; the stream and calls take turns. */
void test_standard(void)
{
	int a, b;
	int in = dup(0);
	int out = dup(1);

	CHECK(setvbuf(stdin, NULL, _IONBF, 0) == 0); /* calls read what it has not */
	for (int i = 0; i < 4; i++) {
		joined(&a, &b);
		if (i & 1)
			put(a, &ab, 3000, 1000); /* is in the ring */
		CHECK(dup2(a, 1) == 1 && dup2(b, 0) == 0);
		if (i & 2) {
			close(a);
			close(b);
		}
		if (i & 1)
			read_stream(stdin, &ab_in, 3000);
		print_stream(stdout, &ab, 5000);
		read_stream(stdin, &ab_in, 5000);
		for (int k = 0; k < 20; k++) {
			put(1, &ab, 2 * LARGE, LARGE);
			take(0, &ab_in, 2 * LARGE, LARGE);
			print_stream(stdout, &ab, 10000);
			take(0, &ab_in, 10000, 3000);
		}
		CHECK(dup2(in, 0) == 0 && dup2(out, 1) == 1);
		clearerr(stdin);
		if (!(i & 2)) {
			close(a);
			close(b);
		}
	}
}

/* A connection is a standard stream from its beginning. */
void test_standard_zero(void)
{
	struct sockaddr_in addr;
	int l = server(&addr);
	int in = dup(0);
	int out = dup(1);

	CHECK(setvbuf(stdin, NULL, _IONBF, 0) == 0); /* calls read what it has not */
	close(0);
	close(1);
	CHECK(socket(AF_INET, SOCK_STREAM, 0) == 0);
	CHECK(connect(0, (struct sockaddr *)&addr, sizeof(addr)) == 0);
	CHECK(accept(l, NULL, NULL) == 1);
	for (int k = 0; k < 20; k++) {
		put(1, &ab, 2 * LARGE, LARGE);
		take(0, &ab_in, 2 * LARGE, LARGE);
		print_stream(stdout, &ab, 10000);
		read_stream(stdin, &ab_in, 10000);
	}
	CHECK(dup2(in, 0) == 0 && dup2(out, 1) == 1);
	close(l);
}

/* Processes that were one share their end. */
void test_fork(void)
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
void test_exec(void)
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

void heir(const char *number)
{
	char ten[10];
	int fd = atoi(number);

	CHECK(recv(fd, ten, 10, MSG_WAITALL) == 10 && memcmp(ten, "0123456789", 10) == 0);
	CHECK(write(fd, "fine", 4) == 4);
}

/* pass sends a descriptor to another program. */
ssize_t pass(int over, int fd)
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
void test_passed(void)
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
	CHECK(pass(over[0], b) == 1);
	CHECK(write(a, "0123456789", 10) == 10);
	CHECK(recv(a, buf, 4, MSG_WAITALL) == 4 && memcmp(buf, "fine", 4) == 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* passed receives a descriptor. */
int passed(int over)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char x;
	struct iovec v = {&x, 1};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control.room)};
	int fd;

	CHECK(recvmsg(over, &m, 0) == 1 && CMSG_FIRSTHDR(&m));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	return fd;
}

void passed_heir(const char *number)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", passed(atoi(number)));
	heir(text);
}

/* libc and the kernel move bytes by themselves. */
void test_others(void)
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

/* A program without us has the descriptor since before there was a ring, and writes later: rings late-heir. */
void test_spawned(void)
{
	char number[16], wait[16];
	char *argv[] = {self, "late-heir", number, wait, NULL}, *environment[] = {NULL};
	int a, b, go[2], status;
	pid_t child;

	both_ends(&a, &b);
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

/* A stream of libc reads bytes by itself that come after fdopen. */
void test_stream(void)
{
	FILE *in;
	int a, b;

	joined(&a, &b);
	in = fdopen(b, "r");
	CHECK(in);
	put(a, &ab, LARGE, LARGE);
	CHECK(fread(buf, 1, LARGE, in) == LARGE);
	look(&ab_in, LARGE);
	close(a);
	CHECK(fread(buf, 1, 1, in) == 0 && feof(in));
}

/* A program that has become a daemon is one like others: the process that it was before is not there any more. */
void test_daemon(void)
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

int __dprintf_chk(int fd, int flag, const char *format, ...);

/* dprintf in programs that were compiled with _FORTIFY_SOURCE. */
void test_fortified(void)
{
	int a, b;

	joined(&a, &b);
	CHECK(__dprintf_chk(a, 1, "%s %d\n", "hello", 7) == 8);
	CHECK(recv(b, buf, 8, MSG_WAITALL) == 8 && memcmp(buf, "hello 7\n", 8) == 0);
	put(a, &ab, LARGE, LARGE);
	take(b, &ab_in, LARGE, LARGE);
}
