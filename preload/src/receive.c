/* Receiving: a ring that comes in-band, the place where it begins, and the bytes that are read from it. */
#include "ring.h"

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>

#define TURNS 16     /* of waiting for a token that was announced */
#define TOKENS_MANY 16 /* in the socket, of which all but one are taken out */
#define TOKENS_MOST 64 /* behind bytes in-band, where they cannot be taken out */
#define SPINS 60     /* of looking for more: some microseconds */
#define GATHER 5     /* of letting more of it come, in steps of four */
#define ENOUGH 4096
#define PATIENCE 16  /* times in one receive */
#define LUCK_MOST 8
#define FUTILE                                                                                               \
	512 /* waits in a row in which it did not pay, after which programs that take turns leave their      \
	       rings */
#define FINISH_PAYS 6 /* answers that are there after a sleep */
#define FINISH_LUCK 4
#define FINISH_SELDOM 64
#define FINISH_SELDOMEST 4096
#define RETRY 64 /* times that the ring is drained, after which luck is tried again */

/* take_note says in one store how many tokens were taken, and how many are asked for. */
static void take_note(struct ring *r, uint16_t taken, uint16_t asked)
{
	__atomic_store_n(&r->side->taken, (uint32_t)asked << 16 | taken, __ATOMIC_RELEASE);
}

#define UNTAKEN 0xff /* no token: where they are read to, before */

/* eat takes so many tokens out of the socket, as far as they are there. */
static void eat(struct ring *r, int fd, uint16_t n)
{
	struct ring_side *side = r->side;

	while (n) {
		uint16_t ask = n < sizeof(side->tokens) ? n : sizeof(side->tokens);
		uint16_t taken = (uint16_t)side->taken;
		long got;

		memset(side->tokens, UNTAKEN, ask);
		take_note(r, taken, ask);
		got = SYS(recvfrom, fd, side->tokens, ask, MSG_DONTWAIT, NULL, NULL);
		take_note(r, (uint16_t)(taken + (got > 0 ? got : 0)), 0);
		if (got <= 0)
			return;
		n = (uint16_t)(n - got);
	}
}

/* eaten ends an eat that was left: tokens that the kernel had taken out are written down. */
static void eaten(struct ring *r)
{
	uint16_t taken = (uint16_t)r->side->taken;

	for (uint32_t i = 0; i < r->side->taken >> 16 && i < sizeof(r->side->tokens); i++)
		taken = (uint16_t)(taken + (r->side->tokens[i] != UNTAKEN));
	take_note(r, taken, 0);
}

enum turn {
	TURN_BYTES, /* some were read */
	TURN_AGAIN, /* look again */
	TURN_EMPTY, /* nothing is there, and a token will come */
	TURN_ENDED,
	TURN_RESULT, /* the kernel's result is in *result */
};

/*
 * peek_ring shows the bytes in the ring, and behind it if one of the two has left. before is how
 * many bytes are in the socket that came before the ring's. pub is read once, by the caller: it can
 * change.
 */
static void peek_ring(struct ring *r, int fd, uint64_t pub, struct span *s, size_t before)
{
	size_t all = used(r, pub);
	size_t n = all < s->left ? all : s->left;
	size_t at = ring_place(r, r->side->cursor);
	size_t first = r->size - at < n ? r->size - at : n;

	if (all > r->size)
		return; /* turn_joined sees it before, and the next one will */
	span_copy(s, r->data + at, first, false);
	span_skip(s, first);
	span_copy(s, r->data, n - first, false);
	span_skip(s, n - first);
	if (s->left && (pub & PUB_LEFT))
		peek_on(fd, s, before + outstanding(r, pub));
}

/* came_in ends the reading of a message that may be a mark. */
static void came_in(struct ring *r)
{
	int with = came(&r->side->coming);

	__atomic_store_n(&r->side->reads, READS_NOT, __ATOMIC_RELEASE);
	if (with >= 0)
		SYS(close, with);
}

/*
 * turn_gift is turn_waiting where no mark comes. The writer switches when everything in the socket has been
 * read: so all that is there before it is seen that it has not switched is bytes, and no more than that is
 * taken; and all that is there afterwards is tokens.
 */
