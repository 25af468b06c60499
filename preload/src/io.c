/* Reading and writing as files are read and written; those of sockets are in address.c. */
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

	if ((e || (flags & (MSG_TRUNC | MSG_ERRQUEUE))) && (r = end_receive(e, fd, &one, 1, flags, &out)) != NOT_OURS)
		return r;
	return next.recv(fd, b, n, flags);
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

/* With the offset -1 these are readv and writev, which do not wait if they are told so, and sockets know no other. */
static int as_flags(int flags)
{
	return flags & RWF_NOWAIT ? MSG_DONTWAIT : 0;
}

#define PREADV2(name)                                                            \
	EXPORT ssize_t name(int fd, const struct iovec *v, int n, off_t at, int flags); \
	ssize_t name(int fd, const struct iovec *v, int n, off_t at, int flags)  \
	{                                                                        \
		struct end *e = at == -1 && n > 0 ? end_at(fd) : NULL;           \
		ssize_t r;                                                       \
                                                                                 \
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
		if (e && (r = end_send(e, fd, v, (size_t)n, as_flags(flags))) != NOT_OURS) \
			return r;                                                \
		return next.pwritev2(fd, v, n, at, flags);                       \
	}

PREADV2(preadv2)
PREADV2(preadv64v2)
PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2)

/* What these are where the compiler knows the size of the buffer. */
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

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	struct end *e = end_at(fd);
	va_list args;
	void *arg;
	size_t n;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	if (e && arg && end_is(fd, e) &&
	    ((request == FIONREAD && receive_waiting(e, fd, &n)) || (request == SIOCOUTQ && send_waiting(e, &n)))) {
		int v = n > INT_MAX ? INT_MAX : (int)n;

		memcpy(arg, &v, sizeof(v));
		return 0;
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
