/*
 * Rings that both sides have from the beginning. Programs of different users pass each other no descriptors,
 *as the sender of one decides how long its close takes. So the memory of their rings comes with their ends,
 *from 'gosmc agent', which has made it, and no mark can say where a ring begins. In its place:
 *
 *	writer: finds the direction worth a ring, and says so (magic)
 *	reader: sees that before a receive, has the ring, and says so (attached); from then on it looks before
 *it takes anything writer: sees that before a send, and that everything in the socket was read; switches
 *(attached), and writes into the ring
 *
 * The reader asks how much there is, and looks then whether the writer has switched. If not, all of that was
 *there before, and is bytes, and the writer cannot switch before these are taken. Each ring is used once.
 */
#include "ring.h"

#include <sched.h>
#include <sys/ioctl.h>

#define DRAIN_TURNS 256 /* of giving the processor to a reader that is about to have read everything */

static bool word_here(const struct ring *r)
{
	return __atomic_load_n(&r->h->here, __ATOMIC_SEQ_CST) != 0;
}

static bool word_magic(const struct ring *r)
{
	return __atomic_load_n(&r->h->magic, __ATOMIC_SEQ_CST) == RING_MAGIC;
}

/* looks asks for a word in a ring that another thread may be about to give up. */
static bool looks(struct ring *const *where, bool (*word)(const struct ring *r))
{
	struct ring *r = __atomic_load_n(where, __ATOMIC_SEQ_CST);
	bool is;

	if (!r)
		return false;
	__atomic_fetch_add(&r->users, 1, __ATOMIC_SEQ_CST);
	is = __atomic_load_n(where, __ATOMIC_SEQ_CST) == r && word(r);
	ring_left(r);
	return is;
}

/* gift_here says whether the peer has the ring that this side has for sending. */
bool gift_here(struct end *e)
{
	return looks(&e->gift_out, word_here);
}

static struct ring *take(struct ring **where)
{
	return __atomic_load_n(where, __ATOMIC_RELAXED) ? __atomic_exchange_n(where, NULL, __ATOMIC_SEQ_CST)
							: NULL;
}

/* end_gift takes the memory of rings, if there is any, for an end that was born just now. */
void end_gift(int fd, int memfd, bool server)
{
	struct end *e = memfd >= 0 ? end_at(fd) : NULL;
	struct ring *pair[2];

	if (e && __atomic_load_n(&settings.rings, __ATOMIC_SEQ_CST) && end_alone(e) && ring_pair(memfd, pair)) {
		struct ring *in = pair[server ? 0 : 1];

		__atomic_store_n(&in->h->here, 1, __ATOMIC_SEQ_CST);
		__atomic_store_n(&e->gift_in, in, __ATOMIC_SEQ_CST);
		__atomic_store_n(&e->gift_out, pair[server ? 1 : 0], __ATOMIC_SEQ_CST);
	}
	if (memfd >= 0)
		SYS(close, memfd);
}

/* gift_drop gives up the rings of a descriptor that nobody uses yet. */
void gift_drop(struct end *e)
{
	struct ring *out = take(&e->gift_out), *in = take(&e->gift_in);

	if (out)
		ring_unref(out);
	if (in)
		ring_unref(in);
}

/*
 * gift_offer tells the reader that a ring is to be used, if it is worth it. True: the descriptor has a ring
 * now, or has none to offer any more. The caller has passed the gate.
 */
