/*
 * Letters: where the link of a port says that every connection there may be moved, a client need
 * not ask. A letterbox is a Unix socket of the supervisor that listens. The client connects its end
 * to it, sends its offer and its TCP socket, which is the letter, and then has TCP connect, with a
 * mark. The program that accepts the TCP connection accepts the other end out of the letterbox:
 * that is a descriptor of the supervisor, which a program of its user can get. So the supervisor
 * neither wakes nor is waited for; and no Unix socket is ever in a message, for which the kernel
 * would look through all that are whenever one is closed.
 *
 * The right to an end is decided by the kernel, at the client's TCP socket, which both have: the
 * server has the end when it has locked the filter of packets of that socket, and there was none; a
 * client that gives up attaches one, which lets everything pass, and has failed if it is locked.
 */
#include "preload.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/tcp.h>
#include <string.h>

/*
 * The mark of a connection in its SYN is the size of segments that the client takes. It says that
 * the offer is in a letterbox. It is no proof: a mark of somebody else costs a question.
 */
#define MARK_MAXSEG 16381
#define MARK_TIMESTAMPS 12	/* of which TCP's timestamps take so much */
#define MARK_RCVBUF (128 << 10) /* with less the window may be too small for such segments */

#define PAUSES 2000 /* of a millisecond, for which a descriptor that is lacking is waited for */

static enum {
	UNKNOWN,
	USABLE,
	REFUSED
} letterboxes; /* refused: by another PID namespace, or something that forbids it */

/*
 * filtered says whether there is a filter of system calls, or may be: it could kill the program for one
 * that is seldom seen, as systemd's do.
 */