static enum turn turn_gift(struct end *e, struct ring *r, int fd, struct span *s, int flags, long *result)
{
	struct iovec parts[SPAN_PARTS];
	size_t n = span_parts(s, parts);
	bool withdrawn, switched;

	if (r->side->edges)
		receive_arm(r, fd);
	*result = gift_receive(r, fd, parts, n, flags & MSG_PEEK, &switched);
	withdrawn = pub_load(r) & PUB_WITHDRAWN;
	if (switched) {
		r->side->state = RING_JOINED;
		if (*result != -EAGAIN && sys_return(*result) < 0)
			end_later(e); /* which the kernel says no more */
		return TURN_AGAIN;
	}
	if (withdrawn)
		r->side->state = RING_ENDED;
	if (*result > 0) {
		if (!(flags & MSG_PEEK))
			span_skip(s, (size_t)*result);
		return TURN_BYTES;
	}
	if (*result != -EAGAIN)
		return TURN_RESULT;
	return withdrawn ? TURN_ENDED : TURN_EMPTY;
}

/* turn_waiting reads in-band, up to the second mark. */
static enum turn turn_waiting(struct ring *r, int fd, struct span *s, int flags, long *result)
{
	struct iovec parts[SPAN_PARTS];
	struct ring_side *side = r->side;
	bool withdrawn = pub_load(r) & PUB_WITHDRAWN;
	bool marked;

	if (side->edges)
		receive_arm(r, fd);
	side->coming = with_control(parts, span_parts(s, parts), &side->control);
	__atomic_store_n(&side->reads, flags & MSG_PEEK ? READS_PEEK : READS_TAKE, __ATOMIC_RELEASE);
	*result = SYS(recvmsg, fd, &side->coming, (flags & MSG_PEEK) | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	marked = *result > 0 && is_mark(&side->coming);
	if (marked && (pub_load(r) & PUB_WITHDRAWN))
		withdrawn = true; /* it is the first mark of another ring, which we do not take */
	else if (marked && !(flags & MSG_PEEK))
		side->state = RING_JOINED;
	came_in(r);
	if (marked && !withdrawn && (flags & MSG_PEEK)) {
		span_skip(s, (size_t)*result);
		peek_ring(r, fd, pub_load(r), s, (size_t)*result);
		return TURN_BYTES;
	}
	if (withdrawn)
		side->state = RING_ENDED;
	if (*result > 0) {
		if (!(flags & MSG_PEEK))
			span_skip(s, (size_t)*result);
		return TURN_BYTES;
	}
	if (withdrawn)
		return *result == -EAGAIN ? TURN_ENDED : TURN_RESULT;
	return *result == -EAGAIN ? TURN_EMPTY : TURN_RESULT;
}

/*
 * arm has the next publication come with a token, and takes those out that came before. False: it is not
 * empty.
 */
static bool arm(struct ring *r, int fd, uint64_t pub)
{
	if (!(pub & PUB_ARMED) && !pub_swap(r, &pub, pub | PUB_ARMED))
		return false;
	eat(r, fd, outstanding(r, pub));
	/*
	 * One that is on its way would say that something is here. If it is not here soon, its writer is
	 * stopped.
	 */
	for (int i = 0; i < TURNS && outstanding(r, pub) != 0; i++) {
		SYS(sched_yield);
		eat(r, fd, outstanding(r, pub));
	}
	return true;
}

/* end_empty ends a ring that was left and in which nothing is. False: a token is on its way still. */
static bool end_empty(struct ring *r, int fd, uint64_t pub)
{
	eat(r, fd, outstanding(r, pub));
	if (outstanding(r, pub) != 0)
		return false;
	r->side->state = RING_ENDED;
	return true;
}

/* turn_empty sees to a ring in which nothing is. */
static enum turn turn_empty(struct end *e, struct ring *r, int fd, uint64_t pub, bool woken)
{
	long there;
	char c;

