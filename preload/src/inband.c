/* Receiving in-band: bytes, and the marks among them that say that a ring comes, or where it begins. */
#include "ring.h"

#include <poll.h>
#include <sys/ioctl.h>

#define TURNS 64 /* of waiting until others have left the gate */
#define HINTS 32 /* turns taken, from which on a ring of the peer says that it wants one */

/*
 * with_control makes a message that can take a mark, and no second descriptor, which would fit where the
 * first is aligned.
 */
struct msghdr with_control(struct iovec *parts, size_t n, struct control *c)
{
	memset(c, 0, sizeof(*c));
	return (struct msghdr){.msg_iov = parts,
		.msg_iovlen = n,
		.msg_control = c->buf,
		.msg_controllen = CMSG_LEN(sizeof(int))};
}

/* came returns the descriptor of a mark, -1 if there was none. */
int came(const struct msghdr *m)
{
	const struct cmsghdr *c = CMSG_FIRSTHDR(m);
	int fd = -1;

	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
		c->cmsg_len >= CMSG_LEN(sizeof(int)))
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

/*
 * is_mark says whether bytes came with a mark, also if this process has no descriptor left for the mark's
 * file.
 */
bool is_mark(const struct msghdr *m)
{
	return came(m) >= 0 || (m->msg_flags & MSG_CTRUNC);
}

/*
 * peek_on goes on with a peek, so many bytes behind the first byte in the socket: the kernel ends a
 * peek at a mark, and would again, however much comes.
 */
