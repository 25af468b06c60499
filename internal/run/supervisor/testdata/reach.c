/*
 * A server and a client in two network namespaces. The server is an echo, which first says which addresses it sees. Both count
 * their connections that are none of TCP.
 *
 *	reach serve ADDRESS [HOW [PORT]]	listens; with late, it accepts when a line comes, and tells of each connection; serve has the other ways
 *	reach dial ADDRESS PORT N SIZE [fast]	makes N connections, with SIZE bytes to and fro; with fast, data may be on the SYN
 *	reach leave ADDRESS PORT N	makes N connections, sends a word on each, and ends
 *	reach pour ADDRESS PORT N SIZE	makes N connections, with SIZE bytes in small pieces, which come back meanwhile
 *	reach spoil ADDRESS PORT N SEED	makes N connections, and writes what it likes into the memory of their rings
 *	reach lie ADDRESS PORT N	makes N connections with a ring each, of which nobody can know whether it is used yet, and has the server start a program
 *	reach connects ADDRESS PORT, reach accepts ADDRESS	one connection, whose supervisor takes its time; says what it reads
 */
#include "program.h"

#include <netdb.h>
#include <spawn.h>
#include <sys/prctl.h>

#define HEAD 160
#define START "start a program"

static bool tells;  /* of each connection, at its end */
static bool starts; /* a program, when it is told */

static union {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	struct sockaddr_storage ss;
} to;
static socklen_t length;

static void address(const char *host, int port)
{
	memset(&to, 0, sizeof(to));
	if (strchr(host, ':')) {
		to.in6.sin6_family = AF_INET6;
		to.in6.sin6_port = htons(port);
		CHECK(inet_pton(AF_INET6, host, &to.in6.sin6_addr) == 1);
		length = sizeof(to.in6);
	} else {
		to.in.sin_family = AF_INET;
		to.in.sin_port = htons(port);
		CHECK(inet_pton(AF_INET, host, &to.in.sin_addr) == 1);
		length = sizeof(to.in);
	}
}

static void text(int fd, bool peer, char *out, size_t n)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	char host[64], port[16];

	CHECK((peer ? getpeername(fd, (struct sockaddr *)&ss, &len) : getsockname(fd, (struct sockaddr *)&ss, &len)) == 0);
	CHECK(getnameinfo((struct sockaddr *)&ss, len, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) == 0);
	snprintf(out, n, "%s %s", host, port);
}

static bool domain_is_unix(int fd)
{
	int domain = 0;
	socklen_t len = sizeof(domain);

	CHECK(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0);
	return domain == AF_UNIX;
}

static void whole(int fd, char *b, size_t n, bool out)
{
	for (size_t at = 0; at < n;) {
		ssize_t r = out ? write(fd, b + at, n - at) : read(fd, b + at, n - at);

		CHECK(r > 0);
		at += (size_t)r;
	}
}

static int listener(const char *host, int port, const char *how, bool quiet)
{
	int l, one = 1, some = 16;
	char where[HEAD];

	address(host, port);
	l = socket(to.sa.sa_family, SOCK_STREAM, 0);
	CHECK(setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	if (strcmp(how, "shared") == 0)
		CHECK(setsockopt(l, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)) == 0);
	if (strcmp(how, "deferred") == 0)
		CHECK(setsockopt(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, &one, sizeof(one)) == 0);
	if (strcmp(how, "fast") == 0)
		CHECK(setsockopt(l, IPPROTO_TCP, TCP_FASTOPEN, &some, sizeof(some)) == 0);
	CHECK(bind(l, &to.sa, length) == 0 && listen(l, 128) == 0);
	text(l, false, where, sizeof(where));
	if (!quiet) {
		printf("listening %s\n", strchr(where, ' ') + 1);
		fflush(stdout);
	}
	return l;
}

