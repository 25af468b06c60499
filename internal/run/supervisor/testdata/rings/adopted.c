/* Programs that get a connection from another one, by all ways there are, go on with it as TCP does: no receive ends where a ring is offered, and a reset is one. */
#include "rings.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/un.h>

#ifndef F_SET_RW_HINT
#define F_SET_RW_HINT 1036
#endif
#define HIGH 10	 /* a descriptor behind some that are none */
#define BEHIND 101 /* one behind many others */
#define STRANGERS 100
#define TIMES 40 /* sends: a ring is offered in between */
#define BYTES 5

extern char **environ;

/* adopted-heir FD: a program that has a connection, and answers. */
void adopted_heir(const char *number)
{
	int fd = atoi(number), n = 0;

	CHECK(write(fd, "g", 1) == 1);
	for (int i = 0; n < TIMES * BYTES; i++) {
		CHECK(i < PATIENCE && ioctl(fd, FIONREAD, &n) == 0);
		usleep(1000);
	}
	CHECK(read(fd, buf, 1000) == TIMES * BYTES);
	look(&ab_in, TIMES * BYTES);
	CHECK(write(fd, "k", 1) == 1);
	CHECK(recv(fd, buf, 10, 0) == -1 && errno == ECONNRESET);
	CHECK(recv(fd, buf, 10, 0) == 0);
	CHECK(send(fd, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
}

/* heirs_peer has a connection to a peer in another process, which forks no more. */
static int heirs_peer(pid_t *child)
{
	struct linger linger = {.l_onoff = 1};
	struct sockaddr_in address;
	int fd, l = server(&address);

	*child = fork();
	CHECK(*child >= 0);
	if (*child == 0) {
		close(l);
		fd = connected_to(&address);
		CHECK(recv(fd, buf, 1, 0) == 1 && *buf == 'g');
		for (int i = 0; i < TIMES; i++) {
			fill(&ab, BYTES);
			CHECK(send(fd, buf, BYTES, 0) == BYTES);
			ab.at += BYTES;
		}
		CHECK(recv(fd, buf, 1, 0) == 1 && *buf == 'k');
		CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
		exit(0);
	}
	fd = accept(l, NULL, NULL);
	CHECK(fd >= 0);
	close(l);
	return fd;
}

static void ends_well(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void heirs(int fd, pid_t heir, pid_t peer)
{
	close(fd);
	ends_well(heir);
	ends_well(peer);
}

/* By exec, as input and output, behind a gap, and behind many descriptors. */
void test_adopted_exec(void)
{
	static const int places[] = {0, HIGH, BEHIND};
	char number[16];

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		pid_t peer, heir;
		int fd = heirs_peer(&peer);

		ab_in.at = 0;
		snprintf(number, sizeof(number), "%d", places[i]);
		heir = fork();
		if (heir == 0) {
			CHECK(dup2(fd, places[i]) == places[i]);
			if (places[i] == 0)
				CHECK(dup2(fd, 1) == 1);
			for (int other = fd + 1; places[i] == BEHIND && other < BEHIND; other++)
				CHECK(dup2(2, other) == other);
			close(fd);
			execl(self, self, "adopted-heir", number, NULL);
			_exit(9);
		}
		heirs(fd, heir, peer);
	}
}

/* By posix_spawn, which makes the copy itself, by system and by vfork. */
void test_adopted_spawn(void)
{
	char number[16], command[4200];
	char *argv[] = {self, "adopted-heir", number, NULL};
	posix_spawn_file_actions_t actions;
	pid_t peer, heir;
	int fd = heirs_peer(&peer);

	snprintf(number, sizeof(number), "%d", HIGH);
	CHECK(posix_spawn_file_actions_init(&actions) == 0 && posix_spawn_file_actions_adddup2(&actions, fd, HIGH) == 0 &&
	      posix_spawn_file_actions_addclose(&actions, fd) == 0);
	CHECK(posix_spawn(&heir, self, &actions, NULL, argv, environ) == 0);
	heirs(fd, heir, peer);

	fd = heirs_peer(&peer);
	snprintf(command, sizeof(command), "exec '%s' adopted-heir %d", self, fd);
	CHECK(system(command) == 0);
	close(fd);
	ends_well(peer);

	fd = heirs_peer(&peer);
	snprintf(number, sizeof(number), "%d", HIGH);
	heir = vfork();
	if (heir == 0) {
		if (dup2(fd, HIGH) == HIGH)
			execve(self, argv, environ);
		_exit(9);
	}
	heirs(fd, heir, peer);
}

/* Over several programs, of which one may know nothing of us, and by a system call. */
void test_adopted_chain(void)
{
	const char *between = getenv("STATIC");
	char number[16];
	char *argv[] = {self, "adopted-heir", number, NULL};
	pid_t peer, heir;
	int fd = heirs_peer(&peer);

	if (!between)
		between = self;
	snprintf(number, sizeof(number), "%d", fd);
	heir = fork();
	if (heir == 0) {
		execl(self, self, "pass-on", between, "pass-on", self, "adopted-heir", number, NULL);
		_exit(9);
	}
	heirs(fd, heir, peer);

	fd = heirs_peer(&peer);
	snprintf(number, sizeof(number), "%d", fd);
	heir = fork();
	if (heir == 0) {
		syscall(SYS_execve, self, argv, environ);
		_exit(9);
	}
	heirs(fd, heir, peer);
}

/* By a message. */
void test_adopted_passed(void)
{
	char number[16];
	int over[2], fd;
	pid_t peer, heir;

	fd = heirs_peer(&peer);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, over) == 0 && pass(over[0], fd) == 1);
	heir = fork();
	if (heir == 0) {
		close(fd);
		snprintf(number, sizeof(number), "%d", passed(over[1]));
		adopted_heir(number);
		exit(0);
	}
	heirs(fd, heir, peer);
}

