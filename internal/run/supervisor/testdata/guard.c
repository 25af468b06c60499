/*
 * A program that gives itself a filter of system calls after its first connection, and is killed for any call that it does not make on TCP: guard CASE SEED.
 */
#include "program.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>

#define LARGE 32768
#define ROUNDS 4
#define REST 300000

static char buf[LARGE];

static char byte_at(size_t n)
{
	return (char)(n * 7 + n / 251 + 1);
}

static size_t sent, got;

static void put(int fd, size_t n)
{
	while (n) {
		size_t piece = n < LARGE ? n : LARGE;
		ssize_t w;

		for (size_t i = 0; i < piece; i++)
			buf[i] = byte_at(sent + i);
		w = write(fd, buf, piece);
		CHECK(w > 0);
		sent += (size_t)w;
		n -= (size_t)w;
	}
}

static void take(int fd, size_t n)
{
	while (n) {
		ssize_t r = read(fd, buf, n < LARGE ? n : LARGE);

		CHECK(r > 0);
		for (ssize_t i = 0; i < r; i++)
			if (buf[i] != byte_at(got + (size_t)i)) {
				CHECK(write(2, "a wrong byte\n", 13) == 13);
				syscall(SYS_exit, 1);
			}
		got += (size_t)r;
		n -= (size_t)r;
	}
}

/* The other process echoes the bytes that are written, a first connection and then others. */
static void peer(const struct sockaddr_in *a, int others)
{
	int fd = connected_to(a);

	for (int i = 0; i < ROUNDS; i++) {
		put(fd, LARGE);
		CHECK(read(fd, buf, 1) == 1);
	}
	put(fd, REST);
	take(fd, REST);
	for (int i = 0; i < others; i++) {
		int other = connected_to(a);

		sent = got = 0;
		put(other, LARGE);
		take(other, LARGE);
		CHECK(read(other, buf, 1) == 0);
		close(other);
	}
	CHECK(read(fd, buf, 1) == 0);
	_exit(0);
}

#define ALLOW(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (nr), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void guard(const char *how)
{
	struct sock_filter list[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_close), ALLOW(SYS_accept), ALLOW(SYS_setsockopt), ALLOW(SYS_recvfrom), ALLOW(SYS_sendto),
		ALLOW(SYS_epoll_ctl), ALLOW(SYS_epoll_wait), ALLOW(SYS_shutdown), ALLOW(SYS_dup), ALLOW(SYS_recvmsg),
#ifdef SYS_dup2
		ALLOW(SYS_dup2),
#else
		ALLOW(SYS_dup3), ALLOW(SYS_epoll_pwait),
#endif
		ALLOW(SYS_exit_group), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog all = {.len = sizeof(list) / sizeof(list[0]), .filter = list};

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	/* So libseccomp asks for the kernel's abilities. */
	CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) == -1 && errno == EFAULT);
	if (strcmp(how, "strict") == 0)
		CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
	else if (strcmp(how, "prctl") == 0)
		CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0);
	else
		CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &all) == 0);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	bool strict = strcmp(how, "strict") == 0;
	struct epoll_event event = {.events = EPOLLIN};
	struct sockaddr_in a;
	int fd, one = 1, waiting = 0, raw, l = server(&a), ep = epoll_create1(0);
	pid_t child = fork();

	if (child == 0) {
		close(l);
		peer(&a, strict ? 0 : 3);
	}
	fd = accept(l, NULL, NULL);
	CHECK(fd >= 0 && epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event) == 0);
	for (int i = 0; i < ROUNDS; i++) {
		take(fd, LARGE);
		CHECK(write(fd, "x", 1) == 1);
	}
	do
		CHECK(ioctl(fd, FIONREAD, &waiting) == 0 && syscall(SYS_ioctl, fd, FIONREAD, &raw) == 0);
	while (waiting < 10000 || (getenv("RINGS") && raw > 100));
	/* The library looks for idle rings now and then, in a call that waits. Such a look is due when the filter comes, and must not be made any more. */
	for (int i = 0; i < 2; i++)
		CHECK(epoll_wait(ep, &event, 1, 0) >= 0);
	usleep(700000);
	take(fd, 1);
	guard(how);
	take(fd, REST - 1);
	sent = 0;
	put(fd, REST);
	if (strict) {
		syscall(SYS_exit, 0);
		return 1;
	}
	for (int i = 0; i < 3; i++) {
		int other = accept(l, NULL, NULL);

		CHECK(other >= 0 && setsockopt(other, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
		CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, other, &event) == 0 && epoll_wait(ep, &event, 1, PATIENCE) == 1);
		got = sent = 0;
		take(other, LARGE);
		put(other, LARGE);
		CHECK(shutdown(other, SHUT_WR) == 0);
		close(other);
	}
	CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
	CHECK(dup2(fd, ep) == ep && close(fd) == 0 && shutdown(ep, SHUT_WR) == 0 && close(ep) == 0);
	return 0;
}
