/*
 * How long a server waits for a client that has connected and says nothing: prompt CASE. TCP_QUICKACK and TCP_DEFER_ACCEPT have the client's kernel
 * keep the last ACK of the handshake back for 200 ms, to send it with bytes, which do not come over TCP if the connection is moved. With SPEAKS=1 the
 * client sends bytes at once, as with plain TCP the server waits for them.
 */
#include "moved.h"

#include <time.h>

#define TIMES 10
#define LATE 100 /* milliseconds */

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* once connects and returns how long the server has waited, in milliseconds. */
static long once(int l, const struct sockaddr_in *a, int name, int value, bool waits, bool speaks)
{
	int fd = socket(AF_INET, SOCK_STREAM | (waits ? 0 : SOCK_NONBLOCK), 0), accepted, r;
	long began = now();

	CHECK(fd >= 0 && (name < 0 || setsockopt(fd, IPPROTO_TCP, name, &value, sizeof(value)) == 0));
	r = connect(fd, (const struct sockaddr *)a, sizeof(*a));
	CHECK(r == 0 || errno == EINPROGRESS);
	if (speaks)
		CHECK(send(fd, "x", 1, MSG_NOSIGNAL) == 1);
	accepted = accept(l, NULL, NULL);
	CHECK(accepted >= 0 && as_it_should(accepted) && as_it_should(fd));
	close(accepted);
	close(fd);
	return now() - began;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int option, value;
		bool waits;
	} cases[] = {
		{"plain", -1, 0, false},
		{"quickack", TCP_QUICKACK, 0, false},
		{"quickack-waits", TCP_QUICKACK, 0, true},
		{"defer", TCP_DEFER_ACCEPT, 5, false},
	};
	bool speaks = getenv("SPEAKS") != NULL;
	struct sockaddr_in a;
	int l = server(&a);
	long least = PATIENCE;

	for (size_t i = 0; argc == 2 && i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (strcmp(argv[1], cases[i].name) != 0)
			continue;
		for (int n = 0; n < TIMES && least >= LATE; n++) { /* the machine may be busy */
			long t = once(l, &a, cases[i].option, cases[i].value, cases[i].waits, speaks);

			least = t < least ? t : least;
		}
		if (least >= LATE)
			fprintf(stderr, "%s: the server has waited for %ld ms at least\n", argv[1], least);
		return least >= LATE;
	}
	return 2;
}
