/* Reading and writing as files are read and written; the functions for sockets are in address.c. */
#include "ring.h"

#include <stdarg.h>
#include <sys/ioctl.h>
#include <linux/sockios.h>

EXPORT ssize_t read(int fd, void *b, size_t n)
{
	struct end *e = end_at(fd);
	struct iovec one = {b, n};
	ssize_t r;

	if (e && (r = end_read(e, fd, &one, 1, 0)) != NOT_OURS)
		return r;
	return next.read(fd, b, n);
}

EXPORT ssize_t recv(int fd, void *b, size_t n, int flags)
{
	struct end *e = end_at(fd);
	struct iovec one = {b, n};
	ssize_t r;
	int out;

	if ((e || (flags & (MSG_TRUNC | MSG_ERRQUEUE))) &&
		(r = end_receive(e, fd, &one, 1, flags, &out)) != NOT_OURS)
		return r;
	r = next.recv(fd, b, n, flags);
	tally_urgent(e, flags, r);
	return r;
}

EXPORT ssize_t readv(int fd, const struct iovec *v, int n)
{
	struct end *e = n > 0 ? end_at(fd) : NULL;
	ssize_t r;

	if (e && (r = end_read(e, fd, v, (size_t)n, 0)) != NOT_OURS)
		return r;
	return next.readv(fd, v, n);
}

EXPORT ssize_t write(int fd, const void *b, size_t n)
{
	struct end *e = end_at(fd);
	struct iovec one = {(void *)(uintptr_t)b, n};
	ssize_t r;

	if (e && (r = end_send(e, fd, &one, 1, 0)) != NOT_OURS)
		return r;
	return next.write(fd, b, n);
}

EXPORT ssize_t send(int fd, const void *b, size_t n, int flags)
{
	struct end *e = end_at(fd);
	struct iovec one = {(void *)(uintptr_t)b, n};
	ssize_t r;

	if (e && (r = end_send(e, fd, &one, 1, flags)) != NOT_OURS)
		return r;
	return next.send(fd, b, n, flags);
}

EXPORT ssize_t writev(int fd, const struct iovec *v, int n)
{
	struct end *e = n > 0 ? end_at(fd) : NULL;
	ssize_t r;

	if (e && (r = end_send(e, fd, v, (size_t)n, 0)) != NOT_OURS)
		return r;
	return next.writev(fd, v, n);
}

#define RWF_NOSIGNAL_ 0x100 /* since Linux 6.18 */

/*
 * With the offset -1 these are readv and writev, which do not wait or send no signal if they are told so,
 * and sockets know no other flags.
 */
static int as_flags(int flags)
{
	return (flags & RWF_NOWAIT ? MSG_DONTWAIT : 0) | (flags & RWF_NOSIGNAL_ ? MSG_NOSIGNAL : 0);
}

/*
 * unknown returns the error of the kernel for flags that it does not know, 0 if it knows them all. It does
 * not look at them before there is something to be read, so it is asked with a socket of its own, from which
 * nothing can be read.
 */
static int unknown(int flags)
{
	struct iovec one = {(char[1]){0}, 1};
	long r = -EOPNOTSUPP, fd;

	if ((flags & ~RWF_NOWAIT) == 0)
		return 0;
	fd = SYS(socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0) {
		r = SYS(preadv2, fd, &one, 1, -1, -1, flags);
		SYS(close, fd);
	}
	return r == -EOPNOTSUPP || r == -EINVAL ? (int)-r : 0;
}

#define PREADV2(name)                                                            \
	EXPORT ssize_t name(int fd, const struct iovec *v, int n, off_t at, int flags); \
	ssize_t name(int fd, const struct iovec *v, int n, off_t at, int flags)  \
	{                                                                        \
		struct end *e = at == -1 && n > 0 ? end_at(fd) : NULL;           \
		ssize_t r;                                                       \
                                                                                 \
		if (e && end_is(fd, e) && unknown(flags))                        \
			return sys_return(-unknown(flags));                      \
		if (e && (r = end_read(e, fd, v, (size_t)n, as_flags(flags))) != NOT_OURS) \
			return r;                                                \
		return next.preadv2(fd, v, n, at, flags);                        \
	}
