/* Loops as programs have them: they send or receive much in one step, each with its own way of waiting. They say how much it was. */
#include "player.h"

/* A watch is how a loop waits for its descriptor. */
struct watch {
	int fd, epfd;
	bool et, oneshot;
	unsigned events;
	char how;
};

static void watch_begin(struct watch *x, int fd, const char *how, unsigned events)
{
	struct epoll_event ev = {.events = events, .data.fd = fd};
	int e;

	*x = (struct watch){.fd = fd, .epfd = -1, .events = events, .how = 'p'};
	if (strncmp(how, "select", 6) == 0)
		x->how = 's';
	if (strncmp(how, "et", 2) != 0 && strncmp(how, "lt", 2) != 0 && strncmp(how, "one", 3) != 0 && strncmp(how, "excl", 4) != 0)
		return;
	x->how = 'e';
	x->et = *how == 'e' && how[1] == 't';
	x->oneshot = *how == 'o';
	if (x->et)
		ev.events |= EPOLLET;
	if (x->oneshot)
		ev.events |= EPOLLONESHOT;
	if (strncmp(how, "excl", 4) == 0)
		ev.events = (ev.events & ~(unsigned)EPOLLRDHUP) | EPOLLEXCLUSIVE;
	if (strncmp(how, "etall", 5) == 0)
		ev.events |= EPOLLIN | EPOLLOUT | EPOLLRDHUP;
	x->events = ev.events;
	e = epoll_create1(EPOLL_CLOEXEC);
	x->epfd = fcntl(e, F_DUPFD_CLOEXEC, PATH_FD);
	close(e);
	CHECK(epoll_ctl(x->epfd, EPOLL_CTL_ADD, fd, &ev) == 0);
}

static void watch_end(struct watch *x)
{
	if (x->epfd >= 0)
		close(x->epfd);
}

/* wait_once is watch_wait as long as no signal comes. Its result is that of the call. */
static int wait_once(struct watch *x, int msec)
{
	struct pollfd p = {.fd = x->fd, .events = (short)(x->events & 0xff)};
	struct timeval t = {msec / 1000, msec % 1000 * 1000};
	struct epoll_event ev;
	fd_set in, out;
	int n;

	switch (x->how) {
	case 's':
		if (x->fd >= FD_SETSIZE)
			return 0;
		FD_ZERO(&in);
		FD_ZERO(&out);
		if (x->events & EPOLLIN)
			FD_SET(x->fd, &in);
		if (x->events & EPOLLOUT)
			FD_SET(x->fd, &out);
		return select(x->fd + 1, &in, &out, NULL, &t);
	case 'e':
		n = epoll_wait(x->epfd, &ev, 1, msec);
		if (n == 1 && x->oneshot) {
			ev.events = x->events;
			ev.data.fd = x->fd;
			epoll_ctl(x->epfd, EPOLL_CTL_MOD, x->fd, &ev);
		}
		return n;
	default:
		return poll(&p, 1, msec);
	}
}

/*
 * watch_wait waits until there is news. False: there was none for long, which is a failure. No signal ends it: the one that tells of bytes (O_ASYNC) can come after they
 * have been read. The kernel sends it when a Unix socket has woken its reader up, and a TCP socket before that can read.
 */
static bool watch_wait(struct watch *x)
{
	long until = (long)msec_now() + w->stuck, left = w->stuck;
	int n;

	do {
		n = wait_once(x, (int)left);
		left = until - (long)msec_now();
	} while (n < 0 && errno == EINTR && left > 0);
	return n > 0;
}

/* await is watch_wait of poll. */
bool await(int fd, short events, int msec)
{
	struct pollfd p = {.fd = fd, .events = events};
	long until = (long)msec_now() + msec, left = msec;
	int n;

	do {
		n = poll(&p, 1, (int)left);
		left = until - (long)msec_now();
	} while (n < 0 && errno == EINTR && left > 0);
	return n > 0;
}