static void mark(int fd)
{
	uint64_t hint = 5;

	CHECK(fcntl(fd, F_SET_RW_HINT, &hint) == 0);
}

/* adopted-strangers: descriptors that have the mark of a connection, and are none. */
void adopted_strangers(void)
{
	for (int fd = STRANGERS; fd < STRANGERS + 3; fd++)
		CHECK(read(fd, buf, 1000) == 6 && memcmp(buf, "abcdef", 6) == 0 && read(fd, buf, 10) == 0);
	CHECK(passed(STRANGERS + 3) >= 0);
}

void test_adopted_strangers(void)
{
	static const char name[] = "\0gosmc/1/c/4/00000000000000000000ffff7f00000z";
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	int pairs[4][2], file = memfd_create("a file", 0);
	pid_t heir;

	memset(sun.sun_path, 'x', 105);
	memcpy(sun.sun_path, name, sizeof(name) - 1);
	for (int i = 0; i < 4; i++) {
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]) == 0);
		mark(pairs[i][0]);
	}
	mark(file);
	CHECK(bind(pairs[1][0], (struct sockaddr *)&sun, offsetof(struct sockaddr_un, sun_path) + 105) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(write(pairs[i][1], "abc", 3) == 3 && write(pairs[i][1], "def", 3) == 3);
	CHECK(write(file, "abcdef", 6) == 6 && lseek(file, 0, SEEK_SET) == 0 && pass(pairs[3][1], file) == 1);
	heir = fork();
	if (heir == 0) {
		CHECK(dup2(pairs[0][0], STRANGERS) >= 0 && dup2(pairs[1][0], STRANGERS + 1) >= 0 && dup2(file, STRANGERS + 2) >= 0 &&
		      dup2(pairs[3][0], STRANGERS + 3) >= 0);
		for (int i = 0; i < 4; i++)
			close(pairs[i][1]);
		execl(self, self, "adopted-strangers-heir", NULL);
		_exit(9);
	}
	for (int i = 0; i < 4; i++)
		close(pairs[i][1]);
	ends_well(heir);
}

/* A program that has a socket which is no connection, and a filter that kills it if it asks for the kind of socket. */
void test_adopted_filtered(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockname, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	const struct sock_fprog filter = {sizeof(code) / sizeof(code[0]), code};
	pid_t heir = fork();
	int pair[2];

	if (heir == 0) {
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
		CHECK(syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && filter_unseen(&filter) == 0);
		execl(self, self, "pass-on", "/bin/true", NULL);
		_exit(9);
	}
	ends_well(heir);
}
