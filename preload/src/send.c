/*
 * Sending: when a direction is offered a ring, when it switches, and the bytes that are written into the
 * ring.
 */
#include "ring.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>

#define TAKEN_TURNS 64	  /* sends after a receive, after which a ring is tried where receives wait */
#define ANSWERS_NO ~0u
#define PATIENCE                                                                                             \
	65536 /* sends for which a ring waits for its reader, which may first have to read earlier bytes */
#define PIECE (64u << 10) /* of a large send: the reader starts with it while the rest is copied */
#define TOKENS_MOST 64	  /* that are in the socket at once */
#define ROOM 4 /* one part in so many of a ring is kept free for a program that waits until it can write */

static long send_raw(int fd, const struct iovec *parts, size_t n, int flags)
{
	struct msghdr m = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = n};

	/* A program that sends one part may be allowed no more. */
	return n == 1 ? SYS(sendto, fd, parts->iov_base, parts->iov_len, flags, NULL, 0)
		      : SYS(sendmsg, fd, &m, flags);
}

/* sent_note says in one store how many tokens were sent, and how many it will have been. */
static void sent_note(struct ring *r, uint16_t sent, uint16_t then)
{
	__atomic_store_n(&r->side->sent, (uint32_t)then << 16 | sent, __ATOMIC_RELEASE);
}

/* send_answers takes note of a small file that is about to be sent. */
void send_answers(struct end *e)
{
	uint32_t n = __atomic_load_n(&e->answers, __ATOMIC_RELAXED);
	uint32_t on = CORK_ON;

	if (__atomic_load_n(&e->cork, __ATOMIC_RELAXED) == CORK_ON)
		__atomic_compare_exchange_n(&e->cork, &on, CORK_FILE, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);

	if (n < ANSWERS)
		__atomic_store_n(&e->answers, n + 1, __ATOMIC_RELAXED);
}

/* send_token returns 1, or the kernel's error. */
static long send_token(struct ring *r, int fd)
{
	struct ring_side *side = r->side;
	uint16_t sent = (uint16_t)side->sent;
	long n;

	side->token.msg_len = 0; /* the kernel writes here whether it was sent */
	sent_note(r, sent, (uint16_t)(sent + 1));
	n = SYS(sendmmsg, fd, &side->token, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n == -EPERM || n == -ENOSYS) /* by a filter of system calls that the program has set since */
		n = SYS(sendto, fd, side->token_at.iov_base, 1, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);
	sent = (uint16_t)(sent + (n == 1));
	sent_note(r, sent, sent);
	return n;
}

/*
 * unread is the kernel's count of the data that the peer has not taken, UNREAD_UNKNOWN if it may
 * not be asked; sndbuf is how much it may be.
 */
uint32_t unread(int fd)
{
	int n = 0;

	return SYS(ioctl, fd, SIOCOUTQ, &n) == 0 ? (uint32_t)n : UNREAD_UNKNOWN;
}

uint32_t sndbuf(int fd)
{
	int v = 0;
	socklen_t len = sizeof(v);

	SYS(getsockopt, fd, SOL_SOCKET, SO_SNDBUF, &v, &len);
	return (uint32_t)v;
}

static void set_sndbuf(int fd, uint32_t v)
{
	SYS(setsockopt, fd, SOL_SOCKET, SO_SNDBUF, &v, sizeof(v));
}

/* end_out stops the use of a ring for sending. The lock is held. */
static void end_out(struct ring *r, int fd)
{
	if (r->side->state == RING_JOINED && r->side->small)
		set_sndbuf(fd, r->side->sndbuf / 2);
	r->side->state = RING_ENDED;
}

/* unread_bytes is how many bytes in the ring the reader has not taken, as it says. */
static uint64_t unread_bytes(const struct ring *r, uint64_t pub)
{
	return (pub - __atomic_load_n(&r->h->tail, __ATOMIC_SEQ_CST)) & PUB_HEAD;
}

/*
 * count announces one token more. False: the reader has left, and would take it for a byte; or it has read
 * everything, and would look for nothing. behind: it may have armed with bytes in the ring, for which the
 * token will do.
 */
