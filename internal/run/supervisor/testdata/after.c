/*
 * When a direction goes over to a ring by GOSMC_RUN_RING_AFTER, 256 KiB: one that carries less stays in-band, one that carries more goes over however small its sends are by then, and
 * where requests and answers take turns nobody waits for that.
 */
#include "program.h"

#define AFTER (256 << 10)

static char b[AFTER];

/* carry sends n bytes, part bytes at a time, each of which is read before the next. */
static void carry(int from, int to, size_t n, size_t part)
{
	for (size_t i = 0; i < n; i += part) {
		CHECK(send(from, b, part, 0) == (ssize_t)part);
		CHECK(recv(to, b, part, MSG_WAITALL) == (ssize_t)part);
	}
}

static int bulk(int c, int s)
{
	carry(c, s, AFTER / 2, AFTER / 8);
	CHECK(mapped_rings() == 0);
	carry(c, s, AFTER / 2, AFTER / 8);
	carry(c, s, 1000, 100);
	return 2; /* its writer's and its reader's */
}

static int taken_turns(int c, int s)
{
	for (int i = 0; i < 64; i++) {
		carry(c, s, 100, 100);
		carry(s, c, 100, 100);
	}
	return 4;
}

int main(int argc, char **argv)
{
	int c, s, want, queued = 100;

	CHECK(argc > 1);
	both_ends(&c, &s);
	want = strcmp(argv[1], "bulk") == 0 ? bulk(c, s) : taken_turns(c, s);
	CHECK(mapped_rings() == want);
	CHECK(send(c, b, 100, 0) == 100);
	if (want == 2) /* of bytes in a ring the kernel has no more than a token */
		CHECK(syscall(SYS_ioctl, s, FIONREAD, &queued) == 0 && queued <= 1);
	CHECK(recv(s, b, 100, 0) == 100);
	return 0;
}
