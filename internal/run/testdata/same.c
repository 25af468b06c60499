/*
 * A program that does random things with TCP connections to itself, and says of each what came of it: same SEED STEPS. Bare and
 * under 'gosmc run' it has to say the same. Left out is what docs/run.md has as a difference. With the environment variable BARE it
 * waits until what TCP has sent is there; under us it always is.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                            \
	do {                                                                                   \
		if (!(what)) {                                                                 \
			fprintf(stderr, "%s:%d: %s (errno %s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
			_exit(1);                                                              \
		}                                                                              \
	} while (0)

#define CONNECTIONS 4
#define SETS 3
#define MOST (40 << 10) /* bytes on their way in one direction: less than any buffer holds */
#define PORTS 300	/* descriptors from there on are ours to choose */

struct side {
	int fd;		/* -1: closed */
	long sent, got; /* bytes */
	bool ended;	/* it sends no more */
	bool reset;	/* the peer has closed with bytes unread, or has answered a send with a reset */
	bool copied;	/* it was dup'ed: a send after the end of the peer is another thing */
};

/* What forked processes do is done for all. */
struct world {
	uint64_t random;
	struct side sides[CONNECTIONS][2];
	int sets[SETS];
	bool edge[SETS][CONNECTIONS][2]; /* it is registered for edges, and bytes have come after it was empty */
	bool edges[SETS][CONNECTIONS][2];
	int step;
};

static struct world *w;
static int l;
static struct sockaddr_in where;
static char bytes[1 << 17];

static unsigned pick(unsigned n)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return (unsigned)(w->random >> 33) % n;
}

static void say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("%d ", w->step);
	vprintf(format, args);
	putchar('\n');
	va_end(args);
}

static const char *error_of(long r)
{
	return r < 0 ? strerrorname_np(errno) : "";
}

/* Bytes of a direction are known by their place in it. */
static char byte_at(int i, int k, long at)
{
	return (char)((at * 7 + at / 251 + i * 31 + k * 101) & 0xff);
}

static long fill(int i, int k, long at, long n)
{
	for (long j = 0; j < n; j++)
		bytes[j] = byte_at(i, k, at + j);
	return n;
}

static bool right(const char *b, int i, int k, long at, long n)
{
	for (long j = 0; j < n; j++)
		if (b[j] != byte_at(i, k, at + j))
			return false;
	return true;
}

static long waiting(int i, int k) /* to be read at side k */
{
	return w->sides[i][!k].sent - w->sides[i][k].got;
}

/* settle has TCP deliver what was sent to a side. */
static void settle(int i, int k)
{
	struct side *s = &w->sides[i][k];
	int n = 0;

	if (!getenv("BARE") || s->fd < 0)
		return;
	for (int turn = 0; turn < 5000; turn++) {
		struct pollfd p = {.fd = s->fd, .events = POLLRDHUP};

		CHECK(ioctl(s->fd, FIONREAD, &n) == 0);
		if (poll(&p, 1, 0) >= 0 && (s->reset || n == waiting(i, k)) && (!w->sides[i][!k].ended || (p.revents & POLLRDHUP)) &&
		    (!s->reset || (p.revents & POLLHUP)))
			return;
		usleep(1000);
	}
	fprintf(stderr, "step %d: side %d.%d has %d bytes, not %ld\n", w->step, i, k, n, waiting(i, k));
	_exit(1);
}

static void came(int i, int k) /* bytes, or an end, at side k */
{
	for (int e = 0; e < SETS; e++)
		if (w->edges[e][i][k])
			w->edge[e][i][k] = true;
	settle(i, k);
}