static bool blocking(int fd, bool on)
{
	int flags = fcntl(fd, F_GETFL);

	fcntl(fd, F_SETFL, on ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
	return !(flags & O_NONBLOCK);
}

/* again says whether a call would have waited. */
static bool again(long r)
{
	return r < 0 && (errno == EAGAIN || errno == EINTR);
}

/* op_pump: SLOT N CHUNK HOW [CALL] sends N bytes. HOW: block, poll, select, lt, et, etall, oneshot, excl; not waiting at all is left to others. */
void op_pump(const struct args *a)
{
	struct slot *s = slot_of(a->v[0]);
	long left = number(a, 1, 1), chunk = number(a, 2, 1000), r = 0, turn = 0;
	const char *how = a->v[3], *call = a->n > 4 ? a->v[4] : "send";
	bool waits = strcmp(how, "block") == 0, was;
	struct watch x;

	if (s->fd < 0 || chunk <= 0 || chunk > (long)BUFFER)
		return;
	was = blocking(s->fd, waits);
	if (!waits)
		watch_begin(&x, s->fd, how, EPOLLOUT);
	while (left > 0) {
		long n = chunk < left ? chunk : left;

		if (!waits && !x.et && !watch_wait(&x)) {
			say("STUCK");
			break;
		}
		r = send_one(s, call, buffer(), n, turn++ % 3 == 2 && left > n && strcmp(call, "send") == 0 ? MSG_MORE : 0);
		if (again(r) && !waits) {
			if (x.et && !watch_wait(&x)) {
				say("STUCK");
				break;
			}
			continue;
		}
		if (r <= 0)
			break;
		left -= r;
	}
	say("left %ld", left);
	if (r < 0 && !again(r))
		say_result(r);
	if (!waits)
		watch_end(&x);
	blocking(s->fd, was);
	settle(s->fd);
}

static long take(struct slot *s, char *b, long n, int flags)
{
	long r = recv(s->fd, b, (size_t)n, flags);

	if (r > 0 && !right(s, b, r, true)) {
		say("WRONG BYTES at %ld", (long)w->connection[s->conn].got[s->side]);
		errno = EBADMSG;
		return -1;
	}
	return r;
}

/*
 * op_drain: SLOT N CHUNK HOW receives N bytes. HOW: block, waitall, poll, select, lt, oneshot, excl; and with edges et, which reads until it would
 * wait, etshort, until it gets less than it has asked for, and etasks, which asks how much there is, and reads that.
 */
void op_drain(const struct args *a)
{
	struct slot *s = slot_of(a->v[0]);
	long left = number(a, 1, 1), chunk = number(a, 2, 1000), r = 1;
	const char *how = a->v[3];
	bool whole = strcmp(how, "waitall") == 0, waits = whole || strcmp(how, "block") == 0, was;
	bool asks = strstr(how, "asks") != NULL, fewer = strstr(how, "short") != NULL, peeks = strstr(how, "peek") != NULL;
	struct watch x;

	if (s->fd < 0 || chunk <= 0 || chunk > (long)BUFFER)
		return;
	was = blocking(s->fd, waits);
	if (!waits)
		watch_begin(&x, s->fd, how, EPOLLIN | EPOLLRDHUP);
	while (left > 0) {
		long most = chunk < left ? chunk : left;
		int there = 0;

		if (waits) {
			if (peeks && recv(s->fd, buffer(), (size_t)most, MSG_PEEK) <= 0)
				break;
			r = take(s, buffer(), most, whole ? MSG_WAITALL : 0);
			if (r <= 0)
				break;
			left -= r;
			continue;
		}
		if (!watch_wait(&x)) {
			say("STUCK");
			break;
		}
		for (;;) { /* the calls that an event is good for */
			most = chunk < left ? chunk : left;
			if (asks) {
				if (ioctl(s->fd, FIONREAD, &there) != 0)
					there = 0;
				if (there > 0 && there < most)
					most = there;
			}
			r = take(s, buffer(), most, 0);
			if (r <= 0)
				break;
			left -= r;
			if (left == 0 || !x.et || (fewer && r < most) || (asks && r >= there))
				break;
		}
		if (r == 0 || (r < 0 && !again(r)))
			break;
	}
	say("left %ld", left);
	if (r < 0 && !again(r))
		say_result(r);
	if (r == 0)
		say("end");
	if (!waits)
		watch_end(&x);
	blocking(s->fd, was);
}

static bool send_whole(struct slot *s, struct watch *x, long n)
{
	while (n > 0) {
		long r = send_one(s, "send", buffer(), n, MSG_NOSIGNAL);

		if (again(r)) {
			if (!x || !await(s->fd, POLLOUT, w->stuck))
				return false;
			continue;
		}
		if (r <= 0)
			return false;
		n -= r;
	}
	return true;
}

/* op_echo: SLOT N HOW answers N bytes with as many, as they come. HOW is as in op_drain. */
void op_echo(const struct args *a)
{
	struct slot *s = slot_of(a->v[0]);
	long left = number(a, 1, 1), r = 1;
	const char *how = a->v[2];
	bool waits = strcmp(how, "block") == 0, was;
	struct watch x;

	if (s->fd < 0)
		return;
	was = blocking(s->fd, waits);
	if (!waits)
		watch_begin(&x, s->fd, how, EPOLLIN | EPOLLRDHUP);
	while (left > 0) {
		if (!waits && !watch_wait(&x)) {
			say("STUCK");
			break;
		}
		do {
			r = take(s, buffer(), left < 5000 ? left : 5000, 0);
			if (r <= 0)
				break;
			left -= r;
			if (!send_whole(s, waits ? NULL : &x, r)) {
				say("UNSENT");
				left = -1;
			}
		} while (!waits && x.et && left > 0);
		if (r == 0 || (r < 0 && !again(r)))
			break;
	}
	say("left %ld", left);
	if (!waits)
		watch_end(&x);
	blocking(s->fd, was);
	settle(s->fd);
}

/* op_ping: SLOT ROUNDS SIZE HOW sends and waits for as much, so many times. */
void op_ping(const struct args *a)
{
	struct slot *s = slot_of(a->v[0]);
	long rounds = number(a, 1, 1), size = number(a, 2, 1), r = 1, i;
	const char *how = a->v[3];
	bool waits = strcmp(how, "block") == 0, was;
	struct watch x;

	if (s->fd < 0)
		return;
	was = blocking(s->fd, waits);
	if (!waits)
		watch_begin(&x, s->fd, how, EPOLLIN | EPOLLRDHUP);
	for (i = 0; i < rounds; i++) {
		long left = size;

		if (!send_whole(s, waits ? NULL : &x, size)) {
			say("UNSENT");
			break;
		}
		while (left > 0) {
			r = take(s, buffer(), left, 0);
			if (!waits && again(r)) {
				if (!watch_wait(&x)) {
					say("STUCK");
					break;
				}
				continue;
			}
			if (r <= 0)
				break;
			left -= r;
		}
		if (left > 0)
			break;
	}
	say("rounds %ld", i);
	if (!waits)
		watch_end(&x);
	blocking(s->fd, was);
	settle(s->fd);
}

/* op_fill: SLOT [CHUNK] sends until it would wait. How much that is, is not told. */
void op_fill(const struct args *a)
{
	struct slot *s = slot_of(a->v[0]);
	long chunk = number(a, 1, 10000), r, turns = 0;
	struct pollfd p = {.fd = s->fd, .events = POLLOUT};
	bool was;

	if (s->fd < 0 || chunk <= 0 || chunk > (long)BUFFER)
		return;
	was = blocking(s->fd, false);
	do { /* TCP makes its buffers larger as long as this goes on */
		while ((r = send_one(s, "send", buffer(), chunk, MSG_NOSIGNAL)) > 0)
			;
		if (w->bare)
			usleep(2000);
	} while (again(r) && poll(&p, 1, 0) == 1 && (p.revents & POLLOUT) && turns++ < 100);
	say_result(r);
	poll(&p, 1, 0);
	say("%s", p.revents & POLLOUT ? "room" : "full");
	blocking(s->fd, was);
}

/* op_empty: SLOT [CHUNK] receives all that was sent. */
void op_empty(const struct args *a)
{
	struct slot *s = slot_of(a->v[0]);
	long chunk = number(a, 1, 30000), r;
	bool was;

	if (s->fd < 0 || s->conn < 0 || chunk <= 0 || chunk > (long)BUFFER)
		return;
	was = blocking(s->fd, false);
	do {
		while ((r = take(s, buffer(), chunk, 0)) > 0)
			;
	} while (again(r) && w->connection[s->conn].got[s->side] < w->connection[s->conn].sent[!s->side] && await(s->fd, POLLIN, 1000));
	say_result(r);
	say("%s", w->connection[s->conn].got[s->side] == w->connection[s->conn].sent[!s->side] ? "all" : "NOT ALL");
	blocking(s->fd, was);
}
