/*
 * listen and accept: a listener is announced, and stays a TCP listener. An accepted connection may
 * have to be moved if it is marked, or while offers wait.
 */
#include "preload.h"

#include <fcntl.h>
#include <string.h>

#define AGAIN 3 /* times that are asked once more: after 1, 2 and 4 ms */
#define MSEC 1000000L

EXPORT int listen(int fd, int backlog)
{
	long r = (reach_listen(fd), SYS(listen, fd, backlog));
	struct identity id = {0};
	int protocol = 0;
	socklen_t len = sizeof(protocol);
	struct message m;
	bool stays;
	int sock;

	if (r != 0 || !settings.on || guard_on() ||
		SYS(getsockopt, fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) != 0 ||
		protocol != IPPROTO_TCP || !address_of(fd, false, &id.local, &id.ipv6))
		return (int)sys_return(r);
	birth_listens(fd, settings.rings);
	stays = !policy_listen(&id.local) || options_tell(fd);
	birth_stays(fd, stays);
	/*
	 * Clients may come here still for one that has listened at this port before, until its supervisor has
	 * looked.
	 */
	if (stays && !connect_announced(fd, &id.local))
		return (int)sys_return(r);
	/* A server that has given up its privileges, as memcached does before it listens, goes by the door. */
	sock = (uid_t)SYS(geteuid) == settings.uid ? supervisor_open(settings.socket) : supervisor_open_own();
	if (sock < 0)
		return (int)sys_return(r);
	message_fill(&m, KIND_ANNOUNCE, &id);
	m.netns = netns_of(fd);
	if (stays) {
		if (supervisor_send(sock, &m, -1))
			(void)supervisor_receive(sock, KIND_ANNOUNCE, NULL);
		SYS(close, sock);
		return (int)sys_return(r);
	}
	len = sizeof(m.unique);
	if (SYS(getsockopt, fd, SOL_SOCKET, SO_COOKIE, &m.unique, &len) == 0) {
		enum status status = STATUS_NO;

		(void)board_waiting(); /* have it before somebody is told of us */
		bare_open(fd, id.local.port);
		tally_listens();
		deferral_take(fd);
		if (supervisor_send(sock, &m, -1))
			status = supervisor_receive(sock, KIND_ANNOUNCE, NULL);
		/*
		 * Where no answer has come somebody may know of us, and clients of another listener at this port
		 * may come here.
		 */
		if (status == STATUS_NO && !connect_announced(fd, &id.local))
			deferral_give(fd);
	}
	SYS(close, sock);
	return (int)sys_return(r);
}

/*
 * other_end says whether a descriptor is the server's end of a pair for this connection, and not something
 * else that a supervisor gave away.
 */