/* make gives a place a new connection. */
static void make(int i)
{
	int c = socket(AF_INET, SOCK_STREAM | (pick(2) ? SOCK_NONBLOCK : 0), 0);
	int r = connect(c, (struct sockaddr *)&where, sizeof(where));
	int s, on = 1;

	if (r < 0 && errno == EINPROGRESS) {
		struct pollfd p = {.fd = c, .events = POLLOUT};

		CHECK(poll(&p, 1, 5000) == 1);
	} else {
		CHECK(r == 0);
	}
	s = accept4(l, NULL, NULL, SOCK_NONBLOCK);
	CHECK(s >= 0 && fcntl(c, F_SETFL, O_NONBLOCK) == 0);
	for (int k = 0; k < 2; k++) {
		CHECK(setsockopt(k ? s : c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0); /* or the peer's answer is waited for */
		w->sides[i][k] = (struct side){.fd = k ? s : c};
		for (int e = 0; e < SETS; e++)
			w->edge[e][i][k] = w->edges[e][i][k] = false;
	}
	say("make %d", i);
}

static void drain(int i, int k)
{
	struct side *s = &w->sides[i][k];
	long n;

	while (waiting(i, k) > 0 && (n = read(s->fd, bytes, sizeof(bytes))) > 0)
		s->got += n;
}

static void give_up(int i, int k)
{
	struct side *s = &w->sides[i][k];
	struct side *peer = &w->sides[i][!k];

	if (s->fd < 0)
		return;
	if (s->ended) /* a reset after an end is another thing */
		drain(i, k);
	if (peer->fd >= 0 && waiting(i, k) > 0)
		peer->reset = true;
	close(s->fd);
	s->fd = -1;
	s->ended = true;
	for (int e = 0; e < SETS; e++)
		w->edge[e][i][k] = w->edges[e][i][k] = false;
	came(i, !k);
}

static void anew(int i)
{
	give_up(i, 0);
	give_up(i, 1);
	make(i);
}

/* transmit sends n bytes in some way, which all go out. */
static long transmit(int i, int k, int n, int flags)
{
	struct side *s = &w->sides[i][k];
	struct iovec v[3];
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
	struct mmsghdr mm;
	off_t at = 0;
	int file, saved;
	long sent;

	fill(i, k, s->sent, n);
	v[0] = (struct iovec){bytes, (size_t)n / 3};
	v[1] = (struct iovec){bytes + n / 3, 0};
	v[2] = (struct iovec){bytes + n / 3, (size_t)(n - n / 3)};
	switch (flags ? 1 + pick(3) : pick(8)) {
	case 0:
		return write(s->fd, bytes, (size_t)n);
	case 1:
		return send(s->fd, bytes, (size_t)n, flags | MSG_NOSIGNAL);
	case 2:
		return sendmsg(s->fd, &m, flags | MSG_NOSIGNAL);
	case 3:
		return sendto(s->fd, bytes, (size_t)n, flags, (struct sockaddr *)&where, sizeof(where));
	case 4:
		return writev(s->fd, v, 3);
	case 5:
		m.msg_name = &where;
		m.msg_namelen = sizeof(where);
		mm = (struct mmsghdr){.msg_hdr = m};
		return sendmmsg(s->fd, &mm, 1, 0) == 1 ? (long)mm.msg_len : -1;
	case 6:
		return pwritev2(s->fd, v, 3, -1, 0);
	default:
		if (w->sides[i][!k].fd < 0)
			return write(s->fd, bytes, (size_t)n);
		file = memfd_create("file", 0); /* TCP sends its pages, not what is in them now */
		CHECK(pwrite(file, bytes, (size_t)n, 0) == n);
		sent = sendfile(s->fd, file, &at, (size_t)n);
		saved = errno;
		close(file);
		errno = saved;
		return sent;
	}
}

static int size(void)
{
	static const int sizes[] = {1, 2, 10, 100, 1000, 5000, 16384, 20000};

	return sizes[pick(8)];
}

static void do_send(int i, int k)
{
	struct side *s = &w->sides[i][k];
	struct side *peer = &w->sides[i][!k];
	int n = size();
	long r;

	if (waiting(i, !k) + n > MOST)
		return;
	if (s->copied && (peer->fd < 0 || s->reset || s->ended))
		return;
	if (n <= 100 && pick(2)) /* many small ones take a ring, too */
		for (int j = 0; j < 20 && peer->fd >= 0 && !s->ended && !s->reset; j++) {
			CHECK(transmit(i, k, 5, 0) == 5);
			s->sent += 5;
		}
	r = transmit(i, k, n, 0);
	say("send %d.%d %d -> %ld %s", i, k, n, r, error_of(r));
	if (r > 0 && peer->fd >= 0)
		s->sent += r;
	if (peer->fd < 0) { /* what comes of it later is not the same */
		if (getenv("BARE") && r > 0) {
			struct pollfd p = {.fd = s->fd};

			CHECK(poll(&p, 1, 5000) == 1);
		}
		s->reset = true;
		n = 1;
		r = send(s->fd, bytes, 1, MSG_NOSIGNAL);
		say("again %d.%d -> %ld %s", i, k, r, error_of(r));
		anew(i);
		return;
	}
	if (r > 0)
		came(i, !k);
}

/* do_corked sends in pieces that TCP keeps together, and ends that in some way. */
static void do_corked(int i, int k)
{
	struct side *s = &w->sides[i][k];
	int on = 1, off = 0, value;
	bool more = pick(2);
	socklen_t len = sizeof(value);
	char c[4];

	if (s->ended || s->reset || w->sides[i][!k].fd < 0 || waiting(i, !k) > MOST / 2)
		return;
	if (!more)
		CHECK(setsockopt(s->fd, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)) == 0);
	for (unsigned j = 1 + pick(4); j > 0; j--) {
		int n = 1 + (int)pick(3000);
		long r = transmit(i, k, n, more ? MSG_MORE : 0);

		CHECK(r == n);
		s->sent += n;
	}
	if (!more) {
		CHECK(getsockopt(s->fd, IPPROTO_TCP, TCP_CORK, &value, &len) == 0);
		say("corked %d.%d %d %u", i, k, value, len);
	}
	switch (pick(4)) {
	case 0: /* as it is */
		say("corked %d.%d close", i, k);
		drain(i, k); /* or what it had back would be lost */
		give_up(i, k);
		return;
	case 1:
		say("corked %d.%d shutdown %d", i, k, shutdown(s->fd, SHUT_WR));
		s->ended = true;
		if (!more)
			setsockopt(s->fd, IPPROTO_TCP, TCP_CORK, &off, sizeof(off));
		break;
	default:
		if (more) {
			CHECK(transmit(i, k, 1, 0) == 1);
			s->sent++;
		} else {
			CHECK(setsockopt(s->fd, IPPROTO_TCP, TCP_CORK, &off, sizeof(off)) == 0);
			CHECK(getsockopt(s->fd, IPPROTO_TCP, TCP_CORK, &value, &len) == 0 && value == 0);
		}
	}
	came(i, !k);
	if (w->sides[i][!k].fd >= 0 && !w->sides[i][!k].copied) {
		long n = recv(w->sides[i][!k].fd, c, sizeof(c), MSG_PEEK);

		say("corked %d.%d shows %ld", i, k, n);
	}
}

