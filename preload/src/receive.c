/* Receiving: a ring that comes in-band, the place where it begins, and what is read from it. */
#include "ring.h"

#include <sched.h>
#include <time.h>

#define TURNS 16     /* of waiting for a token that was announced */
#define SPINS 60     /* of looking for more: some microseconds */
#define GATHER 5     /* of letting more of it come, in steps of four */
#define ENOUGH 4096
#define PATIENCE 16  /* times in one receive */
#define LUCK_MOST 8
#define LOOK 50000   /* nanoseconds for which a blocking reader looks into an empty ring: it takes as long to wake a program up, twice */
#define FUTILE 512   /* waits in a row in which it did not pay, after which programs that take turns leave their rings */
#define HINTS 32     /* turns taken, from which on a ring of the peer says that it wants one */
#define RETRY 64 /* times that the ring is drained, after which luck is tried again */

struct control {
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	};
};

/* with_control makes a message that can take a mark, and no second descriptor, which would fit where the first is aligned. */
static struct msghdr with_control(struct iovec *parts, size_t n, struct control *c)
{
	memset(c, 0, sizeof(*c));
	return (struct msghdr){.msg_iov = parts, .msg_iovlen = n, .msg_control = c->buf, .msg_controllen = CMSG_LEN(sizeof(int))};
}

/* came returns the descriptor of a mark, -1 if there was none. */
static int came(struct msghdr *m)
{
	struct cmsghdr *c = CMSG_FIRSTHDR(m);
	int fd = -1;

	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len >= CMSG_LEN(sizeof(int)))
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

/* is_mark says whether bytes came with a mark, also where this process has no descriptor left for what the mark brings. */
static bool is_mark(struct msghdr *m)
{
	int with = came(m);

	if (with >= 0)
		SYS(close, with);
	return with >= 0 || (m->msg_flags & MSG_CTRUNC);
}

/*
 * peek_on goes on with a peek, so many bytes behind the beginning of what is in the socket: the kernel ends it at a mark, and
 * would again, however much comes.
 */
static size_t peek_on(int fd, struct span *s, size_t behind)
{
	int at = (int)behind, off = -1;
	socklen_t len = sizeof(off);
	size_t before = s->left;
	long n = 1;

	if (SYS(getsockopt, fd, SOL_SOCKET, SO_PEEK_OFF, &off, &len) != 0 || off != -1 ||
	    SYS(setsockopt, fd, SOL_SOCKET, SO_PEEK_OFF, &at, sizeof(at)) != 0)
		return 0;
	while (s->left && n > 0) {
		struct iovec parts[SPAN_PARTS];
		struct msghdr m = {.msg_iov = parts, .msg_iovlen = span_parts(s, parts)};

		n = SYS(recvmsg, fd, &m, MSG_PEEK | MSG_DONTWAIT);
		if (n > 0)
			span_skip(s, (size_t)n);
	}
	SYS(setsockopt, fd, SOL_SOCKET, SO_PEEK_OFF, &off, sizeof(off));
	return before - s->left;
}

