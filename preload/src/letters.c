/*
 * Letters: where the link of a port says that every connection there may be moved, a client need not ask. It puts its offer, and its TCP
 * socket, into a letterbox of the supervisor before TCP connects, and marks the connection. Who accepts it takes the letter out by itself: the
 * letterboxes are descriptors of the supervisor, which a program of its user can get. So the supervisor neither wakes nor is waited for.
 *
 * The right to an end is decided by the kernel, which gives a socket one name and no other: the server has the end when it has given it its
 * name; a client that gives up names it itself, so that nobody can.
 */
#include "preload.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>

/*
 * What a connection says of itself in its SYN, by the size of segments that the client takes: its offer is in a letterbox. It is no proof:
 * a mark of somebody else costs a question.
 */
#define MARK_MAXSEG 16381
#define MARK_TIMESTAMPS 12	/* of which those of TCP take so much */
#define MARK_RCVBUF (128 << 10) /* with less the window may be too small for such segments */

#define LOCKS (1LL << 32) /* in the table of resets; internal/run/limits.go has the same */

static enum { UNKNOWN, USABLE, REFUSED } letterboxes; /* refused: by another PID namespace, or something that forbids it */

/* filtered says whether there is a filter of system calls, or may be: it could kill the program for one that is seldom seen, as those of systemd do. */
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

/* letters_allowed says whether what is in the directory of supervisors can be believed, and they believe us. */
static bool letters_allowed(void)
{
	return settings.letters && (uid_t)SYS(geteuid) == settings.uid;
}

/* near says whether both ends have one address, as those of all marked connections do. */
static bool near(const struct identity *id)
{
	return memcmp(id->local.ip, id->peer.ip, sizeof(id->local.ip)) == 0 ||
	       (address_is_loopback(&id->local) && address_is_loopback(&id->peer));
}

/* box_of is the number of the letterbox for a connection: the kernel gives ports that are all odd, or all even. */
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

/*
 * letter_send marks the connection that a socket will make, and offers it to a supervisor: the end that is to be the server's, and the socket.
 * False: it has to be asked; the mark is gone again. *sock: for the caller to close, best when the letter has been taken. While a Unix socket is on
 * its way, the kernel looks for unreachable ones whenever one is closed.
 */
bool letter_send(const char *path, const struct identity *id, struct message *m, int end, int fd, int *maxseg, int *sock)
{
	static const char digits[] = "0123456789abcdef";
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	const int fds[2] = {end, fd};
	size_t n = strlen(path);
	bool ok;

	if (n + sizeof(".in0") > sizeof(sun.sun_path) || !letters_allowed() || !near(id) || !mark(fd, maxseg))
		return false;
	memcpy(sun.sun_path, path, n);
	memcpy(sun.sun_path + n, ".in", 3);
	sun.sun_path[n + 3] = digits[box_of(id->local.port)];
	*sock = (int)SYS(socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	ok = *sock >= 0 && message_send(*sock, &sun, m, fds, 2, MSG_DONTWAIT); /* not if it is full */
	if (!ok && *sock >= 0)
		SYS(close, *sock);
	if (!ok) {
		*sock = -1;
		letter_unmark(fd, *maxseg);
	}
	return ok;
}

/* letter_withdraw has nobody get the end any more. False: somebody has. */
bool letter_withdraw(const struct identity *id, int end)
{
	return identity_bind(end, id, 'x', cookie_of(end));
}

/* letterbox gets descriptors of our supervisor: the letterbox, and where to tell what was taken. There is one more, for an end. False: ask. */
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

/* take receives a letter: who has sent it, and n descriptors. False: there is none, or none is right. */
static bool take(int box, struct message *m, int fds[2], size_t *n, pid_t *from)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(2 * sizeof(int))];
	} control;
	struct iovec iov = {m, sizeof(*m)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.buf)};
	struct ucred cred;
	long r;

	*n = 0;
	*from = 0;
	r = SYS(recvmsg, box, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (r < 0)
		return false;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		if (c->cmsg_level != SOL_SOCKET)
			continue;
		if (c->cmsg_type == SCM_CREDENTIALS) {
			memcpy(&cred, CMSG_DATA(c), sizeof(cred));
			*from = cred.pid;
		}
		if (c->cmsg_type == SCM_RIGHTS) {
			for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
				int fd;

				memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
				if (*n < 2)
					fds[(*n)++] = fd;
				else
					SYS(close, fd);
			}
		}
	}
	return r == (long)sizeof(*m) && m->kind == KIND_OFFER;
}