static void *echo(void *arg)
{
	int fd = (int)(long)arg;
	char head[HEAD] = "", local[64], peer[64], *b = malloc(1 << 16);
	ssize_t n;
	size_t all = 0;
	bool first = true;

	text(fd, false, local, sizeof(local));
	text(fd, true, peer, sizeof(peer));
	snprintf(head, sizeof(head), "%s %s %s", domain_is_unix(fd) ? "moved" : "tcp", local, peer);
	while ((n = read(fd, b, 1 << 16)) > 0) {
		all += (size_t)n;
		if (first && write(fd, head, sizeof(head)) != sizeof(head))
			break;
		first = false;
		if (starts && n == sizeof(START) && memcmp(b, START, sizeof(START)) == 0) {
			char *args[] = {"true", NULL};
			pid_t child;

			CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, args, NULL) == 0 && waitpid(child, NULL, 0) == child);
		}
		for (ssize_t at = 0, w; at < n && (w = write(fd, b + at, (size_t)(n - at))) > 0;)
			at += w;
	}
	if (tells) {
		printf("served %s %zu\n", domain_is_unix(fd) ? "moved" : "tcp", all);
		fflush(stdout);
	}
	free(b);
	close(fd);
	return NULL;
}

static void *accept_all(void *arg)
{
	int l = (int)(long)arg;

	for (;;) {
		pthread_t t;
		int fd = accept(l, NULL, NULL);

		CHECK(fd >= 0);
		CHECK(pthread_create(&t, NULL, echo, (void *)(long)fd) == 0);
		pthread_detach(t);
	}
	return NULL;
}

/*
 * serve listens, as HOW says: deferred and fast are options of TCP, shared is two sockets at a port, forked accepts in a child, and
 * inherited in a program that has the listener from the one before it. starts starts a program when it is told.
 */
static void serve(const char *host, const char *how, int port)
{
	int l = listener(host, port, how, false);
	char line[64];

	starts = strcmp(how, "starts") == 0;
	tells = strcmp(how, "late") == 0;
	if (tells)
		CHECK(fgets(line, sizeof(line), stdin));
	if (strcmp(how, "shared") == 0) {
		socklen_t len = sizeof(to);
		pthread_t t;

		CHECK(getsockname(l, &to.sa, &len) == 0);
		CHECK(pthread_create(&t, NULL, accept_all, (void *)(long)listener(host, ntohs(to.in.sin_port), how, true)) == 0);
	}
	if (strcmp(how, "forked") == 0) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (child > 0)
			for (;;)
				pause(); /* killed with the child's group */
		CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	}
	if (strcmp(how, "inherited") == 0) {
		snprintf(line, sizeof(line), "%d", l);
		execl("/proc/self/exe", "reach", "inherits", line, NULL);
		CHECK(!"exec");
	}
	accept_all((void *)(long)l);
}

static void nothing(int signal)
{
	(void)signal;
}

/* says says where a connection is, and what comes. */
static void says(int fd)
{
	char b[100];
	ssize_t n = read(fd, b, sizeof(b));

	CHECK(n >= 0);
	printf("%s %.*s\n", domain_is_unix(fd) ? "moved" : "tcp", (int)n, b);
	fflush(stdout);
}

static void connects(const char *host, int port)
{
	int fd;

	signal(SIGCONT, nothing);
	address(host, port);
	fd = socket(to.sa.sa_family, SOCK_STREAM, 0);
	CHECK(connect(fd, &to.sa, length) == 0);
	says(fd);
}

static void accepts(const char *host)
{
	int l = listener(host, 0, "", false), fd = accept(l, NULL, NULL);

	CHECK(fd >= 0);
	says(fd);
}

static void dial(const char *host, int port, int count, size_t size, bool fast)
{
	unsigned long seed = (unsigned long)getpid();
	char *sent = malloc(1 << 14), *got = malloc(1 << 14), head[HEAD] = "none";
	int moved_here = 0, moved_there = 0, rings = 0, one = 1;

	for (int i = 0; i < count; i++) {
		char peer[64], want[64];
		int fd;

		address(host, port);
		fd = socket(to.sa.sa_family, SOCK_STREAM, 0);
		if (fast)
			CHECK(setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &one, sizeof(one)) == 0);
		CHECK(connect(fd, &to.sa, length) == 0);
		moved_here += domain_is_unix(fd);
		text(fd, true, peer, sizeof(peer));
		snprintf(want, sizeof(want), "%s %d", host, port);
		CHECK(strcmp(peer, want) == 0);
		for (size_t at = 0; at < size;) {
			size_t n = size - at < 1 << 14 ? size - at : 1 << 14;

			for (size_t j = 0; j < n; j++)
				sent[j] = (char)random_of(&seed, 256);
			whole(fd, sent, n, true);
			if (at == 0) {
				whole(fd, head, sizeof(head), false);
				moved_there += strncmp(head, "moved", 5) == 0;
			}
			whole(fd, got, n, false);
			CHECK(memcmp(sent, got, n) == 0);
			at += n;
		}
		rings = used_rings() > rings ? used_rings() : rings;
		CHECK(shutdown(fd, SHUT_WR) == 0 && read(fd, got, 1) == 0);
		close(fd);
	}
	printf("dialled %d here %d there %d sees %s rings %d\n", count, moved_here, moved_there, head, rings);
}

