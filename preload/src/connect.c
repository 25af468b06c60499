/*
 * connect: where the destination is a program of this machine that runs like us, its supervisor is
 * given one end of a new pair before TCP connects, or our end is connected to a letterbox of its; and our end
 * takes the place of the connected socket. TCP makes the connection all the same: the listener sees it come.
 *
 * Until the supervisor has said yes nothing has happened. Afterwards there are two outcomes, and both
 * sides agree on them: our end of the pair is in place, or the offer was cancelled before the
 * server took the other one.
 */
#include "preload.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

#define REACH_PATIENCE 2000000000LL /* ns that our supervisor may take for an end that the agent has */

struct attempt {
	int sock;   /* to the server's supervisor; -1 if it has got a letter */
	int end;    /* of the pair; -1 if there is none yet */
	int other;  /* the other one, until the supervisor has it; -1 else */
	int memory; /* of rings, that has come with our end; -1: none */
	uint32_t admission; /* where it is to be noted whether the connection was short */
	uint32_t on; /* options_on of the socket */
	int maxseg; /* that the program has asked for, with a letter */
	long status, flags; /* of the socket */
	char path[sizeof(settings.socket)]; /* of the supervisor */
	uint64_t unique; /* the cookie of our end */
	enum kind kind; /* of the message that asks our supervisor for our end */
	uint64_t netns; /* of the socket, if it was looked for; else 0 */
	bool announced; /* some supervisor of our user knows the listener */
	bool admitted; /* admission has been asked, and admission is where */
	bool alone; /* nobody has announced a listener at the address */
	struct hidden before; /* that this thread had */
	struct identity id;
};

/* covers says whether a listener at an address gets the connections to another one. */
static bool covers(const struct address *listener, const struct address *to)
{
	static const uint8_t zero[16];

	return memcmp(listener->ip, zero, 16) == 0 || memcmp(listener->ip, to->ip, 16) == 0 ||
	       (address_is_any(listener) && to->ip[10] == 0xff && memcmp(to->ip, listener->ip, 12) == 0);
}

/*
 * announced finds the supervisor of the listener at an address of this network namespace. *sure: it
 * takes every connection there, and need not be asked.
 */
static bool announced(
	int fd, const struct address *to, char path[static sizeof(settings.socket)], uint64_t *in, bool *sure)
{
	static const char digits[] = "0123456789abcdef";
	char link[sizeof(settings.socket) + 32];
	char decimal[5];
	char *p = link;
	uint64_t netns = netns_of(fd);
	uint16_t port = to->port;
	struct address listener;
	char target[128];
	char *dot;
	size_t n = 0, dir = supervisors_dir(path);
	long r;

	*in = netns;
	*sure = false;
	if (netns == 0)
		return false;
	memcpy(p, path, dir);
	p += dir;
	for (int shift = 60; shift >= 0; shift -= 4)
		*p++ = digits[netns >> shift & 15];
	*p++ = '.';
	do
		decimal[n++] = (char)('0' + port % 10);
	while (port /= 10);
	while (n)
		*p++ = decimal[--n];
	*p = 0;
	r = SYS(readlinkat, AT_FDCWD, link, target, sizeof(target));
	if (r <= 0 || (size_t)r >= sizeof(target))
		return false;
	target[r] = 0;
	dot = strchr(target, '.');
	if (dot)
		*dot = 0;
	n = strlen(target);
	if (strchr(target, '/') || dir + n >= sizeof(settings.socket))
		return false;
	memcpy(path + dir, target, n + 1);
	if (!dot)
		return true;
	*sure = get_hex(dot + 1, listener.ip, sizeof(listener.ip)) && covers(&listener, to);
	return *sure;
}

/*
 * connect_announced says whether programs may move connections to a listener at an address of its own,
 * which some supervisor knows.
 */
bool connect_announced(int fd, const struct address *server)
{
	char path[sizeof(settings.socket)];
	uint64_t netns;
	bool sure;

	return announced(fd, server, path, &netns, &sure);
}

/*
 * source says which address of its own the kernel will use for a destination. False: the destination
 * is not on this machine, where the two are the same.
 */