static bool count(struct ring *r, bool behind)
{
	uint64_t pub = pub_load(r);
	uint64_t want;

	do {
		if ((pub & PUB_READER_LEFT) || ((pub & PUB_ARMED) && !(behind && unread_bytes(r, pub))))
			return false;
		want = pub_counted(pub & ~(PUB_ARMED | PUB_LOOK));
	} while (!pub_swap(r, &pub, want));
	return true;
}

/*
 * fill makes the socket not writable, as the ring is full, or so full that a send waits. The tokens tell the
 * reader to look, once more.
 */
static bool fill(struct ring *r, int fd, bool full, bool behind)
{
	/*
	 * With the least that the kernel gives, a token or two are all it takes. The first one needed the room
	 * that there was.
	 */
	if (r->side->small == 0) {
		set_sndbuf(fd, 1);
		r->side->small = sndbuf(fd);
	}
	for (int i = 0; i < TOKENS_MOST; i++) {
		uint32_t n = unread(fd);

		if (full ? n >= r->side->small : n * 4 > r->side->small)
			return true;
		if (!count(r, behind))
			return false;
		if (send_token(r, fd) != 1)
			return true; /* the peer has gone, which shows when we wait */
	}
	return true;
}

/* must_send sends a token that is counted, so it has to come. False: the peer has gone. */
static bool must_send(struct ring *r, int fd)
{
	long sent = send_token(r, fd);

	if (sent == -EAGAIN) {
		set_sndbuf(fd, r->side->sndbuf / 2); /* it was full a moment ago */
		sent = send_token(r, fd);
		if (r->side->small)
			set_sndbuf(fd, 1);
	}
	return sent == 1;
}

/*
 * relax gives the socket its buffer back where the writer waits for room no more: with the small one it would
 * not be writable for as long as two tokens are in it, as they are where the reader arms with bytes in the
 * ring.
 */
static void relax(struct ring *r, int fd)
{
	if (r->side->small == 0 || __atomic_load_n(&r->h->wanted, __ATOMIC_SEQ_CST))
		return;
	set_sndbuf(fd, r->side->sndbuf / 2);
	r->side->small = 0;
}

enum token {
	TOKEN_TAKEN, /* or none was due */
	TOKEN_REFUSED,
	TOKEN_UNREAD, /* refused, and the reader had other bytes of which no token told: busy.c */
};

/* publish moves the head. more: a file is to follow. False: the reader has left. */
static bool publish(struct ring *r, int fd, uint64_t head, bool more, enum token *token)
{
	uint64_t pub = pub_load(r);
	uint64_t want;
	bool seen;

	__atomic_store_n(&r->h->processor, ((uint32_t)sched_getcpu() + 1) | (more ? PROCESSOR_MORE : 0),
		__ATOMIC_RELAXED);
	__atomic_store_n(&r->side->head, head, __ATOMIC_RELEASE);
	do {
		uint64_t unread = (head - __atomic_load_n(&r->h->tail, __ATOMIC_SEQ_CST)) & PUB_HEAD;

		if (pub & PUB_READER_LEFT)
			return false;
		seen = (pub & PUB_LOOK) && unread <= 1ull << ((pub >> PUB_LOOK_SHIFT) - 1);
		want = (seen ? pub & ~PUB_HEAD : pub & ~(PUB_HEAD | PUB_ARMED | PUB_LOOK)) | head;
		if ((pub & PUB_ARMED) && !seen)
			want = pub_counted(want);
	} while (!pub_swap(r, &pub, want));
	r->side->cursor = head;
	if ((pub & PUB_ARMED) && !seen) {
		relax(r, fd);
		if (!must_send(r, fd))
			*token = unread_bytes(r, pub) ? TOKEN_UNREAD : TOKEN_REFUSED;
	}
	return true;
}

/*
 * peer_gone looks, once in some milliseconds, whether the peer has closed: it need not have been
 * waiting for us. A reset that another call has told the program of is seen at once. A token that
 * is due finds out by itself.
 */