	if (pub & PUB_LEFT)
		return end_empty(r, fd, pub) ? TURN_ENDED : TURN_EMPTY;
	if (!arm(r, fd, pub))
		return TURN_AGAIN;
	if (!woken || outstanding(r, pub) != 0)
		return TURN_EMPTY;
	there = SYS(recvfrom, fd, &c, 1, MSG_PEEK | MSG_DONTWAIT, NULL, NULL);
	if (there == 1 && pub_load(r) == (pub | PUB_ARMED))
		ring_broken(r, fd); /* a token that was not announced */
	else if (sys_return(there) < 0)
		end_later(e); /* which the kernel says no more */
	return TURN_EMPTY;
}

/*
 * more looks for a moment whether more comes, where that has paid: a token costs both sides as much as many
 * small sends. It does not pay where the two programs share a processor.
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

/* spare takes all tokens out but one, which says that more is here. */
static void spare(struct ring *r, int fd)
{
	uint16_t tokens = outstanding(r, pub_load(r));

	if (tokens > 1 && tokens < 256)
		eat(r, fd, (uint16_t)(tokens - 1));
}

/*
 * receive_arm has the next publication come with a token although bytes are in the ring, for a
 * program that relies on an edge of every arrival. Nothing can come into a ring that is full: that
 * is armed with the next read. The lock is held.
 */
void receive_arm(struct ring *r, int fd)
{
	struct ring_side *side = r->side;
	uint64_t pub = pub_load(r);
	uint16_t tokens = outstanding(r, pub);

	if (side->state != RING_JOINED && side->state != RING_WAITING)
		return;
	side->edges |= EDGE_DUE;
	if (side->state == RING_WAITING && tokens >= TOKENS_MOST)
		return;
	while (!(pub & (PUB_ARMED | PUB_WRITER_LEFT | PUB_READER_LEFT | PUB_WITHDRAWN)) && used(r, pub) < r->size)
		if (pub_swap(r, &pub, pub | PUB_ARMED))
			pub |= PUB_ARMED;
	if (used(r, pub) < r->size)
		side->edges &= ~EDGE_DUE;
	if (side->state != RING_JOINED)
		return;
	if (__atomic_load_n(&r->h->wanted, __ATOMIC_SEQ_CST))
		side->pressed = 1;
	if (tokens > TOKENS_MANY || (side->pressed && !__atomic_load_n(&r->h->wanted, __ATOMIC_SEQ_CST)))
		spare(r, fd);
}

/*
 * receive_no_more has nothing more come into a ring that has bytes: the bytes behind them are
 * in-band. The lock is held.
 */
void receive_no_more(struct ring *r)
{
	uint64_t pub = pub_load(r);

	while ((r->side->state == RING_WAITING || r->side->state == RING_JOINED) &&
		!(pub & (PUB_LEFT | PUB_WITHDRAWN)) &&
		!pub_swap(r, &pub, (pub & ~(PUB_ARMED | PUB_LOOK)) | PUB_READER_LEFT))
		;
}

/* make_room lets a writer go on that waits. */
static void make_room(struct ring *r, int fd)
{
	if (__atomic_load_n(&r->h->wanted, __ATOMIC_SEQ_CST) && used(r, pub_load(r)) <= r->size / 2) {
		r->side->pressed = 1;
		__atomic_store_n(&r->h->wanted, 0, __ATOMIC_SEQ_CST);
		spare(r, fd);
	}
}

/* turn_joined reads the bytes in the ring. *armed: these were all, and the next ones come with a token. */
static enum turn turn_joined(struct end *e, struct ring *r, int fd, struct span *s, int flags, bool woken,
	int *patience, bool *armed)
{
	uint64_t pub = pub_load(r);
	size_t n, first, at;

	if ((pub & PUB_LOOK) && !r->busy) /* of another thread */
		pub = __atomic_and_fetch(&r->h->pub, ~PUB_LOOK, __ATOMIC_SEQ_CST);
	n = used(r, pub);
	if (n > r->size) {
		ring_broken(r, fd);
		return TURN_AGAIN;
	}
	if (n == 0)
		return turn_empty(e, r, fd, pub, woken);
	if (flags & MSG_PEEK) {
		if (r->side->edges)
			receive_arm(r, fd);
		peek_ring(r, fd, pub, s, 0);
		return TURN_BYTES;
	}
	if (n > s->left)
		n = s->left;
	at = ring_place(r, r->side->cursor); /* after pub: the base was there before the bytes */
	first = r->size - at < n ? r->size - at : n;
	if (!(flags & MSG_TRUNC)) {
		struct span rest = *s;

		span_copy(s, r->data + at, first, false);
		span_skip(&rest, first);
		if (n > first)
			span_copy(&rest, r->data, n - first, false);
	}
	span_skip(s, n);
	r->side->cursor = (r->side->cursor + n) & PUB_HEAD;
	__atomic_store_n(&r->h->tail, r->side->cursor, __ATOMIC_SEQ_CST);
	pub = pub_load(r);
	if (used(r, pub) == 0 && (pub & PUB_LEFT))
		end_empty(r, fd, pub); /* a token that stayed would say that something is there */
	else if (used(r, pub) == 0 && !(s->left && *patience > 0 && !r->busy && more(r, patience)) &&
		arm(r, fd, pub)) {
		*armed = true;
		busy_drained(e, r, fd);
	}
	make_room(r, fd);
	if (r->side->edges)
		receive_arm(r, fd);
	return TURN_BYTES;
}

/*
 * let_finish lets a writer go on that a token of its own has had interrupted on this processor, in the middle
 * of an answer: TCP would have kept the first part for the second, and here each would cost a token, a
 * wake-up and two reads. It sleeps for as short as the kernel can, 50 us: sched_yield would give the
 * processor to others, too, for as long as they like. That pays where there are answers to many connections
 * to be sent meanwhile, as is seen by how many there are to read then; else it is tried ever more seldom.
 */
static void let_finish(const struct ring *r)
{
	static __thread struct finish {
		uint32_t answers; /* since the last one that was not complete */
		uint32_t luck, waits, seldom;
		bool slept;
	} f __attribute__((tls_model("initial-exec")));
	uint32_t processor = __atomic_load_n(&r->h->processor, __ATOMIC_RELAXED);
	struct timespec least = {.tv_nsec = 1};

	if (r->size != RING_BYTES_ANSWERS || (pub_load(r) & PUB_ARMED))
		return;
	f.answers++;
	if (processor != (PROCESSOR_MORE | ((uint32_t)sched_getcpu() + 1)))
		return;
	if (f.slept && f.answers >= FINISH_PAYS) {
		f.luck = FINISH_LUCK;
		f.seldom = 0;
	} else if (f.slept && f.luck) {
		f.luck--;
	} else if (f.slept && f.seldom < FINISH_SELDOMEST) {
		f.seldom = f.seldom * 2 + FINISH_SELDOM;
	}
	f.answers = 0;
	f.slept = f.luck || ++f.waits > f.seldom;
	if (f.slept) {
		f.waits = 0;
		SYS(nanosleep, &least, NULL);
	}
}

/*
 * The state of a receive that waits more than once, for all its bytes, or as it was woken up for
 * nothing: the socket's time limit is for all its waits together.
 */
struct waits {
	unsigned vain; /* times in a row that the peer has woken it up without having written anything */
	uint64_t head; /* of the ring, at the last of them */
	bool waited;
	uint64_t began; /* 0: not known */
	uint64_t until; /* 0: not known yet */
};

/*
 * wait_again waits until something comes, as a peek does that is told of an end, a signal and the
 * time limit by the kernel. limited: there may be a limit; else the first wait is not counted, so
 * that no clock is looked at. some: the receive has bytes to return, so each signal ends it, and an
 * error is left to the next call. If a filter of system calls may kill the program for asking for
 * the limit, each wait has all of it.
 */
static ssize_t wait_again(int fd, struct waits *w, bool limited, bool some)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	struct timeval limit = {0};
	socklen_t len = sizeof(limit);
	bool first = !w->waited;
	struct timespec rest;
	uint64_t now;
	char c;