static bool filtered(void)
{
	static const char none[] = "\nSeccomp:\t0\n";
	char text[512]; /* threads may have small stacks */
	size_t have = 0;
	bool found = false;
	long n, fd = SYS(openat, AT_FDCWD, "/proc/self/status", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return true;
	while (!found && (n = SYS(read, (int)fd, text + have, sizeof(text) - 1 - have)) > 0) {
		have += (size_t)n;
		text[have] = 0;
		found = strstr(text, none);
		if (have >= sizeof(none)) { /* its beginning may be at the end */
			memmove(text, text + have - sizeof(none), sizeof(none));
			have = sizeof(none);
		}
	}
	SYS(close, (int)fd);
	return !found;
}

/* usable says whether letterboxes may be asked for. Nobody has failed to get one. */
static bool usable(void)
{
	int state = __atomic_load_n(&letterboxes, __ATOMIC_RELAXED);

	if (state == UNKNOWN) {
		state = filtered() ? REFUSED : USABLE;
		__atomic_store_n(&letterboxes, state, __ATOMIC_RELAXED);
	}
	return state == USABLE;
}

/*
 * letters_allowed says whether the directory of supervisors can be believed, and the supervisors believe
 * us.
 */
static bool letters_allowed(void)
{
	return settings.letters && (uid_t)SYS(geteuid) == settings.uid;
}

/* letter_near says whether both ends have one address, as in all marked connections. */
bool letter_near(const struct identity *id)
{
	return memcmp(id->local.ip, id->peer.ip, sizeof(id->local.ip)) == 0 ||
	       (address_is_loopback(&id->local) && address_is_loopback(&id->peer));
}

/*
 * box_of is the number of the letterbox for a connection: the kernel gives ports that are all odd, or all
 * even.
 */
static unsigned box_of(uint16_t client)
{
	return client / 2 % LETTERBOXES;
}

static bool mark(int fd, int *maxseg)
{
	int value = 0;
	socklen_t len = sizeof(value);

	if (SYS(getsockopt, fd, SOL_SOCKET, SO_RCVBUF, &value, &len) != 0 || value < MARK_RCVBUF)
		return false;
	len = sizeof(*maxseg);
	if (SYS(getsockopt, fd, IPPROTO_TCP, TCP_MAXSEG, maxseg, &len) != 0)
		return false;
	value = MARK_MAXSEG;
	return SYS(setsockopt, fd, IPPROTO_TCP, TCP_MAXSEG, &value, sizeof(value)) == 0;
}

/* letter_unmark takes the mark back that letter_send has set. */
void letter_unmark(int fd, int maxseg)
{
	int value = maxseg == TCP_MSS_DEFAULT ? 0 : maxseg;

	SYS(setsockopt, fd, IPPROTO_TCP, TCP_MAXSEG, &value, sizeof(value));
}

/* letter_marked says whether an accepted connection looks like one that was offered by letter. */
bool letter_marked(int fd)
{
	int mss = 0;
	socklen_t len = sizeof(mss);

	return SYS(getsockopt, fd, IPPROTO_TCP, TCP_MAXSEG, &mss, &len) == 0 &&
	       (mss == MARK_MAXSEG || mss == MARK_MAXSEG - MARK_TIMESTAMPS);
}

/* letter_possible says whether a connection may be offered to a supervisor by letter. */
bool letter_possible(const char *path, const struct identity *id)
{
	return strlen(path) + sizeof(".in0") <= sizeof(((struct sockaddr_un *)0)->sun_path) &&
		letters_allowed() && letter_near(id);
}

/* attach gives a socket a filter of packets, which lets everything pass. */
static bool attach(int fd)
{
	struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, ~0u);
	struct sock_fprog filter = {1, &all};

	return SYS(setsockopt, fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0;
}

/*
 * withdrawals says whether a socket can have a filter, without which a client could not give up:
 * the kernel may lack memory for that, or forbid it. It is tried once.
 */
static bool withdrawals(int fd)
{
	static enum { UNTRIED, POSSIBLE, IMPOSSIBLE } state;
	int is = __atomic_load_n(&state, __ATOMIC_RELAXED);
	int none = 0;

	if (is == UNTRIED) {
		is = attach(fd) && SYS(setsockopt, fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof(none)) == 0
			? POSSIBLE
			: IMPOSSIBLE;
		__atomic_store_n(&state, is, __ATOMIC_RELAXED);
	}
	return is == POSSIBLE;
}

/*
 * letter_send marks the connection that a socket will make, connects an end to a letterbox of a supervisor,
 * and offers both there. False: it has to be asked, with another end; the mark is gone again.
 */
bool letter_send(const char *path, const struct identity *id, struct message *m, int end, int fd, int *maxseg)
{
	static const char digits[] = "0123456789abcdef";
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	size_t n = strlen(path);

	if (!withdrawals(fd) || !mark(fd, maxseg))
		return false;
	memcpy(sun.sun_path, path, n);
	memcpy(sun.sun_path + n, ".in", 3);
	sun.sun_path[n + 3] = digits[box_of(id->local.port)];
	/* Not if it is full: the end does not wait. */
	if (SYS(connect, end, &sun, sizeof(sun)) == 0 && message_send(end, NULL, m, &fd, 1, MSG_DONTWAIT))
		return true;
	letter_unmark(fd, *maxseg);
	return false;
}

/*
 * letter_withdraw has nobody get the other end any more that was offered with a TCP socket. False: somebody
 * has.
 */
bool letter_withdraw(int fd)
{
	int locked = 0;
	socklen_t len = sizeof(locked);

	return attach(fd) || SYS(getsockopt, fd, SOL_SOCKET, SO_LOCK_FILTER, &locked, &len) != 0 || !locked;
}

/* unfiltered says whether nobody has given up a TCP socket that came with a letter. */
static bool unfiltered(int tcp)
{
	socklen_t length = 0; /* of the filter */

	return SYS(getsockopt, tcp, SOL_SOCKET, SO_GET_FILTER, NULL, &length) == 0 && length == 0;
}

/*
 * right says whether an end is ours from now on that was offered with a TCP socket. The socket of a client
 * that has died before it connected, or whose listener has gone, is not connected, though another one may
 * have its address by now: that is another connection. *asks: it may be elsewhere.
 */
static bool right(int tcp, const struct identity *id, bool *asks)
{
	struct address server, client;
	int one = 1;
	bool six;

	*asks = !address_of(tcp, true, &server, &six) || !address_equal(&server, &id->local) ||
		!address_of(tcp, false, &client, &six) || !address_equal(&client, &id->peer);
	return !*asks && unfiltered(tcp) &&
		SYS(setsockopt, tcp, SOL_SOCKET, SO_LOCK_FILTER, &one, sizeof(one)) == 0 && unfiltered(tcp);
}

/*
 * letterbox gets descriptors of our supervisor: the letterbox, and the socket for notes of taken ends.
 * There is one more, for an end. False: ask.
 */
static bool letterbox(const struct board *b, unsigned number, int *box, int *notes)
{
	int pidfd = (int)SYS(pidfd_open, b->pid, 0);
	bool ok;

	if (pidfd < 0)
		return false;
	*box = (int)SYS(pidfd_getfd, pidfd, b->boxes[number].fd, 0);
	*notes = *box < 0 ? -1 : (int)SYS(pidfd_getfd, pidfd, b->notes, 0);
	/* The number of a process means another one elsewhere, and later. */
	ok = *notes >= 0 && cookie_of(*box) == b->boxes[number].cookie;
	if (!ok && *box != -EMFILE && *notes != -EMFILE)
		__atomic_store_n(&letterboxes, REFUSED, __ATOMIC_RELAXED);
	SYS(close, pidfd);
	if (!ok && *box >= 0)
		SYS(close, *box);
	if (!ok && *notes >= 0)
		SYS(close, *notes);
	return ok;
}

/*
 * pause_msec waits a millisecond. The kernel writes the time that is left into what ppoll is given, so each
 * call has a time of its own.
 */
static void pause_msec(void)
{
	struct timespec t = {.tv_nsec = 1000000};

	SYS(ppoll, NULL, 0, &t, NULL, 0);
}

/*
 * look reads the letter at an end, which stays there: were there no descriptor for the TCP socket, because
 * other threads have taken those that were free, it would be lost. Then it waits for one. False: there is
 * none, or none that is right.
 */
static bool look(int end, struct message *m, int *tcp)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {m, sizeof(*m)};
	/* One descriptor: with all of the buffer there is room for two. */
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control};
	struct cmsghdr *c;
	long r;

	*tcp = -1;
	for (int i = 0; i < PAUSES; i++) {
		msg.msg_controllen = CMSG_LEN(sizeof(int));
		r = SYS(recvmsg, end, &msg, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		c = r < 0 ? NULL : CMSG_FIRSTHDR(&msg);
		if (c || r < 0 || !(msg.msg_flags & MSG_CTRUNC))
			break;
		pause_msec();
	}
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
		c->cmsg_len >= CMSG_LEN(sizeof(int)))
		memcpy(tcp, CMSG_DATA(c), sizeof(*tcp));
	return *tcp >= 0 && r == (long)sizeof(*m) && m->kind == KIND_OFFER && m->version == MESSAGE_VERSION;
}

