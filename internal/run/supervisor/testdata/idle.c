/*
 * Many connections that carry much once, and are quiet then: idle HOW CONNECTIONS BYTES. It says "quiet" when all was received, waits as HOW says, until there is a line at standard input,
 * and has all of it carry something again.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 1000
#define PART 65536
#define AHEAD (12 * PART) /* of the reader, unless the environment says otherwise: as long as the ring is not empty it goes on behind the bytes that are there */

static int client[MOST], server[MOST];
static uint64_t wrote[MOST], took[MOST];
static int many;
static uint64_t ahead = AHEAD;
static char out[PART], in[PART];

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void check(bool ok, const char *what)
{
	if (!ok)
		fail(what);
}

static char byte_at(int i, uint64_t n)
{
	return (char)(n * 31 + n / 251 + (uint64_t)i);
}

static void take(int i, ssize_t n, const char *b)
{
	for (ssize_t k = 0; k < n; k++)
		if (b[k] != byte_at(i, took[i] + (uint64_t)k)) {
			fprintf(stderr, "connection %d: byte %llu is wrong\n", i, (unsigned long long)took[i] + (unsigned long long)k);
			exit(1);
		}
	took[i] += (uint64_t)n;
}

/* carry has a connection carry so many bytes: some, and then all of that is read. */
static void carry(int i, uint64_t bytes)
{
	uint64_t until = wrote[i] + bytes, piece = 0;

	while (took[i] < until) {
		ssize_t n = 1;

		for (piece = wrote[i] + ahead; wrote[i] < until && wrote[i] < piece && n > 0;) {
			size_t part = until - wrote[i] < PART ? (size_t)(until - wrote[i]) : PART;

			for (size_t k = 0; k < part; k++)
				out[k] = byte_at(i, wrote[i] + k);
			n = send(client[i], out, part, MSG_DONTWAIT);
			check(n > 0 || errno == EAGAIN, "send");
			if (n > 0)
				wrote[i] += (uint64_t)n;
		}
		while (took[i] < wrote[i]) {
			n = recv(server[i], in, sizeof(in), MSG_DONTWAIT);
			check(n > 0 || (n < 0 && errno == EAGAIN), "recv");
			if (n > 0)
				take(i, n, in);
		}
	}
}

static void *receiver(void *arg)
{
	int i = (int)(intptr_t)arg;
	char b[64];

	for (;;) {
		ssize_t n = recv(server[i], b, sizeof(b), 0);

		check(n > 0, "recv that waits");
		take(i, n, b);
		if (took[i] == wrote[i])
			return NULL;
	}
}

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* limits has each call that waits for many wait for as long as it is told, with rings that have memory to give back after a second. */
static void limits(int epfd)
{
	struct epoll_event ev;
	struct timespec spec;
	struct timeval val;
	sigset_t none;
	int n = -1;

	sigemptyset(&none);
	for (int i = 0; i < 10; i++) {
		int64_t limit = i < 5 ? 1100 : 2500, took = now(); /* less than a second more than a second; and more */

		spec = (struct timespec){limit / 1000, limit % 1000 * 1000000};
		val = (struct timeval){limit / 1000, limit % 1000 * 1000};
		switch (i % 5) {
		case 0:
			n = epoll_wait(epfd, &ev, 1, (int)limit);
			break;
		case 1:
			n = epoll_pwait(epfd, &ev, 1, (int)limit, &none);
			break;
		case 2:
			n = poll(NULL, 0, (int)limit);
			break;
		case 3:
			n = ppoll(NULL, 0, &spec, NULL);
			break;
		case 4:
			n = i < 5 ? select(0, NULL, NULL, NULL, &val) : pselect(0, NULL, NULL, NULL, &spec, NULL);
			break;
		}
		took = now() - took;
		if (n != 0 || took < limit - 1) {
			fprintf(stderr, "wait %d: %d after %lld of %lld ms\n", i, n, (long long)took, (long long)limit);
			exit(1);
		}
	}
}