static void do_receive(int i, int k)
{
	static char b[1 << 17];
	struct side *s = &w->sides[i][k];
	int n = pick(4) ? size() : (int)sizeof(b);
	struct iovec v[3] = {{b, (size_t)n / 2}, {b + n / 2, 0}, {b + n / 2, (size_t)(n - n / 2)}};
	char control[100];
	struct sockaddr_in from;
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 3, .msg_control = control, .msg_controllen = sizeof(control), .msg_name = &from,
			   .msg_namelen = sizeof(from)};
	struct mmsghdr mm;
	socklen_t len = sizeof(from);
	unsigned how = pick(s->copied ? 4 : 11);
	long r = 0;
	bool peek = false, ok;
	int pipes[2];

	memset(b, 0, 64);
	switch (how) {
	case 0:
	case 1:
		r = read(s->fd, b, (size_t)n);
		break;
	case 2:
		r = readv(s->fd, v, 3);
		break;
	case 3:
		r = recvmsg(s->fd, &m, MSG_CMSG_CLOEXEC);
		if (r >= 0)
			say("message %d.%d %d %zu %x", i, k, m.msg_namelen, m.msg_controllen, m.msg_flags & ~MSG_CMSG_CLOEXEC);
		break;
	case 4:
		r = recv(s->fd, b, (size_t)n, MSG_PEEK);
		peek = true;
		break;
	case 5:
		r = recvfrom(s->fd, b, (size_t)n, 0, (struct sockaddr *)&from, &len);
		break;
	case 6:
		mm = (struct mmsghdr){.msg_hdr = m};
		r = recvmmsg(s->fd, &mm, 1, MSG_DONTWAIT, NULL) == 1 ? (long)mm.msg_len : -1;
		break;
	case 7: /* waiting, for what is there */
		if (waiting(i, k) == 0)
			return;
		n = n < waiting(i, k) ? n : (int)waiting(i, k);
		CHECK(fcntl(s->fd, F_SETFL, 0) == 0);
		r = recv(s->fd, b, (size_t)n, MSG_WAITALL);
		CHECK(fcntl(s->fd, F_SETFL, O_NONBLOCK) == 0);
		break;
	case 8: { /* waiting, for a time, maybe for nothing */
		struct timeval some = {.tv_usec = 3000}, none = {0};
		int off = 0, on = 1;

		CHECK(setsockopt(s->fd, SOL_SOCKET, SO_RCVTIMEO, &some, sizeof(some)) == 0 && ioctl(s->fd, FIONBIO, &off) == 0);
		r = pick(2) ? recv(s->fd, b, (size_t)n, 0) : read(s->fd, b, (size_t)n);
		ok = errno == EAGAIN;
		CHECK(ioctl(s->fd, FIONBIO, &on) == 0 && setsockopt(s->fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof(none)) == 0);
		if (r < 0 && ok)
			errno = EAGAIN;
		break;
	}
	case 9:
		if (waiting(i, k) == 0 || s->reset || pick(4))
			return;
		CHECK(pipe2(pipes, O_NONBLOCK) == 0);
		n = n < waiting(i, k) ? n : (int)waiting(i, k);
		n = n < 4096 ? n : 4096;
		while (r < n) { /* how much comes at a time is the kernel's to choose */
			long got = splice(s->fd, NULL, pipes[1], NULL, (size_t)(n - r), SPLICE_F_NONBLOCK);

			if (got < 0 && errno == EINVAL) /* what is in a ring has to be read */
				got = read(s->fd, b + r, (size_t)(n - r));
			else if (got > 0)
				CHECK(read(pipes[0], b + r, (size_t)got) == got);
			CHECK(got > 0);
			r += got;
		}
		close(pipes[0]);
		close(pipes[1]);
		break;
	default:
		r = preadv2(s->fd, v, 3, -1, 0);
	}
	while (s->copied && r > 0 && r < n) { /* less may come at a time */
		long more = read(s->fd, b + r, (size_t)(n - r));

		if (more <= 0)
			break;
		r += more;
	}
	ok = r <= 0 || right(b, i, k ^ 1, s->got, r);
	say("receive %d.%d %u %d -> %ld %s %s", i, k, how, n, r, error_of(r), ok ? "" : "WRONG BYTES");
	if (r > 0 && !peek)
		s->got += r;
	if (waiting(i, k) == 0)
		for (int e = 0; e < SETS; e++)
			w->edge[e][i][k] = false;
	CHECK(ok);
}

