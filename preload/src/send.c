/* Sending: when a direction is offered a ring, when it switches, and what is written into the ring. */
#include "ring.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define LARGE (16u << 10) /* a send that is worth a ring */
#define STREAK 16	  /* or so many of them without a receive */
#define TAKEN_TURNS 64	  /* sends after a receive, after which a ring is tried where receives wait */
#define ANSWERS 64	  /* small files, after which a small ring is tried */
#define ANSWERS_NO ~0u
#define PATIENCE 65536	  /* sends for which a ring waits for its reader, who may first have to read what was sent before */
#define PIECE (64u << 10) /* of a large send: the reader starts with it while the rest is copied */
#define MARK_ROOM 8192	  /* of the socket's buffer: more than a mark and a token take */
#define TOKENS_MOST 64	  /* that are in the socket at once */
#define ROOM 4		  /* one part in so many of a ring is kept free for who waits until it can write */

static const char token[1] = {0};

static long send_raw(int fd, const struct iovec *parts, size_t n, int flags)
{
	struct msghdr m = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = n};

	return SYS(sendmsg, fd, &m, flags);
}

/* mark sends one byte of the program's with a descriptor, at which the kernel ends whatever receive takes it. */
static bool mark(int fd, const struct span *s, int with)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control;
	struct span at = *s;
	struct iovec one;
	struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.buf)};
	struct cmsghdr *c;

	span_skip(&at, 0);
	one = (struct iovec){(char *)at.iov->iov_base + at.skip, 1};
	memset(&control, 0, sizeof(control));
	c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &with, sizeof(with));
	return SYS(sendmsg, fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}

/*
 * answers says whether a direction is to have a small ring. Who asks whether there is room is not to find out how small it is.
 */
static bool answers(const struct end *e)
{
	return __atomic_load_n(&e->answers, __ATOMIC_RELAXED) == ANSWERS && !(__atomic_load_n(&e->never, __ATOMIC_RELAXED) & ASKED_ROOM);
}

/* send_answers takes note of a small file that is about to be sent. */
void send_answers(struct end *e)
{
	uint32_t n = __atomic_load_n(&e->answers, __ATOMIC_RELAXED);

	if (n < ANSWERS)
		__atomic_store_n(&e->answers, n + 1, __ATOMIC_RELAXED);
}

static bool worth(const struct end *e, size_t n)
{
	if (!shaking() && __atomic_load_n(&e->sent, __ATOMIC_RELAXED) + n < settings.ring_after)
		return false;
	return n >= LARGE || __atomic_load_n(&e->streak, __ATOMIC_RELAXED) >= STREAK || __atomic_load_n(&e->turned, __ATOMIC_RELAXED) == TURNED_YES || answers(e) ||
	       shake(3);
}

/* offer sends the first byte with a ring. The caller has passed the gate. */
static bool offer(struct end *e, int fd, const struct span *s)
{
	struct ring *r;
	int memfd;
	bool sent = false;

	if ((__atomic_load_n(&e->never, __ATOMIC_SEQ_CST) & NEVER_OUT) || !worth(e, s->left) || !end_alone(e) || !end_is(fd, e) ||
	    !gate_close(&e->sending))
		return false;
	r = ring_make(fd, answers(e) && s->left < LARGE ? RING_BYTES_ANSWERS : RING_BYTES, __atomic_load_n(&e->never, __ATOMIC_SEQ_CST) & ASKED_ROOM, &memfd);
	if (!r) {
		__atomic_fetch_or(&e->never, NEVER_OUT, __ATOMIC_SEQ_CST);
	} else {
		ring_ref(r); /* for us, while others may take it away again */
		__atomic_store_n(&e->out, r, __ATOMIC_SEQ_CST);
		sent = end_alone(e) && mark(fd, s, memfd);
		SYS(close, memfd);
		if (!sent) {
			__atomic_store_n(&e->streak, 0, __ATOMIC_RELAXED);
			r->side->state = RING_ENDED; /* a process that was forked just now sees it */
			end_forget(&e->out, r);
		}
		ring_unref(r);
	}
	gate_open(&e->sending);
	return sent;
}

