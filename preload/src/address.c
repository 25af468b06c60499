/*
 * Addresses: the names of a Unix socket and of its peer, turned into the addresses that TCP would
 * have returned.
 */
#include "ring.h"

#include <string.h>

#define LEAVES 1000 /* times that a ring is left which others offer again and again */

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
		if (end_over(fd))
			return (int)sys_return(-ENOTCONN);
		return answer(&id.peer, id.ipv6, sa, len);
	}
	return (int)sys_return(r);
}

/*
 * A connected TCP socket does not look at the address that it is told to send to; a Unix socket refuses it.
 */

EXPORT ssize_t sendto(int fd, const void *b, size_t n, int flags, const struct sockaddr *sa, socklen_t len)
{
	struct iovec one = {(void *)(uintptr_t)b, n};
	struct end *e = end_at(fd);
	ssize_t r = NOT_OURS;

	if (e)
		r = end_send(e, fd, &one, 1, flags);
	if (r == NOT_OURS)
		r = next.sendto(fd, b, n, flags, sa, len);

	if (r < 0 && errno == EISCONN && sa && settings.on && guard_may(fd))
		return next.sendto(fd, b, n, flags, NULL, 0);
	return r;
}

#define CONTROL_MOST (1u << 20) /* bytes: the kernel takes less */
#define MESSAGES_MOST 1024	/* in one call */

/*
 * refused says whether the kernel refuses a message without looking at the socket, so that it has to be
 * asked, and nothing here can look into it.
 */
static bool refused(const struct msghdr *m)
{
	return !plausible(m) || m->msg_iovlen > IOV_MAX || (m->msg_iovlen && !plausible(m->msg_iov)) ||
		(m->msg_name && (int)m->msg_namelen < 0);
}

/* not_passed_on is for a message that was not sent, after passed_on. */
static void not_passed_on(const struct msghdr *m)
{
	struct msghdr copy = *m;

	if (!plausible(m->msg_control) || m->msg_controllen > CONTROL_MOST)
		return;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&copy); c; c = CMSG_NXTHDR(&copy, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0))
			continue;
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			tally_lent(fd, -1);
		}
	}
}

/*
 * passed_on has the descriptors that a message takes along go in-band. False: there are bytes in a ring of
 * one of them.
 */
static bool passed_on(const struct msghdr *m)
{
	struct msghdr copy = *m;
	bool ok = true;

	if (!plausible(m->msg_control) || m->msg_controllen > CONTROL_MOST)
		return true; /* the kernel refuses them */
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&copy); c; c = CMSG_NXTHDR(&copy, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0))
			continue;
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			birth_never(fd);
			ok = end_leave(fd) && ok;
			tally_lent(fd, 1);
		}
	}
	if (!ok)
		not_passed_on(m);
	return ok;
}

/*
 * send_beside sends a message that only the kernel can send. It has passed the gate meanwhile, so
 * that no other thread offers a ring and joins it. Bytes that are not in the socket by then would
 * come behind the second mark, where the reader takes them for tokens. If it cannot pass, or a ring
 * does not go away, this is the handler of a signal that has interrupted a send, or the connection
 * is broken.
 */
static ssize_t send_beside(struct end *e, int fd, const struct msghdr *m, int flags)
{
	bool passed = false;
	ssize_t r;

	for (unsigned turn = 0; turn < LEAVES; turn++) {
		leave_out(e, fd); /* before the gate: a call that has passed one enters no ring */
		passed = gate_enter(&e->sending);
		if (!passed || !__atomic_load_n(&e->out, __ATOMIC_SEQ_CST))
			break;
		gate_exit(&e->sending); /* another thread has offered one in between */
		passed = false;
	}
	r = next.sendmsg(fd, m, flags);
	tally_in_band(e, true, r);
	if (passed)
		gate_exit(&e->sending);
	return r;
}

