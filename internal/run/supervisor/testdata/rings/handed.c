/* Others get a descriptor while bytes are in its ring, and read them. */
#include "rings.h"

#include <spawn.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>

#define REST 200000 /* which fits a ring, and not all of a socket */
#define ROUNDS 4 /* after which there is a ring */
#define MORE 300000

extern char **environ;

/*
 * handed-heir FROM N: a program that has a connection as its input and output, and maybe no library: it reads N bytes, of a stream of which so many were
 * read before, and answers "fine".
 */
void handed_heir(const char *from, const char *n)
{
	ab_in.at = strtoul(from, NULL, 10);
	for (unsigned long left = strtoul(n, NULL, 10); left;) {
		ssize_t r = read(0, buf, left < 5000 ? left : 5000);

		CHECK(r > 0);
		look(&ab_in, r);
		ab_in.at += (unsigned long)r;
		left -= (unsigned long)r;
	}
	CHECK(write(1, "fine", 4) == 4);
}

/* begun has a connection to a peer in another process, with a ring and bytes in it. */
static int begun(pid_t *child, size_t n)
{
	struct sockaddr_in address;
	int fd, l = server(&address), waiting, raw;

	*child = fork();
	CHECK(*child >= 0);
	if (*child == 0) {
		close(l);
		fd = connected_to(&address);
		for (int i = 0; i < ROUNDS; i++) {
			put(fd, &ab, LARGE, LARGE);
			CHECK(recv(fd, buf, 1, 0) == 1);
		}
		put(fd, &ab, n, 30000);
		CHECK(recv(fd, buf, 4, MSG_WAITALL) == 4 && memcmp(buf, "fine", 4) == 0);
		exit(0);
	}
	fd = accept(l, NULL, NULL);
	CHECK(fd >= 0);
	close(l);
	for (int i = 0; i < ROUNDS; i++) {
		take(fd, &ab_in, LARGE, 10000);
		CHECK(write(fd, "x", 1) == 1);
	}
	do {
		struct timespec pause = {.tv_nsec = 1000000};

		CHECK(ioctl(fd, FIONREAD, &waiting) == 0 && syscall(SYS_ioctl, fd, FIONREAD, &raw) == 0);
		nanosleep(&pause, NULL);
	} while (waiting < 10000 || (on_rings() && raw > 100)); /* the kernel sees tokens */
	return fd;
}

static void heir_is(int fd, const char *program, size_t n)
{
	char from[24], all[24];

	snprintf(from, sizeof(from), "%lu", ab_in.at);
	snprintf(all, sizeof(all), "%zu", n);
	CHECK(dup2(fd, 0) == 0 && dup2(fd, 1) == 1);
	if (fd > 1)
		close(fd);
	execl(program, program, "handed-heir", from, all, NULL);
	_exit(9);
}

static void fine(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* whom is a program that knows nothing of rings: the static one, or this one without the library. */
static const char *whom(void)
{
	const char *program = getenv("STATIC");

	return program ? program : self;
}

/* A server reads a part of a request and forks a program for the rest, as inetd would. */
void test_handed_fork(void)
{
	pid_t child, heir;
	int fd = begun(&child, 2 * MORE);

	heir = fork();
	if (heir == 0)
		heir_is(fd, whom(), 2 * MORE);
	close(fd);
	fine(heir);
	fine(child);
}

/* A server becomes that program itself. */
void test_handed_exec(void)
{
	pid_t child, all = fork();

	if (all == 0) {
		int fd = begun(&child, 2 * MORE);

		/* The peer's end is no child of the program that this becomes. */
		heir_is(fd, whom(), 2 * MORE);
	}
	fine(all);
}

/* A server has it started by libc, and waits for it. */
void test_handed_spawn(void)
{
	char from[24], all[24];
	char *argv[] = {self, "handed-heir", from, all, NULL};
	posix_spawn_file_actions_t actions;
	pid_t child, heir;
	int fd = begun(&child, 2 * MORE);

	snprintf(from, sizeof(from), "%lu", ab_in.at);
	snprintf(all, sizeof(all), "%d", MORE);
	CHECK(posix_spawn_file_actions_init(&actions) == 0 && posix_spawn_file_actions_adddup2(&actions, fd, 0) == 0 &&
	      posix_spawn_file_actions_adddup2(&actions, open("/dev/null", O_WRONLY), 1) == 0);
	CHECK(posix_spawn(&heir, whom(), &actions, NULL, argv, environ) == 0);
	fine(heir);
	/* And goes on with the bytes that that has left. */
	ab_in.at += MORE;
	take(fd, &ab_in, MORE, 10000);
	CHECK(write(fd, "fine", 4) == 4);
	fine(child);
}

/* A program passes it to another one. */
void test_handed_passed(void)
{
	int over[2];
	pid_t child, heir;
	int fd = begun(&child, 2 * MORE);

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, over) == 0);
	CHECK(pass(over[0], fd) == 1);
	heir = fork();
	if (heir == 0) {
		close(fd);
		heir_is(passed(over[1]), whom(), 2 * MORE);
	}
	close(fd);
	fine(heir);
	fine(child);
}