static uint32_t unread(int fd)
{
	int n = 0;

	SYS(ioctl, fd, SIOCOUTQ, &n);
	return (uint32_t)n;
}

static uint32_t sndbuf(int fd)
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

/* join switches to the ring, with the second mark. The lock is held. */
static bool join(struct ring *r, int fd, const struct span *s)
{
	uint32_t yes = ATTACHED_YES;
	uint32_t room = sndbuf(fd);
	long with;
	bool sent;

	/* The mark and the first token must find room, as the reader has no other way to hear of the bytes between them. */
	if (unread(fd) + MARK_ROOM > room)
		return false;
	with = SYS(memfd_create, "gosmc-mark", MFD_CLOEXEC);
	if (with < 0)
		return false;
	if (!__atomic_compare_exchange_n(&r->h->attached, &yes, ATTACHED_SWITCHED, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
		SYS(close, with);
		return false;
	}
	sent = mark(fd, s, (int)with);
	SYS(close, with);
	if (!sent) {
		__atomic_store_n(&r->h->attached, ATTACHED_YES, __ATOMIC_SEQ_CST);
		return false;
	}
	r->side->sndbuf = room;
	r->side->state = RING_JOINED;
	r->side->looked = ring_now();
	return true;
}

/*
 * count announces one token more. False: the reader has left, and would take it for a byte; or it has read
 * everything, and would look for nothing.
 */
static bool count(struct ring *r)
{
	uint64_t pub = pub_load(r);

	do
		if (pub & (PUB_READER_LEFT | PUB_ARMED))
			return false;
	while (!pub_swap(r, &pub, pub_counted(pub)));
	return true;
}

/*
 * fill makes the socket not writable, as the ring is full, or so full that a send waits. The tokens tell the reader
 * to look, once more.
 */
static bool fill(struct ring *r, int fd, bool full)
{
	/* With the least that the kernel gives, a token or two are all it takes. The first one needed the room that there was. */
	if (r->side->small == 0) {
		set_sndbuf(fd, 1);
		r->side->small = sndbuf(fd);
	}
	for (int i = 0; i < TOKENS_MOST; i++) {
		uint32_t n = unread(fd);

		if (full ? n >= r->side->small : n * 4 > r->side->small)
			return true;
		if (!count(r))
			return false;
		if (SYS(sendto, fd, token, 1, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0) != 1)
			return true; /* the peer has gone, which shows when we wait */
	}
	return true;
}

/* publish moves the head. False: the reader has left. */
static bool publish(struct ring *r, int fd, uint64_t head, bool *dead)
{
	uint64_t pub = pub_load(r);
	uint64_t want;
	bool seen;

	__atomic_store_n(&r->h->processor, (uint32_t)sched_getcpu() + 1, __ATOMIC_RELAXED);
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
		long sent = SYS(sendto, fd, token, 1, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);

		if (sent == -EAGAIN) {
			/* It was full a moment ago. The token is counted, so it has to come. */
			set_sndbuf(fd, r->side->sndbuf / 2);
			sent = SYS(sendto, fd, token, 1, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);
			if (r->side->small)
				set_sndbuf(fd, 1);
		}
		*dead = sent != 1;
	}
	return true;
}

