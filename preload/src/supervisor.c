/*
 * The supervisor: one message and one answer, over a socket that is opened for it and closed after
 * it. Everything has a time limit, so that a supervisor which is stopped costs no more than that.
 */
#include "preload.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>

#define TIMEOUT_SEC 2

/* supervisor_open connects to a supervisor of our own user. Below 0: there is none. */
int supervisor_open(const char *path)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	struct timeval timeout = {.tv_sec = TIMEOUT_SEC};
	struct ucred cred;
	socklen_t len = sizeof(cred);
	size_t n = strlen(path);
	int sock;

	if (n >= sizeof(sun.sun_path))
		return -1;
	memcpy(sun.sun_path, path, n);
	sock = (int)SYS(socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return -1;
	if (SYS(setsockopt, sock, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) == 0 &&
	    SYS(setsockopt, sock, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) == 0 &&
	    SYS(connect, sock, &sun, sizeof(sun)) == 0 &&
	    SYS(getsockopt, sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0 && cred.uid == (uid_t)SYS(geteuid))
		return sock;
	SYS(close, sock);
	return -1;
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

/* supervisor_send sends a message, with a descriptor unless fd is below 0. */
bool supervisor_send(int sock, struct message *m, int fd)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {m, sizeof(*m)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	long r;

	if (fd >= 0) {
		struct cmsghdr *c;

		memset(&control, 0, sizeof(control));
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control.buf);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	}
	do
		r = SYS(sendmsg, sock, &msg, MSG_NOSIGNAL);
	while (r == -EINTR);
	return r == (long)sizeof(*m);
}

/*
 * supervisor_receive waits for the answer to a message, and for its descriptor if fd is not null.
 * *fd is -1 if there is none.
 */
enum status supervisor_receive(int sock, enum kind kind, int *fd)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control;
	struct reply reply;
	struct iovec iov = {&reply, sizeof(reply)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.buf)};
	struct cmsghdr *c;
	int got = -1;
	long r;

	memset(&control, 0, sizeof(control));
	do
		r = SYS(recvmsg, sock, &msg, MSG_CMSG_CLOEXEC);
	while (r == -EINTR);
	if (fd)
		*fd = -1;
	if (r < 0)
		return STATUS_LOST;
	c = CMSG_FIRSTHDR(&msg);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len >= CMSG_LEN(sizeof(int)))
		memcpy(&got, CMSG_DATA(c), sizeof(got));
	if (r != (long)sizeof(reply) || reply.kind != (kind | 0x80) || reply.version != MESSAGE_VERSION) {
		if (got >= 0)
			SYS(close, got);
		return STATUS_LOST;
	}
	if (fd)
		*fd = got;
	else if (got >= 0)
		SYS(close, got);
	return (enum status)reply.status;
}

/*
 * The board is a page of our supervisor: how many offers wait to be claimed. While there are none,
 * accept need not ask. It is fetched when a process accepts for the first time.
 */
#define BOARD_SIZE 4096

struct board {
	uint32_t waiting;
};

static const struct board *board;
static uint8_t board_tried;

static const struct board *board_fetch(void)
{
	struct message m;
	const void *p;
	int fd = -1;
	int sock = supervisor_open(settings.socket);

	if (sock < 0)
		return NULL;
	message_fill(&m, KIND_BOARD, NULL);
	if (!supervisor_send(sock, &m, -1) || supervisor_receive(sock, KIND_BOARD, &fd) != STATUS_OK || fd < 0) {
		SYS(close, sock);
		return NULL;
	}
	SYS(close, sock);
	p = (const void *)SYS(mmap, NULL, BOARD_SIZE, PROT_READ, MAP_SHARED, fd, 0);
	SYS(close, fd);
	if ((unsigned long)p > -4096UL)
		return NULL;
	return p;
}

/* board_waiting says whether an accepted connection may be one that was offered. */
bool board_waiting(void)
{
	const struct board *b = __atomic_load_n(&board, __ATOMIC_ACQUIRE);

	if (!b) {
		const struct board *none = NULL;

		if (__atomic_exchange_n(&board_tried, 1, __ATOMIC_ACQ_REL))
			return false; /* it is being fetched, or there is none: TCP */
		b = board_fetch();
		if (!b)
			return false;
		if (!__atomic_compare_exchange_n(&board, &none, b, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			b = none;
	}
	return __atomic_load_n(&b->waiting, __ATOMIC_SEQ_CST) != 0;
}
