/* The writer's switch to a ring: when one is offered, and the two marks. */
#include "ring.h"

#include <sys/mman.h>

#define LARGE (16u << 10) /* a send that is worth a ring */
#define MARK_ROOM 8192	  /* of the socket's buffer: more than a mark and a token take */

static const char token[1] = {0};

/*
 * mark sends so many bytes of the program's with a descriptor, at which the kernel ends whatever receive
 * takes the first of them. It returns 1, or the kernel's error.
 */
static long mark(struct ring *r, int fd, const struct span *s, size_t n, int with)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control;
	struct span at = *s;
	struct iovec one;
	bool many;
	struct mmsghdr *m = &r->side->mark; /* in which the kernel writes whether it was sent */
	struct cmsghdr *c;

	span_skip(&at, 0);
	many = n > 1 && at.count > 1;
	one = (struct iovec){(char *)at.iov->iov_base + at.skip, n};
	memset(&control, 0, sizeof(control));
	*m = (struct mmsghdr){.msg_hdr = {.msg_iov = many ? (struct iovec *)(uintptr_t)at.iov : &one,
				      .msg_iovlen = many ? at.count : 1,
				      .msg_control = &control,
				      .msg_controllen = sizeof(control.buf)}};
	c = CMSG_FIRSTHDR(&m->msg_hdr);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &with, sizeof(with));
	return SYS(sendmmsg, fd, m, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* hold keeps on record a descriptor that is to be closed, let_go closes it. */
static void hold(struct ring *r, long fd)
{
	__atomic_store_n(&r->side->held, (uint32_t)fd + 1, __ATOMIC_RELEASE);
}

void let_go(struct ring *r)
{
	uint32_t held = __atomic_exchange_n(&r->side->held, 0, __ATOMIC_SEQ_CST);

	if (held)
		SYS(close, held - 1);
}

/*
 * answers says whether a direction is to have a small ring. A program that asks whether there is
 * room is not to find out how small it is.
 */
static bool answers(const struct end *e)
{
	uint32_t answers = __atomic_load_n(&e->answers, __ATOMIC_RELAXED);

	return (answers == ANSWERS ||
		       (answers < ANSWERS && __atomic_load_n(&e->turned, __ATOMIC_RELAXED) == TURNED_LOOP)) &&
		!(__atomic_load_n(&e->never, __ATOMIC_RELAXED) & ASKED_ROOM);
}

/* size_of is the size of the ring for a send of n bytes. */
static uint32_t size_of(const struct end *e, size_t n)
{
	if (n >= LARGE)
		return RING_BYTES;
	if (answers(e))
		return RING_BYTES_ANSWERS;
	return __atomic_load_n(&e->turned, __ATOMIC_RELAXED) == TURNED_LOOP ? RING_BYTES_LOOP : RING_BYTES;
}

/*
 * worth says whether a direction is to have a ring, if n bytes are to be sent. To make one and to touch its
 * pages for the first time costs as much as to send some 100 KiB in-band, so a direction that only carries
 * bytes has to have carried more.
 */
bool worth(const struct end *e, size_t n)
{
	uint64_t sent = __atomic_load_n(&e->sent, __ATOMIC_RELAXED) + n;

	if (!shaking() && sent < settings.ring_after)
		return false;
	if (__atomic_load_n(&e->turned, __ATOMIC_RELAXED) == TURNED_YES ||
		__atomic_load_n(&e->turned, __ATOMIC_RELAXED) == TURNED_LOOP || answers(e) || shake(3))
		return true;
	return (sent >= settings.bulk_after || shaking()) &&
		(n >= LARGE || __atomic_load_n(&e->streak, __ATOMIC_RELAXED) >= STREAK);
}

/*
 * passes says whether a descriptor takes descriptors, as its peer does then: the agent has it so, for both,
 * unless the two programs are different users'. Until the server has its end the client's takes none, either.
 * Different users' have gifts.
 */
static bool passes(struct end *e, int fd)
{
	int is = 0;
	socklen_t len = sizeof(is);

	if (SYS(getsockopt, fd, SOL_SOCKET, SO_PASSRIGHTS, &is, &len) != 0 || is) {
		gift_drop(e); /* the peer has none, and rings that are made when they are needed are better */
		return true;
	}
	if (gift_here(e))
		return false; /* it is about to be used */
	if (__atomic_load_n(&e->turned, __ATOMIC_RELAXED) != TURNED_NOT) /* the peer has sent something */
		__atomic_fetch_or(&e->never, NEVER_OUT, __ATOMIC_SEQ_CST);
	__atomic_store_n(&e->streak, 0, __ATOMIC_RELAXED);
	return false;
}

/*
 * offer sends all of a small write with a ring, so that no other thread's comes into the middle of it, or
 * else the first byte. The least of a socket's buffer takes such a write in one piece, or nothing of it. The
 * caller has passed the gate.
 */
bool offer(struct end *e, int fd, const struct span *s)
{
	size_t n = s->left <= RING_BYTES_LEAST / 2 ? s->left : 1;
	struct ring *r;
	int memfd;
	long sent = 0;

	if (n > 1 && s->count > 1 && s->skip)
		return false; /* parts are sent as the program has them, from the first on */
	if ((__atomic_load_n(&e->never, __ATOMIC_SEQ_CST) & NEVER_OUT) || !worth(e, s->left) ||
		!ring_room() || uring_seen() || !end_alone(e) || !end_is(fd, e) || !passes(e, fd) ||
		!gate_close(&e->sending))
		return false;
	r = ring_make(fd, size_of(e, s->left), __atomic_load_n(&e->never, __ATOMIC_SEQ_CST) & ASKED_ROOM, &memfd);
	if (!r) {
		__atomic_fetch_or(&e->never, NEVER_OUT, __ATOMIC_SEQ_CST);
	} else {
		ring_ref(r); /* for us, while others may take it away again */
		__atomic_store_n(&r->where, &e->out, __ATOMIC_RELAXED);
		__atomic_store_n(&e->out, r, __ATOMIC_SEQ_CST);
		/*
		 * Code that is to send by itself has said so before it looked for a ring, and we look after we have
		 * shown ours.
		 */
		sent = end_alone(e) && __atomic_load_n(&settings.rings, __ATOMIC_SEQ_CST) &&
				!(__atomic_load_n(&e->never, __ATOMIC_SEQ_CST) & NEVER_OUT)
			? mark(r, fd, s, n, memfd)
			: 0;
		SYS(close, memfd);
		/* the peer takes no descriptors, as its program has a filter of system calls: guard.c */
		if (sent == -EPERM)
			__atomic_fetch_or(&e->never, NEVER_OUT, __ATOMIC_SEQ_CST);
		if (sent == 1) { /* bytes that go in-band until the reader has the ring are not counted */
			admission_grown(e);
			__atomic_store_n(&e->sent,
				settings.ring_after > settings.bulk_after ? settings.ring_after
									  : settings.bulk_after,
				__ATOMIC_RELAXED);
		} else {
			__atomic_store_n(&e->streak, 0, __ATOMIC_RELAXED);
			r->side->state = RING_ENDED; /* a process that was forked just now sees it */
			end_forget(&e->out, r);
		}
		ring_unref(r);
	}
	gate_open(&e->sending);
	return sent == 1;
}

/* joined ends the switch to a ring: the second mark was sent, or it was not. The lock is held. */
void joined(struct ring *r)
{
	uint32_t switched = ATTACHED_SWITCHED;

	if (r->side->mark.msg_len == 1) {
		r->side->token_at = (struct iovec){(void *)(uintptr_t)token, 1};
		r->side->token = (struct mmsghdr){.msg_hdr = {.msg_iov = &r->side->token_at, .msg_iovlen = 1}};
		r->side->looked = ring_now();
		r->side->state = RING_JOINED;
	} else {
		__atomic_compare_exchange_n(
			&r->h->attached, &switched, ATTACHED_YES, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	}
}

/* join switches to the ring, with the second mark. The lock is held. */
bool join(struct ring *r, int fd, const struct span *s)
{
	uint32_t yes = ATTACHED_YES;
	uint32_t room = sndbuf(fd);
	long with;
	bool sent;

	/*
	 * The mark and the first token must find room, as the reader has no other way to hear of the bytes
	 * between them.
	 */
	if (unread(fd) + MARK_ROOM > room)
		return false;
	with = SYS(memfd_create, "gosmc-mark", MFD_CLOEXEC);
	if (with < 0)
		return false;
	hold(r, with);
	r->side->sndbuf = room;
	r->side->mark.msg_len = 0;
	sent = __atomic_compare_exchange_n(
		       &r->h->attached, &yes, ATTACHED_SWITCHED, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) &&
		mark(r, fd, s, 1, (int)with) == 1;
	joined(r);
	let_go(r);
	return sent;
}