/* send_message is sendmsg for a message that is not refused. */
static ssize_t send_message(struct end *e, int fd, const struct msghdr *m, int flags)
{
	ssize_t r = NOT_OURS;

	if (e && (flags & MSG_OOB))
		end_in_band(fd); /* marks of rings would hide from the peer how much comes before the urgent byte */
	if (e && (m->msg_controllen || (flags & (MSG_OOB | MSG_FASTOPEN))))
		r = send_beside(e, fd, m, flags);
	else if (e)
		r = end_send(e, fd, m->msg_iov, m->msg_iovlen, flags);
	if (r == NOT_OURS)
		r = next.sendmsg(fd, m, flags);

	if (r < 0 && errno == EISCONN && m->msg_name && settings.on && guard_may(fd)) {
		struct msghdr without = *m;

		without.msg_name = NULL;
		without.msg_namelen = 0;
		return e ? send_beside(e, fd, &without, flags) : next.sendmsg(fd, &without, flags);
	}
	return r;
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	struct end *e = end_at(fd);
	ssize_t r;

	if (refused(m))
		return next.sendmsg(fd, m, flags);
	if (m->msg_controllen && !passed_on(m)) {
		errno = ETOOMANYREFS;
		return -1;
	}
	r = send_message(e, fd, m, flags);
	if (r < 0 && m->msg_controllen)
		not_passed_on(m);
	return r;
}

/* not_sent is for the messages of a call from one on that were not sent, after passed_on. */
static void not_sent(const struct mmsghdr *m, unsigned int from, unsigned int n)
{
	for (; from < n; from++)
		if (!refused(&m[from].msg_hdr) && m[from].msg_hdr.msg_controllen)
			not_passed_on(&m[from].msg_hdr);
}

EXPORT int sendmmsg(int fd, struct mmsghdr *m, unsigned int n, int flags)
{
	unsigned int i;
	int r;

	if (n > MESSAGES_MOST)
		n = MESSAGES_MOST;
	if (!plausible(m))
		return next.sendmmsg(fd, m, n, flags);
	if (!end_at(fd)) {
		for (i = 0; i < n; i++)
			if (!refused(&m[i].msg_hdr) && m[i].msg_hdr.msg_controllen && !passed_on(&m[i].msg_hdr)) {
				not_sent(m, 0, i);
				errno = ETOOMANYREFS;
				return -1;
			}
		r = next.sendmmsg(fd, m, n, flags);
		not_sent(m, r > 0 ? (unsigned int)r : 0, n);
		if (r >= 0 || errno != EISCONN || !settings.on || !guard_may(fd))
			return r;
	}
	for (i = 0; i < n; i++) {
		ssize_t sent = sendmsg(fd, &m[i].msg_hdr, flags);
		struct span all;

		if (sent < 0)
			return i ? (int)i : -1;
		m[i].msg_len = (unsigned int)sent;
		/*
		 * Bytes behind a message that was sent in part would leave a hole in the stream:
		 * the program goes on where that message ended.
		 */
		if (span_init(&all, m[i].msg_hdr.msg_iov, m[i].msg_hdr.msg_iovlen) && (size_t)sent < all.left)
			return (int)i + 1;
	}
	return (int)i;
}

/*
 * named says whether an address that recvfrom filled in is the name of a pair: TCP fills in none.
 */
static bool named(const void *sa, socklen_t len)
{
	sa_family_t family;

	memcpy(&family, sa, sizeof(family));
	return settings.on && len > sizeof(family) && family == AF_UNIX;
}

static void unname(int fd, const void *sa, socklen_t *len)
{
	if (named(sa, *len) && guard_may(fd))
		*len = 0;
}

/*
 * unmark removes the control data that has come with the bytes of a pair that is not in the table:
 * the marks of a ring. The program could not handle them, and TCP brings none.
 */
static void unmark(int fd, struct msghdr *m)
{
	if ((m->msg_controllen == 0 && !(m->msg_flags & MSG_CTRUNC)) || !settings.on || !guard_end(fd))
		return;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c))
		for (size_t i = 0; c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
			CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len;
			i++) {
			int with;

			memcpy(&with, CMSG_DATA(c) + i * sizeof(with), sizeof(with));
			SYS(close, with);
		}
	m->msg_controllen = 0;
	m->msg_flags &= ~MSG_CTRUNC;
}

