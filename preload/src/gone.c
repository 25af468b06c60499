/*
 * The errors that a program gets when its peer has gone. A Unix socket says EPIPE at once; TCP
 * finds out by the bytes that it sends, and the peer's answer to them.
 */
#include "ring.h"

#include <poll.h>

#define TAKEN_MOST (128u << 10) /* bytes that TCP would have taken before the answer came */

static short state(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLRDHUP};
	struct timespec none = {0};

	return SYS(ppoll, &p, 1, &none, NULL, 0) == 1 ? p.revents : 0;
}

/*
 * end_refuses says of a peer to which a send was refused whether its end is closed. Where no descriptor may
 * be polled (RLIMIT_NOFILE is 0) it is: a program that writes until it is refused would write for ever, and a
 * peer that only reads no more is rare.
 */
bool end_refuses(int fd)
{
	struct pollfd p = {.fd = fd};
	struct timespec none = {0};
	long r = SYS(ppoll, &p, 1, &none, NULL, 0);

	return r == 1 ? p.revents & POLLHUP : r == -EINVAL;
}

/* gone takes note of a GONE_ state of a connection, also for other processes that have the end. */
static void gone(struct end *e, int fd, uint32_t how)
{
	uint32_t had = __atomic_fetch_or(&e->never, how, __ATOMIC_SEQ_CST);

	if (!(had & how) && !end_alone(e) && !guard_on())
		options_keep_gone(fd, how);
}

/*
 * end_gone is the GONE_ state of a connection, as far as this process knows, or another one that
 * has the end.
 */
uint32_t end_gone(const struct end *e, int fd)
{
	bool alone = end_alone(e); /* which may find out just now, and what others have kept */
	uint32_t had = __atomic_load_n(&e->never, __ATOMIC_SEQ_CST);

	return alone || guard_on() ? had : had | options_gone(fd);
}

/*
 * send_refused is called when the kernel has said EPIPE to a send with MSG_NOSIGNAL of which so
 * many bytes are left. It returns TCP's result. If the peer has closed with bytes unread, that is
 * ECONNRESET, once. For the first send after the peer has closed, and for any send while it only
 * reads no more, it is all of the bytes. From then on, and after shutdown by this process, it is
 * EPIPE and the signal.
 */
ssize_t send_refused(struct end *e, int fd, size_t left, int flags)
{
	bool alone = end_alone(e);
	uint32_t had = end_gone(e, fd);
	size_t taken = left < TAKEN_MOST ? left : TAKEN_MOST;
	int error = 0;
	socklen_t len = sizeof(error);

	if (end_tell(e, fd) || reset_came(e, fd))
		return sys_return(-ECONNRESET);
	if (SYS(getsockopt, fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error) {
		gone(e, fd, GONE_RESET);
		return sys_return(-error);
	}
	if (!(had & (GONE_SHUT | GONE_RESET)) &&
		(alone || end_refuses(fd))) { /* else somebody else may have shut it down */
		if (left && end_refuses(fd)) {
			gone(e, fd, GONE_RESET);
			__atomic_fetch_or(&e->never, GONE_LOST, __ATOMIC_SEQ_CST);
			epoll_nudge(fd); /* TCP is reset by the bytes that it has sent, and that is an edge */
		}
		return (ssize_t)taken;
	}
	end_lost(e); /* this send says it */
	return sys_return(SYS(sendto, fd, "", 1, (flags & MSG_NOSIGNAL) | MSG_DONTWAIT, NULL, 0));
}

/* end_lost says, once, whether a send was lost of which the program has not heard. */
bool end_lost(struct end *e)
{
	return (__atomic_load_n(&e->never, __ATOMIC_RELAXED) & GONE_LOST) &&
		(__atomic_fetch_and(&e->never, ~GONE_LOST, __ATOMIC_SEQ_CST) & GONE_LOST);
}

/*
 * end_over says whether the connection is none any more, to TCP: the peer has reset it, or would have, or
 * both have ended it.
 */
bool end_over(int fd)
{
	struct end *e = end_at(fd);
	uint32_t had;
	short now;

	if (!e)
		return false;
	now = state(fd);
	if ((now & POLLHUP) && reset_waits(e, fd))
		return true;
	if (now & POLLERR)
		gone(e, fd, GONE_RESET);
	had = end_gone(e, fd);
	return (had & GONE_RESET) || ((had & GONE_SHUT) && (now & POLLHUP));
}

/* end_error takes note of an error that the program has been told of. */
void end_error(int fd, int error)
{
	struct end *e = error ? end_at(fd) : NULL;

	if (e)
		gone(e, fd, GONE_RESET);
}

/*
 * end_later keeps the error of a call that has bytes to return, if it is one of those that the kernel tells
 * once.
 */
void end_later(struct end *e)
{
	if (errno == ECONNRESET)
		__atomic_fetch_or(&e->never, GONE_LATER, __ATOMIC_SEQ_CST);
}

/* end_tell says whether the program is to be told of it now. */
bool end_tell(struct end *e, int fd)
{
	if (!(__atomic_load_n(&e->never, __ATOMIC_RELAXED) & GONE_LATER) ||
	    !(__atomic_fetch_and(&e->never, ~GONE_LATER, __ATOMIC_SEQ_CST) & GONE_LATER))
		return false;
	gone(e, fd, GONE_RESET);
	return true;
}

/* end_reset takes note that the program has been told of a reset. */
void end_reset(struct end *e, int fd)
{
	gone(e, fd, GONE_RESET);
}

/* end_hung_up says whether the peer's end is closed, by the last process that had it. */
bool end_hung_up(int fd)
{
	return state(fd) & POLLHUP;
}

/* end_shut takes note that this process sends no more. */
void end_shut(int fd)
{
	struct end *e = end_at(fd);

	if (e)
		gone(e, fd, GONE_SHUT);
}