/* attach takes a ring that has come with the bytes just read. The caller has passed the gate. */
static void attach(struct end *e, int fd, int memfd)
{
	uint32_t none = ATTACHED_NOT;
	struct ring *r;

	if ((__atomic_load_n(&e->never, __ATOMIC_SEQ_CST) & NEVER_IN) || !end_alone(e) || !end_is(fd, e) || !gate_close(&e->receiving)) {
		SYS(close, memfd);
		return;
	}
	r = ring_take(memfd);
	SYS(close, memfd);
	if (r) {
		ring_ref(r);
		__atomic_store_n(&e->in, r, __ATOMIC_SEQ_CST);
		/* Who was forked before has no ring, and would take tokens for bytes; who is forked from now on has it. */
		if (!end_alone(e) || !__atomic_compare_exchange_n(&r->h->attached, &none, ATTACHED_YES, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
			r->side->state = RING_ENDED;
			end_forget(&e->in, r);
		} else if (e->turned == TURNED_NOT && e->turns >= HINTS && r->size != RING_BYTES_ANSWERS) {
			e->turned = TURNED_YES;
		}
		ring_unref(r);
	}
	gate_open(&e->receiving);
}

static uint16_t outstanding(const struct ring *r, uint64_t pub)
{
	return (uint16_t)(pub_count(pub) - r->side->taken);
}

/* eat takes so many tokens out of the socket, as far as they are there. */
static void eat(struct ring *r, int fd, uint16_t n)
{
	char tokens[64];

	while (n) {
		long got = SYS(recvfrom, fd, tokens, n < sizeof(tokens) ? n : sizeof(tokens), MSG_DONTWAIT, NULL, NULL);

		if (got <= 0)
			return;
		r->side->taken = (uint16_t)(r->side->taken + got);
		n = (uint16_t)(n - got);
	}
}

enum turn {
	TURN_BYTES, /* some were read */
	TURN_AGAIN, /* look again */
	TURN_EMPTY, /* nothing is there, and a token will come */
	TURN_ENDED,
	TURN_RESULT, /* what the kernel said is in *result */
};

static size_t used(const struct ring *r, uint64_t pub)
{
	return (size_t)((pub - r->side->cursor) & PUB_HEAD);
}

/* peek_ring shows what is in the ring, and behind it if the writer has left. What pub says is looked at once: it can change. */
static void peek_ring(struct ring *r, int fd, uint64_t pub, struct span *s)
{
	size_t all = used(r, pub);
	size_t n = all < s->left ? all : s->left;
	size_t at = (size_t)(r->side->cursor & (r->size - 1));
	size_t first = r->size - at < n ? r->size - at : n;

	if (all > r->size)
		return; /* turn_joined sees it before, and the next one will */
	span_copy(s, r->data + at, first, false);
	span_skip(s, first);
	span_copy(s, r->data, n - first, false);
	span_skip(s, n - first);
	if (s->left && (pub & PUB_WRITER_LEFT))
		peek_on(fd, s, outstanding(r, pub));
}

/* turn_waiting reads in-band, up to the second mark. */
static enum turn turn_waiting(struct ring *r, int fd, struct span *s, int flags, long *result)
{
	struct iovec parts[SPAN_PARTS];
	struct control control;
	struct msghdr m = with_control(parts, span_parts(s, parts), &control);
	bool withdrawn = pub_load(r) & PUB_WITHDRAWN;

	*result = SYS(recvmsg, fd, &m, (flags & (MSG_PEEK | MSG_TRUNC)) | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (*result > 0 && is_mark(&m)) {
		if (pub_load(r) & PUB_WITHDRAWN) {
			withdrawn = true; /* it is the first mark of another ring, which we do not take */
		} else if (!(flags & MSG_PEEK)) {
			r->side->state = RING_JOINED;
		} else if (!(flags & MSG_TRUNC)) {
			span_skip(s, (size_t)*result);
			peek_ring(r, fd, pub_load(r), s);
			return TURN_BYTES;
		}
	}
	if (withdrawn)
		r->side->state = RING_ENDED;
	if (*result > 0) {
		if (!(flags & MSG_PEEK))
			span_skip(s, (size_t)*result);
		return TURN_BYTES;
	}
	if (withdrawn)
		return *result == -EAGAIN ? TURN_ENDED : TURN_RESULT;
	return *result == -EAGAIN ? TURN_EMPTY : TURN_RESULT;
}

/* arm has the next publication come with a token, and takes those out that came before. False: it is not empty. */
static bool arm(struct ring *r, int fd, uint64_t pub)
{
	if (!(pub & PUB_ARMED) && !pub_swap(r, &pub, pub | PUB_ARMED))
		return false;
	eat(r, fd, outstanding(r, pub));
	/* One that is on its way would say that something is here. If it is not here soon, its writer is stopped. */
	for (int i = 0; i < TURNS && outstanding(r, pub) != 0; i++) {
		SYS(sched_yield);
		eat(r, fd, outstanding(r, pub));
	}
	return true;
}

/* turn_empty sees to a ring in which nothing is. */
static enum turn turn_empty(struct ring *r, int fd, uint64_t pub, bool woken)
{
	char c;

	if (pub & PUB_WRITER_LEFT) {
		eat(r, fd, outstanding(r, pub));
		if (outstanding(r, pub) == 0)
			r->side->state = RING_ENDED;
		return outstanding(r, pub) == 0 ? TURN_ENDED : TURN_EMPTY;
	}
	if (!arm(r, fd, pub))
		return TURN_AGAIN;
	if (woken && outstanding(r, pub) == 0 &&
	    SYS(recvfrom, fd, &c, 1, MSG_PEEK | MSG_DONTWAIT, NULL, NULL) == 1 && pub_load(r) == (pub | PUB_ARMED))
		ring_broken(r, fd); /* a token that was not announced */
	return TURN_EMPTY;
}

/*
 * more looks for a moment whether more comes, where that has paid: a token costs both sides as much as many small
 * sends. It does not pay where the two programs share a processor.
 */
static bool more(struct ring *r, int *patience)
{
	struct ring_side *side = r->side;

	if (side->luck == 0 && ++side->drained % RETRY != 0)
		return false;
	for (int i = 0; i < SPINS; i++) {
		if (used(r, pub_load(r)) != 0) {
			for (int j = 0; j < GATHER && used(r, pub_load(r)) < ENOUGH; j++)
				for (int k = 0; k < 4; k++)
					pause_cpu();
			if (side->luck < LUCK_MOST)
				side->luck++;
			--*patience;
			return true;
		}
		pause_cpu();
	}
	if (side->luck)
		side->luck--;
	*patience = -1; /* nothing comes */
	return false;
}

/* turn_joined reads what is in the ring. */
static enum turn turn_joined(struct ring *r, int fd, struct span *s, int flags, bool woken, int *patience)
{
	uint64_t pub = pub_load(r);
	size_t n, first;
	size_t at = (size_t)(r->side->cursor & (r->size - 1));

	if (pub & PUB_LOOK) /* of another thread */
		pub = __atomic_and_fetch(&r->h->pub, ~PUB_LOOK, __ATOMIC_SEQ_CST);
	n = used(r, pub);
	if (n > r->size) {
		ring_broken(r, fd);
		return TURN_AGAIN;
	}
	if (n == 0)
		return turn_empty(r, fd, pub, woken);
	if ((flags & MSG_PEEK) && !(flags & MSG_TRUNC)) {
		peek_ring(r, fd, pub, s);
		return TURN_BYTES;
	}
	if (n > s->left)
		n = s->left;
	first = r->size - at < n ? r->size - at : n;
	if (!(flags & MSG_TRUNC)) {
		struct span rest = *s;

		span_copy(s, r->data + at, first, false);
		span_skip(&rest, first);
		if (n > first)
			span_copy(&rest, r->data, n - first, false);
	}
	span_skip(s, n);
	if (flags & MSG_PEEK)
		return TURN_BYTES;
	r->side->cursor = (r->side->cursor + n) & PUB_HEAD;
	__atomic_store_n(&r->h->tail, r->side->cursor, __ATOMIC_SEQ_CST);
	pub = pub_load(r);
	if (used(r, pub) == 0 && !(pub & PUB_WRITER_LEFT) && !(s->left && *patience > 0 && more(r, patience)))
		arm(r, fd, pub);
	if (__atomic_load_n(&r->h->wanted, __ATOMIC_SEQ_CST) && used(r, pub_load(r)) <= r->size / 2) {
		uint16_t tokens;

		__atomic_store_n(&r->h->wanted, 0, __ATOMIC_SEQ_CST);
		pub = pub_load(r);
		tokens = outstanding(r, pub);
		if (tokens > 1 && tokens < 256)
			eat(r, fd, (uint16_t)(tokens - 1)); /* one says that more is here */
	}
	return TURN_BYTES;
}

/*
 * look has a blocking reader look into the empty ring for a while, where that has paid: neither side makes a system
 * call then. The writer leaves out the token as long as all that it has written fits what the reader has asked for, so that no
 * byte is left for which there is no token. It is true if something came.
 */
static bool look(struct ring *r, size_t want)
{
	struct ring_side *side = r->side;
	uint64_t code = 1, pub;
	bool begun, paid;

	side->futile++;
	if ((side->pays == 0 && ++side->looks % RETRY != 0) ||
	    __atomic_load_n(&r->h->processor, __ATOMIC_RELAXED) == (uint32_t)sched_getcpu() + 1)
		return false;
	if (want > r->size / 2)
		want = r->size / 2;
	while (code < 15 && 1ull << code <= want)
		code++;
	if (!ring_lock(r))
		return false;
	pub = pub_load(r);
	begun = side->state == RING_JOINED && used(r, pub) == 0 && (pub & PUB_ARMED) && !(pub & (PUB_LOOK | PUB_WRITER_LEFT)) &&
		outstanding(r, pub) == 0 && pub_swap(r, &pub, pub | code << PUB_LOOK_SHIFT);
	ring_unlock(r);
	if (!begun)
		return false;
	pub |= code << PUB_LOOK_SHIFT;
	for (uint64_t i = 0, until = 0; pub_load(r) == pub; i++) {
		if (i % 64 == 0 && until == 0)
			until = precise_now() + LOOK;
		else if (i % 64 == 0 && precise_now() > until)
			break;
		pause_cpu();
	}
	paid = used(r, __atomic_fetch_and(&r->h->pub, ~PUB_LOOK, __ATOMIC_SEQ_CST)) != 0;
	if (paid) {
		side->pays = LUCK_MOST;
		side->futile = 0;
	} else if (side->pays) {
		side->pays--;
	}
	return paid;
}

/* ring_receive reads what it can. *ended: the rest is in the socket. */
static ssize_t ring_receive(struct end *e, struct ring *r, int fd, struct span *s, size_t all, int flags, bool *ended)
{
	bool waitall = (flags & MSG_WAITALL) && !(flags & MSG_PEEK);
	int patience = PATIENCE;
	bool woken = false, looked = false;
	char c;

	for (;;) {
		enum turn turn = TURN_RESULT;
		long result = -ECONNRESET;
		size_t before = s->left;

		if (!ring_lock(r))
			result = -EAGAIN;
		else {
			switch ((enum ring_state)r->side->state) {
			case RING_WAITING:
				turn = turn_waiting(r, fd, s, flags, &result);
				break;
			case RING_JOINED:
				turn = turn_joined(r, fd, s, flags, woken, &patience);
				break;
			case RING_ENDED:
				turn = TURN_ENDED;
				break;
			case RING_BROKEN:
				ring_broken(r, fd);
				break;
			}
			ring_unlock(r);
		}
		switch (turn) {
		case TURN_BYTES:
			if (flags & MSG_PEEK)
				return s->left == before ? (ssize_t)result : (ssize_t)(before - s->left);
			woken = false;
			if (s->left == 0)
				return (ssize_t)all;
			if (patience == 0 && !waitall && would_wait(fd, flags))
				return (ssize_t)(all - s->left); /* more is there, and so is a token */
			continue; /* a short read says to some that nothing more is there */
		case TURN_AGAIN:
			continue;
		case TURN_ENDED:
			*ended = true;
			return (ssize_t)(all - s->left);
		case TURN_RESULT:
			if (all == s->left)
				return sys_return(result);
			if (sys_return(result) < 0)
				end_later(e);
			return (ssize_t)(all - s->left);
		case TURN_EMPTY:
			break;
		}
		if (all != s->left && !waitall)
			return (ssize_t)(all - s->left);
		if (would_wait(fd, flags)) {
			if (!looked && !woken && !(flags & MSG_PEEK)) {
				looked = true;
				if (look(r, s->left))
					continue;
			}
			result = next.recv(fd, &c, 1, MSG_PEEK);
		}
		else
			result = sys_return(SYS(recvfrom, fd, &c, 1, MSG_PEEK | MSG_DONTWAIT, NULL, NULL));
		if (__atomic_load_n(&e->in, __ATOMIC_SEQ_CST) != r && r->side->state != RING_ENDED) {
			errno = EBADF; /* it was closed meanwhile, and the number may be another's */
			result = -1;
		}
		if (result > 0) {
			woken = true;
			continue;
		}
		if (result == 0 && !woken) {
			woken = true; /* what was written before the end is there by now */
			continue;
		}
		if (all == s->left)
			return (ssize_t)result;
		if (result < 0)
			end_later(e);
		return (ssize_t)(all - s->left);
	}
}

static __thread struct luck receiving __attribute__((tls_model("initial-exec")));

/* plain reads in-band, where no ring is known. */
static ssize_t plain(struct end *e, int fd, struct span *s, int flags, int *out, bool *marked)
{
	struct iovec parts[SPAN_PARTS];
	struct control control;
	struct msghdr m;
	size_t shown = 0;
	ssize_t n;
	bool passed = gate_enter(&e->receiving);
	int memfd;

	if (__atomic_load_n(&e->in, __ATOMIC_SEQ_CST)) {
		if (passed)
			gate_exit(&e->receiving);
		*marked = true;
		return 0;
	}
	m = with_control(parts, span_parts(s, parts), &control);
	for (size_t i = 0; i < m.msg_iovlen; i++)
		shown += parts[i].iov_len;
	if (!(flags & (MSG_PEEK | MSG_DONTWAIT)) && __atomic_load_n(&e->waits, __ATOMIC_RELAXED))
		look_before(fd, &receiving);
	n = next.recvmsg(fd, &m, flags | MSG_CMSG_CLOEXEC);
	if (n > 0 && (flags & MSG_PEEK)) {
		struct span rest = *s;

		span_skip(&rest, (size_t)n);
		if ((is_mark(&m) || (size_t)n == shown) && !(flags & MSG_TRUNC))
			n += (ssize_t)peek_on(fd, &rest, (size_t)n);
	} else if (n > 0 && (memfd = came(&m)) >= 0) {
		int saved = errno;

		*marked = true;
		if (passed)
			attach(e, fd, memfd);
		else
			SYS(close, memfd);
		errno = saved;
	} else if (n > 0 && (m.msg_flags & MSG_CTRUNC)) {
		*marked = true; /* there was no descriptor left for it */
	}
	if (passed)
		gate_exit(&e->receiving);
	if (n > 0 && !(flags & MSG_PEEK)) {
		if ((size_t)n == shown)
			*marked = true; /* there may be more parts than the kernel was shown */
		span_skip(s, (size_t)n);
	}
	*out = m.msg_flags & ~(MSG_CTRUNC | MSG_CMSG_CLOEXEC);
	return n;
}

/* end_receive reads as recvmsg does. NOT_OURS: nothing was done, the descriptor is something else. */
ssize_t end_receive(struct end *e, int fd, const struct iovec *iov, size_t count, int flags, int *out)
{
	int wanted = flags;
	int saved = errno;
	struct span s;
	size_t all;

	*out = 0;
	if (!span_init(&s, iov, count) || s.left == 0 || count > IOV_MAX || (flags & (MSG_OOB | MSG_ERRQUEUE)))
		return NOT_OURS;
	all = s.left;
	__atomic_store_n(&e->streak, 0, __ATOMIC_RELAXED);
	for (;;) {
		bool again = false;
		struct ring *r;
		ssize_t n;

		if (ring_enter(&e->in, &r)) {
			n = NOT_OURS;
			if (all == s.left && !end_still(fd, e)) {
				end_drop(fd);
			} else {
				n = ring_receive(e, r, fd, &s, all, flags, &again);
				if (again)
					end_forget(&e->in, r);
				else if (r->side->futile > FUTILE && e->turned == TURNED_YES && leave_in(e, fd)) {
					e->turned = TURNED_TRIED;
					leave_out(e, fd);
				}
			}
			ring_exit(r);
		} else {
			n = plain(e, fd, &s, flags, out, &again);
			if (n == 0 && !again && all != s.left)
				n = (ssize_t)(all - s.left);
			if (n < 0 && errno == ENOTSOCK && all == s.left) {
				end_drop(fd);
				return NOT_OURS;
			}
			if (flags & MSG_PEEK && n > 0)
				return n;
		}
		if (again && s.left) {
			/* What was asked for may be there, but what was read is enough. */
			if (all != s.left && !(wanted & MSG_WAITALL))
				flags |= MSG_DONTWAIT;
			continue;
		}
		if (n < 0 && all != s.left) {
			end_later(e);
			n = 0;
		}
		if (n == 0 && all == s.left && (end_tell(e) || reset_came(e, fd))) {
			errno = ECONNRESET;
			n = -1;
		}
		if (n < 0) {
			if (errno == ECONNRESET)
				__atomic_fetch_or(&e->never, GONE_RESET, __ATOMIC_SEQ_CST);
			return n;
		}
		errno = saved;
		return (ssize_t)(all - s.left) > 0 ? (ssize_t)(all - s.left) : n;
	}
}

static void leaves(struct ring *r, int fd)
{
	uint32_t yes = ATTACHED_YES;
	uint64_t pub = pub_load(r);

	switch ((enum ring_state)r->side->state) {
	case RING_WAITING:
		if ((pub & PUB_WITHDRAWN) ||
		    __atomic_compare_exchange_n(&r->h->attached, &yes, ATTACHED_NO_MORE, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			r->side->state = RING_ENDED;
		break;
	case RING_JOINED:
		for (int i = 0; i < 1000 && used(r, pub) == 0 && outstanding(r, pub) != 0; i++) {
			eat(r, fd, outstanding(r, pub));
			if (outstanding(r, pub) != 0)
				SYS(sched_yield); /* one that was announced is on its way */
			pub = pub_load(r);
		}
		if (used(r, pub) == 0 && outstanding(r, pub) == 0 &&
		    ((pub & PUB_WRITER_LEFT) || pub_swap(r, &pub, (pub & ~(PUB_ARMED | PUB_LOOK)) | PUB_READER_LEFT)))
			r->side->state = RING_ENDED;
		break;
	case RING_ENDED:
	case RING_BROKEN:
		break;
	}
}

/* leave_in has what is to be read come in-band. False: there are bytes in the ring, which only we can read. */
bool leave_in(struct end *e, int fd)
{
	return end_leaves(e, fd, &e->in, leaves);
}

/* receive_waiting is how many bytes can be read from a ring; those in the socket come besides, or are tokens. */
bool receive_waiting(struct end *e, size_t *n)
{
	bool joined = false;
	struct ring *r;

	if (!ring_enter(&e->in, &r))
		return false;
	if (r->side->state == RING_JOINED) {
		*n = used(r, pub_load(r));
		joined = *n <= r->size;
	}
	ring_exit(r);
	return joined;
}

/* receive_tidy takes tokens out that nothing is behind: to close with bytes unread means a reset to the peer. */
void receive_tidy(struct end *e, int fd)
{
	struct ring *r;
	uint64_t pub;

	if (!ring_enter(&e->in, &r))
		return;
	if (r->side->state == RING_JOINED && end_is(fd, e) && ring_lock(r)) {
		pub = pub_load(r);
		if (used(r, pub) == 0)
			eat(r, fd, outstanding(r, pub));
		ring_unlock(r);
	}
	ring_exit(r);
}