EXPORT ssize_t recvfrom(int fd, void *b, size_t n, int flags, struct sockaddr *sa, socklen_t *len)
{
	socklen_t room = sa && len ? *len : 0;
	struct iovec one = {b, n};
	struct end *e = end_at(fd);
	ssize_t r;
	int out;

	if ((e || (flags & (MSG_TRUNC | MSG_ERRQUEUE))) &&
		(r = end_receive(e, fd, &one, 1, flags, &out)) != NOT_OURS) {
		if (r >= 0 && sa && len)
			*len = 0;
		return r;
	}
	r = next.recvfrom(fd, b, n, flags, sa, len);
	tally_urgent(e, flags, r);

	if (r >= 0 && room >= sizeof(sa->sa_family))
		unname(fd, sa, len);
	return r;
}

/* __recvfrom_chk is recvfrom where the compiler knows the size of the buffer. */
EXPORT ssize_t __recvfrom_chk(
	int fd, void *b, size_t n, size_t size, int flags, struct sockaddr *sa, socklen_t *len);
ssize_t __recvfrom_chk(int fd, void *b, size_t n, size_t size, int flags, struct sockaddr *sa, socklen_t *len)
{
	if (n > size)
		__builtin_trap();
	return recvfrom(fd, b, n, flags, sa, len);
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	struct end *e = end_at(fd);
	socklen_t room;
	ssize_t r;
	int out;

	if (refused(m))
		return next.recvmsg(fd, m, flags);
	room = m->msg_name ? m->msg_namelen : 0;
	if (e && m->msg_controllen && !end_is(fd, e)) {
		end_drop(fd); /* control data of another socket is the program's */
		e = NULL;
	}
	if ((e || (flags & (MSG_TRUNC | MSG_ERRQUEUE))) &&
		(r = end_receive(e, fd, m->msg_iov, m->msg_iovlen, flags, &out)) != NOT_OURS) {
		if (r >= 0) {
			m->msg_namelen = 0;
			m->msg_controllen = 0;
			m->msg_flags = out;
		}
		return r;
	}
	r = next.recvmsg(fd, m, flags);
	tally_urgent(e, flags, r);

	if (r >= 0 && room >= sizeof(sa_family_t))
		unname(fd, m->msg_name, &m->msg_namelen);
	if (r >= 0) {
		unmark(fd, m);
		adopt_sent(m);
	}
	return r;
}

EXPORT int recvmmsg(int fd, struct mmsghdr *m, unsigned int n, int flags, struct timespec *timeout)
{
	struct end *e;
	int r;

	if (n > MESSAGES_MOST)
		n = MESSAGES_MOST;
	if (!plausible(m) ||
		(timeout &&
			(!plausible(timeout) || timeout->tv_sec < 0 || timeout->tv_nsec < 0 ||
				timeout->tv_nsec >= 1000000000)))
		return next.recvmmsg(fd, m, n, flags, timeout);
	if ((e = end_at(fd)) && !end_is(fd, e)) {
		end_drop(fd);
		e = NULL;
	}
	if (e) {
		unsigned int i;
		int error = 0;
		socklen_t len = sizeof(error);

		if (SYS(getsockopt, fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 &&
			error) { /* before the bytes that can be read */
			end_error(fd, error);
			return (int)sys_return(-error);
		}
		for (i = 0; i < n; i++) {
			ssize_t got = recvmsg(fd, &m[i].msg_hdr,
				(flags & ~MSG_WAITFORONE) | (i && flags & MSG_WAITFORONE ? MSG_DONTWAIT : 0));

			if (got < 0)
				return i ? (int)i : -1;
			m[i].msg_len = (unsigned int)got;
		}
		return (int)i;
	}
	r = next.recvmmsg(fd, m, n, flags, timeout);
	for (int i = 0; i < r; i++) {
		if (m[i].msg_hdr.msg_name && m[i].msg_hdr.msg_namelen >= sizeof(sa_family_t))
			unname(fd, m[i].msg_hdr.msg_name, &m[i].msg_hdr.msg_namelen);
		unmark(fd, &m[i].msg_hdr);
		adopt_sent(&m[i].msg_hdr);
	}
	return r;
}