bool gift_offer(struct end *e, int fd, size_t n)
{
	struct ring *r;

	if ((__atomic_load_n(&e->never, __ATOMIC_SEQ_CST) & NEVER_OUT) ||
		!__atomic_load_n(&e->gift_out, __ATOMIC_RELAXED) || !worth(e, n) || !gift_here(e) ||
		uring_seen() || !end_alone(e) || !end_is(fd, e) || !gate_close(&e->sending))
		return false;
	r = take(&e->gift_out);
	if (r) {
		ring_ref(r); /* for us, while others may take it away again */
		r->h->size = r->size;
		r->h->pub = PUB_ARMED;
		__atomic_store_n(&r->where, &e->out, __ATOMIC_RELAXED);
		__atomic_store_n(&e->out, r, __ATOMIC_SEQ_CST);
		/*
		 * Code that is to send by itself has said so before it looked for a ring, and we look after we have
		 * shown ours.
		 */
		if (end_alone(e) && __atomic_load_n(&settings.rings, __ATOMIC_SEQ_CST) &&
			!(__atomic_load_n(&e->never, __ATOMIC_SEQ_CST) & NEVER_OUT)) {
			admission_grown(e);
			__atomic_store_n(&e->sent,
				settings.ring_after > settings.bulk_after ? settings.ring_after
									  : settings.bulk_after,
				__ATOMIC_RELAXED);
			__atomic_store_n(&r->h->magic, RING_MAGIC, __ATOMIC_SEQ_CST);
		} else {
			r->side->state = RING_ENDED; /* a process that was forked just now sees it */
			end_forget(&e->out, r);
		}
		ring_unref(r);
	}
	gate_open(&e->sending);
	return true;
}

/*
 * drained says whether everything in the socket was read. It waits a moment for that, ever more seldom: a
 * reader that is slower than its writer never has read everything, and need not want a ring.
 */
static bool drained(struct ring *r, int fd)
{
	uint32_t tries = r->side->drains++;
	int turns = tries & (tries - 1) ? 0 : DRAIN_TURNS;

	for (; unread(fd) != 0; turns--) {
		if (turns <= 0)
			return false;
		SYS(sched_yield);
	}
	return true;
}

/* gift_join switches to the ring, if the reader has it and has read everything. The lock is held. */
bool gift_join(struct ring *r, int fd)
{
	uint32_t yes = ATTACHED_YES;

	if (!drained(r, fd))
		return false;
	r->side->sndbuf = sndbuf(fd);
	r->side->mark.msg_len = 1; /* joined asks for it, also after a call that was left */
	if (!__atomic_compare_exchange_n(
		    &r->h->attached, &yes, ATTACHED_SWITCHED, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
		r->side->mark.msg_len = 0;
		return false;
	}
	joined(r);
	return true;
}

/* gift_offered says whether the peer wants to use the ring that this side has for receiving. */
bool gift_offered(struct end *e)
{
	return looks(&e->gift_in, word_magic);
}

/* gift_take is that ring, which is the caller's then. NULL: there is none. */
struct ring *gift_take(struct end *e)
{
	return take(&e->gift_in);
}

/*
 * gift_receive receives bytes in-band, before the switch, or shows them. *switched: the writer has switched,
 * and nothing was received; the result is the kernel's about the socket. The lock is held.
 */
long gift_receive(struct ring *r, int fd, struct iovec *parts, size_t n, bool peek, bool *switched)
{
	struct msghdr m = {.msg_iov = parts, .msg_iovlen = n};
	int have = 0;
	size_t left;
	long there;

	/* To ask how much there is costs less than to copy it twice. */
	if (!peek && SYS(ioctl, fd, FIONREAD, &have) == 0 && have > 0)
		there = have;
	else
		there = SYS(recvmsg, fd, &m, MSG_PEEK | MSG_DONTWAIT);
	*switched = __atomic_load_n(&r->h->attached, __ATOMIC_SEQ_CST) == ATTACHED_SWITCHED &&
		!(pub_load(r) & PUB_WITHDRAWN);
	if (*switched || peek || there <= 0)
		return there;
	/* No more than these: a token may be behind them as soon as they are taken. */
	left = (size_t)there;
	for (size_t i = 0; i < n; i++) {
		if (parts[i].iov_len > left)
			parts[i].iov_len = left;
		left -= parts[i].iov_len;
	}
	m = (struct msghdr){.msg_iov = parts, .msg_iovlen = n};
	return SYS(recvmsg, fd, &m, MSG_DONTWAIT);
}
