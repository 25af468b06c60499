/* Steps that send and receive. */
#include "same.h"

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
		file = memfd_create("file", 0); /* TCP sends its pages, not their bytes of now */
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

void do_send(int i, int k)
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
	if (peer->fd < 0) { /* later results are not the same */
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
void do_corked(int i, int k)
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

void do_receive(int i, int k)
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
	case 7: /* waiting, for bytes that are there */
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

			if (got < 0 && errno == EINVAL) /* bytes in a ring have to be read */
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