/* is_of says whether an end belongs to a connection, by the name of its peer. */
static bool is_of(int end, const struct identity *id)
{
	struct identity is;

	return identity_of(end, &is) && is.server && address_equal(&is.local, &id->local) &&
		address_equal(&is.peer, &id->peer);
}

/* tell has the supervisor know of an end that was taken; it counts. */
static void tell(int notes, const struct identity *id, uint64_t unique, pid_t client)
{
	struct message m;
	int sock;

	message_fill(&m, KIND_TAKEN, id);
	m.netns = (uint64_t)(uint32_t)SYS(getpid) << 32 | (uint32_t)client;
	m.unique = unique;
	if (SYS(sendto, notes, &m, sizeof(m), MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0) != -EAGAIN)
		return;
	sock = supervisor_open(settings.socket); /* it has not looked for long */
	if (sock >= 0) {
		supervisor_send(sock, &m, -1);
		SYS(close, sock);
	}
}

/*
 * give_back gives an end that is another's to the supervisor, with the letter in it. It waits where the
 * process, or the machine, has as many files open as it may.
 */
static void give_back(const struct identity *id, int end)
{
	struct message m;
	int sock = -1;

	message_fill(&m, KIND_RETURN, id);
	for (int i = 0;
		i < PAUSES && ((sock = supervisor_open(settings.socket)) == -EMFILE || sock == -ENFILE); i++)
		pause_msec();
	if (sock >= 0) {
		message_insist(sock, &m, &end, 1);
		SYS(close, sock);
	}
	SYS(close, end);
}

/* client_of is the process that has connected an end to a letterbox. */
static pid_t client_of(int end)
{
	struct ucred cred = {0};
	socklen_t len = sizeof(cred);

	SYS(getsockopt, end, SOL_SOCKET, SO_PEERCRED, &cred, &len);
	return cred.pid;
}

/*
 * letter_claim takes the other end of an accepted connection out of its letterbox. *asks: it is not there,
 * and the supervisor is to be asked. *tcp: the client's TCP socket, -1 if there is none, for the caller to
 * close when the accepted one is closed. Below 0: TCP, if it has nothing.
 */
int letter_claim(const struct identity *id, int fd, bool *asks, int *tcp)
{
	const struct board *b = letters_allowed() && letter_near(id) ? board_of_ours() : NULL;
	int box, notes, end;
	struct message m;

	*asks = true;
	*tcp = -1;
	if (!b || !usable() || !letterbox(b, box_of(id->peer.port), &box, &notes))
		return -1;
	end = (int)SYS(accept4, box, NULL, NULL, SOCK_CLOEXEC);
	SYS(close, box);
	if (end >= 0 &&
		(!is_of(end, id) || !look(end, &m, tcp) || m.netns != netns_of(fd) ||
			!identity_family(end, id))) {
		SYS(close, notes); /* giving back takes a descriptor, and this may be the last one */
		notes = -1;
		give_back(id, end);
		end = -1;
	}
	if (end >= 0) {
		if (right(*tcp, id, asks) &&
			SYS(recvfrom, end, &m, sizeof(m), MSG_DONTWAIT, NULL, NULL) == (long)sizeof(m)) {
			tell(notes, id, m.unique, client_of(end));
		} else {
			/*
			 * its client has given up; or it is of one that had the port before, and there may be another
			 * one behind it
			 */
			SYS(close, end);
			end = -1;
		}
	}
	if (end < 0 && *tcp >= 0) {
		SYS(close, *tcp);
		*tcp = -1;
	}
	if (notes >= 0)
		SYS(close, notes);
	return end;
}
