/* Descriptors and epoll instances that come under other numbers. */
#include "same.h"

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
void do_copy(int i, int k)
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

void do_register(int i, int k)
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

/* do_wait looks at the events of an instance. How often an edge is told is not compared, but that it is. */
void do_wait(int e)
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

void do_set(int e)
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
