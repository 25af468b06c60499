/* The bytes that wait to be received: FIONREAD. */
#include "ring.h"

#include <sys/ioctl.h>

#define TURNS 16 /* of asking again, where the writer goes on meanwhile */

/*
 * in_socket is how many bytes are in the socket that are no tokens, up to urgent data; *pub is the
 * ring's pub at the time. Others of this side are kept out, if that can be.
 */
static size_t in_socket(struct end *e, struct ring *r, int fd, uint64_t *pub)
{
	int all = 0;

	for (int i = 0; i < TURNS; i++) {
		*pub = pub_load(r);
		if (SYS(ioctl, fd, FIONREAD, &all) != 0)
			return 0;
		if (pub_load(r) == *pub)
			break;
	}
	all = (int)urgent_before_mark(e, fd, (size_t)all);
	return all > outstanding(r, *pub) ? (size_t)all - outstanding(r, *pub) : 0;
}

/*
 * receive_waiting is how many bytes can be read where there is a ring, up to urgent data: those in it, and
 * those in-band before it, or behind it if one of the two has left. False: all that can is in the socket.
 */
bool receive_waiting(struct end *e, int fd, size_t *n)
{
	bool known = false, locked;
	struct ring *r;
	uint64_t pub;

	if (!ring_enter(&e->in, &r))
		return false;
	if (r->side->edges && ring_lock(r)) { /* arrivals from here on are told */
		receive_arm(r, fd);
		ring_unlock(r);
	}
	pub = pub_load(r);
	*n = used(r, pub);
	if (r->side->state == RING_JOINED && !(pub & PUB_LEFT)) {
		known = *n <= r->size;
	} else {
		locked = ring_lock(r);
		if (r->side->state == RING_WAITING || r->side->state == RING_JOINED) {
			size_t inband = in_socket(e, r, fd, &pub);

			*n = used(r, pub);
			known = *n <= r->size;
			if (r->side->state == RING_WAITING || (pub & PUB_LEFT))
				*n += inband;
		}
		if (locked)
			ring_unlock(r);
	}
	ring_exit(r);
	return known;
}
