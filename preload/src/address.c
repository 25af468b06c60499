/* Addresses: what a Unix socket says of itself and of its peer, made what TCP would have said. */
#include "preload.h"

#include <string.h>

/* answer copies an address out as the kernel does: cut to the room there is, with the length that it has. */
static int answer(const struct address *a, bool ipv6, struct sockaddr *sa, socklen_t *len)
{
	struct sockaddr_storage ss;
	socklen_t n = address_format(a, ipv6, &ss);

	memcpy(sa, &ss, *len < n ? *len : n);
	*len = n;
	return 0;
}

/* ours says whether an address that the kernel has filled in may be the name of a pair, and reads that. */
static bool ours(int fd, const struct sockaddr *sa, socklen_t room, struct identity *id)
{
	sa_family_t family = AF_UNIX; /* if it did not fit into the caller's room */

	if (room >= sizeof(family))
		memcpy(&family, sa, sizeof(family));
	return settings.on && family == AF_UNIX && identity_of(fd, id);
}

EXPORT int getsockname(int fd, struct sockaddr *sa, socklen_t *len)
{
	socklen_t room = len ? *len : 0;
	long r = SYS(getsockname, fd, sa, len);
	struct identity id;

	if (r == 0 && ours(fd, sa, room, &id)) {
		*len = room;
		return answer(&id.local, id.ipv6, sa, len);
	}
	return (int)sys_return(r);
}

EXPORT int getpeername(int fd, struct sockaddr *sa, socklen_t *len)
{
	socklen_t room = len ? *len : 0;
	long r = SYS(getpeername, fd, sa, len);
	struct identity id;

	if (r == 0 && ours(fd, sa, room, &id)) {
		*len = room;
		return answer(&id.peer, id.ipv6, sa, len);
	}
	return (int)sys_return(r);
}

/* A connected TCP socket does not look at the address that it is told to send to; a Unix socket refuses it. */

EXPORT ssize_t sendto(int fd, const void *b, size_t n, int flags, const struct sockaddr *sa, socklen_t len)
{
	ssize_t r = next.sendto(fd, b, n, flags, sa, len);
	struct identity id;

	if (r < 0 && errno == EISCONN && sa && settings.on && identity_of(fd, &id))
		return next.sendto(fd, b, n, flags, NULL, 0);
	return r;
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	ssize_t r = next.sendmsg(fd, m, flags);
	struct identity id;

	if (r < 0 && errno == EISCONN && m->msg_name && settings.on && identity_of(fd, &id)) {
		struct msghdr without = *m;

		without.msg_name = NULL;
		without.msg_namelen = 0;
		return next.sendmsg(fd, &without, flags);
	}
	return r;
}

EXPORT int sendmmsg(int fd, struct mmsghdr *m, unsigned int n, int flags)
{
	int r = next.sendmmsg(fd, m, n, flags);
	struct identity id;
	unsigned int i;

	if (r >= 0 || errno != EISCONN || !settings.on || !identity_of(fd, &id))
		return r;
	for (i = 0; i < n; i++) {
		ssize_t sent = sendmsg(fd, &m[i].msg_hdr, flags);

		if (sent < 0)
			return i ? (int)i : -1;
		m[i].msg_len = (unsigned int)sent;
	}
	return (int)i;
}

/* named says whether an address that recvfrom filled in is that of a pair: TCP has none to give. */
static bool named(const void *sa, socklen_t len)
{
	sa_family_t family;

	memcpy(&family, sa, sizeof(family));
	return settings.on && len > sizeof(family) && family == AF_UNIX;
}

static void unname(int fd, const void *sa, socklen_t *len)
{
	struct identity id;

	if (named(sa, *len) && identity_of(fd, &id))
		*len = 0;
}

EXPORT ssize_t recvfrom(int fd, void *b, size_t n, int flags, struct sockaddr *sa, socklen_t *len)
{
	socklen_t room = sa && len ? *len : 0;
	ssize_t r = next.recvfrom(fd, b, n, flags, sa, len);

	if (r >= 0 && room >= sizeof(sa->sa_family))
		unname(fd, sa, len);
	return r;
}

/* What recvfrom is where the compiler knows the size of the buffer. */
EXPORT ssize_t __recvfrom_chk(int fd, void *b, size_t n, size_t size, int flags, struct sockaddr *sa, socklen_t *len);
ssize_t __recvfrom_chk(int fd, void *b, size_t n, size_t size, int flags, struct sockaddr *sa, socklen_t *len)
{
	if (n > size)
		__builtin_trap();
	return recvfrom(fd, b, n, flags, sa, len);
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	socklen_t room = m && m->msg_name ? m->msg_namelen : 0;
	ssize_t r = next.recvmsg(fd, m, flags);

	if (r >= 0 && room >= sizeof(sa_family_t))
		unname(fd, m->msg_name, &m->msg_namelen);
	return r;
}

EXPORT int recvmmsg(int fd, struct mmsghdr *m, unsigned int n, int flags, struct timespec *timeout)
{
	int r = next.recvmmsg(fd, m, n, flags, timeout);

	for (int i = 0; i < r; i++)
		if (m[i].msg_hdr.msg_name && m[i].msg_hdr.msg_namelen >= sizeof(sa_family_t))
			unname(fd, m[i].msg_hdr.msg_name, &m[i].msg_hdr.msg_namelen);
	return r;
}
