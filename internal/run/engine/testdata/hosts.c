/* A program that knows TCP alone: it talks to another one on another host. Each result is a line. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define CHECK(x) \
	do { \
		if (!(x)) { \
			printf("error %s: %s\n", #x, strerror(errno)); \
			fflush(stdout); \
			exit(1); \
		} \
	} while (0)

static const char *greeting; /* what a server says first; NULL: nothing */

static uint64_t fnv(uint64_t h, const unsigned char *b, size_t n)
{
	while (n--)
		h = (h ^ *b++) * 0x100000001b3ull;
	return h;
}

static void say(const char *text, long n, uint64_t h)
{
	printf("%s %ld %016llx\n", text, n, (unsigned long long)h);
	fflush(stdout);
}

/* send_all sends n bytes that are not alike, and returns their hash. */
static uint64_t send_all(int fd, long n)
{
	static __thread unsigned char b[100000];
	uint64_t h = 0xcbf29ce484222325ull, x = (uint64_t)n;

	while (n > 0) {
		long part = n < (long)sizeof(b) ? n : (long)sizeof(b), done = 0;

		for (long i = 0; i < part; i++) {
			x = x * 6364136223846793005ull + 1442695040888963407ull;
			b[i] = (unsigned char)(x >> 56);
		}
		while (done < part) {
			ssize_t r = send(fd, b + done, (size_t)(part - done), MSG_NOSIGNAL);

			if (r < 0 && errno == EAGAIN) {
				struct pollfd p = {.fd = fd, .events = POLLOUT};

				CHECK(poll(&p, 1, -1) == 1);
				continue;
			}
			CHECK(r > 0);
			done += r;
		}
		h = fnv(h, b, (size_t)part);
		n -= part;
	}
	return h;
}

/* receive_all receives up to the end, and says what that was. */
static uint64_t receive_all(int fd, long *n, int *error)
{
	static __thread unsigned char b[100000];
	uint64_t h = 0xcbf29ce484222325ull;
	ssize_t r;

	*n = 0;
	for (;;) {
		r = recv(fd, b, sizeof(b), 0);
		if (r < 0 && errno == EAGAIN) {
			struct pollfd p = {.fd = fd, .events = POLLIN};

			CHECK(poll(&p, 1, -1) == 1);
			continue;
		}
		if (r <= 0)
			break;
		h = fnv(h, b, (size_t)r);
		*n += r;
	}
	*error = r < 0 ? errno : 0;
	return h;
}

/* A client's first byte says what its server does. */
static void *serve_one(void *arg)
{
	int fd = (int)(intptr_t)arg, error;
	struct linger now = {.l_onoff = 1};
	char line[100], what;
	uint64_t h;
	long n;

	if (greeting)
		CHECK(send(fd, greeting, strlen(greeting), MSG_NOSIGNAL) > 0);
	if (recv(fd, &what, 1, MSG_WAITALL) != 1) {
		say("nothing", errno, 0);
		close(fd);
		return NULL;
	}
	switch (what) {
	case 'h': /* reads to the end, and answers afterwards */
		h = receive_all(fd, &n, &error);
		CHECK(error == 0);
		send(fd, line, (size_t)snprintf(line, sizeof(line), "%ld %016llx", n, (unsigned long long)h), MSG_NOSIGNAL);
		break;
	case 'd': /* sends */
		say("sent", 0, send_all(fd, 30000001));
		break;
	case 'r': /* resets */
		CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)) == 0);
		break;
	case 'e': /* says how it ended */
		h = receive_all(fd, &n, &error);
		say("ended", error, h);
		break;
	case 'k': /* never answers */
		pause();
		break;
	default:
		say("no command", what, 0);
	}
	close(fd);
	return NULL;
}

/* worker is a server's that has given up its privileges: another process does no work but to have the listener. */
static void worker(void)
{
	if (fork() != 0) {
		pause();
		exit(0);
	}
	CHECK(setgroups(0, NULL) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
	CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0); /* another user has none */
}