	w->waited = true;
	if (w->began == 0 && (!first || limited))
		w->began = precise_now();
	if ((first && !some) || guard_on() || !next.ppoll)
		return next.recv(fd, &c, 1, MSG_PEEK);
	if (w->until == 0) {
		w->until = UINT64_MAX;
		if (SYS(getsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &len) == 0 &&
			(limit.tv_sec || limit.tv_usec) && limit.tv_sec < 1000000000)
			w->until = w->began + (uint64_t)limit.tv_sec * 1000000000u + (uint64_t)limit.tv_usec * 1000u;
	}
	if (w->until == UINT64_MAX && !some)
		return next.recv(fd, &c, 1, MSG_PEEK);
	now = precise_now();
	now = now < w->until ? w->until - now : 0;
	rest = (struct timespec){.tv_sec = (time_t)(now / 1000000000u), .tv_nsec = (long)(now % 1000000000u)};
	if (next.ppoll(&p, 1, w->until == UINT64_MAX ? NULL : &rest, NULL) < 0)
		return errno == EINVAL ? next.recv(fd, &c, 1, MSG_PEEK)
				       : -1; /* with RLIMIT_NOFILE 0 none may be polled */
	if (some && (p.revents & POLLERR))
		return 0;
	return sys_return(SYS(recvfrom, fd, &c, 1, MSG_PEEK | MSG_DONTWAIT, NULL, NULL));
}

