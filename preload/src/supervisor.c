/*
 * The supervisor: one message and one answer, over a socket that is opened for it and closed after
 * it. Everything has a time limit, so that a supervisor which is stopped costs no more than that,
 * however often a signal comes meanwhile.
 */
#include "preload.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>

#define TIMEOUT_SEC 2
#define SEC 1000000000 /* in nanoseconds */
#define SLOW_SEC 10    /* for which our own supervisor is not asked again after it has not answered */

/* A wait is the time that a call may still wait on a socket, which signals interrupt. */
struct wait {
	int sock;
	int option;    /* SO_RCVTIMEO or SO_SNDTIMEO */
	bool shorter;  /* the socket has not all of its time limit */
	int64_t until; /* of CLOCK_MONOTONIC */
};

static int64_t now(void)
{
	struct timespec t = {0};

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * SEC + t.tv_nsec;
}

static struct wait wait_begin(int sock, int option)
{
	return (struct wait){.sock = sock, .option = option, .until = now() + (int64_t)TIMEOUT_SEC * SEC};
}

/*
 * wait_more has the socket wait for no longer than the time that is left, as a call that was interrupted
 * begins anew. False: none is.
 */
static bool wait_more(struct wait *w)
{
	int64_t left = (w->until - now()) / 1000; /* 0 would be no limit */
	struct timeval timeout = {.tv_sec = left / 1000000, .tv_usec = left % 1000000};

	if (left <= 0 || SYS(setsockopt, w->sock, SOL_SOCKET, w->option, &timeout, sizeof(timeout)) != 0)
		return false;
	w->shorter = true;
	return true;
}

/* wait_end gives the socket its time limit back. */
static void wait_end(const struct wait *w)
{
	struct timeval timeout = {.tv_sec = TIMEOUT_SEC};

	if (w->shorter)
		SYS(setsockopt, w->sock, SOL_SOCKET, w->option, &timeout, sizeof(timeout));
}