#define SHOWN (POLLIN | POLLOUT | POLLRDHUP | POLLPRI | POLLNVAL)

static void do_poll(void)
{
	struct pollfd p[2 * CONNECTIONS];

	for (int i = 0; i < CONNECTIONS; i++)
		for (int k = 0; k < 2; k++)
			p[2 * i + k] = (struct pollfd){.fd = w->sides[i][k].fd, .events = POLLIN | POLLOUT | POLLRDHUP};
	CHECK(poll(p, 2 * CONNECTIONS, 0) >= 0);
	for (int i = 0; i < 2 * CONNECTIONS; i++)
		if (w->sides[i / 2][i % 2].fd >= 0)
			say("poll %d.%d %x", i / 2, i % 2, p[i].revents & SHOWN);
}

static void do_select(int i, int k)
{
	fd_set in, out, except;
	struct timeval none = {0};
	int fd = w->sides[i][k].fd, n;

	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_ZERO(&except);
	FD_SET(fd, &in);
	FD_SET(fd, &out);
	FD_SET(fd, &except);
	n = select(fd + 1, &in, &out, &except, &none);
	say("select %d.%d %d %d %d %d", i, k, n, FD_ISSET(fd, &in), FD_ISSET(fd, &out), FD_ISSET(fd, &except));
}