/*
 * woken_up counts the times in a row that a receive was woken up for nothing, and resets the
 * connection if there are too many.
 */
static void woken_up(struct ring *r, int fd, struct waits *w)
{
	uint64_t head = pub_load(r) & PUB_HEAD;

	if (r->side->state != RING_JOINED || head != w->head)
		w->vain = 0;
	w->head = head;
	if (++w->vain > VAIN && ring_lock(r)) {
		ring_broken(r, fd);
		ring_unlock(r);
	}
}

/* ring_receive reads as much as it can. *ended: the rest is in the socket. */
static ssize_t ring_receive(
	struct end *e, struct ring *r, int fd, struct span *s, size_t all, int flags, bool *ended)
{
	bool waitall = (flags & MSG_WAITALL) && !(flags & MSG_PEEK);
	int patience = PATIENCE;
	bool woken = false, over = false, looked = false, off = false, armed = false;
	struct waits waits = {0};
	uint64_t signals = 0;
	char c;

	let_finish(r);
	for (;;) {
		enum turn turn = TURN_RESULT;
		long result = -ECONNRESET;
		size_t before = s->left;

		if (!ring_lock(r))
			result = -EAGAIN;
		else {
			switch ((enum ring_state)r->side->state) {
			case RING_WAITING:
				turn = r->gift ? turn_gift(e, r, fd, s, flags, &result)
					       : turn_waiting(r, fd, s, flags, &result);
				break;
			case RING_JOINED:
				turn = turn_joined(e, r, fd, s, flags, woken, &patience, &armed);
				break;
			case RING_ENDED:
				turn = TURN_ENDED;
				break;
			case RING_BROKEN:
				ring_broken(r, fd);
				break;
			}
			if (!(flags & MSG_PEEK))
				tally_ring(e, false, before - s->left);
			ring_unlock(r);
		}
		if (off) {
			off = false;
			signals_on(signals, ENDING_NOT);
		}
		switch (turn) {
		case TURN_BYTES:
			if (flags & MSG_PEEK)
				return s->left == before ? (ssize_t)result : (ssize_t)(before - s->left);
			woken = false;
			waits.vain = 0;
			if (s->left == 0)
				return (ssize_t)all;
			/*
			 * Bytes that have come since then are left to their token, which may be on
			 * its way still. If they were taken before, a program would be told of
			 * bytes that it has got already. There are some that give a connection up
			 * for the EAGAIN that is there.
			 */
			if (armed && !waitall)
				return (ssize_t)(all - s->left);
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
			enum looked came = LOOKED_NOT;

			if (busy_cool(r))
				continue;
			if (!looked && !woken && !over && !(flags & MSG_PEEK)) {
				looked = true;
				came = look_ring(r, s->left, &signals, all == s->left ? ENDING_SOME : ENDING_ALL);
			}
			if (came == LOOKED_PAID) {
				off = true;
				continue;
			}
			if (came == LOOKED_SIGNAL)
				result = sys_return(-EINTR);
			else if (all != s->left || !idle_wait(e, r, fd, &result))
				result = wait_again(fd, &waits,
					waitall || (__atomic_load_n(&e->never, __ATOMIC_RELAXED) & LIMITED),
					all != s->left);
		} else if (all != s->left) {
			return (ssize_t)(all - s->left);
		} else {
			result = sys_return(SYS(recvfrom, fd, &c, 1, MSG_PEEK | MSG_DONTWAIT, NULL, NULL));
		}
		if (__atomic_load_n(&e->in, __ATOMIC_SEQ_CST) != r && r->side->state != RING_ENDED) {
			errno = EBADF; /* it was closed meanwhile, and the number may be another's */
			result = -1;
		}
		if (result > 0) {
			woken = true;
			woken_up(r, fd, &waits);
			continue;
		}
		if (result == 0 && !over) {
			over = true; /* bytes written before the end are there by now */
			continue;
		}
		if (all == s->left)
			return (ssize_t)result;
		if (result < 0)
			end_later(e);
		return (ssize_t)(all - s->left);
	}
}