/* dial connects to a supervisor. Below 0 is an error number. */
static int dial(const struct sockaddr_un *sun, size_t len)
{
	struct timeval timeout = {.tv_sec = TIMEOUT_SEC};
	int sock = (int)SYS(socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	long r;

	if (sock < 0)
		return sock;
	SYS(setsockopt, sock, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
	SYS(setsockopt, sock, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	r = SYS(connect, sock, sun, len);
	if (r == 0)
		return sock;
	SYS(close, sock);
	return (int)r;
}

static bool user_of(int sock, uid_t *uid)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (SYS(getsockopt, sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0)
		return false;
	*uid = cred.uid;
	return true;
}

/*
 * supervisors_dir puts the directory of our user's supervisors into dir, with the last slash, and returns its
 * length. Each user has a part of a shared run directory: run-UID, and we may have another user by now than
 * when we were started.
 */
size_t supervisors_dir(char dir[static sizeof(settings.socket)])
{
	char digits[12];
	size_t n = 0, len = settings.part;
	uid_t uid;

	memcpy(dir, settings.socket, settings.dir);
	if (len == 0 || (uid = (uid_t)SYS(geteuid)) == settings.uid)
		return settings.dir;
	do
		digits[n++] = (char)('0' + uid % 10);
	while (uid /= 10);
	if (len + n + 1 >= sizeof(settings.socket))
		return settings.dir;
	while (n)
		dir[len++] = digits[--n];
	dir[len++] = '/';
	return len;
}

/*
 * may_be says whether a socket may belong to a supervisor of our user. In a directory that others
 * may write to anybody can have put one there, and have every connect wait, as a socket with a full
 * queue does.
 */
static bool may_be(const char *path)
{
	struct stat st;

	return (settings.letters && (uid_t)SYS(geteuid) == settings.uid) ||
		(SYS(newfstatat, AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(st.st_mode) &&
			st.st_uid == (uid_t)SYS(geteuid));
}

/* supervisor_open connects to a supervisor of our user. Below 0: there is none. */
int supervisor_open(const char *path)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	size_t n = strlen(path);
	uid_t uid;
	int sock;

	if (n >= sizeof(sun.sun_path) || !may_be(path))
		return -1;
	memcpy(sun.sun_path, path, n);
	sock = dial(&sun, sizeof(sun));
	if (sock < 0 || (user_of(sock, &uid) && uid == (uid_t)SYS(geteuid)))
		return sock;
	SYS(close, sock);
	return -1;
}

/*
 * supervisor_open_own connects to our own supervisor, though we may have another user by now than when we
 * were started: then by its abstract name, as we may not look into its directory. Somebody else could have
 * that name after its death.
 */
int supervisor_open_own(void)
{
	static const char prefix[] = "\0gosmc-run/";
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	const char *name = settings.socket + settings.dir;
	size_t n = strlen(name);
	uid_t uid;
	int sock = supervisor_open(settings.socket);

	/* A supervisor with a full queue would have another one wait, too. */
	if (sock >= 0 || sock == -EAGAIN || sizeof(prefix) - 1 + n > sizeof(sun.sun_path))
		return sock;
	memcpy(sun.sun_path, prefix, sizeof(prefix) - 1);
	memcpy(sun.sun_path + sizeof(prefix) - 1, name, n);
	sock = dial(&sun, offsetof(struct sockaddr_un, sun_path) + sizeof(prefix) - 1 + n);
	if (sock < 0 || (user_of(sock, &uid) && (uid == settings.uid || uid == 0)))
		return sock;
	SYS(close, sock);
	return -1;
}

static int64_t slow_until; /* of CLOCK_MONOTONIC */

/* supervisor_clock is the time that supervisor_asked takes. */
int64_t supervisor_clock(void)
{
	return now();
}

/* supervisor_asked notes that our supervisor was asked in vain. begin is the time before it was. */
void supervisor_asked(int64_t begin)
{
	int64_t end = now();

	if (end - begin >= (int64_t)TIMEOUT_SEC * SEC / 2)
		__atomic_store_n(&slow_until, end + (int64_t)SLOW_SEC * SEC, __ATOMIC_RELAXED);
}

/*
 * supervisor_slow says whether our supervisor has not answered in time a moment ago. It may be stopped; or,
 * where we have another user than it, others fill the queue of its door. Every accepted connection would
 * wait.
 */
bool supervisor_slow(void)
{
	int64_t until = __atomic_load_n(&slow_until, __ATOMIC_RELAXED);

	return until != 0 && now() < until;
}

void message_fill(struct message *m, enum kind kind, const struct identity *id)
{
	memset(m, 0, sizeof(*m));
	m->kind = (uint8_t)kind;
	m->version = MESSAGE_VERSION;
	m->length = sizeof(*m);
	if (!id)
		return;
	if (id->ipv6)
		m->flags |= FLAG_IPV6;
	memcpy(m->local, id->local.ip, 16);
	memcpy(m->peer, id->peer.ip, 16);
	m->local_port = id->local.port;
	m->peer_port = id->peer.port;
}

/*
 * sends sends a message with n descriptors, at most three: to an address, or to where the socket is
 * connected. It returns the kernel's result.
 */
static long sends(int sock, struct sockaddr_un *to, struct message *m, const int *fds, size_t n, int flags)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(3 * sizeof(int))];
	} control;
	struct iovec iov = {m, sizeof(*m)};
	struct msghdr msg = {
		.msg_name = to, .msg_namelen = to ? sizeof(*to) : 0, .msg_iov = &iov, .msg_iovlen = 1};
	struct wait w = wait_begin(sock, SO_SNDTIMEO);
	long r;

	if (n) {
		struct cmsghdr *c;

		memset(&control, 0, sizeof(control));
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	}
	do
		r = SYS(sendmsg, sock, &msg, MSG_NOSIGNAL | flags);
	while (r == -EINTR && wait_more(&w));
	wait_end(&w);
	return r;
}