/* peer_gone looks, once in some milliseconds, whether the peer has closed: it need not have been waiting for us. */
static bool peer_gone(struct ring *r, int fd)
{
	uint64_t now = ring_now();
	struct pollfd p = {.fd = fd};
	struct timespec none = {0};

	if (now == r->side->looked)
		return false;
	if (SYS(ppoll, &p, 1, &none, NULL, 0) == 1 && (p.revents & (POLLHUP | POLLERR)))
		return true; /* and so it stays */
	r->side->looked = now;
	return false;
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

	if (attached == ATTACHED_YES && worth(e, s->left) && join(r, fd, s)) {
		span_skip(s, 1);
		return TURN_MORE;
	}
	if (attached == ATTACHED_NO_MORE) {
		end_out(r, fd);
		return TURN_ENDED;
	}
	if (attached == ATTACHED_NOT && r->side->idle++ > PATIENCE) {
		__atomic_fetch_or(&e->never, NEVER_OUT, __ATOMIC_SEQ_CST);
		if (__atomic_compare_exchange_n(&r->h->attached, &none, ATTACHED_TOO_LATE, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
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
 * keep_room makes the socket not writable before the ring is full, where the program waits until it is writable and then writes as if nothing
 * could keep it: TCP has a third of its buffer left. The lock is held.
 */
static void keep_room(struct end *e, struct ring *r, int fd)
{
	uint32_t wanted = 1;

	if (!(__atomic_load_n(&e->never, __ATOMIC_RELAXED) & ASKED_ROOM) || r->side->state != RING_JOINED ||
	    r->size - ((r->side->cursor - r->side->tail) & PUB_HEAD) >= r->size / ROOM || space(r) >= r->size / ROOM || !would_wait(fd, 0))
		return;
	__atomic_store_n(&r->h->wanted, 1, __ATOMIC_SEQ_CST);
	if (!fill(r, fd, false) || space(r) < r->size / 2)
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
		if (!__atomic_compare_exchange_n(&r->h->attached, &attached, ATTACHED_TOO_LATE, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			__atomic_fetch_or(&r->h->pub, PUB_WITHDRAWN, __ATOMIC_SEQ_CST);
		end_out(r, fd);
		break;
	case RING_JOINED:
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
 * outgrow has a direction leave a small ring, and try no other: what does not fit there would fit a TCP connection, and who has sent it may not
 * expect to wait. The lock is held.
 */
static void outgrow(struct end *e, struct ring *r, int fd)
{
	__atomic_store_n(&e->answers, ANSWERS_NO, __ATOMIC_RELAXED);
	leaves(r, fd);
}

/* turn_joined writes into the ring what there is room for. */
static enum turn turn_joined(struct end *e, struct ring *r, int fd, struct span *s, int flags)
{
	uint64_t at = r->side->cursor;
	uint64_t room = r->size - ((at - r->side->tail) & PUB_HEAD); /* at least */
	bool dead = false;
	size_t n, first;

	if (room < s->left && (room < r->size / 2 || r->size == RING_BYTES_ANSWERS))
		room = space(r);
	if (room > r->size)
		return TURN_BROKEN;
	if (peer_gone(r, fd))
		return TURN_GONE;
	if (pub_load(r) & PUB_READER_LEFT) {
		end_out(r, fd);
		return TURN_ENDED;
	}
	if (r->size == RING_BYTES_ANSWERS && room < s->left) {
		outgrow(e, r, fd);
		return TURN_ENDED;
	}
	if (room == 0) {
		__atomic_store_n(&r->h->wanted, 1, __ATOMIC_SEQ_CST);
		if (space(r) != 0)
			return TURN_MORE;
		if (!fill(r, fd, would_wait(fd, flags)))
			/* Who has read everything has said so before. */
			return (pub_load(r) & PUB_ARMED) && space(r) == 0 ? TURN_BROKEN : TURN_MORE;
		if (space(r) != 0 || !__atomic_load_n(&r->h->wanted, __ATOMIC_SEQ_CST))
			return TURN_MORE;
		return TURN_FULL;
	}
	n = s->left < room ? s->left : (size_t)room;
	n = shake_cut(n < PIECE ? n : PIECE);
	first = r->size - (size_t)(at & (r->size - 1));
	if (first > n)
		first = n;
	span_copy(s, r->data + (at & (r->size - 1)), first, true);
	if (n > first) {
		struct span rest = *s;

		span_skip(&rest, first);
		span_copy(&rest, r->data, n - first, true);
	}
	if (!publish(r, fd, (at + n) & PUB_HEAD, &dead)) {
		end_out(r, fd);
		return TURN_ENDED;
	}
	if (dead) {
		r->side->looked = 0; /* the next one sees it, too, where no token is due */
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

/* ring_send sends what it can. *ended: what is left in the span is for the socket. */
static ssize_t ring_send(struct end *e, struct ring *r, int fd, struct span *s, size_t all, int flags, bool *ended)
{
	while (s->left) {
		enum turn turn = TURN_BROKEN;
		int error = ECONNRESET;
		bool failed;

		if (!ring_lock(r))
			return done_or(all - s->left, EAGAIN);
		switch ((enum ring_state)r->side->state) {
		case RING_WAITING:
			turn = turn_waiting(e, r, fd, s, flags, &error);
			break;
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
			failed = next.sendto(fd, ring_guard, 1, MSG_NOSIGNAL, NULL, 0) < 0 && errno != EFAULT;
			if (__atomic_load_n(&e->out, __ATOMIC_SEQ_CST) != r && r->side->state != RING_ENDED)
				return done_or(all - s->left, EBADF); /* it was closed meanwhile, and the number may be another's */
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

/* end_send sends as sendmsg does. NOT_OURS: nothing was done, the descriptor is something else. */
ssize_t end_send(struct end *e, int fd, const struct iovec *iov, size_t count, int flags)
{
	struct iovec parts[SPAN_PARTS];
	struct span s;
	struct ring *r;
	size_t all;
	int saved = errno;

	if (!span_init(&s, iov, count) || count > IOV_MAX)
		return NOT_OURS;
	if (s.left == 0) {
		ssize_t n = end_is(fd, e) ? next.sendto(fd, "", 0, flags | MSG_NOSIGNAL, NULL, 0) : NOT_OURS;

		return n < 0 && n != NOT_OURS && errno == EPIPE ? send_refused(e, fd, 0, flags) : n;
	}
	if (flags & (MSG_OOB | MSG_FASTOPEN)) {
		leave_out(e, fd);
		return NOT_OURS;
	}
	all = s.left;
	if (__atomic_load_n(&e->streak, __ATOMIC_RELAXED) == 0 && e->turned == TURNED_NOT &&
	    __atomic_add_fetch(&e->turns, 1, __ATOMIC_RELAXED) == TAKEN_TURNS)
		__atomic_store_n(&e->turned, would_wait(fd, flags) ? TURNED_YES : TURNED_TRIED, __ATOMIC_RELAXED);
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
					__atomic_store_n(&e->turned, TURNED_TRIED, __ATOMIC_RELAXED);
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
			return all == s.left ? NOT_OURS : (ssize_t)(all - s.left);
		}
		if (__atomic_load_n(&e->out, __ATOMIC_SEQ_CST)) {
			gate_exit(&e->sending);
			continue;
		}
		if (offer(e, fd, &s)) {
			gate_exit(&e->sending);
			span_skip(&s, 1);
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
		gate_exit(&e->sending);
		if (n < 0) {
			if (errno == ENOTSOCK && all == s.left) {
				end_drop(fd);
				return NOT_OURS;
			}
			if (errno == EPIPE && all == s.left)
				return send_refused(e, fd, s.left, flags);
			return all == s.left ? n : (ssize_t)(all - s.left);
		}
		if (e->sent < settings.ring_after)
			__atomic_fetch_add(&e->sent, (uint64_t)n, __ATOMIC_RELAXED);
		span_skip(&s, (size_t)n);
		if (s.left == 0 || known <= SPAN_PARTS || (size_t)n == before)
			return (ssize_t)(all - s.left);
		/* There were more parts than the kernel was shown. */
	}
}

/* leave_out has what is sent from now on go in-band. It is always possible. */
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

/* send_asked takes note that this process asks whether it can write to a descriptor. */
void send_asked(struct end *e, int fd)
{
	struct ring *r;
	int saved = errno;

	if ((__atomic_load_n(&e->never, __ATOMIC_RELAXED) & ASKED_ROOM) || (__atomic_fetch_or(&e->never, ASKED_ROOM, __ATOMIC_SEQ_CST) & ASKED_ROOM) ||
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