/* receive_all reads into a span, which is not empty. */
ssize_t receive_all(struct end *e, int fd, struct span s, int flags, int *out)
{
	const size_t all = s.left;
	const int wanted = flags;
	const bool quiet = quiet_has(e);
	int saved = errno;

	if (quiet)
		flags |= MSG_DONTWAIT;
	__atomic_store_n(&e->streak, 0, __ATOMIC_RELAXED);
	if (!idle_look(ENDING_SOME) && would_wait(fd, flags))
		return sys_return(-EINTR);
	for (;;) {
		bool again = false, futile = false;
		struct ring *r;
		ssize_t n;

		if (ring_enter(&e->in, &r)) {
			n = NOT_OURS;
			if (all == s.left && !end_still(fd, e)) {
				end_drop(fd);
			} else {
				r->side->looked = e->seen;
				n = ring_receive(e, r, fd, &s, all, flags, &again);
				if (again)
					end_forget(&e->in, r);
				futile = !again && r->side->futile > FUTILE;
			}
			ring_exit(r);
			if (futile && e->turned == TURNED_YES && leave_in(e, fd)) {
				e->turned = TURNED_TRIED;
				leave_out(e, fd);
			}
		} else {
			n = flags & MSG_WAITALL ? receive_whole(e, fd, &s, flags, out, &again)
						: receive_in_band(e, fd, &s, flags, out, &again);
			if (n == 0 && !again && all != s.left)
				n = (ssize_t)(all - s.left);
			if (n < 0 && errno == ENOTSOCK && all == s.left) {
				end_drop(fd);
				return NOT_OURS;
			}
			if (flags & MSG_PEEK && n > 0)
				return n;
		}
		if (quiet && n < 0 && errno == EAGAIN)
			n = 0; /* all that there is was read */
		if (again && s.left && all != s.left && urgent_at_mark(fd))
			again = false; /* a receive ends there */
		if (again && s.left) {
			/* The other bytes may be there, but those that were read are enough. */
			if (all != s.left && !(wanted & MSG_WAITALL))
				flags |= MSG_DONTWAIT;
			continue;
		}
		if (n < 0 && all != s.left) {
			end_later(e);
			n = 0;
		}
		if (n == 0 && all == s.left && (end_tell(e, fd) || reset_came(e, fd))) {
			errno = ECONNRESET;
			n = -1;
		}
		if (n < 0) {
			if (errno == ECONNRESET)
				end_reset(e, fd);
			return n;
		}
		errno = saved;
		return (ssize_t)(all - s.left) > 0 ? (ssize_t)(all - s.left) : n;
	}
}

/*
 * end_receive reads as recvmsg does; e is null where nothing is known of a descriptor, which matters for
 * MSG_TRUNC and MSG_ERRQUEUE only. NOT_OURS: nothing was done, the descriptor is something else.
 */
ssize_t end_receive(struct end *e, int fd, const struct iovec *iov, size_t count, int flags, int *out)
{
	struct span s;

	*out = 0;
	if (!span_init(&s, iov, count) || count > IOV_MAX)
		return NOT_OURS;
	if (flags & MSG_ERRQUEUE)
		return receive_error(fd);
	if (flags & MSG_OOB) {
		if (e)
			urgent_seen(e);
		return NOT_OURS;
	}
	if (s.left == 0)
		return e ? receive_none(e, fd, flags) : NOT_OURS;
	if (flags & MSG_TRUNC)
		return receive_unwanted(e, fd, s.left, flags, out);
	return receive_all(e, fd, s, flags, out);
}

/* end_read reads as readv does: for 0 bytes the kernel does not even ask the socket. */
ssize_t end_read(struct end *e, int fd, const struct iovec *iov, size_t count, int flags)
{
	struct span s;
	int out;

	if (!span_init(&s, iov, count) || s.left == 0 || count > IOV_MAX)
		return NOT_OURS;
	return receive_all(e, fd, s, flags, &out);
}