/* message_send says whether sends has sent the message. */
bool message_send(int sock, struct sockaddr_un *to, struct message *m, const int *fds, size_t n, int flags)
{
	return sends(sock, to, m, fds, n, flags) == (long)sizeof(*m);
}

/*
 * message_insist is message_send for descriptors that would be lost if they could not be sent. A user without
 * privileges may have so many on their way as a process of its may have open: others' have to arrive first,
 * and letters are on their way until somebody accepts. The kernel may lack memory for a moment, too.
 */
bool message_insist(int sock, struct message *m, const int *fds, size_t n)
{
	int64_t until = now() + (int64_t)TIMEOUT_SEC * SEC;
	long r;

	while (((r = sends(sock, NULL, m, fds, n, 0)) == -ETOOMANYREFS || r == -ENOMEM || r == -ENOBUFS) &&
		now() < until) {
		struct timespec pause = {.tv_nsec = 1000000};

		SYS(ppoll, NULL, 0, &pause, NULL, 0);
	}
	return r == (long)sizeof(*m);
}

/* supervisor_send sends a message, with a descriptor unless fd is below 0. */
bool supervisor_send(int sock, struct message *m, int fd)
{
	return message_send(sock, NULL, m, &fd, fd >= 0, 0);
}

/*
 * brings_end says whether the answer to a message brings an end, without which the connection would be
 * lost.
 */
static bool brings_end(enum kind kind)
{
	return kind == KIND_CLAIM || kind == KIND_REACH || kind == KIND_MEET || kind == KIND_CARRY ||
		kind == KIND_CARRIED;
}

/*
 * supervisor_receive_two waits for the answer to a message, and for its descriptor if fd is not null, and a
 * second one if second is not. *fd is -1 if there is none, and always if the answer is not STATUS_OK, and so
 * is *second; without the first there is no second. Such an answer stays in the socket, which is closed next:
 * where other threads have taken every descriptor that is free, an end is received again when one is, as it
 * would be lost. A program that has as many as it may waits for nothing else.
 *
 * An end that the supervisor has sent it takes for claimed. So a claim that waits no more ends the
 * conversation first: either the end is there by then, or sending it fails.
 */
enum status supervisor_receive_two(int sock, enum kind kind, int *fd, int *second)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(2 * sizeof(int))];
	} control;
	struct reply reply;
	struct iovec iov = {&reply, sizeof(reply)};
	/* As many descriptors as are wanted: with all of the buffer there is always room for two. */
	const size_t room = CMSG_LEN((second ? 2 : 1) * sizeof(int));
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = room};
	struct cmsghdr *c;
	struct wait w = wait_begin(sock, SO_RCVTIMEO);
	int got[2] = {-1, -1};
	long r;

	for (;;) {
		struct timespec pause = {.tv_nsec = 1000000};

		memset(&control, 0, sizeof(control));
		msg.msg_controllen = room;
		r = SYS(recvmsg, sock, &msg, MSG_CMSG_CLOEXEC | (fd ? MSG_PEEK : 0));
		if (r == -EINTR && wait_more(&w))
			continue;
		if ((r == -EAGAIN || r == -EINTR) && brings_end(kind) && SYS(shutdown, sock, SHUT_RDWR) == 0)
			r = SYS(recvmsg, sock, &msg, MSG_CMSG_CLOEXEC | MSG_PEEK | MSG_DONTWAIT);
		if (!fd || !brings_end(kind) || r < 0 || !(msg.msg_flags & MSG_CTRUNC) ||
			CMSG_FIRSTHDR(&msg) || now() >= w.until)
			break;
		SYS(ppoll, NULL, 0, &pause, NULL, 0);
	}
	wait_end(&w);
	if (fd)
		*fd = -1;
	if (second)
		*second = -1;
	if (r < 0)
		return STATUS_LOST;
	c = CMSG_FIRSTHDR(&msg);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
		c->cmsg_len >= CMSG_LEN(sizeof(int)))
		memcpy(got, CMSG_DATA(c), c->cmsg_len >= CMSG_LEN(sizeof(got)) ? sizeof(got) : sizeof(got[0]));
	if (fd && r == (long)sizeof(reply) && reply.kind == (kind | 0x80) &&
		reply.version == MESSAGE_VERSION && reply.status == STATUS_OK) {
		*fd = got[0];
		got[0] = -1;
		if (second) {
			*second = got[1];
			got[1] = -1;
		}
	}
	for (size_t i = 0; i < 2; i++)
		if (got[i] >= 0)
			SYS(close, got[i]);
	if (r != (long)sizeof(reply) || reply.kind != (kind | 0x80) || reply.version != MESSAGE_VERSION)
		return STATUS_LOST;
	return (enum status)reply.status;
}