/* is_of says whether a letter is about a connection. */
static bool is_of(const struct message *m, const struct identity *id, uint64_t netns)
{
	return memcmp(m->local, id->peer.ip, sizeof(m->local)) == 0 && m->local_port == id->peer.port &&
	       memcmp(m->peer, id->local.ip, sizeof(m->peer)) == 0 && m->peer_port == id->local.port && m->netns == netns;
}

/*
 * first says whether the first letter in a box is about a connection, and copies the end that came with it. The letter stays there: were there no
 * descriptor for the end, because other threads have taken those that were free, it would be lost.
 */
static bool first(int box, const struct identity *id, uint64_t netns, int *end)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int))];
	} control;
	struct message m;
	struct iovec iov = {&m, sizeof(m)};
	/* One descriptor: with all of the buffer there is room for two. */
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
			     .msg_controllen = CMSG_SPACE(sizeof(struct ucred)) + CMSG_LEN(sizeof(int))};
	long r = SYS(recvmsg, box, &msg, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	*end = -1;
	for (struct cmsghdr *c = r < 0 ? NULL : CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len >= CMSG_LEN(sizeof(int)))
			memcpy(end, CMSG_DATA(c), sizeof(*end));
	if (*end >= 0 && r == (long)sizeof(m) && is_of(&m, id, netns))
		return true;
	if (*end >= 0)
		SYS(close, *end);
	*end = -1;
	return false;
}

/*
 * reserve has the supervisor leave a letter in its box until the descriptor that it returns is closed: nobody else would take it, and who took the next one
 * in its place might have no descriptors for what came with that. Below 0: that is not possible now.
 */
static int reserve(const struct identity *id)
{
	struct flock at = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCKS + id->peer.port, .l_len = 1};
	int lock = resets_file();

	if (lock >= 0 && SYS(fcntl, lock, F_OFD_SETLK, &at) == 0)
		return lock;
	if (lock >= 0)
		SYS(close, lock);
	return -1;
}

/* tell has the supervisor know what was taken; it counts. */
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

/* give_back gives a letter that is another's to the supervisor, which has not waited for us to take ours. */
static void give_back(struct message *m, const int fds[2])
{
	int sock = supervisor_open(settings.socket);

	if (sock < 0)
		return;
	m->kind = KIND_RETURN;
	message_send(sock, NULL, m, fds, 2, 0);
	SYS(close, sock);
}

/*
 * letter_claim takes the other end of an accepted connection out of its letterbox. *asks: it is not there, and the supervisor is to be asked.
 * *tcp: the client's TCP socket, -1 if there is none, for the caller to close when the accepted one is closed. Below 0: TCP, if it has nothing.
 */
int letter_claim(const struct identity *id, int fd, bool *asks, int *tcp)
{
	const struct board *b = letters_allowed() && near(id) ? board_of_ours() : NULL;
	int box, notes, end = -1, copy, lock;
	uint64_t netns;
	struct message m;
	int fds[2] = {-1, -1};
	pid_t client;
	size_t n;

	*asks = true;
	*tcp = -1;
	if (!b || !usable() || !letterbox(b, box_of(id->peer.port), &box, &notes))
		return -1;
	netns = netns_of(fd);
	lock = reserve(id);
	if (lock >= 0 && first(box, id, netns, &copy)) {
		bool good = take(box, &m, fds, &n, &client);

		SYS(close, lock);
		lock = -1;
		if (good && n == 2 && !is_of(&m, id, netns)) {
			SYS(close, copy); /* it takes a descriptor */
			copy = -1;
			give_back(&m, fds);
		} else if (good && is_of(&m, id, netns)) {
			*asks = false;
			if (identity_bind(copy, id, 's', m.unique)) {
				end = copy;
				copy = -1;
				tell(notes, id, m.unique, client);
				*tcp = fds[1];
				fds[1] = -1;
			}
		}
		for (size_t i = 0; i < n; i++)
			if (fds[i] >= 0)
				SYS(close, fds[i]);
		if (copy >= 0)
			SYS(close, copy);
	}
	if (lock >= 0)
		SYS(close, lock);
	SYS(close, box);
	SYS(close, notes);
	return end;
}