static bool source(const struct address *to, bool ipv6, struct address *from)
{
	struct sockaddr_storage ss;
	socklen_t len;
	bool six;
	bool ok;
	int probe;

	*from = *to;
	from->port = 0;
	if (address_is_loopback(to)) {
		if (from->ip[10] == 0xff) { /* all of 127.0.0.0/8 is reached from here */
			static const uint8_t here[4] = {127, 0, 0, 1};

			memcpy(from->ip + 12, here, 4);
		}
		return true;
	}
	probe = (int)SYS(socket, ipv6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (probe < 0)
		return false;
	len = address_format(to, ipv6, &ss);
	ok = SYS(connect, probe, &ss, len) == 0 && address_of(probe, false, from, &six) &&
	     memcmp(from->ip, to->ip, sizeof(to->ip)) == 0;
	SYS(close, probe);
	from->port = 0;
	return ok;
}

/*
 * attempt_local makes sure that the socket's own address is known before it connects. One that was connected
 * before says that it has the port that it had then, and gets another one.
 */
static bool attempt_local(struct attempt *a, int fd, const struct address *from)
{
	struct address want = address_is_any(&a->id.local) ? *from : a->id.local;
	struct sockaddr_storage ss;
	socklen_t len;
	bool six;

	want.port = 0;
	len = address_format(&want, a->id.ipv6, &ss);
	if (SYS(bind, fd, &ss, len) == 0)
		return address_of(fd, false, &a->id.local, &six);
	if (a->id.local.port == 0)
		return false;
	if (address_is_any(&a->id.local))
		memcpy(a->id.local.ip, from->ip, sizeof(from->ip));
	return true;
}

static bool of_ipv6(const struct sockaddr *sa)
{
	sa_family_t family;

	memcpy(&family, sa, sizeof(family));
	return family == AF_INET6;
}

static void attempt_drop(struct attempt *a)
{
	if (a->sock >= 0)
		SYS(close, a->sock);
	if (a->other >= 0)
		hidden_close(a->other);
	if (a->end >= 0)
		hidden_close(a->end);
	if (a->memory >= 0)
		SYS(close, a->memory);
	hidden_end(&a->before);
	a->sock = a->other = a->end = a->memory = -1;
}

/*
 * prepare_options gives our end the options that the program has set on the socket, and the receivers of
 * its signals.
 */
static void prepare_options(struct attempt *a, int fd)
{
	uint32_t which = birth_options(fd);

	options_copy(fd, a->end, which & ~OPTIONS_LATER);
	a->on = options_on(fd, which);
	owner_copy(fd, a->end, which);
}

/*
 * prepare gives our end its name, and all that the program has set on the socket, before anybody waits for
 * it. False: that is not possible.
 */
static bool prepare(struct attempt *a, int fd)
{
	a->status = SYS(fcntl, fd, F_GETFL);
	a->flags = SYS(fcntl, fd, F_GETFD);
	if (!identity_bind(a->end, &a->id, a->unique))
		return false;
	prepare_options(a, fd);
	return a->status >= 0 && a->flags >= 0; /* not if a filter of system calls forbids it */
}

/*
 * status gives our end the status of the socket. has: the status that it has by now. O_ASYNC comes when it
 * has its number, which is in the signals.
 */
static bool status(const struct attempt *a, int has)
{
	return (a->status & ~(O_ACCMODE | O_ASYNC)) == has ||
		SYS(fcntl, a->end, F_SETFL, a->status & ~O_ASYNC) == 0;
}

static void fill(const struct attempt *a, struct message *m, uint64_t netns)
{
	message_fill(m, KIND_OFFER, &a->id);
	m->netns = netns;
	m->unique = a->unique;
}

/* attempt_letter offers our end by letter. False: it is to be asked. */
static bool attempt_letter(struct attempt *a, int fd, uint64_t netns)
{
	struct message m;

	a->unique = hidden_socket(&a->end, &a->before);
	if (a->unique == 0) {
		a->end = -1;
		return false;
	}
	fill(a, &m, netns);
	if (prepare(a, fd) && letter_send(a->path, &a->id, &m, a->end, fd, &a->maxseg)) {
		if (status(a, O_NONBLOCK))
			return true;
		letter_withdraw(fd); /* nobody has it, as there is no connection */
		letter_unmark(fd, a->maxseg);
		birth_never(fd);
	}
	attempt_drop(a);
	return false;
}

/* attempt_ask offers an end of a pair to the supervisor, and waits. False: TCP. */
static bool attempt_ask(struct attempt *a, int fd, uint64_t netns)
{
	struct message m;
	int pair[2];
	bool sent;

	a->unique = hidden_pair(pair, &a->before);
	if (a->unique == 0)
		return false;
	a->end = pair[0];
	a->other = pair[1];
	fill(a, &m, netns);
	if (prepare(a, fd) && status(a, 0)) {
		a->sock = supervisor_open(a->path);
		if (a->sock >= 0) {
			sent = supervisor_send(a->sock, &m, a->other);
			hidden_close(a->other);
			a->other = -1;
			if (sent && supervisor_receive(a->sock, KIND_OFFER, NULL) == STATUS_OK)
				return true;
		}
	}
	attempt_drop(a);
	return false;
}

/*
 * attempt_begin offers an end of a pair to the supervisor of the destination. False: TCP, nothing has
 * happened.
 */
static bool attempt_begin(struct attempt *a, int fd, const struct sockaddr *sa, socklen_t len)
{
	struct address from;
	uint64_t netns;
	bool sure;

	a->sock = a->end = a->other = a->memory = -1;
	a->netns = 0;
	a->announced = a->admitted = a->alone = false;
	if (!settings.on || guard_on() || birth_begun(fd) || !address_parse(sa, len, &a->id.peer) ||
		a->id.peer.port == 0 || admission_known(&a->id.peer) || !birth_may_swap(fd) || birth_told(fd))
		return false;
	if (address_is_any(&a->id.peer)) {
		if (a->id.peer.ip[10] == 0xff)
			a->id.peer.ip[12] = 127;
		a->id.peer.ip[15] = 1;
	}
	a->announced = announced(fd, &a->id.peer, a->path, &netns, &sure);
	a->netns = netns;
	a->alone = !a->announced && netns != 0;
	if (!a->announced || !address_of(fd, false, &a->id.local, &a->id.ipv6) ||
	    a->id.ipv6 != of_ipv6(sa))
		return false;
	if (!policy_connect(&a->id.peer) || !admission_ask(a->path, &a->id.peer, netns, false, &a->admission))
		return false;
	a->admitted = true;
	if (!source(&a->id.peer, a->id.ipv6, &from)) {
		/* a listener here has the same port, at all addresses; the server is elsewhere */
		a->announced = false;
		return false;
	}
	if (unseen_registration(fd) || !attempt_local(a, fd, &from) || !birth_place(fd))
		return false;
	return (sure && letter_possible(a->path, &a->id) && attempt_letter(a, fd, netns)) ||
		attempt_ask(a, fd, netns);
}

static bool established(const struct attempt *a, int fd)
{
	struct tcp_info info;
	struct address local;
	socklen_t len = sizeof(info);
	bool six;

	return SYS(getsockopt, fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
		info.tcpi_state == TCP_ESTABLISHED && address_of(fd, false, &local, &six) &&
		address_equal(&local, &a->id.local);
}

/* given_up says whether the other end of the pair is closed: the supervisor has gone. */
static bool given_up(int end)
{
	struct pollfd p = {.fd = end};
	struct timespec now = {0};

	return SYS(ppoll, &p, 1, &now, NULL, 0) == 1 && (p.revents & (POLLHUP | POLLERR));
}

/*
 * signal_ready sends the signal of a socket with O_ASYNC that has something to read, or an end, as the kernel
 * would: as its own to this process, and without details to others. The kernel knows of none at that moment.
 */
void signal_ready(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	struct timespec none = {0};
	struct f_owner_ex owner = {0};
	siginfo_t info = {.si_code = POLL_IN};
	long sig, self = SYS(getpid);

	if (SYS(ppoll, &p, 1, &none, NULL, 0) != 1 || SYS(fcntl, fd, F_GETOWN_EX, &owner) != 0 || owner.pid == 0)
		return;
	sig = SYS(fcntl, fd, F_GETSIG);
	info.si_signo = sig > 0 ? (int)sig : SIGIO;
	info.si_band = POLLIN | POLLRDNORM;
	info.si_fd = fd;
	if (owner.type == F_OWNER_TID && SYS(rt_tgsigqueueinfo, self, owner.pid, info.si_signo, &info) == 0)
		return;
	if (owner.type != F_OWNER_PID || owner.pid != self ||
		SYS(rt_sigqueueinfo, self, info.si_signo, &info) != 0)
		SYS(kill, owner.type == F_OWNER_PGRP ? -owner.pid : owner.pid, info.si_signo);
}

/*
 * signal_on has our end send signals, if the socket did: the kernel knows its number from now on. An event
 * that has come before is told here.
 */
static void signal_on(const struct attempt *a, int fd)
{
	if ((a->status & O_ASYNC) && SYS(fcntl, fd, F_SETFL, a->status) == 0)
		signal_ready(fd);
}

/* swap puts our end in the place of the socket. */
static void swap(struct attempt *a, int fd)
{
	struct epoll_event event;
	int epfd;
	bool registered = birth_registration(fd, &epfd, &event);
	long r;

	/*
	 * A letter has a copy of the socket, with which signals and the registration would live on, and tell of
	 * its own end.
	 */
	if (a->status & O_ASYNC)
		SYS(fcntl, fd, F_SETFL, a->status & ~O_ASYNC);
	if (registered) {
		SYS(epoll_ctl, epfd, EPOLL_CTL_DEL, fd, NULL);
		event.events &= ~(uint32_t)EPOLLWRBAND; /* epoll.c */
	}

	do
		r = SYS(dup3, a->end, fd, a->flags & FD_CLOEXEC ? O_CLOEXEC : 0);
	while (r == -EBUSY || r == -EINTR);
	end_born(fd, a->unique, !(a->status & O_NONBLOCK));
	options_later_on(fd, a->on);
	end_admitted(fd, a->admission);
	end_gift(fd, a->memory, false);
	a->memory = -1;
	if (a->status & O_ASYNC)
		edges_signalled(fd);
	if (registered && edges_are(event.events))
		edges_registered(epfd, EPOLL_CTL_ADD, fd, &event);
	if (registered && SYS(epoll_ctl, epfd, EPOLL_CTL_ADD, fd, &event) == 0) {
		edges_registered_as(epfd, fd, event.events);
		end_watched(fd);
		busy_registered(epfd, fd, &event);
	}
	signal_on(a, fd);
	birth_never(fd);
}

/* attempt_letter_end is attempt_end where a letter was sent. */
static bool attempt_letter_end(struct attempt *a, int fd, bool connected)
{
	/*
	 * It is given up by a supervisor that has died, or did not like the letter; and by a server that has
	 * closed it already.
	 */
	if (((connected || established(a, fd)) && !given_up(a->end)) || !letter_withdraw(fd))
		return true;
	letter_unmark(fd, a->maxseg);
	birth_never(fd); /* should the program connect it again, nobody could take that */
	return false;
}

/*
 * attempt_cancel cancels an offer. STATUS_CLAIMED: the server has the other end already. STATUS_LOST: the
 * supervisor did not say.
 */
static enum status attempt_cancel(struct attempt *a)
{
	struct message m;

	message_fill(&m, KIND_CANCEL, &a->id);
	return supervisor_send(a->sock, &m, -1) ? supervisor_receive(a->sock, KIND_CANCEL, NULL) : STATUS_LOST;
}

/*
 * attempt_connected gives the supervisor the socket of a connection that was made. False: it stays TCP. Where
 * the socket cannot be sent, as the user has as many descriptors on their way as it may, the offer would end
 * with the conversation, and the connection with it: so it is cancelled.
 */
static bool attempt_connected(struct attempt *a, int fd)
{
	struct message m;
	enum status status;

	message_fill(&m, KIND_CONNECTED, &a->id);
	if (supervisor_send(a->sock, &m, fd))
		return true;
	status = attempt_cancel(a);
	return status == STATUS_CLAIMED || (status == STATUS_LOST && !given_up(a->end));
}

/*
 * attempt_end looks whether the connection was made. True: the descriptor is our end of the pair, and
 * is connected. False: it is the TCP socket, in the state that connect left it in.
 */
static bool attempt_end(struct attempt *a, int fd, bool connected)
{
	bool moved;

	if (a->sock < 0) {
		moved = attempt_letter_end(a, fd, connected);
	} else if (connected || established(a, fd)) {
		moved = attempt_connected(a, fd);
	} else {
		/* not yet, or not at all; or the server was so fast that TCP is closed again */
		moved = attempt_cancel(a) == STATUS_CLAIMED;
	}
	if (moved) {
		options_acknowledge(fd, birth_options(fd));
		swap(a, fd);
	}
	attempt_drop(a);
	return moved;
}

static bool of_nothing(const struct sockaddr *sa, socklen_t len)
{
	sa_family_t family;

	if (!plausible(sa) || len < sizeof(family) || len > sizeof(struct sockaddr_storage))
		return false;
	memcpy(&family, sa, sizeof(family));
	return family == AF_UNSPEC;
}

static const struct sockaddr nothing = {.sa_family = AF_UNSPEC};

/*
 * disconnected makes a TCP socket that was connected and is not any more, so that it gives the same
 * answers about that as TCP. If no connection can be made within this machine, it is a new one.
 */
static int disconnected(bool ipv6)
{
	int family = ipv6 ? AF_INET6 : AF_INET, type = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
	int tcp = (int)SYS(socket, family, type, IPPROTO_TCP), to = (int)SYS(socket, family, type, IPPROTO_TCP);
	struct address loopback = {.ip = {[10] = 0xff, 0xff, 127, 0, 0, 1}};
	struct sockaddr_storage ss;
	socklen_t len;
	bool six;

	if (ipv6)
		loopback = (struct address){.ip = {[15] = 1}};
	len = address_format(&loopback, ipv6, &ss);
	if (tcp >= 0 && to >= 0 && SYS(bind, to, &ss, len) == 0 && SYS(listen, to, 0) == 0 &&
		address_of(to, false, &loopback, &six)) {
		len = address_format(&loopback, ipv6, &ss);
		SYS(connect, tcp, &ss, len);
		SYS(connect, tcp, &nothing, sizeof(nothing));
	}
	if (to >= 0)
		SYS(close, to);
	return tcp;
}

/*
 * disconnect is connect with AF_UNSPEC of an end: the peer hears of a reset, and a new TCP socket takes the
 * place, with the options that the program has set, and its registrations with epoll. It can be moved again.
 * The result is the kernel's; -EINVAL, as a Unix socket has it, where there is no socket to be had.
 */
static long disconnect(int fd, const struct identity *id)
{
	long status_of = SYS(fcntl, fd, F_GETFL), flags = SYS(fcntl, fd, F_GETFD), r = -EINVAL;
	struct registered list[REGISTERED];
	size_t n;
	int tcp = disconnected(id->ipv6);

	if (tcp < 0)
		return -EINVAL;
	if (status_of >= 0 && flags >= 0 && birth_place(fd) &&
		SYS(fcntl, tcp, F_SETFL, status_of & ~O_ASYNC) == 0) {
		options_return(fd, tcp);
		owner_copy(fd, tcp, OPTIONS_ALL);
		reset_mark(fd, true);
		epoll_shared(fd); /* the kernel knows them all */
		n = unseen_all(fd, list, REGISTERED);
		for (size_t i = 0; i < n; i++)
			SYS(epoll_ctl, list[i].epfd, EPOLL_CTL_DEL, fd, NULL);
		end_drop(fd);
		do
			r = SYS(dup3, tcp, fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0);
		while (r == -EBUSY || r == -EINTR);
		birth(fd, true, OPTIONS_ALL);
		if (status_of & O_ASYNC) {
			SYS(fcntl, fd, F_SETFL, status_of);
			/* the kernel sends TCP's signal, also for a socket that is not connected */
			SYS(connect, fd, &nothing, sizeof(nothing));
		}
		for (size_t i = 0; i < n; i++)
			SYS(epoll_ctl, list[i].epfd, EPOLL_CTL_ADD, fd, &list[i].event);
		birth_registered(fd, list, n);
		r = 0;
	}
	SYS(close, tcp);
	return r;
}

/*
 * reach_begin asks for tokens on a socket whose server no supervisor of our user has announced, after
 * attempt_begin. Where there is no agent that is one system call, now and then: the others come when both
 * ends have tokens.
 */
static bool reach_begin(struct attempt *a, int fd, const struct sockaddr *sa, socklen_t len)
{
	struct address *to = &a->id.peer;

	if (!settings.on || a->announced || a->netns == 0 || !address_parse(sa, len, to))
		return false;
	if (address_is_any(to)) {
		if (to->ip[10] == 0xff)
			to->ip[12] = 127;
		to->ip[15] = 1;
	}
	if (!reach_possible(to) || !policy_connect(to) || birth_told(fd) || !reach_ask(fd))
		return false;
	if ((uid_t)SYS(geteuid) == settings.uid &&
		(a->admitted || admission_ask(settings.socket, to, a->netns, true, &a->admission)))
		return true;
	reach_withdraw(fd);
	return false;
}

/* reach_receive receives our end, with the answer that is there. */
static int reach_receive(void *from)
{
	struct attempt *a = from;
	int end = -1;

	(void)supervisor_receive_two(a->sock, a->kind, &end, &a->memory);
	return end;
}

/*
 * reach_possible_now says whether our end could take the place of the socket, which has tokens. Whatever
 * can fail is tried before the end is asked for: it would be lost.
 */
static bool reach_possible_now(struct attempt *a, int fd)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	a->status = SYS(fcntl, fd, F_GETFL);
	a->flags = SYS(fcntl, fd, F_GETFD);
	return SYS(getsockopt, fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
		info.tcpi_state == TCP_ESTABLISHED && a->status >= 0 && a->flags >= 0 &&
		!unseen_registration(fd) && address_of(fd, false, &a->id.local, &a->id.ipv6) &&
		birth_place(fd) && cookie_of(fd) != 0;
}

/*
 * reach_answer waits for the supervisor's answer. Without one in time it ends the conversation before it
 * looks for the last time: an end that was sent is there by then, or sending it fails, which the supervisor
 * sees.
 */
static void reach_answer(struct attempt *a)
{
	struct pollfd p = {.fd = a->sock, .events = POLLIN};
	int64_t until = supervisor_clock() + REACH_PATIENCE;
	long r;

	do {
		int64_t left = until - supervisor_clock();
		struct timespec patience = {.tv_sec = left > 0 ? left / 1000000000 : 0,
			.tv_nsec = left > 0 ? left % 1000000000 : 0};

		r = SYS(ppoll, &p, 1, &patience, NULL, 0);
	} while (r == -EINTR && supervisor_clock() < until);
	if (r != 1)
		SYS(shutdown, a->sock, SHUT_RDWR);
	a->unique = hidden_came(reach_receive, a, &a->end, &a->before);
	if (a->unique == 0)
		a->end = -1;
}

/* fetch asks our supervisor for our end of a connection that was made, and puts it in place. False: TCP. */
static bool fetch(struct attempt *a, int fd, enum kind kind)
{
	struct message m;
	int64_t begin = supervisor_clock();
	long spare;

	if (kind == KIND_CARRY && supervisor_slow())
		return false;
	a->kind = kind;
	a->sock = supervisor_open(settings.socket);
	/* An end for which there is no descriptor would be lost, so one is kept free. */
	spare = a->sock >= 0 ? SYS(fcntl, a->sock, F_DUPFD_CLOEXEC, 0) : -1;
	if (spare >= 0)
		SYS(close, (int)spare);
	message_fill(&m, kind, &a->id);
	m.flags |= kind == KIND_REACH && settings.rings ? FLAG_RINGS : 0;
	if (spare >= 0 && supervisor_send(a->sock, &m, fd))
		reach_answer(a);
	if (a->end < 0) {
		supervisor_asked(begin);
		if (a->sock >= 0)
			SYS(close, a->sock);
		if (a->memory >= 0)
			SYS(close, a->memory);
		a->sock = a->memory = -1;
		return false;
	}
	supervisor_parts(a->sock);
	prepare_options(a, fd);
	(void)status(a, 0);
	options_acknowledge(fd, birth_options(fd));
	swap(a, fd);
	if (kind == KIND_CARRY)
		end_carried(fd);
	attempt_drop(a);
	return true;
}

/* reach_end asks our supervisor for our end of a connection with tokens, and puts it in place. False: TCP. */
static bool reach_end(struct attempt *a, int fd)
{
	if (!reach_paired(fd) || !reach_possible_now(a, fd))
		return false;
	if (fetch(a, fd, KIND_REACH))
		return true;
	reach_refused(&a->id.peer);
	return false;
}

/* carry_begin says, after attempt_begin, whether a connection is to go to an engine, once it is made. */
static bool carry_begin(struct attempt *a, int fd, const struct sockaddr *sa, socklen_t len)
{
	bool asks;

	if (!hosts_some() || !settings.on || guard_on() || a->announced ||
		!address_parse(sa, len, &a->id.peer) || !policy_connect(&a->id.peer) ||
		(uid_t)SYS(geteuid) != settings.uid || !birth_may_swap(fd) || birth_told(fd))
		return false;
	asks = !address_is_loopback(&a->id.peer) && hosts_ask(fd);
	return asks || hosts_peer(&a->id.peer, a->id.peer.port);
}

/* carry_end hands a connection that was made to an engine. False: TCP. */
static bool carry_end(struct attempt *a, int fd)
{
	a->admission = 0;
	return hosts_state(fd) == HOSTS_FRESH &&
		(hosts_peer(&a->id.peer, a->id.peer.port) || (hosts_both(fd) && !reach_paired(fd))) &&
		reach_possible_now(a, fd) && fetch(a, fd, KIND_CARRY);
}

/*
 * connect_settle hands a connection to an engine for which a connect has not waited, if it has been made
 * since.
 */
void connect_settle(int fd)
{
	struct attempt a = {.sock = -1, .end = -1, .other = -1, .memory = -1};
	enum hosts_state state;
	int saved = errno;
	bool six;

	if (!end_settling(fd))
		return;
	state = hosts_state(fd);
	if (state == HOSTS_FRESH && birth_may_swap(fd) && !birth_told(fd) &&
		address_of(fd, true, &a.id.peer, &six))
		(void)carry_end(&a, fd);
	if (state == HOSTS_CONNECTING) {
		end_pending(fd);
	} else {
		hosts_stays(fd); /* unless it is an end now */
		end_connecting(fd, false);
	}
	errno = saved;
}

/*
 * stays_tcp takes note of a connect that nobody was asked about, so that others to that server, and a second
 * call for the same one, need not look either. failed and error are the kernel's answer.
 */
static void stays_tcp(const struct attempt *a, int fd, bool failed, int error)
{
	birth_begins(fd, failed && error == EINPROGRESS);
	if (a->alone && (!failed || error == EINPROGRESS))
		admission_absent(&a->id.peer);
}

EXPORT int connect(int fd, const struct sockaddr *sa, socklen_t len)
{
	struct attempt a;
	struct identity id;
	bool moved;
	bool asked;
	bool carry;
	int saved = errno;
	int r;
	int error;

	if (hosts_some())
		connect_settle(fd);
	if (!attempt_begin(&a, fd, sa, len)) {
		if (settings.on && of_nothing(sa, len) && identity_of(fd, &id))
			return (int)sys_return(disconnect(fd, &id));
		asked = reach_begin(&a, fd, sa, len);
		carry = carry_begin(&a, fd, sa, len);
		if (asked || carry)
			end_connecting(fd, true);
		r = next.connect(fd, sa, len);
		error = errno;
		if (asked || carry) {
			if (r == 0 || error == EINPROGRESS || error == EINTR)
				carry = !(asked && reach_end(&a, fd)) && carry && !carry_end(&a, fd) &&
					hosts_state(fd) == HOSTS_CONNECTING;
			else {
				/* The next attempt may be at another server. */
				if (asked)
					reach_withdraw(fd);
				if (carry)
					hosts_withdraw(fd);
			}
			end_connecting(fd, false);
			if (carry && r != 0 && (error == EINPROGRESS || error == EINTR))
				end_pending(fd);
			else if (hosts_some())
				hosts_stays(fd); /* unless it is an end now */
			errno = r == 0 ? saved : error;
			return r;
		}
		if (settings.on)
			stays_tcp(&a, fd, r != 0, error);
		if (r != 0 && settings.on && error == EINVAL && address_parse(sa, len, &id.peer)) {
			errno = guard_end(fd) ? EISCONN : error;
		}
		return r;
	}
	end_connecting(fd, true);
	r = next.connect(fd, sa, len);
	error = errno;
	moved = attempt_end(&a, fd, r == 0);
	end_connecting(fd, false);
	/*
	 * A program that does not want to wait is told to, as always; others were told of a reset that is none
	 * of theirs.
	 */
	if (moved && r != 0 && error != EINPROGRESS && error != EINTR) {
		r = 0;
		error = saved;
	}
	errno = r == 0 ? saved : error;
	return r;
}