static bool peer_gone(const struct end *e, struct ring *r, int fd, bool due)
{
	uint64_t now = ring_now();
	struct pollfd p = {.fd = fd};
	struct timespec none = {0};

	if (__atomic_load_n(&e->never, __ATOMIC_RELAXED) & GONE_RESET)
		return true;
	if (now == r->side->looked)
		return false;
	if (!due && SYS(ppoll, &p, 1, &none, NULL, 0) == 1 && (p.revents & (POLLHUP | POLLERR)))
		return true; /* and so it stays */
	r->side->looked = now;
	return false;
}

#define DEAF_MSEC 10 /* between looks for room that nobody announces */

/*
 * deaf says of a token that was refused that the peer has shut receiving down, and is there. It
 * takes no tokens then and needs none: it never waits, and can read the bytes in the ring.
 */
static bool deaf(const struct end *e, int fd)
{
	return !(end_gone(e, fd) & (GONE_SHUT | GONE_RESET)) && !end_refuses(fd);
}

/* wait_deaf waits a moment for such a peer, or for its end. False: a signal has come. */
static bool wait_deaf(int fd)
{
	struct pollfd p = {.fd = fd};
	struct timespec t = {.tv_nsec = DEAF_MSEC * 1000000};

	return SYS(ppoll, &p, 1, &t, NULL, 0) != -EINTR;
}

enum turn {
	TURN_MORE,
	TURN_FULL,
	TURN_ENDED,
	TURN_GONE, /* the peer has closed, or one of us has shut sending down */
	TURN_BROKEN,
	TURN_ERROR, /* in *error */
};

/* turn_waiting sends in-band while the reader has not attached, or the switch was not made. */
static enum turn turn_waiting(struct end *e, struct ring *r, int fd, struct span *s, int flags, int *error)
{
	struct iovec parts[SPAN_PARTS];
	uint32_t none = ATTACHED_NOT;
	uint32_t attached = __atomic_load_n(&r->h->attached, __ATOMIC_SEQ_CST);
	long n;