static bool other_end(int end, const struct identity *id)
{
	struct identity is;
	int type = 0;
	socklen_t len = sizeof(type);

	return SYS(getsockopt, end, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_STREAM &&
		identity_of(end, &is) && is.server && address_equal(&is.local, &id->local) &&
		address_equal(&is.peer, &id->peer);
}

/*
 * claim asks for our end of a connection: for one that waits at our supervisor, or, with KIND_MEET, for one
 * that the agent has. It shows the TCP socket, which only a process can that has accepted the connection.
 * Below 0: there is none. *memory: of rings, -1 for none; the caller closes it.
 */
static int claim(enum kind kind, const struct identity *id, int fd, int *memory)
{
	struct message m;
	int64_t begin = supervisor_clock();
	int end = -1;
	int sock;
	long spare;

	if (supervisor_slow())
		return -1;
	sock = supervisor_open_own();
	if (sock < 0) {
		supervisor_asked(begin);
		return -1;
	}
	/* An end for which there is no descriptor would be lost, so one is kept free. */
	spare = SYS(fcntl, sock, F_DUPFD_CLOEXEC, 0);
	message_fill(&m, kind, id);
	m.flags |= kind == KIND_MEET && settings.rings ? FLAG_RINGS : 0;
	m.flags |= kind == KIND_CARRIED && hosts_both(fd) ? FLAG_SPEAKS : 0;
	if (spare >= 0) {
		SYS(close, spare);
		if (supervisor_send(sock, &m, fd))
			(void)supervisor_receive_two(sock, kind, &end, memory);
		if (end >= 0)
			supervisor_parts(sock);
		else
			supervisor_asked(begin);
	}
	SYS(close, sock);
	if (end >= 0 && !other_end(end, id)) {
		SYS(close, end);
		end = -1;
		if (*memory >= 0)
			SYS(close, *memory);
		*memory = -1;
	}
	return end;
}

/*
 * moved puts the pair in the place of a connection that was accepted just now, from a peer, which is NULL
 * if accept has not told it.
 */
static int moved(int listener, int fd, int flags, const struct address *peer)
{
	struct identity id;
	struct linger reset = {.l_onoff = 1};
	uint32_t which, on;
	bool six;
	long r;
	int end = -1;
	int tcp = -1;
	int memory = -1;
	bool asks = true;
	bool marked;
	bool paired;
	bool carried;

	if (fd < 0 || !settings.on || guard_on())
		return fd;
	if (birth_is_tcp(listener)) {
		if (hosts_both(fd)) /* it had asked when it listened for the first time */
			end_untaken(fd);
		return fd;
	}
	marked = letter_marked(fd);
	paired = !marked && reach_paired(fd);
	carried = hosts_some() && address_of(fd, false, &id.local, &id.ipv6);
	/*
	 * A peer that has reset the connection already has no address any more. What it has sent before can be
	 * read, and may be a Proposal.
	 */
	if (carried && !address_of(fd, true, &id.peer, &six)) {
		end_untaken(fd);
		return fd;
	}
	carried = carried && (hosts_peer(&id.peer, id.local.port) || (!paired && hosts_both(fd)));
	if (!marked && !paired && !carried && !board_waiting()) {
		bare_count(listener, fd, peer);
		return fd;
	}
	if (!address_of(fd, false, &id.local, &id.ipv6) || !address_of(fd, true, &id.peer, &six))
		return fd;
	/*
	 * A client elsewhere can have the mark, too, and would have us ask for each of its connections, again
	 * and again.
	 */
	if (marked && !letter_near(&id)) {
		marked = false;
		if (!carried && !board_waiting())
			return fd;
	}
	if (!birth_place(fd) || ((flags & SOCK_NONBLOCK) && SYS(fcntl, fd, F_SETFL, O_RDWR | O_NONBLOCK) != 0)) {
		if (carried)
			end_untaken(fd);
		return fd; /* the end could not have its place, or would wait */
	}
	if (marked)
		end = letter_claim(&id, fd, &asks, &tcp);
	if (paired)
		end = claim(KIND_MEET, &id, fd, &memory);
	/* One that has tokens of an attempt before may have been offered. */
	if (end < 0 && asks && (!(paired || (carried && !marked)) || board_waiting()))
		end = claim(KIND_CLAIM, &id, fd, &memory);
	/* Another one that accepts may have found our end in the letterbox, and is about to give it back. */
	for (int i = 0; end < 0 && asks && marked && i < AGAIN && !supervisor_slow(); i++) {
		struct timespec pause = {.tv_nsec = MSEC << i};

		SYS(ppoll, NULL, 0, &pause, NULL, 0);
		end = claim(KIND_CLAIM, &id, fd, &memory);
	}
	carried = end < 0 && carried;
	if (carried) /* an engine finds out whether it speaks CLC */
		end = claim(KIND_CARRIED, &id, fd, &memory);
	if (end < 0) {
		if (carried)
			end_untaken(fd);
		if (!marked && !paired)
			bare_count(listener, fd, peer);
		return fd;
	}
	/* The supervisor that was asked may have set SO_LINGER on the accepted socket already, to reset it. */
	which = birth_options(listener);
	options_copy(asks ? listener : fd, end, which & ~OPTIONS_LATER);
	on = options_on(listener, which);
	if (flags & SOCK_NONBLOCK)
		SYS(fcntl, end, F_SETFL, O_RDWR | O_NONBLOCK);
	/*
	 * TCP has done its work. A reset removes the socket at once and leaves no port waiting. A
	 * client that has asked may be a program of package smc, and a reset would make its connect
	 * fail. So the supervisor has a copy of our socket, and resets it afterwards.
	 */
	if (!asks)
		SYS(setsockopt, fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	do
		r = SYS(dup3, end, fd, flags & SOCK_CLOEXEC ? O_CLOEXEC : 0);
	while (r == -EBUSY || r == -EINTR);
	SYS(close, end);
	/*
	 * Close the client's socket now, when the reset has ended it, and not before. Its port
	 * would be free while our socket was still there. A connection from the next user of that
	 * port would be dropped, and wait for a second.
	 */
	if (tcp >= 0)
		SYS(close, tcp);
	end_born(fd, cookie_of(fd), !(flags & SOCK_NONBLOCK));
	end_gift(fd, memory, true);
	if (carried)
		end_carried(fd);
	options_later_on(fd, on);
	return fd;
}

/*
 * An asked is what accept is called with: the program's memory for the peer's address, or ours, where
 * it does not want to know it.
 */
struct asked {
	struct sockaddr *sa;
	socklen_t *len;
	socklen_t room; /* for the address; 0: not known, and nobody looks at it */
	socklen_t own_len;
	struct sockaddr_storage own;
};

static void ask_for(struct asked *a, struct sockaddr *sa, socklen_t *len)
{
	a->sa = sa;
	a->len = len;
	a->room = 0;
	if (!settings.on || guard_on())
		return;
	if (!sa) {
		a->sa = (struct sockaddr *)&a->own;
		a->len = &a->own_len;
		a->own_len = sizeof(a->own);
	}
	if (plausible(a->len))
		a->room = *a->len;
}

/* accepted is moved for a connection of which the kernel has told the peer. */
static int accepted(int listener, int fd, int flags, const struct asked *a)
{
	struct address peer;

	return moved(listener, fd, flags,
		fd >= 0 && a->room != 0 && address_parse(a->sa, *a->len < a->room ? *a->len : a->room, &peer)
			? &peer
			: NULL);
}

EXPORT int accept(int fd, struct sockaddr *sa, socklen_t *len)
{
	struct asked a;

	ask_for(&a, sa, len);
	look_accept(fd);
	return accepted(fd, next.accept(fd, a.sa, a.len), 0, &a);
}

EXPORT int accept4(int fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	struct asked a;

	ask_for(&a, sa, len);
	look_accept(fd);
	return accepted(fd, next.accept4(fd, a.sa, a.len, flags), flags, &a);
}
