/*
 * Somebody has taken the abstract names that ends of pairs are about to get: stolen CASE. Whoever may look into /proc/net/unix sees
 * that of a client, and a socket's cookie can be foreseen. Connections go on all the same.
 */
#include "program.h"

#include <sys/un.h>

#define NAMES 400

static int moved(int fd)
{
	int domain = 0;
	socklen_t len = sizeof(domain);

	CHECK(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0);
	return domain != AF_INET;
}

/* steal binds a socket to a name: gosmc/1/ROLE/4/LOCAL/PEER/UNIQUE. */
static void steal(char role, const char *local, const char *peer, const char *unique)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	int n = snprintf(un.sun_path + 1, sizeof(un.sun_path) - 1, "gosmc/1/%c/4/%s/%s/%s", role, local, peer, unique);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&un, offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n) == 0);
}

static void exchange(int from, int to)
{
	char b[6];

	CHECK(write(from, "hello", 6) == 6);
	await(to, POLLIN);
	CHECK(read(to, b, 6) == 6 && memcmp(b, "hello", 6) == 0);
}

/* server: the name of the end that accept is about to take. */
static void of_server(void)
{
	struct sockaddr_in a;
	struct sockaddr_un un;
	socklen_t len = sizeof(un);
	char local[38], peer[38], unique[17];
	int l = server(&a);
	int c = connected_to(&a);
	int s;

	CHECK(moved(c) && syscall(SYS_getsockname, c, &un, &len) == 0);
	CHECK(sscanf(un.sun_path + 1, "gosmc/1/c/4/%37[^/]/%37[^/]/%16s", local, peer, unique) == 3);
	steal('s', peer, local, unique);
	s = accept(l, NULL, NULL);
	CHECK(s >= 0 && moved(s));
	len = sizeof(a);
	CHECK(getsockname(s, (struct sockaddr *)&a, &len) == 0 && a.sin_family == AF_INET);
	exchange(c, s);
	exchange(s, c);
}

/* client: the name by which a client that does not wait has nobody take its end any more. */
static void of_client(void)
{
	struct sockaddr_in a, own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(own);
	int error = -1, l = server(&a), c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), s = -1;
	char local[40], peer[40], unique[20];
	uint64_t cookie = 0;
	cpu_set_t one;
	int waiting;

	CHECK(listen(l, 0) == 0);
	waiting = connected_to(&a); /* the queue is full */
	CHECK(bind(c, (struct sockaddr *)&own, len) == 0 && getsockname(c, (struct sockaddr *)&own, &len) == 0);
	snprintf(local, sizeof(local), "00000000000000000000ffff7f000001.%04x", ntohs(own.sin_port));
	snprintf(peer, sizeof(peer), "00000000000000000000ffff7f000001.%04x", ntohs(a.sin_port));
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	CHECK(sched_setaffinity(0, sizeof(one), &one) == 0); /* each processor has its own sequence */
	len = sizeof(cookie);
	CHECK(getsockopt(socket(AF_UNIX, SOCK_STREAM, 0), SOL_SOCKET, SO_COOKIE, &cookie, &len) == 0);
	for (int i = 1; i <= NAMES; i++) {
		snprintf(unique, sizeof(unique), "%016llx", (unsigned long long)cookie + (unsigned)i);
		steal('x', local, peer, unique);
	}
	CHECK(connect(c, (struct sockaddr *)&a, sizeof(a)) == -1 && errno == EINPROGRESS && !moved(c));
	for (int i = 0; i < 2; i++) {
		await(l, POLLIN);
		s = accept(l, NULL, NULL);
		CHECK(s >= 0);
	}
	await(c, POLLOUT);
	len = sizeof(error);
	CHECK(getsockopt(c, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0);
	exchange(c, s);
	exchange(s, c);
	close(waiting);
}

int main(int count, char **arguments)
{
	CHECK(count >= 2);
	alarm(100);
	if (strcmp(arguments[1], "server") == 0)
		of_server();
	else if (strcmp(arguments[1], "client") == 0)
		of_client();
	else
		CHECK(!"a case");
	return 0;
}