size_t peek_on(int fd, struct span *s, size_t behind)
{
	int at = (int)behind, off = -1;
	socklen_t len = sizeof(off);
	size_t before = s->left;
	long n = 1;

	if (s->left == 0)
		return 0;
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

/*
 * peek_over peeks again, alone, where a mark has ended a peek in-band: in the middle of peek_on any
 * other peek would begin behind its offset. Calls that wait have passed the gate before, and are
 * woken by the bytes that are there. The gate was passed by *passed, in the frame. 0: there is a
 * ring by now; -1: others are about.
 */
static __attribute__((noinline)) ssize_t peek_over(
	struct end *e, int fd, const struct span *s, uintptr_t frame, bool *passed)
{
	struct iovec parts[SPAN_PARTS];
	struct control control;
	struct span rest = *s;
	struct msghdr m;
	ssize_t n;

	for (int i = 0; !gate_close(&e->receiving); i++) {
		gate_exit_from(&e->receiving, frame);
		SYS(sched_yield);
		*passed = gate_enter_from(&e->receiving, frame);
		if (!*passed || i == TURNS)
			return -1;
		if (__atomic_load_n(&e->in, __ATOMIC_SEQ_CST))
			return 0;
	}
	m = with_control(parts, span_parts(s, parts), &control);
	n = SYS(recvmsg, fd, &m, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n > 0) {
		if (came(&m) >= 0)
			SYS(close, came(&m));
		span_skip(&rest, (size_t)n);
		n += (ssize_t)peek_on(fd, &rest, (size_t)n);
	}
	gate_open(&e->receiving);
	return n > 0 ? n : -1;
}

/* limited says whether receives have a time limit, or that cannot be asked. */
static bool limited(int fd)
{
	struct timeval limit = {0};
	socklen_t len = sizeof(limit);

	return SYS(getsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &len) != 0 || limit.tv_sec || limit.tv_usec;
}

/*
 * attach takes a ring that has come with the bytes just read, or, without a file, the one that this side
 * has had from the beginning. The caller has passed the gate.
 */
static void attach(struct end *e, int fd, int memfd)
{
	uint32_t none = ATTACHED_NOT;
	struct ring *r;

	if ((__atomic_load_n(&e->never, __ATOMIC_SEQ_CST) & NEVER_IN) || uring_seen() || options_low(fd) ||
		!end_alone(e) || !end_is(fd, e) || !gate_close(&e->receiving)) {
		if (memfd >= 0)
			SYS(close, memfd);
		return;
	}
	r = memfd >= 0 ? ring_take(memfd) : gift_take(e);
	if (memfd >= 0)
		SYS(close, memfd);
	if (r) {
		ring_ref(r);
		if (limited(fd))
			__atomic_fetch_or(&e->never, LIMITED, __ATOMIC_SEQ_CST);
		admission_grown(e);
		__atomic_store_n(&r->where, &e->in, __ATOMIC_RELAXED);
		__atomic_store_n(&e->in, r, __ATOMIC_SEQ_CST);
		edges_attached(e, r);
		/*
		 * A process that was forked before has no ring, and would take tokens for bytes;
		 * one that is forked from now on has it.
		 */
		if (!end_alone(e) || !__atomic_load_n(&settings.rings, __ATOMIC_SEQ_CST) ||
			(__atomic_load_n(&e->never, __ATOMIC_SEQ_CST) & NEVER_IN) ||
			!__atomic_compare_exchange_n(&r->h->attached, &none, ATTACHED_YES, false,
				__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
			r->side->state = RING_ENDED;
			end_forget(&e->in, r);
		} else if (e->turned == TURNED_NOT && e->turns >= HINTS && busy_loop(e, fd)) {
			e->turned = TURNED_LOOP;
		} else if (e->turned == TURNED_NOT && e->turns >= HINTS && r->size != RING_BYTES_ANSWERS) {
			e->turned = TURNED_YES;
		}
		ring_unref(r);
	}
	gate_open(&e->receiving);
}

static __thread struct luck receiving __attribute__((tls_model("initial-exec")));

/*
 * receive_in_band reads where no ring is known. *marked: there may be more, behind the bytes that were
 * read.
 */
ssize_t receive_in_band(struct end *e, int fd, struct span *s, int flags, int *out, bool *marked)
{
	struct iovec parts[SPAN_PARTS];
	struct control control;
	struct msghdr m;
	size_t shown = 0;
	ssize_t n;
	bool passed = gate_enter(&e->receiving);
	int memfd;

	if (passed && gift_offered(e))
		attach(e, fd, -1);
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
		if (came(&m) >= 0)
			SYS(close, came(&m));
		if (rest.left && (is_mark(&m) || (size_t)n == shown)) {
			/* If the gate could not be passed, the call that has closed it is not there, or is beneath us. */
			ssize_t over = passed
				? peek_over(e, fd, s, (uintptr_t)__builtin_frame_address(0), &passed)
				: n + (ssize_t)peek_on(fd, &rest, (size_t)n);

			if (over == 0)
				*marked = true; /* the bytes are still there */
			if (over >= 0)
				n = over;
		}
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
	uring_settle();
	if (n > 0 && !(flags & MSG_PEEK)) {
		tally_in_band(e, false, n);
		if ((size_t)n == shown)
			*marked = true; /* there may be more parts than the kernel was shown */
		span_skip(s, (size_t)n);
	}
	*out = m.msg_flags & ~(MSG_CTRUNC | MSG_CMSG_CLOEXEC);
	return n;
}

/* limit_of is when a receive that began at a time is to end, UINT64_MAX if the socket has no time limit. */
static uint64_t limit_of(int fd, uint64_t began)
{
	struct timeval limit = {0};
	socklen_t len = sizeof(limit);

	if (SYS(getsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &len) != 0 ||
		(limit.tv_sec == 0 && limit.tv_usec == 0) || limit.tv_sec >= 1000000000)
		return UINT64_MAX;
	return began + (uint64_t)limit.tv_sec * 1000000000u + (uint64_t)limit.tv_usec * 1000u;
}

/*
 * await_more waits for more bytes of a receive that is to be complete. False: a signal, the time
 * limit, a reset behind the last byte or urgent data end the receive; or, *cannot, no descriptor may
 * be polled, as RLIMIT_NOFILE is 0.
 */
static bool await_more(int fd, uint64_t until, uint64_t signals, bool *cannot)
{
	struct pollfd p = {.fd = fd, .events = POLLIN | POLLPRI};
	uint64_t now = until == UINT64_MAX ? 0 : precise_now();
	uint64_t left = now < until ? until - now : 0;
	struct timespec rest = {.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
	int queued = 0, r = next.ppoll(&p, 1, until == UINT64_MAX ? NULL : &rest, (const sigset_t *)&signals);

	*cannot = r < 0 && errno == EINVAL;
	if (r <= 0)
		return false;
	if ((p.revents & POLLERR) && SYS(ioctl, fd, FIONREAD, &queued) == 0 && queued == 0)
		return false; /* the error stays where it is, for the next call */
	return !(p.revents & POLLPRI) || !urgent_at_mark(fd);
}

/*
 * receive_whole is receive_in_band with MSG_WAITALL, which it does not ask the kernel for: a Unix
 * socket forgets the error of a reset that ends such a receive behind the first bytes, where TCP
 * keeps it for the next call. The kernel waits for the first bytes, with all that signals mean to
 * it. A signal that comes later ends the receive, with any handler. So signals are let in only
 * where it waits. Where it cannot wait here the kernel does.
 */
ssize_t receive_whole(struct end *e, int fd, struct span *s, int flags, int *out, bool *marked)
{
	size_t all = s->left;
	uint64_t began, until, signals;
	bool cannot = false;
	ssize_t n;

	if ((flags & MSG_PEEK) || guard_on() || !next.ppoll)
		return receive_in_band(e, fd, s, flags, out, marked);
	flags &= ~MSG_WAITALL;
	began = precise_now();
	n = receive_in_band(e, fd, s, flags, out, marked);
	if (n <= 0 || *marked || s->left == 0 || !would_wait(fd, flags) || urgent_at_mark(fd))
		return n;
	until = limit_of(fd, began);
	signals = signals_off();
	while (n > 0 && s->left && !__atomic_load_n(&e->in, __ATOMIC_SEQ_CST) &&
		await_more(fd, until, signals, &cannot)) {
		n = receive_in_band(e, fd, s, flags | MSG_DONTWAIT, out, marked);
		if (n < 0 && errno == EAGAIN)
			n = 1; /* another thread has taken it */
		else if (n < 0)
			end_later(e);
	}
	signals_on(signals, ENDING_NOT);
	if (cannot && receive_in_band(e, fd, s, flags | MSG_WAITALL, out, marked) < 0)
		end_later(e);
	return (ssize_t)(all - s->left);
}