/* A stream of libc, and copies of the descriptor, which an epoll knows. */
void test_handed_stream(void)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77};
	pid_t child;
	int fd = begun(&child, 2 * MORE), copy = dup(fd), ep = epoll_create1(0);
	FILE *in;

	CHECK(copy >= 0 && epoll_ctl(ep, EPOLL_CTL_ADD, copy, &event) == 0);
	in = fdopen(fd, "r");
	CHECK(in && setvbuf(in, NULL, _IONBF, 0) == 0);
	CHECK(fread(buf, 1, MORE, in) == MORE);
	look(&ab_in, MORE);
	ab_in.at += MORE;
	event.data.u64 = 0;
	CHECK(epoll_wait(ep, &event, 1, PATIENCE) == 1 && event.data.u64 == 77 && (event.events & EPOLLIN));
	CHECK(fread(buf, 1, MORE, in) == MORE);
	look(&ab_in, MORE);
	CHECK(recv(copy, buf, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	CHECK(epoll_wait(ep, &event, 1, 0) == 0);
	CHECK(epoll_ctl(ep, EPOLL_CTL_DEL, copy, NULL) == 0);
	CHECK(write(copy, "fine", 4) == 4);
	fine(child);
	CHECK(fread(buf, 1, 1, in) == 0 && feof(in));
}

/* The kernel moves the bytes in the ring. */
void test_handed_splice(void)
{
	int p[2], fd;
	pid_t child;

	fd = begun(&child, 2 * MORE);
	CHECK(pipe(p) == 0);
	for (size_t at = 0; at < 2 * MORE;) {
		ssize_t n = splice(fd, NULL, p[1], NULL, 20000, SPLICE_F_MOVE);

		CHECK(n > 0 && read(p[0], buf, (size_t)n) == n);
		look(&ab_in, n);
		ab_in.at += (size_t)n;
		at += (size_t)n;
	}
	CHECK(write(fd, "fine", 4) == 4);
	fine(child);
	CHECK(splice(fd, NULL, p[1], NULL, 20000, 0) == 0);
}

/* The peer has sent all, and has ended its sending. */
void test_handed_ended(void)
{
	int a, b, status;
	pid_t heir;

	joined(&a, &b);
	put(a, &ab, REST, 30000);
	CHECK(shutdown(a, SHUT_WR) == 0);
	heir = fork();
	if (heir == 0) {
		close(a);
		heir_is(b, whom(), REST);
	}
	close(b);
	CHECK(recv(a, buf, 5, MSG_WAITALL) == 4 && memcmp(buf, "fine", 4) == 0);
	CHECK(waitpid(heir, &status, 0) == heir && status == 0);
}

/* One that has copies in other processes keeps its bytes for those: a program that is only started gets none of them. */
void test_handed_kept(void)
{
	pid_t child, other;
	int fd = begun(&child, 2 * MORE);

	other = fork();
	if (other == 0) {
		execlp("true", "true", NULL);
		_exit(9);
	}
	fine(other);
	take(fd, &ab_in, 2 * MORE, 10000);
	CHECK(write(fd, "fine", 4) == 4);
	fine(child);
}

/* A thread has descriptors of its own, and closes them: the others' descriptors stay as they are. */
static void *own_descriptors(void *fd)
{
	CHECK(unshare(CLONE_FILES) == 0);
	close(*(int *)fd);
	return NULL;
}

void test_unshared(void)
{
	pthread_t thread;
	pid_t child;
	int fd = begun(&child, 2 * MORE);

	CHECK(pthread_create(&thread, NULL, own_descriptors, &fd) == 0 && pthread_join(thread, NULL) == 0);
	take(fd, &ab_in, 2 * MORE, 10000);
	CHECK(write(fd, "fine", 4) == 4);
	fine(child);
}