#define PWRITEV2(name)                                                           \
	EXPORT ssize_t name(int fd, const struct iovec *v, int n, off_t at, int flags); \
	ssize_t name(int fd, const struct iovec *v, int n, off_t at, int flags)  \
	{                                                                        \
		struct end *e = at == -1 && n > 0 ? end_at(fd) : NULL;           \
		ssize_t r;                                                       \
                                                                                 \
		if (e && end_is(fd, e) && unknown(flags))                        \
			return sys_return(-unknown(flags));                      \
		if (e && (r = end_send(e, fd, v, (size_t)n, as_flags(flags))) != NOT_OURS) \
			return r;                                                \
		return next.pwritev2(fd, v, n, at, flags);                       \
	}

PREADV2(preadv2)
PREADV2(preadv64v2)
PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2)

/* read and recv where the compiler knows the size of the buffer. */
EXPORT ssize_t __read_chk(int fd, void *b, size_t n, size_t size);
ssize_t __read_chk(int fd, void *b, size_t n, size_t size)
{
	if (n > size)
		__builtin_trap();
	return read(fd, b, n);
}

EXPORT ssize_t __recv_chk(int fd, void *b, size_t n, size_t size, int flags);
ssize_t __recv_chk(int fd, void *b, size_t n, size_t size, int flags)
{
	if (n > size)
		__builtin_trap();
	return recv(fd, b, n, flags);
}

#define WINDOW 65536 /* bytes that TCP delivers to a peer that reads nothing */

/*
 * send_queued is SIOCOUTQ, and SIOCOUTQNSD. They do not count bytes that the peer's TCP has taken,
 * whether the peer has read them or not: some programs wait for 0 before they close. In-band nobody
 * knows bytes, and only bytes that do not fit into the pair wait. Where a program has a filter of system
 * calls nobody asks whether they fit.
 */
static int send_queued(int fd, struct end *e, bool unacknowledged, void *arg)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	struct timespec none = {0};
	size_t n = 0;
	int v = 0;
	long r = SYS(ioctl, fd, SIOCOUTQ, arg); /* it finds out whether there is room for the answer */

	if (r != 0)
		return (int)sys_return(r);
	if (unacknowledged && (!e || !send_waiting(e, &n)) &&
		(guard_on() || SYS(ppoll, &p, 1, &none, NULL, 0) == 0)) {
		memcpy(&v, arg, sizeof(v));
		n = (size_t)v;
	}
	v = n > WINDOW ? (int)(n - WINDOW) : 0;
	memcpy(arg, &v, sizeof(v));
	return 0;
}

/* received is FIONREAD. */
static int received(int fd, struct end *e, void *arg)
{
	size_t n;
	long r;
	int v;

	if (!receive_waiting(e, fd, &n)) {
		r = SYS(ioctl, fd, FIONREAD, arg);
		if (r != 0)
			return (int)sys_return(r);
		memcpy(&v, arg, sizeof(v));
		n = urgent_before_mark(e, fd, (size_t)v);
	}
	v = n > INT_MAX ? INT_MAX : (int)n;
	memcpy(arg, &v, sizeof(v));
	return 0;
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	struct end *e = end_at(fd);
	va_list args;
	void *arg;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	if (e && arg && request == FIONREAD && end_is(fd, e))
		return received(fd, e, arg);
	if ((request == SIOCOUTQ || request == SIOCOUTQNSD) && settings.on && guard_end(fd))
		return send_queued(fd, e, request == SIOCOUTQ, arg);
	if (e && arg && request == SIOCATMARK) {
		long r = SYS(ioctl, fd, request, arg);
		int at = 0;

		if (r == 0)
			memcpy(&at, arg, sizeof(at));
		if (at)
			urgent_seen(e);
		return (int)sys_return(r);
	}
	if (e && arg && request == FIOASYNC)
		edges_signalled(fd);
	if (request == FIOSETOWN || request == SIOCSPGRP)
		owner_chosen(fd);
	if (e && arg && request == FIONBIO) {
		int v;

		memcpy(&v, arg, sizeof(v));
		end_waits(fd, v == 0);
	}
	return (int)sys_return(SYS(ioctl, fd, request, arg));
}
