/*
 * Looking before sleeping: a blocking receive in-band, and a blocking accept, ask for some microseconds whether there is anything,
 * where that has paid. To be woken up on another processor takes longer than most answers do. It does not pay where the two
 * programs share a processor, or others want it: then it is done seldom.
 */
#include "ring.h"

#include <poll.h>

static __thread struct luck accepting __attribute__((tls_model("initial-exec")));

#define LOOK 50000	/* nanoseconds */
#define LUCK_FIRST 4
#define LUCK_MOST 8
#define MISS 2		/* times that it has to pay for each that it has not */
#define SELDOM 64	/* waits between two looks where it does not pay; twice as many each time */
#define SELDOMEST 4096

/* look_before waits a while for something to read or accept. The call that comes next finds out what it is. */
void look_before(int fd, struct luck *luck)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	struct timespec none = {0};
	uint64_t until = 0;
	bool paid = false;

	if (luck->seldom == 0)
		*luck = (struct luck){.left = LUCK_FIRST, .seldom = SELDOM};
	if (luck->left <= 0 && ++luck->waits < luck->seldom)
		return;
	if (SYS(ppoll, &p, 1, &none, NULL, 0) != 0 || !would_wait(fd, 0)) {
		luck->waits = 0; /* nothing was learnt */
		return;
	}
	for (unsigned i = 0; !paid; i++) {
		pause_cpu();
		paid = SYS(ppoll, &p, 1, &none, NULL, 0) != 0;
		if (until == 0)
			until = precise_now() + LOOK;
		else if (i % 8 == 0 && precise_now() > until)
			break;
	}
	luck->waits = 0;
	if (paid) {
		luck->left += luck->left < LUCK_MOST;
		luck->seldom = SELDOM;
	} else if (luck->left > 0) {
		luck->left -= MISS;
	} else if (luck->seldom < SELDOMEST) {
		luck->seldom *= 2;
	}
}

/* look_accept is look_before for a listener. */
void look_accept(int fd)
{
	if (!birth_accepts(fd))
		return;
	if (would_wait(fd, 0))
		look_before(fd, &accepting);
	else
		birth_hurries(fd);
}