/* A pouring is a connection on which bytes are sent and come back at the same time. */
struct pouring {
	int fd;
	size_t size;
	unsigned long seed;
	bool moved;
};

static void *poured(void *arg)
{
	struct pouring *p = arg;
	unsigned long seed = p->seed;
	char head[HEAD], b[4096];

	whole(p->fd, head, sizeof(head), false);
	p->moved = strncmp(head, "moved", 5) == 0;
	for (size_t at = 0; at < p->size;) {
		ssize_t n = read(p->fd, b, sizeof(b));

		CHECK(n > 0);
		for (ssize_t i = 0; i < n; i++)
			CHECK(b[i] == (char)random_of(&seed, 256));
		at += (size_t)n;
	}
	return NULL;
}

static void pour(const char *host, int port, int count, size_t size)
{
	int moved = 0, rings = 0;

	for (int i = 0; i < count; i++) {
		struct pouring p = {.fd = -1, .size = size, .seed = (unsigned long)getpid() + (unsigned long)i};
		unsigned long seed = p.seed, sizes = p.seed;
		pthread_t reader;
		char b[300];

		address(host, port);
		p.fd = socket(to.sa.sa_family, SOCK_STREAM, 0);
		CHECK(connect(p.fd, &to.sa, length) == 0);
		CHECK(pthread_create(&reader, NULL, poured, &p) == 0);
		for (size_t at = 0; at < size;) {
			size_t n = 1 + random_of(&sizes, sizeof(b));

			if (n > size - at)
				n = size - at;
			for (size_t j = 0; j < n; j++)
				b[j] = (char)random_of(&seed, 256);
			whole(p.fd, b, n, true);
			at += n;
		}
		CHECK(pthread_join(reader, NULL) == 0);
		moved += p.moved;
		rings = used_rings() > rings ? used_rings() : rings;
		CHECK(shutdown(p.fd, SHUT_WR) == 0 && read(p.fd, b, 1) == 0);
		close(p.fd);
	}
	printf("poured %d rings %d\n", moved, rings);
}

/* headers finds the first page of each ring. */
static size_t headers(volatile uint64_t *list[2])
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	size_t n = 0;

	while (n < 2 && fgets(line, sizeof(line), f))
		if (strstr(line, "gosmc-ring"))
			list[n++] = (volatile uint64_t *)strtoul(line, NULL, 16);
	fclose(f);
	return n;
}

/* spoiled makes one connection, and has the server's library read and write all the same. */
static void spoiled(unsigned long seed)
{
	static const size_t words[] = {0, 8, 64, 72, 80, 128, 192, 256, 320, 384};
	static const uint64_t values[] = {0, 1, 2, 3, 4, 5, 0xfffff, 1 << 18, (1 << 18) + 1, 1ull << 31, 1ull << 39, (1ull << 40) - 1, 1ull << 40, 5ull << 41, 0xffffull << 41,
					  1ull << 57, 1ull << 58, 1ull << 59, 15ull << 60, ~0ull, 0x32306d7267736f67ull};
	volatile uint64_t *at[2];
	char b[512] = {0};
	int fd = socket(to.sa.sa_family, SOCK_STREAM, 0);

	alarm(2);
	if (connect(fd, &to.sa, length) != 0 || !domain_is_unix(fd) || headers(at) != 2)
		_exit(1);
	for (int i = 0; i < (int)random_of(&seed, 100); i++)
		if (write(fd, b, 1 + random_of(&seed, 200)) <= 0 || read(fd, b, sizeof(b)) <= 0)
			break;
	for (int i = 0; i < 2000; i++) {
		volatile uint64_t *word = at[random_of(&seed, 2)] + words[random_of(&seed, 10)] / 8;
		uint64_t v = values[random_of(&seed, sizeof(values) / sizeof(values[0]))];

		switch (random_of(&seed, 4)) {
		case 0:
			*word = v;
			break;
		case 1:
			*word += v;
			break;
		case 2:
			*word ^= v;
			break;
		case 3:
			syscall(SYS_sendto, fd, b, random_of(&seed, 100), MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);
			break;
		}
		if (random_of(&seed, 8) == 0)
			syscall(SYS_recvfrom, fd, b, random_of(&seed, 100), MSG_DONTWAIT, NULL, NULL);
	}
	_exit(0);
}