static volatile sig_atomic_t rang;

static void ring(int sig)
{
	(void)sig;
	rang++;
}

static void connections(void)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(sin);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	check(bind(l, (struct sockaddr *)&sin, sizeof(sin)) == 0 && listen(l, 128) == 0 && getsockname(l, (struct sockaddr *)&sin, &len) == 0, "listen");
	for (int i = 0; i < many; i++) {
		client[i] = socket(AF_INET, SOCK_STREAM, 0);
		check(connect(client[i], (struct sockaddr *)&sin, sizeof(sin)) == 0, "connect");
		server[i] = accept(l, NULL, NULL);
		check(server[i] >= 0, "accept");
	}
	close(l);
}

int main(int argc, char **argv)
{
	static pthread_t threads[MOST];
	const char *how = argc > 3 ? argv[1] : "";
	bool receives = !strcmp(how, "receive") || !strcmp(how, "signals");
	uint64_t bytes;
	pid_t child = 0;
	int epfd, n = 0;

	many = argc > 3 ? atoi(argv[2]) : 0;
	if (many < 1 || many > MOST)
		return 2;
	bytes = strtoull(argv[3], NULL, 10);
	if (getenv("AHEAD"))
		ahead = strtoull(getenv("AHEAD"), NULL, 10);
	if (!strcmp(how, "signals")) { /* all that there are end a receive */
		struct sigaction a = {.sa_handler = ring};

		check(sigaction(SIGUSR1, &a, NULL) == 0, "sigaction");
	}
	connections();
	for (int i = 0; i < many; i++)
		carry(i, bytes);
	if (!strcmp(how, "forked")) {
		child = fork();
		if (child == 0)
			for (;;)
				pause();
		how = "epoll";
	}
	epfd = epoll_create1(0);
	for (int i = -1; i < many; i++) {
		struct epoll_event ev = {.events = EPOLLIN, .data.u32 = (uint32_t)i};

		check(epoll_ctl(epfd, EPOLL_CTL_ADD, i < 0 ? 0 : server[i], &ev) == 0, "epoll_ctl");
	}
	for (int i = 0; receives && i < many; i++) {
		wrote[i] += 5; /* that will come */
		check(pthread_create(&threads[i], NULL, receiver, (void *)(intptr_t)i) == 0, "pthread_create");
	}
	printf("quiet\n");
	fflush(stdout);
	if (!strcmp(how, "epoll")) {
		struct epoll_event ev;

		n = epoll_wait(epfd, &ev, 1, 1000000);
		check(n == 1 && ev.data.u32 == UINT32_MAX, "epoll_wait");
	} else if (!strcmp(how, "poll")) {
		struct pollfd p[2] = {{.fd = 0, .events = POLLIN}, {.fd = server[0], .events = POLLIN}};

		n = poll(p, 2, -1);
		check(n == 1 && p[0].revents, "poll");
	} else if (!strcmp(how, "select")) {
		struct timeval limit = {.tv_sec = 1000};
		fd_set set;

		FD_ZERO(&set);
		FD_SET(0, &set);
		FD_SET(server[0], &set);
		n = select(server[0] + 1, &set, NULL, NULL, &limit);
		check(n == 1 && FD_ISSET(0, &set) && limit.tv_sec < 1000 && limit.tv_sec > 500, "select");
	} else if (!strcmp(how, "limits")) {
		limits(epoll_create1(0));
	}
	check(read(0, in, 1) == 1, "standard input");
	for (int i = 0; receives && i < many; i++) {
		char b[5];

		for (int k = 0; k < 5; k++)
			b[k] = byte_at(i, wrote[i] - 5 + (uint64_t)k);
		check(send(client[i], b, 5, 0) == 5, "send to who waits");
		check(pthread_join(threads[i], NULL) == 0, "pthread_join");
	}
	for (int i = 0; i < many; i++)
		carry(i, bytes);
	if (child) {
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	printf("done\n");
	return 0;
}