static void do_ask(int i, int k)
{
	struct side *s = &w->sides[i][k];
	struct sockaddr_in a = {0}, b = {0};
	socklen_t na = sizeof(a), nb = sizeof(b), len = sizeof(int);
	int n = -1, r;

	switch (pick(5)) {
	case 0:
		r = getsockname(s->fd, (struct sockaddr *)&a, &na);
		say("name %d.%d %d %u %d %d", i, k, r, na, a.sin_family, k ? ntohs(a.sin_port) - ntohs(where.sin_port) : 0);
		if (s->copied)
			break;
		r = getpeername(s->fd, (struct sockaddr *)&b, &nb);
		say("peer %d.%d %d %s", i, k, r, error_of(r));
		break;
	case 1:
		r = getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &n, &len);
		say("error %d.%d %d %d", i, k, r, n);
		break;
	case 2:
		CHECK(ioctl(s->fd, FIONREAD, &n) == 0);
		say("there %d.%d %s", i, k, (n > 0) == (waiting(i, k) > 0) ? "so" : "not so");
		if (n > waiting(i, k))
			say("more is there than was sent: %d", n);
		break;
	case 3:
		r = getsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &n, &len);
		say("nodelay %d.%d %d %d", i, k, r, n);
		n = 1;
		CHECK(setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &n, sizeof(n)) == 0);
		break;
	default:
		n = -1;
		r = getsockopt(s->fd, SOL_SOCKET, SO_TYPE, &n, &len);
		say("type %d.%d %d %d", i, k, r, n);
		r = getsockopt(s->fd, SOL_SOCKET, SO_DOMAIN, &n, &len);
		say("domain %d.%d %d %d", i, k, r, n);
		say("flags %d.%d %x", i, k, fcntl(s->fd, F_GETFL) & ~O_LARGEFILE);
	}
}

static void do_shutdown(int i, int k)
{
	struct side *s = &w->sides[i][k], *peer = &w->sides[i][!k];
	int r;

	if (s->copied && (peer->fd < 0 || s->reset || s->ended))
		return;
	r = shutdown(s->fd, SHUT_WR);
	say("shutdown %d.%d -> %d %s", i, k, r, error_of(r));
	if (r == 0) {
		s->ended = true;
		came(i, !k);
	}
}

static int free_number(void)
{
	for (;;) {
		int fd = PORTS + (int)pick(200);

		if (fcntl(fd, F_GETFD) < 0)
			return fd;
	}
}

static bool registered(int i, int k)
{
	for (int e = 0; e < SETS; e++)
		if (w->edges[e][i][k])
			return true;
	return false;
}

/* pass sends a descriptor to ourselves. It returns the new one; below 0: it could not be sent. */
static int pass(int fd)
{
	int pair[2], got = -1;
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = {0};
	char c = 0;
	struct iovec one = {&c, 1};
	struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);

	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(h), &fd, sizeof(fd));
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	if (sendmsg(pair[0], &m, 0) == 1) {
		CHECK(recvmsg(pair[1], &m, 0) == 1);
		memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(got));
	}
	close(pair[0]);
	close(pair[1]);
	return got;
}