	if (attached == ATTACHED_YES && worth(e, s->left) && !uring_seen() &&
		(r->gift ? gift_join(r, fd) : join(r, fd, s))) {
		span_skip(s, r->gift ? 0 : 1);
		return TURN_MORE;
	}
	if (attached == ATTACHED_NO_MORE) {
		end_out(r, fd);
		return TURN_ENDED;
	}
	if (attached == ATTACHED_NOT && r->side->idle++ > PATIENCE) {
		__atomic_fetch_or(&e->never, NEVER_OUT, __ATOMIC_SEQ_CST);
		if (__atomic_compare_exchange_n(&r->h->attached, &none, ATTACHED_TOO_LATE, false,
			    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
			end_out(r, fd);
			return TURN_ENDED;
		}
	}
	n = send_raw(fd, parts, span_parts(s, parts), flags | MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n >= 0) {
		span_skip(s, (size_t)n);
		return TURN_MORE;
	}
	*error = (int)-n;
	if (n == -EPIPE)
		return TURN_GONE;
	return n == -EAGAIN ? TURN_FULL : TURN_ERROR;
}

/* space is how much room there is, which is more than there can be if the reader has written nonsense. */
static uint64_t space(struct ring *r)
{
	r->side->tail = __atomic_load_n(&r->h->tail, __ATOMIC_SEQ_CST);
	return r->size - ((r->side->cursor - r->side->tail) & PUB_HEAD);
}

/*
 * keep_room makes the socket not writable before the ring is full, where the program waits until it is
 * writable and then writes as if nothing could keep it: TCP has a third of its buffer left. The lock is held.
 */
static void keep_room(struct end *e, struct ring *r, int fd)
{
	uint32_t wanted = 1;

	if (!(__atomic_load_n(&e->never, __ATOMIC_RELAXED) & ASKED_ROOM) || r->side->state != RING_JOINED ||
		r->size - ((r->side->cursor - r->side->tail) & PUB_HEAD) >= r->size / ROOM ||
		space(r) >= r->size / ROOM || !would_wait(fd, 0) || unread(fd) == UNREAD_UNKNOWN)
		return;
	__atomic_store_n(&r->h->wanted, 1, __ATOMIC_SEQ_CST);
	if (!fill(r, fd, false, true) || space(r) < r->size / 2)
		return;
	/* The reader has made room meanwhile, and need not look again. */
	if (__atomic_compare_exchange_n(&r->h->wanted, &wanted, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
		set_sndbuf(fd, r->side->sndbuf / 2);
		r->side->small = 0;
	}
}

static void leaves(struct ring *r, int fd)
{
	uint32_t attached = ATTACHED_NOT;

	switch ((enum ring_state)r->side->state) {
	case RING_WAITING:
		if (!__atomic_compare_exchange_n(&r->h->attached, &attached, ATTACHED_TOO_LATE, false,
			    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			__atomic_fetch_or(&r->h->pub, PUB_WITHDRAWN, __ATOMIC_SEQ_CST);
		end_out(r, fd);
		break;
	case RING_JOINED:
		/*
		 * A peer that closes resets the connection if the kernel knows of bytes that it has not read:
		 * busy.c leaves out the token that tells of them.
		 */
		if ((pub_load(r) & PUB_ARMED) && unread_bytes(r, pub_load(r)) && count(r, true))
			must_send(r, fd);
		if (!(pub_load(r) & PUB_READER_LEFT))
			__atomic_fetch_or(&r->h->pub, PUB_WRITER_LEFT, __ATOMIC_SEQ_CST);
		end_out(r, fd);
		break;
	case RING_ENDED:
	case RING_BROKEN:
		break;
	}
}

/*
 * outgrow has a direction leave a small ring, and try no other: a send that does not fit there
 * would fit a TCP connection, and its program may not expect to wait. The lock is held.
 */
static void outgrow(struct end *e, struct ring *r, int fd)
{
	__atomic_store_n(&e->answers, ANSWERS_NO, __ATOMIC_RELAXED);
	leaves(r, fd);
}

#define ROUND (16u << 10)

/*
 * begin_anew has an empty ring begin with its first page again, before n bytes are written that would go
 * beyond the next ROUND bytes. Where the reader keeps up, a connection so has as much memory as its largest
 * write and 16 KiB, not all of its ring, and that is in the processor's cache: pages that are written and
 * read for the first time cost more than TCP does. The reader sees the base with the bytes, which are
 * published after it. Returned is the place of the first byte.
 */
static size_t begin_anew(struct ring *r, uint64_t at, size_t n)
{
	size_t place = ring_place(r, at);

	if (place == 0 || (((place ^ (place + n)) < ROUND) && !shake(2)) || space(r) != r->size)
		return place;
	__atomic_store_n(&r->h->base, (0 - at) & PUB_HEAD, __ATOMIC_RELEASE);
	return 0;
}

/* turn_joined writes as many bytes into the ring as there is room for. */
static enum turn turn_joined(struct end *e, struct ring *r, int fd, struct span *s, int flags)
{
	uint64_t at = r->side->cursor;
	uint64_t room = r->size - ((at - r->side->tail) & PUB_HEAD); /* at least */
	enum token token = TOKEN_TAKEN;
	size_t n, first, place;

	if (room < s->left && (room < r->size / 2 || r->size == RING_BYTES_ANSWERS))
		room = space(r);
	if (room > r->size)
		return TURN_BROKEN;
	if (peer_gone(e, r, fd, room != 0 && (pub_load(r) & (PUB_ARMED | PUB_LOOK)) == PUB_ARMED))
		return TURN_GONE;
	if (pub_load(r) & PUB_READER_LEFT) {
		end_out(r, fd);
		return TURN_ENDED;
	}
	if (r->size == RING_BYTES_ANSWERS && room < s->left) {
		outgrow(e, r, fd);
		return TURN_ENDED;
	}
	if (room == 0 && unread(fd) == UNREAD_UNKNOWN) {
		leaves(r, fd); /* nobody could say when the socket is full */
		return TURN_ENDED;
	}
	if (room == 0) {
		__atomic_store_n(&r->h->wanted, 1, __ATOMIC_SEQ_CST);
		if (space(r) != 0)
			return TURN_MORE;
		if (!fill(r, fd, would_wait(fd, flags), false))
			/* A reader that has read everything has said so before. */
			return (pub_load(r) & PUB_ARMED) && space(r) == 0 ? TURN_BROKEN : TURN_MORE;
		if (space(r) != 0 || !__atomic_load_n(&r->h->wanted, __ATOMIC_SEQ_CST))
			return TURN_MORE;
		return TURN_FULL;
	}
	n = s->left < room ? s->left : (size_t)room;
	n = shake_cut(n < PIECE ? n : PIECE);
	place = begin_anew(r, at, n);
	first = r->size - place;
	if (first > n)
		first = n;
	span_copy(s, r->data + place, first, true);
	if (n > first) {
		struct span rest = *s;

		span_skip(&rest, first);
		span_copy(&rest, r->data, n - first, true);
	}
	if (!publish(r, fd, (at + n) & PUB_HEAD,
		    r->size == RING_BYTES_ANSWERS && __atomic_load_n(&e->cork, __ATOMIC_RELAXED) == CORK_ON,
		    &token)) {
		end_out(r, fd);
		return TURN_ENDED;
	}
	if (token != TOKEN_TAKEN && !deaf(e, fd)) {
		r->side->looked = 0; /* the next one sees it, too, where no token is due */
		if (token == TOKEN_UNREAD)
			__atomic_fetch_or(&r->h->pub, PUB_ARMED,
				__ATOMIC_SEQ_CST); /* send_unread sees that these bytes had no token */
		return TURN_GONE;
	}
	span_skip(s, n);
	return TURN_MORE;
}

static ssize_t done_or(size_t done, int error)
{
	if (done)
		return (ssize_t)done;
	errno = error;
	return -1;
}

/* limit_of is the time limit of sends, in nanoseconds, UINT64_MAX if there is none. */
static uint64_t limit_of(int fd)
{
	struct timeval limit = {0};
	socklen_t len = sizeof(limit);

	if (SYS(getsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, &limit, &len) != 0 ||
		(limit.tv_sec == 0 && limit.tv_usec == 0) || limit.tv_sec > 1000000000)
		return UINT64_MAX;
	return (uint64_t)limit.tv_sec * 1000000000u + (uint64_t)limit.tv_usec * 1000u;
}

/* ring_send sends as much as it can. *ended: the rest of the span is for the socket. */
static ssize_t ring_send(
	struct end *e, struct ring *r, int fd, struct span *s, size_t all, int flags, bool *ended)
{
	uint64_t limit = 0, waited = 0; /* limit: 0 before it has waited */
	unsigned vain = 0;

	while (s->left) {
		enum turn turn = TURN_BROKEN;
		int error = ECONNRESET;
		size_t before = s->left;
		uint64_t began = 0;
		bool failed;

		if (!ring_lock(r))
			return done_or(all - s->left, EAGAIN);
		switch ((enum ring_state)r->side->state) {
		case RING_WAITING:
			turn = turn_waiting(e, r, fd, s, flags, &error);
			if (r->side->state != RING_JOINED || s->left == 0)
				break;
			/* The first byte went with the mark: the rest goes before another thread's write. */
			__attribute__((fallthrough));
		case RING_JOINED:
			turn = turn_joined(e, r, fd, s, flags);
			if (turn == TURN_BROKEN)
				ring_broken(r, fd);
			else if (turn == TURN_MORE && s->left == 0)
				keep_room(e, r, fd);
			break;
		case RING_ENDED:
			turn = TURN_ENDED;
			break;
		case RING_BROKEN:
			ring_broken(r, fd);
			break;
		}
		tally_ring(e, true, before - s->left);
		if (turn != TURN_MORE || s->left != before) {
			vain = 0;
		} else if (++vain > VAIN) {
			turn = TURN_BROKEN;
			ring_broken(r, fd);
		}
		ring_unlock(r);
		switch (turn) {
		case TURN_MORE:
			break;
		case TURN_ENDED:
			*ended = true;
			return (ssize_t)(all - s->left);
		case TURN_ERROR:
		case TURN_BROKEN:
			return done_or(all - s->left, error);
		case TURN_GONE:
			if (all - s->left)
				return (ssize_t)(all - s->left);
			return send_refused(e, fd, s->left, flags);
		case TURN_FULL:
			if (!would_wait(fd, flags))
				return done_or(all - s->left, EAGAIN);
			if (limit == 0)
				limit = limit_of(fd);
			if (waited >= limit) /* the limit of all waits together; the kernel sees to each */
				return done_or(all - s->left, EAGAIN);
			if (limit != UINT64_MAX)
				began = precise_now();
			failed = next.sendto(fd, ring_guard, 1, MSG_NOSIGNAL, NULL, 0) < 0 && errno != EFAULT;
			if (failed && errno == EPIPE && deaf(e, fd)) {
				failed = !wait_deaf(fd);
				errno = EINTR;
			}
			if (limit != UINT64_MAX)
				waited += precise_now() - began;
			if (__atomic_load_n(&e->out, __ATOMIC_SEQ_CST) != r && r->side->state != RING_ENDED)
				return done_or(all - s->left,
					EBADF); /* it was closed meanwhile, and the number may be another's */
			if (failed) {
				if (all - s->left)
					return (ssize_t)(all - s->left);
				return errno == EPIPE ? send_refused(e, fd, s->left, flags) : -1;
			}
			break;
		}
	}
	return (ssize_t)all;
}

/*
 * rests has a direction that has come back in-band try no ring again, or the same where its reader has left
 * as nothing came: if that ring was small, or has carried little, it has to be seen anew that it is worth
 * one. A connection that is used once in some seconds would have to make it for each use.
 */
static void rests(struct end *e, const struct ring *r)
{
	uint32_t answers = ANSWERS;

	if (__atomic_load_n(&r->h->attached, __ATOMIC_RELAXED) != ATTACHED_IDLE) {
		__atomic_store_n(&e->turned, TURNED_TRIED, __ATOMIC_RELAXED);
	} else if (r->size < RING_BYTES || r->side->cursor < IDLE_BYTES) {
		__atomic_store_n(&e->turns, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&e->turned, TURNED_NOT, __ATOMIC_RELAXED);
		__atomic_compare_exchange_n(&e->answers, &answers, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	}
}

/*
 * send_idle forgets a ring that its reader has left, with all bytes read, before there is something to
 * send. False: it is to stay. The lock is held.
 */
bool send_idle(struct end *e, struct ring *r, int fd)
{
	uint64_t pub = pub_load(r);

	if (r->side->state != RING_JOINED || !(pub & PUB_READER_LEFT) || unread_bytes(r, pub) != 0)
		return false;
	end_out(r, fd);
	rests(e, r);
	return true;
}

/* end_send sends as sendmsg does. NOT_OURS: nothing was done, the descriptor is something else. */
ssize_t end_send(struct end *e, int fd, const struct iovec *iov, size_t count, int flags)
{
	struct iovec parts[SPAN_PARTS];
	struct span s;
	struct ring *r;
	size_t all;
	int saved = errno;

	if (!span_init(&s, iov, count))
		return NOT_OURS;
	if (s.left == 0) {
		ssize_t n = end_is(fd, e) ? next.sendto(fd, "", 0, flags | MSG_NOSIGNAL, NULL, 0) : NOT_OURS;

		return n < 0 && n != NOT_OURS && errno == EPIPE ? send_refused(e, fd, 0, flags) : n;
	}
	if (flags & (MSG_OOB | MSG_FASTOPEN)) {
		struct msghdr m = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = count};

		return sendmsg(fd, &m, flags); /* ours, which sends it in-band */
	}
	all = s.left;
	(void)idle_look(ENDING_NOT);
	if (__atomic_load_n(&e->streak, __ATOMIC_RELAXED) == 0 && e->turned == TURNED_NOT &&
	    __atomic_add_fetch(&e->turns, 1, __ATOMIC_RELAXED) == TAKEN_TURNS) {
		admission_grown(e);
		__atomic_store_n(&e->turned,
			would_wait(fd, flags)	   ? TURNED_YES
				: busy_loop(e, fd) ? TURNED_LOOP
						   : TURNED_TRIED,
			__ATOMIC_RELAXED);
	}
	if (__atomic_load_n(&e->streak, __ATOMIC_RELAXED) < STREAK)
		__atomic_fetch_add(&e->streak, 1, __ATOMIC_RELAXED);
	for (;;) {
		bool ended = false;
		ssize_t n;

		if (ring_enter(&e->out, &r)) {
			n = NOT_OURS;
			if (all == s.left && !end_still(fd, e)) {
				end_drop(fd);
			} else {
				n = ring_send(e, r, fd, &s, all, flags, &ended);
				if (ended) {
					rests(e, r);
					end_forget(&e->out, r);
				}
			}
			ring_exit(r);
			if (ended && s.left)
				continue;
			if (n > 0)
				errno = saved;
			return n;
		}
		if (!gate_enter(&e->sending)) {
			if (__atomic_load_n(&e->out, __ATOMIC_SEQ_CST))
				continue;
			if (all != s.left)
				return (ssize_t)(all - s.left);
			tally_lent(fd, 1); /* for good: the caller sends, and nobody counts it */
			return NOT_OURS;
		}
		if (__atomic_load_n(&e->out, __ATOMIC_SEQ_CST)) {
			gate_exit(&e->sending);
			continue;
		}
		if (gift_offer(e, fd, s.left)) {
			gate_exit(&e->sending);
			continue;
		}
		if (offer(e, fd, &s)) {
			gate_exit(&e->sending);
			uring_settle();
			n = s.left <= RING_BYTES_LEAST / 2 ? (ssize_t)s.left : 1;
			tally_in_band(e, true, n);
			span_skip(&s, (size_t)n);
			if (s.left == 0)
				return (ssize_t)all;
			continue;
		}
		size_t before = s.left, known = s.count;

		if (s.count == 1) {
			n = next.sendto(fd, (char *)s.iov->iov_base + s.skip, s.left, flags | MSG_NOSIGNAL, NULL, 0);
		} else {
			struct msghdr m = {.msg_iov = parts, .msg_iovlen = span_parts(&s, parts)};

			n = next.sendmsg(fd, &m, flags | MSG_NOSIGNAL);
		}
		tally_in_band(e, true, n);
		gate_exit(&e->sending);
		uring_settle();
		if (n < 0) {
			if (errno == ENOTSOCK && all == s.left) {
				end_drop(fd);
				return NOT_OURS;
			}
			if (errno == EPIPE && all == s.left)
				return send_refused(e, fd, s.left, flags);
			return all == s.left ? n : (ssize_t)(all - s.left);
		}
		if (e->sent < settings.ring_after || e->sent < settings.bulk_after)
			__atomic_fetch_add(&e->sent, (uint64_t)n, __ATOMIC_RELAXED);
		span_skip(&s, (size_t)n);
		if (s.left == 0 || known <= SPAN_PARTS || (size_t)n == before)
			return (ssize_t)(all - s.left);
		/* There were more parts than the kernel was shown. */
	}
}

/* leave_out has bytes that are sent from now on go in-band. It is always possible. */
bool leave_out(struct end *e, int fd)
{
	return end_leaves(e, fd, &e->out, leaves);
}

/* send_waiting is how many bytes in a ring the peer has not read. */
bool send_waiting(struct end *e, size_t *n)
{
	bool joined = false;
	struct ring *r;

	if (!ring_enter(&e->out, &r))
		return false;
	if (r->side->state == RING_JOINED) {
		*n = (size_t)((r->side->cursor - __atomic_load_n(&r->h->tail, __ATOMIC_SEQ_CST)) & PUB_HEAD);
		joined = *n <= r->size;
	}
	ring_exit(r);
	return joined;
}

/*
 * send_unread says whether the peer has left bytes in a ring without a token, which has the kernel say so of
 * a peer that has closed. It is asked in the middle of other calls, too, and so is no call of its own.
 */
bool send_unread(const struct end *e)
{
	struct ring *r = __atomic_load_n(&e->out, __ATOMIC_SEQ_CST);
	bool unread = false;

	if (!r)
		return false;
	__atomic_fetch_add(&r->users, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&e->out, __ATOMIC_SEQ_CST) == r && r->side->state == RING_JOINED)
		unread = (pub_load(r) & PUB_ARMED) && unread_bytes(r, pub_load(r)) != 0 &&
			!__atomic_load_n(&r->h->shut, __ATOMIC_RELAXED);
	ring_left(r);
	return unread;
}

/* send_has_room says that a descriptor is writable. False: it may be, all the same. */
bool send_has_room(const struct end *e)
{
	bool has = false;
	struct ring *r;

	if (!ring_enter(&e->out, &r))
		return false;
	if (r->side->state == RING_JOINED && r->side->small == 0 && !(pub_load(r) & PUB_LEFT) &&
		!__atomic_load_n(&r->h->wanted, __ATOMIC_SEQ_CST)) {
		uint64_t unread = (r->side->cursor - __atomic_load_n(&r->h->tail, __ATOMIC_SEQ_CST)) & PUB_HEAD;

		has = unread <= r->size - r->size / ROOM;
	}
	ring_exit(r);
	return has;
}

/* send_asked takes note that this process asks whether it can write to a descriptor. */
void send_asked(struct end *e, int fd)
{
	struct ring *r;
	int saved = errno;

	if ((__atomic_load_n(&e->never, __ATOMIC_RELAXED) & ASKED_ROOM) ||
		(__atomic_fetch_or(&e->never, ASKED_ROOM, __ATOMIC_SEQ_CST) & ASKED_ROOM) ||
		!ring_enter(&e->out, &r))
		return;
	if (end_is(fd, e) && ring_lock(r)) {
		if (r->size == RING_BYTES_ANSWERS)
			outgrow(e, r, fd);
		else
			keep_room(e, r, fd);
		ring_unlock(r);
	}
	ring_exit(r);
	errno = saved;
}

/*
 * tell_room sets the size of the socket's buffer to what it is: with that the kernel tells of room, if there
 * is some. The kernel takes more than net.core.wmem_max from SO_SNDBUFFORCE only.
 */
static void tell_room(int fd)
{
	uint32_t was = sndbuf(fd), half = was / 2;

	set_sndbuf(fd, half);
	if (sndbuf(fd) != was)
		SYS(setsockopt, fd, SOL_SOCKET, SO_SNDBUFFORCE, &half, sizeof(half));
}

/*
 * send_tells_room has an end tell everybody who waits for room that there is some, if there is: as TCP does
 * when certain options are set, by an edge of epoll.
 */
void send_tells_room(int fd)
{
	struct end *e = end_at(fd);
	struct ring *r;

	if (e && busy_writable(fd, EPOLLOUT))
		busy_again(fd, EPOLLOUT | EPOLLWRNORM);
	if (!e || !end_is(fd, e) || !ring_enter(&e->out, &r)) {
		tell_room(fd);
		return;
	}
	if (ring_lock(r)) { /* fill and relax, which change the size, hold it, too */
		tell_room(fd);
		ring_unlock(r);
	}
	ring_exit(r);
}

/* mend_waiting is send_mend before the switch. */
static void mend_waiting(struct ring *r, int fd)
{
	uint32_t attached = __atomic_load_n(&r->h->attached, __ATOMIC_SEQ_CST);

	if (attached == ATTACHED_SWITCHED)
		joined(r);
	else if (attached == ATTACHED_TOO_LATE || attached == ATTACHED_NO_MORE || (pub_load(r) & PUB_WITHDRAWN))
		end_out(r, fd);
}

/*
 * send_mend goes on where a call was left by longjmp while it was at work, up to where it would
 * have let others in. Bytes that were published, or were sent, stay so. It may be left itself, and
 * begun again. The lock is held.
 */
void send_mend(struct ring *r, int fd)
{
	struct ring_side *side = r->side;
	uint16_t sent = (uint16_t)side->sent, then = (uint16_t)(side->sent >> 16);
	uint64_t pub = pub_load(r);

	let_go(r);
	if (sent != then && side->token.msg_len == 1)
		sent = then;
	sent_note(r, sent, sent);
	if (side->state == RING_WAITING)
		mend_waiting(r, fd);
	if (side->state != RING_JOINED)
		return;
	if ((pub & PUB_HEAD) == side->head)
		side->cursor = side->head;
	set_sndbuf(fd, side->small ? 1 : side->sndbuf / 2);
	for (uint16_t missing = (uint16_t)(pub_count(pub) - sent);
		missing > 0 && missing <= TOKENS_MOST && must_send(r, fd);)
		missing--;
	if (pub & PUB_WRITER_LEFT)
		end_out(r, fd);
}
