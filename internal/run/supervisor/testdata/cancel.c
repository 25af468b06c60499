/*
 * Threads that end in the middle of a call on a connection, while another one goes on with it: cancel CASE SEED. They are cancelled, wherever they are (async) or
 * where libc lets them, or a handler calls pthread_exit. ROUNDS of them; RINGS=1: the connections have rings, and none is left when they are closed.
 */
#include "program.h"

#include <linux/sockios.h>
#include <stdbool.h>

#define MOST 30000
#define SLEEP 300 /* microseconds until a thread is ended, at most */

static unsigned long seed;
static char buf[MOST];
static int fd; /* of the thread */
static bool asynchronous, writes;

static void *victim(void *result)
{
	static char some[100000];
	int type;

	CHECK(pthread_setcanceltype(asynchronous ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED, &type) == 0);
	while (writes ? write(fd, some, sizeof(some)) > 0 : read(fd, some, 100) > 0)
		;
	return result;
}

static void leave(int sig)
{
	(void)sig;
	pthread_exit(PTHREAD_CANCELED);
}

/* go sends pieces from one end to the other. */
static void go(int from, int to, unsigned pieces)
{
	for (unsigned i = 0; i < pieces; i++) {
		unsigned n = 1 + random_of(&seed, MOST);

		for (unsigned j = 0; j < n; j++)
			buf[j] = (char)(i + j * 7);
		CHECK(write(from, buf, n) == (ssize_t)n);
		memset(buf, 0, n);
		CHECK(recv(to, buf, n, MSG_WAITALL) == (ssize_t)n);
		for (unsigned j = 0; j < n; j++)
			CHECK(buf[j] == (char)(i + j * 7));
	}
}

static void both_ways(int c, int s, unsigned pieces)
{
	go(c, s, pieces);
	go(s, c, pieces);
}

/* drain takes the bytes that one end has sent and the other has not read. Those of a busy machine's TCP can be under way. */
static void drain(int from, int to)
{
	int waits;

	do {
		CHECK(ioctl(from, SIOCOUTQ, &waits) == 0);
		while (recv(to, buf, sizeof(buf), MSG_DONTWAIT) > 0)
			;
		CHECK(errno == EAGAIN);
	} while (waits > 0);
}

/* end_one has a thread begin calls on an end, and ends it. */
static void end_one(int c, int s, bool exits)
{
	pthread_t thread;
	void *result;

	fd = s;
	CHECK(pthread_create(&thread, NULL, victim, NULL) == 0);
	if (random_of(&seed, 2))
		usleep(random_of(&seed, SLEEP));
	if (!writes && random_of(&seed, 2))
		CHECK(write(c, buf, 100) == 100);
	CHECK((exits ? pthread_kill(thread, SIGUSR1) : pthread_cancel(thread)) == 0);
	CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	drain(writes ? s : c, writes ? c : s);
	both_ways(c, s, 3);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	bool exits = strstr(how, "exit"), same = strstr(how, "same");
	int rounds = getenv("ROUNDS") ? atoi(getenv("ROUNDS")) : 10;
	bool rings = getenv("RINGS");
	int c = -1, s = -1, left = 0, more = 0;

	alarm(100);
	seed = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
	asynchronous = strstr(how, "async");
	writes = strstr(how, "write");
	signal(SIGUSR1, leave);
	/* A call that ends between its count and its record stays counted: a few instructions, which nobody hits three times. */
	for (int tries = 0; tries < 3; tries++) {
		for (int i = 0; i < rounds; i++) {
			if (i == 0 || !same) {
				both_ends(&c, &s);
				both_ways(c, s, 20);
				both_ways(c, s, 20);
				CHECK(!rings || mapped_rings() > left);
			}
			end_one(c, s, exits);
			if (i == rounds - 1 || !same) {
				close(c);
				close(s);
			}
		}
		more = mapped_rings() - left;
		left += more;
		if (more <= (same ? 0 : rounds / 10))
			break;
	}
	CHECK(more <= (same ? 0 : rounds / 10));
	return 0;
}