/* do_copy has a side go on under another number, by one way or another. */
static void do_copy(int i, int k)
{
	struct side *s = &w->sides[i][k];
	bool stays = pick(2), edges = registered(i, k);
	int fd;

	switch (pick(waiting(i, k) ? 4 : 5)) { /* with bytes in a ring it cannot be passed on */
	case 0:
		fd = dup(s->fd);
		break;
	case 1:
		fd = dup2(s->fd, free_number());
		break;
	case 2:
		fd = dup3(s->fd, free_number(), O_CLOEXEC);
		break;
	case 3:
		fd = fcntl(s->fd, F_DUPFD, PORTS);
		break;
	default:
		fd = pass(s->fd);
		if (fd < 0)
			return; /* bytes were in a ring */
	}
	CHECK(fd >= 0);
	s->copied = true;
	say("copy %d.%d", i, k);
	if (stays || edges) {
		if (pick(2))
			do_receive(i, k);
		close(fd);
	} else {
		int old = s->fd;

		s->fd = fd;
		do_receive(i, k);
		do_send(i, k);
		close(old); /* registrations of it are still there */
	}
}

static void do_register(int i, int k)
{
	static const uint32_t kinds[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLONESHOT,
					 EPOLLIN | EPOLLOUT | EPOLLONESHOT, EPOLLIN | EPOLLET, EPOLLIN | EPOLLEXCLUSIVE, 0, EPOLLOUT | EPOLLEXCLUSIVE};
	struct side *s = &w->sides[i][k];
	int e = (int)pick(SETS);
	int op = 1 + (int)pick(3); /* ADD, DEL, MOD */
	struct epoll_event ev = {.events = kinds[pick(10)], .data.u64 = (uint64_t)(2 * i + k)};
	int r;

	if (pick(2))
		ev.data.u64 = (uint64_t)s->fd; /* as most do */
	r = epoll_ctl(w->sets[e], op, s->fd, &ev);
	say("register %d.%d set %d op %d %x -> %d %s", i, k, e, op, ev.events, r, error_of(r));
	if (r == 0) {
		w->edges[e][i][k] = op != EPOLL_CTL_DEL && (ev.events & EPOLLET);
		w->edge[e][i][k] = w->edges[e][i][k] && waiting(i, k) > 0;
	}
}

static int by_data(const void *a, const void *b)
{
	const struct epoll_event *x = a, *y = b;
	uint64_t p = x->data.u64 * 65536 + x->events, q = y->data.u64 * 65536 + y->events;

	return p < q ? -1 : p > q;
}

/* do_wait looks what an instance says. How often an edge is told is not compared, but that it is. */
static void do_wait(int e)
{
	struct epoll_event ev[64];
	struct timespec none = {0};
	struct pollfd p = {.fd = w->sets[e], .events = POLLIN};
	int n;

	if (pick(4) == 0)
		poll(&p, 1, 0);
	switch (pick(3)) {
	case 0:
		n = epoll_wait(w->sets[e], ev, 64, 0);
		break;
	case 1:
		n = epoll_pwait(w->sets[e], ev, 64, 0, NULL);
		break;
	default:
		n = epoll_pwait2(w->sets[e], ev, 64, &none, NULL);
	}
	CHECK(n >= 0);
	for (int j = 0; j < n; j++)
		ev[j].events &= SHOWN;
	qsort(ev, (size_t)n, sizeof(ev[0]), by_data);
	for (int j = 0; j < n; j++) {
		bool edges = false;
		for (int i = 0; i < 2 * CONNECTIONS; i++)
			if (w->edges[e][i / 2][i % 2] && (ev[j].data.u64 == (uint64_t)i || ev[j].data.u64 == (uint64_t)w->sides[i / 2][i % 2].fd)) {
				edges = true;
				w->edge[e][i / 2][i % 2] = false;
			}
		if (!edges && ev[j].events)
			say("event %d %x of %llu", e, ev[j].events, (unsigned long long)ev[j].data.u64);
	}
	for (int i = 0; i < 2 * CONNECTIONS; i++)
		if (w->edge[e][i / 2][i % 2] && waiting(i / 2, i % 2) > 0)
			say("NO EDGE %d of %d.%d", e, i / 2, i % 2);
}