static void serve(const struct sockaddr_in *at, bool nobody)
{
	int l = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	CHECK(l >= 0 && setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	CHECK(bind(l, (const struct sockaddr *)at, sizeof(*at)) == 0 && listen(l, 256) == 0);
	if (nobody)
		worker();
	say("listening", 0, 0);
	for (;;) {
		struct sockaddr_in from, named;
		socklen_t len = sizeof(from), len2 = sizeof(named);
		int fd = accept(l, (struct sockaddr *)&from, &len);
		pthread_t t;

		CHECK(fd >= 0);
		CHECK(getpeername(fd, (struct sockaddr *)&named, &len2) == 0 ? memcmp(&from, &named, sizeof(from)) == 0 : errno == ENOTCONN);
		CHECK(pthread_create(&t, NULL, serve_one, (void *)(intptr_t)fd) == 0 && pthread_detach(t) == 0);
	}
}

static void nothing(int sig) { (void)sig; }

/* dial connects in one of the ways in which programs do. */
static int dial(const struct sockaddr_in *to, const char *how)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), error = -1, one = 1, is = 0;
	struct sockaddr_in named;
	socklen_t len = sizeof(error);
	struct pollfd p = {.fd = fd, .events = POLLOUT};

	CHECK(fd >= 0);
	if (strcmp(how, "waits") == 0) {
		CHECK(connect(fd, (const struct sockaddr *)to, sizeof(*to)) == 0);
	} else if (strcmp(how, "signal") == 0) { /* interrupts connect, which goes on */
		struct sigaction handler = {.sa_handler = nothing};
		struct itimerval soon = {.it_value = {.tv_usec = 50000}};

		CHECK(sigaction(SIGALRM, &handler, NULL) == 0 && setitimer(ITIMER_REAL, &soon, NULL) == 0);
		CHECK(connect(fd, (const struct sockaddr *)to, sizeof(*to)) == -1 && errno == EINTR);
		CHECK(poll(&p, 1, 10000) == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0);
	} else if (strcmp(how, "slow") == 0) { /* does something else for a while */
		CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
		CHECK(connect(fd, (const struct sockaddr *)to, sizeof(*to)) == -1 && errno == EINPROGRESS);
		say("connecting", 0, 0);
		sleep(4);
	} else if (strcmp(how, "copy") == 0) { /* is made before there is a connection, and used in the place of the first one */
		CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
		CHECK(connect(fd, (const struct sockaddr *)to, sizeof(*to)) == -1 && errno == EINPROGRESS);
		p.fd = dup(fd);
		CHECK(p.fd >= 0 && close(fd) == 0 && poll(&p, 1, 10000) == 1);
		return p.fd;
	} else {
		struct epoll_event ev = {.events = EPOLLOUT | EPOLLIN | EPOLLET, .data.fd = fd};
		int ep = epoll_create1(0);

		CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
		CHECK(connect(fd, (const struct sockaddr *)to, sizeof(*to)) == -1 && errno == EINPROGRESS);
		if (strcmp(how, "epoll") == 0) {
			CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) == 0);
			CHECK(epoll_wait(ep, &ev, 1, 10000) == 1 && (ev.events & EPOLLOUT));
			CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0);
			ev = (struct epoll_event){.events = EPOLLOUT, .data.fd = fd};
			CHECK(epoll_ctl(ep, EPOLL_CTL_MOD, fd, &ev) == 0);
			CHECK(epoll_wait(ep, &ev, 1, 10000) == 1 && (ev.events & EPOLLOUT));
		} else {
			CHECK(poll(&p, 1, 10000) == 1 && (p.revents & POLLOUT));
			if (strcmp(how, "again") == 0)
				CHECK(connect(fd, (const struct sockaddr *)to, sizeof(*to)) == 0 || errno == EISCONN);
		}
	}
	len = sizeof(named);
	CHECK(getpeername(fd, (struct sockaddr *)&named, &len) == 0 && named.sin_port == to->sin_port && named.sin_addr.s_addr == to->sin_addr.s_addr);
	CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
	len = sizeof(is);
	CHECK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &is, &len) == 0 && is != 0);
	return fd;
}

