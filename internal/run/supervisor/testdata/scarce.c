/*
 * A server that has as many descriptors as it may: its threads accept, answer and close, while others take whatever number is free. Each
 * connection of its clients is answered. scarce threads: they take one and give it back at once. scarce hoard: one takes all that there
 * are, and keeps them for a while.
 */
#include "program.h"

#include <sys/resource.h>

#define SERVERS 6
#define THIEVES 3
#define CLIENTS 8
#define TIMES 500
#define HOARD 20000 /* microseconds */
#define FREE 300

static struct sockaddr_in at;
static int listener;

static void *serve(void *none)
{
	for (;;) {
		char c;
		int fd = accept(listener, NULL, NULL);

		if (fd < 0) {
			CHECK(errno == EMFILE);
			sched_yield();
			continue;
		}
		while (read(fd, &c, 1) == 1)
			CHECK(write(fd, &c, 1) == 1);
		close(fd);
	}
	return none;
}

static void *steal(void *none)
{
	for (;;) {
		long fd = syscall(SYS_dup, 0);

		sched_yield();
		if (fd >= 0)
			syscall(SYS_close, fd);
	}
	return none;
}

static void *hoard(void *none)
{
	for (;;) {
		int fds[SERVERS + 11], n = 0;

		while ((fds[n] = (int)syscall(SYS_dup, 0)) >= 0)
			n++;
		usleep(HOARD);
		while (n > 0)
			syscall(SYS_close, fds[--n]);
		usleep(FREE);
	}
	return none;
}

static void *connects(void *none)
{
	for (int i = 0; i < TIMES; i++) {
		char c = (char)i, back;
		int fd = connected_to(&at);

		CHECK(write(fd, &c, 1) == 1);
		await(fd, POLLIN);
		CHECK(read(fd, &back, 1) == 1 && back == c);
		close(fd);
	}
	return none;
}

static void start(pthread_t *t, void *(*what)(void *))
{
	CHECK(pthread_create(t, NULL, what, NULL) == 0);
}

int main(int argc, char **argv)
{
	struct rlimit few = {SERVERS + 11, SERVERS + 11};
	pthread_t t, clients[CLIENTS];
	bool hoards = argc > 1 && strcmp(argv[1], "hoard") == 0;
	int status;
	pid_t child;

	alarm(100);
	listener = server(&at);
	CHECK(listen(listener, 100) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		for (int i = 0; i < CLIENTS; i++)
			start(&clients[i], connects);
		for (int i = 0; i < CLIENTS; i++)
			pthread_join(clients[i], NULL);
		_exit(0);
	}
	CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
	for (int i = 0; i < SERVERS; i++)
		start(&t, serve);
	for (int i = 0; i < (hoards ? 1 : THIEVES); i++)
		start(&t, hoards ? hoard : steal);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}
