/* Steps that ask, and steps that end a direction. */
#include "same.h"

void do_poll(void)
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

void do_select(int i, int k)
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

void do_ask(int i, int k)
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

void do_shutdown(int i, int k)
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