static void do_set(int e)
{
	int fd = w->sets[e], to;

	switch (pick(4)) {
	case 0: /* it goes away, and comes anew */
		close(fd);
		w->sets[e] = epoll_create1(0);
		memset(w->edge[e], 0, sizeof(w->edge[e]));
		memset(w->edges[e], 0, sizeof(w->edges[e]));
		say("set %d anew", e);
		return;
	case 1:
		to = dup(fd);
		break;
	case 2:
		to = dup2(fd, free_number());
		break;
	default:
		to = pass(fd);
	}
	CHECK(to >= 0);
	if (pick(2)) {
		close(fd);
		w->sets[e] = to;
	} else {
		w->sets[e] = to;
		do_wait(e);
		do_register((int)pick(CONNECTIONS), 0);
		w->sets[e] = fd;
		close(to);
	}
	say("set %d copied", e);
}

static void step(int most);

static void do_fork(void)
{
	int status;
	pid_t child;

	fflush(stdout);
	say("fork");
	fflush(stdout);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		for (int i = 0; i < 3; i++)
			step(2);
		fflush(stdout);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* step does one thing. Not all are done in a process that is one for a moment: its descriptors would not be there later. */
static void step(int most)
{
	int i = (int)pick(CONNECTIONS), k = (int)pick(2);
	unsigned what = pick(most == 2 ? 12 : 24);

	if (most == 2 && (w->sides[i][k].fd < 0 || w->sides[i][k].reset))
		return;
	if (w->sides[i][k].fd < 0) {
		if (w->sides[i][!k].fd < 0 || pick(3) == 0) {
			anew(i);
			return;
		}
		k = !k;
	}
	switch (what) {
	case 0 ... 3:
		if (most != 2 || w->sides[i][!k].fd >= 0)
			do_send(i, k);
		break;
	case 4 ... 8:
		do_receive(i, k);
		break;
	case 9:
		do_poll();
		break;
	case 10:
		if (most == 0)
			do_ask(i, k);
		break;
	case 11:
		do_select(i, k);
		break;
	case 12:
		if (pick(4) == 0)
			do_shutdown(i, k);
		break;
	case 13 ... 15:
		do_register(i, k);
		break;
	case 16 ... 18:
		do_wait((int)pick(SETS));
		break;
	case 19:
		if (pick(2))
			do_copy(i, k);
		break;
	case 20:
		if (pick(4) == 0)
			do_set((int)pick(SETS));
		break;
	case 21:
		if (pick(3) == 0)
			do_fork();
		break;
	case 22:
		do_corked(i, k);
		break;
	default:
		if (pick(3) == 0) {
			say("close %d.%d with %ld", i, k, waiting(i, k));
			give_up(i, k);
		}
	}
}

int main(int argc, char **argv)
{
	socklen_t len = sizeof(where);
	int steps = argc > 2 ? atoi(argv[2]) : 1000;

	CHECK(argc > 1);
	signal(SIGPIPE, SIG_IGN);
	w = mmap(NULL, sizeof(*w), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(w != MAP_FAILED);
	w->random = 0x9e3779b97f4a7c15ull * (strtoull(argv[1], NULL, 10) + 1);
	l = socket(AF_INET, SOCK_STREAM, 0);
	where = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	CHECK(l >= 0 && bind(l, (struct sockaddr *)&where, sizeof(where)) == 0 && listen(l, 16) == 0);
	CHECK(getsockname(l, (struct sockaddr *)&where, &len) == 0);
	for (int e = 0; e < SETS; e++)
		w->sets[e] = epoll_create1(0);
	for (int i = 0; i < CONNECTIONS; i++)
		make(i);
	for (w->step = 0; w->step < steps; w->step++)
		step(0);
	fflush(stdout);
	return 0;
}