static void spoil(const char *host, int port, int count, unsigned long seed)
{
	int had = 0, status;

	address(host, port);
	for (int i = 0; i < count; i++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (child == 0)
			spoiled(seed + (unsigned long)i);
		CHECK(waitpid(child, &status, 0) == child);
		had += !WIFEXITED(status) || WEXITSTATUS(status) == 0;
	}
	printf("spoiled %d\n", had);
}

#define LIES 64
#define RING_MAGIC 0x32306d7267736f67ull

/* attached is the word of a ring that this process writes, has offered just now, and does not use yet. NULL: there is none. */
static volatile uint32_t *attached(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	volatile uint32_t *found = NULL;
	char line[512];

	while (!found && fgets(line, sizeof(line), f)) {
		volatile uint64_t *h = (volatile uint64_t *)strtoul(line, NULL, 16);

		/* The client's ring comes first in the file. */
		if (strstr(line, "gosmc-ring") && strstr(line, " 00000000 ") && h[0] == RING_MAGIC && ((volatile uint32_t *)h)[64] <= 1)
			found = (volatile uint32_t *)h + 64;
	}
	fclose(f);
	return found;
}

static void lie(const char *host, int port, int count)
{
	char b[HEAD + sizeof(START)];
	int lied = 0;

	CHECK(count <= LIES);
	address(host, port);
	for (int i = 0; i <= count; i++) {
		volatile uint32_t *word = NULL;
		int fd = socket(to.sa.sa_family, SOCK_STREAM, 0);

		CHECK(connect(fd, &to.sa, length) == 0);
		whole(fd, i < count ? "?" : START, i < count ? 1 : sizeof(START), true);
		whole(fd, b, HEAD + (i < count ? 1 : sizeof(START)), false);
		for (int turn = 0; i < count && domain_is_unix(fd) && !word && turn < 200; turn++) {
			whole(fd, "?", 1, true);
			whole(fd, b, 1, false);
			word = attached();
		}
		for (int look = 0; word && *word == 0 && look < 1000; look++)
			usleep(1000); /* the server's next receive takes it */
		if (word && *word == 1) {
			*word = 7; /* no value that a writer or a reader gives it */
			lied++;
		}
	}
	printf("lied %d\n", lied);
}

static void leave(const char *host, int port, int count)
{
	for (int i = 0; i < count; i++) {
		int fd;

		address(host, port);
		fd = socket(to.sa.sa_family, SOCK_STREAM, 0);
		CHECK(connect(fd, &to.sa, length) == 0 && write(fd, "farewell", 8) == 8);
		close(fd);
	}
	printf("left\n");
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	CHECK(argc >= 3);
	if (strcmp(argv[1], "serve") == 0)
		serve(argv[2], argc > 3 ? argv[3] : "", argc > 4 ? atoi(argv[4]) : 0);
	else if (strcmp(argv[1], "inherits") == 0)
		accept_all((void *)(long)atoi(argv[2]));
	else if (strcmp(argv[1], "dial") == 0)
		dial(argv[2], atoi(argv[3]), atoi(argv[4]), strtoul(argv[5], NULL, 10), argc > 6);
	else if (strcmp(argv[1], "pour") == 0)
		pour(argv[2], atoi(argv[3]), atoi(argv[4]), strtoul(argv[5], NULL, 10));
	else if (strcmp(argv[1], "spoil") == 0)
		spoil(argv[2], atoi(argv[3]), atoi(argv[4]), strtoul(argv[5], NULL, 10));
	else if (strcmp(argv[1], "lie") == 0)
		lie(argv[2], atoi(argv[3]), atoi(argv[4]));
	else if (strcmp(argv[1], "connects") == 0)
		connects(argv[2], atoi(argv[3]));
	else if (strcmp(argv[1], "accepts") == 0)
		accepts(argv[2]);
	else
		leave(argv[2], atoi(argv[3]), atoi(argv[4]));
	return 0;
}