/* supervisor_receive is supervisor_receive_two for one descriptor at most. */
enum status supervisor_receive(int sock, enum kind kind, int *fd)
{
	return supervisor_receive_two(sock, kind, fd, NULL);
}

/*
 * supervisor_parts waits until the supervisor has no copy any more of the descriptor that came with its
 * answer, which it says by another one: until then the peer of that would not see it closed.
 */
void supervisor_parts(int sock)
{
	struct wait w = wait_begin(sock, SO_RCVTIMEO);
	struct reply reply;

	for (int answers = 0; answers < 2;) { /* the first one was left where it was */
		long r = SYS(recvfrom, sock, &reply, sizeof(reply), 0, NULL, NULL);

		if (r == (long)sizeof(reply))
			answers++;
		else if (r != -EINTR || !wait_more(&w))
			break; /* it has died, or is stopped */
	}
	wait_end(&w);
}

/* The board is fetched when a process accepts for the first time. */
#define BOARD_SIZE 4096

static const struct board *board;
static uint8_t board_tried;

static const struct board *board_fetch(void)
{
	struct message m;
	struct stat st;
	const void *p;
	int fd = -1;
	int sock = supervisor_open_own();

	if (sock < 0)
		return NULL;
	message_fill(&m, KIND_BOARD, NULL);
	if (!supervisor_send(sock, &m, -1) || supervisor_receive(sock, KIND_BOARD, &fd) != STATUS_OK || fd < 0) {
		SYS(close, sock);
		return NULL;
	}
	SYS(close, sock);
	/* Where the page was not there, or could be taken away, to look at it would be a signal. */
	if (SYS(fstat, fd, &st) != 0 || st.st_size < BOARD_SIZE ||
		!((unsigned long)SYS(fcntl, fd, F_GET_SEALS) & F_SEAL_SHRINK)) {
		SYS(close, fd);
		return NULL;
	}
	p = (const void *)SYS(mmap, NULL, BOARD_SIZE, PROT_READ, MAP_SHARED, fd, 0);
	SYS(close, fd);
	if ((unsigned long)p > -4096UL)
		return NULL;
	return p;
}

/* board_of_ours returns the board, NULL if there is none. */
const struct board *board_of_ours(void)
{
	const struct board *b = __atomic_load_n(&board, __ATOMIC_ACQUIRE);
	const struct board *none = NULL;

	if (b || __atomic_exchange_n(&board_tried, 1, __ATOMIC_ACQ_REL))
		return b; /* if not, it is being fetched, or there is none: TCP */
	b = board_fetch();
	if (b && !__atomic_compare_exchange_n(&board, &none, b, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		b = none;
	return b;
}

/* board_waiting says whether an accepted connection may be one that was offered. */
bool board_waiting(void)
{
	const struct board *b = board_of_ours();

	return b && __atomic_load_n(&b->waiting, __ATOMIC_SEQ_CST) != 0;
}