/* hash sends, ends sending, and compares the answer. */
static void hash(int fd, long n)
{
	char line[100], want[100];
	size_t have = 0;
	ssize_t r;
	uint64_t h;

	CHECK(send(fd, "h", 1, MSG_NOSIGNAL) == 1);
	h = send_all(fd, n);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	while ((r = recv(fd, line + have, sizeof(line) - 1 - have, 0)) != 0) {
		struct pollfd p = {.fd = fd, .events = POLLIN};

		if (r < 0 && errno == EAGAIN && poll(&p, 1, -1) == 1)
			continue;
		CHECK(r > 0);
		have += (size_t)r;
	}
	line[have] = 0;
	snprintf(want, sizeof(want), "%ld %016llx", n, (unsigned long long)h);
	if (strcmp(line, want) != 0)
		printf("the server has %s, want %s\n", line, want);
	close(fd);
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = {.sin_family = AF_INET};
	struct linger now = {.l_onoff = 1};
	const char *what, *how;
	long n, arg;
	int fd, error;
	uint64_t h;
	char c[64];

	CHECK(argc >= 4 && inet_pton(AF_INET, argv[2], &at.sin_addr) == 1);
	at.sin_port = htons((uint16_t)atoi(argv[3]));
	what = argv[1];
	if (strcmp(what, "serve") == 0) {
		greeting = argc > 4 ? argv[4] : NULL;
		serve(&at, false);
	}
	if (strcmp(what, "workers") == 0) {
		serve(&at, true);
	}
	CHECK(argc == 6);
	how = argv[4];
	arg = atol(argv[5]);
	if (strcmp(what, "many") == 0) {
		int *fds = calloc((size_t)arg, sizeof(int));

		for (long i = 0; i < arg; i++)
			fds[i] = dial(&at, how);
		for (long i = 0; i < arg; i++)
			hash(fds[i], 1000 + i);
		say("done", arg, 0);
		return 0;
	}
	if (strcmp(what, "later") == 0) { /* than a signal for our supervisor */
		say("here", 0, 0);
		sleep(1);
		what = "hash";
	}
	if (strcmp(what, "crossed") == 0) { /* knows CLC itself: its Decline and the server's greeting cross */
		const char decline[28] = "\xe2\xd4\xc3\xd9\x04\x00\x1c\x10";
		int one = 1;

		fd = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(fd >= 0 && setsockopt(fd, 286, (int)arg, &one, sizeof(one)) == 0);
		CHECK(connect(fd, (const struct sockaddr *)&at, sizeof(at)) == 0);
		CHECK(recv(fd, c, 5, MSG_WAITALL) == 5);
		CHECK(send(fd, decline, sizeof(decline), 0) == sizeof(decline));
		hash(fd, 100000);
		say("done", 0, 0);
		return 0;
	}
	if (strcmp(what, "laters") == 0) { /* the same, of more than one */
		say("here", 0, 0);
		sleep(1);
		for (long i = 0; i < arg; i++)
			hash(dial(&at, how), 1000);
		say("done", arg, 0);
		return 0;
	}
	fd = dial(&at, how);
	if (strcmp(what, "hash") == 0) {
		hash(fd, arg);
		say("done", arg, 0);
	} else if (strcmp(what, "down") == 0) {
		CHECK(send(fd, "d", 1, 0) == 1);
		h = receive_all(fd, &n, &error);
		say("received", error ? error : n, h);
	} else if (strcmp(what, "reset") == 0) { /* by the server */
		CHECK(send(fd, "r", 1, 0) == 1);
		receive_all(fd, &n, &error);
		say("ended", error, 0);
	} else if (strcmp(what, "resets") == 0) { /* by this client */
		CHECK(send(fd, "e", 1, 0) == 1);
		CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)) == 0);
		if (arg)
			usleep((useconds_t)arg * 1000);
		close(fd);
		say("done", 0, 0);
	} else if (strcmp(what, "push") == 0) { /* ends at once */
		CHECK(send(fd, "e", 1, 0) == 1);
		say("pushed", arg, send_all(fd, arg));
	} else if (strcmp(what, "part") == 0) { /* of what may become a message of CLC */
		CHECK(send(fd, "\xe2\xd4", 2, 0) == 2);
		receive_all(fd, &n, &error);
		say("ended", error, 0);
	} else if (strcmp(what, "held") == 0) { /* until the peer is gone */
		CHECK(send(fd, "k", 1, 0) == 1);
		say("held", 0, 0);
		receive_all(fd, &n, &error);
		say("ended", error, 0);
	} else if (strcmp(what, "greeted") == 0) {
		struct pollfd p = {.fd = fd, .events = POLLIN};

		CHECK(poll(&p, 1, -1) == 1);
		n = recv(fd, c, (size_t)arg, MSG_WAITALL);
		say("greeted", n, fnv(0xcbf29ce484222325ull, (unsigned char *)c, (size_t)(n > 0 ? n : 0)));
		hash(fd, 10);
	}
	return 0;
}