static void leaves(struct ring *r, int fd)
{
	uint32_t yes = ATTACHED_YES;
	uint64_t pub = pub_load(r);

	switch ((enum ring_state)r->side->state) {
	case RING_WAITING:
		if ((pub & PUB_WITHDRAWN) ||
			__atomic_compare_exchange_n(&r->h->attached, &yes, ATTACHED_NO_MORE, false,
				__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
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
		    ((pub & PUB_LEFT) || pub_swap(r, &pub, (pub & ~(PUB_ARMED | PUB_LOOK)) | PUB_READER_LEFT)))
			r->side->state = RING_ENDED;
		break;
	case RING_ENDED:
	case RING_BROKEN:
		break;
	}
}

/*
 * receive_idle leaves a ring through which nothing has come for long, and gives its memory back: nothing can
 * be published there any more. many: a small one, or one that has carried little, is to be left, too. False:
 * it is to stay. The lock is held.
 */
bool receive_idle(struct ring *r, int fd, bool many)
{
	uint32_t is = ATTACHED_SWITCHED;

	if (r->side->state != RING_JOINED || r->gift ||
		(!many && (r->size <= RING_BYTES_ANSWERS || r->side->cursor < IDLE_BYTES)) ||
		used(r, pub_load(r)) != 0)
		return false;
	__atomic_compare_exchange_n(
		&r->h->attached, &is, ATTACHED_IDLE, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	leaves(r, fd);
	if (r->side->state == RING_ENDED) {
		SYS(madvise, r->data, r->size, MADV_REMOVE);
		return true;
	}
	is = ATTACHED_IDLE;
	__atomic_compare_exchange_n(
		&r->h->attached, &is, ATTACHED_SWITCHED, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return false;
}

/*
 * leave_in has the receiving direction come back in-band. False: there are bytes in the ring, which only we
 * can read.
 */
bool leave_in(struct end *e, int fd)
{
	return end_leaves(e, fd, &e->in, leaves);
}

#define MARK_TURNS 2000 /* milliseconds until a mark comes that is on its way */

/*
 * keep writes bytes to the end of a file. False: that is not possible, or there are more than the peer can
 * have sent, which would go on for ever.
 */
static bool keep(int file, const void *b, size_t n, uint64_t *length)
{
	if (n > HAND_MOST - *length)
		return false;
	for (size_t done = 0; done < n;) {
		long w = SYS(write, file, (const char *)b + done, n - done);

		if (w <= 0)
			return false;
		done += (size_t)w;
	}
	*length += n;
	return true;
}

/*
 * hand_in_band keeps the bytes in the socket up to the second mark, which is there or on its way, or up to
 * the switch of a ring that both sides have from the beginning.
 */
static bool hand_in_band(struct ring *r, int fd, int rest, uint64_t *length)
{
	struct timespec pause = {.tv_nsec = 1000000};
	struct ring_side *side = r->side;

	for (int turn = 0; side->state == RING_WAITING;) {
		uint32_t yes = ATTACHED_YES;
		char piece[512];
		struct iovec one = {piece, sizeof(piece)};
		long n;

		if (r->gift) {
			bool switched;

			n = gift_receive(r, fd, &one, 1, false, &switched);
			if (switched) {
				side->state = RING_JOINED;
				return true;
			}
			if (n > 0) {
				if (!keep(rest, piece, (size_t)n, length))
					return false;
				continue;
			}
		} else {
			side->coming = with_control(&one, 1, &side->control);
			n = SYS(recvmsg, fd, &side->coming, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		}
		if (n > 0) {
			if (is_mark(&side->coming))
				side->state = RING_JOINED;
			came_in(r);
			if (!keep(rest, piece, (size_t)n, length))
				return false;
		} else if (n != -EAGAIN || (pub_load(r) & PUB_WITHDRAWN) ||
			__atomic_compare_exchange_n(&r->h->attached, &yes, ATTACHED_NO_MORE, false,
				__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
			side->state = RING_ENDED; /* the peer has gone, or has not switched */
		} else if (turn++ == MARK_TURNS || (r->gift && yes != ATTACHED_SWITCHED)) {
			/* no mark is on its way where both sides have had the ring from the beginning: the peer lies */
			return false;
		} else if (!r->gift) {
			SYS(nanosleep, &pause, NULL);
		}
	}
	return true;
}

/*
 * receive_hand takes everything that a direction has brought out of its ring, and ends that.
 * *tokens: how many the socket has still, or will have. False: nothing was taken, or the bytes
 * taken are lost and the connection is reset. The lock is held.
 */
bool receive_hand(struct ring *r, int fd, int rest, uint16_t *tokens, uint64_t *length)
{
	struct ring_side *side = r->side;
	uint64_t pub;
	size_t n, at, first;

	*tokens = 0;
	*length = 0;
	if (side->state == RING_WAITING && !hand_in_band(r, fd, rest, length)) {
		ring_broken(r, fd);
		return false;
	}
	if (side->state != RING_JOINED)
		return side->state == RING_ENDED && *length > 0;
	/* Nothing can be published from then on, and no token be counted. */
	do
		pub = pub_load(r);
	while (!(pub & PUB_LEFT) && !pub_swap(r, &pub, (pub & ~(PUB_ARMED | PUB_LOOK)) | PUB_READER_LEFT));
	n = used(r, pub);
	at = ring_place(r, side->cursor);
	first = r->size - at < n ? r->size - at : n;
	if (n > r->size || !keep(rest, r->data + at, first, length) || !keep(rest, r->data, n - first, length)) {
		ring_broken(r, fd);
		return false;
	}
	side->cursor = (side->cursor + n) & PUB_HEAD;
	__atomic_store_n(&r->h->tail, side->cursor, __ATOMIC_SEQ_CST);
	__atomic_store_n(&r->h->wanted, 0, __ATOMIC_SEQ_CST);
	eat(r, fd, outstanding(r, pub)); /* so that a writer that waits for room goes on */
	*tokens = outstanding(r, pub);
	side->state = RING_ENDED;
	return true;
}

/* receive_shut tells the writer that this side is about to shut receiving down. */
void receive_shut(struct end *e, bool both)
{
	struct ring *r;
	uint64_t pub;

	if (!ring_enter(&e->in, &r))
		return;
	pub = pub_load(r);
	/*
	 * Bytes that are there without a token reset the connection as others do, if they are not read until
	 * the end is closed. Where sending is shut down, too, its peer cannot tell that from an end that is
	 * closed, and TCP takes what it sends until then.
	 */
	if (both || r->side->state != RING_JOINED || used(r, pub) == 0 || outstanding(r, pub) != 0)
		__atomic_store_n(&r->h->shut, 1, __ATOMIC_SEQ_CST);
	ring_exit(r);
}

/*
 * receive_tidy takes tokens out that nothing is behind: to close with bytes unread means a reset to the
 * peer.
 */
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

/*
 * receive_mend goes on where a call was left by longjmp while it was at work, up to where it would
 * have let others in. Bytes that the call had taken are lost, as is the result of a system call
 * when a signal comes. It may be left itself, and begun again. The lock is held.
 */
void receive_mend(struct ring *r, int fd)
{
	struct ring_side *side = r->side;
	uint64_t pub = pub_load(r);
	uint32_t reads = side->reads;

	if (reads == READS_TAKE && is_mark(&side->coming) && side->state == RING_WAITING &&
		!(pub & PUB_WITHDRAWN))
		side->state = RING_JOINED;
	if (reads != READS_NOT)
		came_in(r);
	if (side->state == RING_WAITING) {
		if ((pub & PUB_WITHDRAWN) || __atomic_load_n(&r->h->attached, __ATOMIC_SEQ_CST) == ATTACHED_NO_MORE)
			side->state = RING_ENDED;
		return;
	}
	if (side->state != RING_JOINED)
		return;
	eaten(r);
	__atomic_store_n(&r->h->tail, side->cursor, __ATOMIC_SEQ_CST);
	if ((pub & PUB_LEFT) && used(r, pub) == 0) {
		end_empty(r, fd, pub);
		return;
	}
	for (pub = pub_load(r); used(r, pub) == 0 && !(pub & PUB_LEFT); pub = pub_load(r))
		if (arm(r, fd, pub))
			break;
	make_room(r, fd);
	if (used(r, pub_load(r)) <= r->size / 2)
		spare(r, fd);
	if (side->edges)
		receive_arm(r, fd);
}
