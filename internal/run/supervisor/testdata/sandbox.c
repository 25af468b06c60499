/*
 * A program that refuses itself a system call of ours from some moment on, as programs do that have a list of those which they need: sandbox CASE SEED.
 * Its sends and receives are as with TCP.
 */
#include "program.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

#define PIECE 20000
#define HIGH 40 /* a descriptor, and LIMIT is how many there may be when it connects */
#define LIMIT 20
#define TURNS 50

static char buf[PIECE];
static const char *name;

static void send_on(int from, int to)
{
	CHECK(send(from, buf, PIECE, 0) == PIECE);
	await(to, POLLIN);
	CHECK(recv(to, buf, PIECE, MSG_WAITALL) == PIECE);
}

/* brim sends until there is no more room, and reads all of it. */
static void brim(int from, int to)
{
	size_t sent = 0, got = 0;
	ssize_t n;

	while ((n = send(from, buf, PIECE, MSG_DONTWAIT)) > 0)
		sent += (size_t)n;
	CHECK(errno == EAGAIN);
	for (; got < sent; got += (size_t)n) {
		await(to, POLLIN);
		n = recv(to, buf, sent - got < PIECE ? sent - got : PIECE, 0);
		CHECK(n > 0);
	}
	CHECK(recv(to, buf, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

/* tick waits until the clock is another one by which the library looks at descriptors again. */
static void tick(void)
{
	struct timespec before, now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &before);
	do
		clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	while (now.tv_sec == before.tv_sec && now.tv_nsec == before.tv_nsec);
}

static void refuse(unsigned nr, unsigned error)
{
	struct sock_filter list[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog all = {.len = sizeof(list) / sizeof(list[0]), .filter = list};

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && filter_unseen(&all) == 0);
}

/* echoes is in a thread of its own, as a filter is the thread's: the other end finds out all. */
static void *echoes(void *fd)
{
	static char back[PIECE];
	int s = *(int *)fd;

	if (strcmp(name, "getsockopt") == 0) {
		refuse(SYS_getsockopt, EPERM);
		tick();
	}
	for (int i = 0; i < TURNS; i++) {
		CHECK(recv(s, back, PIECE, MSG_WAITALL) == PIECE);
		CHECK(send(s, back, PIECE, 0) == PIECE);
	}
	return NULL;
}

/* take_turns has both sides wait for each other. */
static void take_turns(int c, int s)
{
	pthread_t other;

	CHECK(pthread_create(&other, NULL, echoes, &s) == 0);
	for (int i = 0; i < TURNS; i++) {
		CHECK(send(c, buf, PIECE, 0) == PIECE);
		CHECK(recv(c, buf, PIECE, MSG_WAITALL) == PIECE);
	}
	CHECK(pthread_join(other, NULL) == 0);
}

/* high returns a socket that no descriptor may be as high as any more. */
static int high(void)
{
	struct rlimit least = {LIMIT, LIMIT};
	int fd, first = socket(AF_INET, SOCK_STREAM, 0);

	while ((fd = socket(AF_INET, SOCK_STREAM, 0)) < HIGH)
		CHECK(fd > 0);
	for (int i = first; i < fd; i++)
		close(i);
	CHECK(setrlimit(RLIMIT_NOFILE, &least) == 0);
	return fd;
}

struct client {
	struct sockaddr_in at;
	int fd;
};

/* connects is in a thread of its own, as a filter is the thread's. */
static void *connects(void *arg)
{
	struct client *c = arg;
	bool hurries = strcmp(name, "nonblock") == 0;

	c->fd = strcmp(name, "limit") == 0 ? high() : socket(AF_INET, SOCK_STREAM | (hurries ? SOCK_NONBLOCK : 0), 0);
	if (strcmp(name, "connect") == 0)
		refuse(SYS_dup3, EPERM);
	if (hurries)
		refuse(SYS_fcntl, EPERM);
	CHECK(connect(c->fd, (struct sockaddr *)&c->at, sizeof(c->at)) == 0 || (hurries && errno == EINPROGRESS));
	return NULL;
}

/* connection makes both ends; in some cases a call that they need for it is refused. */
static void connection(int *c, int *s)
{
	bool hurries = strcmp(name, "nonblock") == 0;
	struct client client;
	int l = server(&client.at);
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, connects, &client) == 0 && pthread_join(thread, NULL) == 0);
	*c = client.fd;
	if (hurries)
		refuse(SYS_fcntl, EPERM);
	if (strcmp(name, "accept") == 0)
		refuse(SYS_dup3, EPERM);
	await(l, POLLIN);
	*s = accept4(l, NULL, NULL, hurries ? SOCK_NONBLOCK : 0);
	CHECK(*s >= 0);
	close(l);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *when;
		int nr, error;
	} refused[] = {
		{"eperm", SYS_sendmmsg, EPERM}, {"enosys", SYS_sendmmsg, ENOSYS}, {"fcntl", SYS_fcntl, EPERM}, {"ioctl", SYS_ioctl, EPERM},
	};
	int c, s;

	name = argc > 1 ? argv[1] : "";
	connection(&c, &s);
	if (strcmp(name, "nonblock") == 0) {
		CHECK(recv(c, buf, 1, 0) == -1 && errno == EAGAIN);
		CHECK(recv(s, buf, 1, 0) == -1 && errno == EAGAIN);
		return 0;
	}
	if (strcmp(name, "sendmsg") == 0)
		refuse(SYS_sendmsg, EPERM);
	for (int i = 0; i < 200; i++) {
		for (size_t k = 0; i == 100 && k < sizeof(refused) / sizeof(refused[0]); k++) {
			if (strcmp(name, refused[k].when) != 0)
				continue;
			CHECK(!getenv("RINGS") || mapped_rings() == 4);
			refuse((unsigned)refused[k].nr, (unsigned)refused[k].error);
		}
		send_on(c, s);
		send_on(s, c);
	}
	take_turns(c, s);
	brim(c, s);
	brim(s, c);
	send_on(c, s);
	close(c);
	CHECK(read(s, buf, 1) == 0);
	return 0;
}
