/*
 * Somebody has taken the abstract names that a client's end is about to get: a socket's cookie can be foreseen. The connection goes on all the
 * same.
 */
#include "program.h"

#include <sys/un.h>

#define NAMES 400

/* steal binds a socket to the name of a client: gosmc/1/c/4/LOCAL/PEER/UNIQUE. */
static void steal(const char *local, const char *peer, const char *unique)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	int n = snprintf(un.sun_path + 1, sizeof(un.sun_path) - 1, "gosmc/1/c/4/%s/%s/%s", local, peer, unique);
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

static void stolen(void)
{
	struct sockaddr_in a, own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(own);
	int l = server(&a), c = socket(AF_INET, SOCK_STREAM, 0), s;
	char local[40], peer[40], unique[20];
	uint64_t cookie = 0;
	cpu_set_t one;

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
		steal(local, peer, unique);
	}
	CHECK(connect(c, (struct sockaddr *)&a, sizeof(a)) == 0);
	s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	len = sizeof(a);
	CHECK(getpeername(s, (struct sockaddr *)&a, &len) == 0 && a.sin_port == own.sin_port);
	exchange(c, s);
	exchange(s, c);
}

int main(void)
{
	alarm(100);
	stolen();
	return 0;
}
