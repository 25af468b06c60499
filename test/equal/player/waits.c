/* The operations that ask which descriptors are ready. */
#include "player.h"

#define SHOWN (POLLIN | POLLOUT | POLLPRI | POLLRDHUP | POLLERR | POLLHUP | POLLNVAL | POLLRDNORM | POLLWRNORM | POLLRDBAND | POLLWRBAND)

/* split makes a list of the words that are separated by commas. */
static int split(char *list, char **v, int most)
{
	int n = 0;
	char *word;

	while (list && n < most && (word = strsep(&list, ",")) != NULL)
		v[n++] = word;
	return n;
}

#define ASKED 50 /* microseconds for which the kernel, once asked, need not be where rings have something to tell of */

/* apart has a question come so long after the one before it that the kernel is asked, too. docs/run.md has the difference. */
static void apart(void)
{
	if (!w->bare)
		usleep(ASKED + 10);
}

/* op_poll: SLOT[,SLOT]... EVENTS [MSEC] [ppoll] */
void op_poll(const struct args *a)
{
	struct pollfd p[SLOTS];
	char *v[SLOTS];
	int n = split(a->v[0], v, SLOTS), r;
	struct timespec t = {0, number(a, 2, 0) * 1000000};

	for (int i = 0; i < n; i++)
		p[i] = (struct pollfd){.fd = fd_of(v[i]), .events = (short)(events_of(a->v[1]) & 0xffff)};
	apart();
	r = has(a, "ppoll") ? ppoll(p, (nfds_t)n, &t, NULL) : poll(p, (nfds_t)n, (int)number(a, 2, 0));
	say_result(r);
	for (int i = 0; i < n && r >= 0; i++) {
		say("%s", v[i]);
		say_events((unsigned)p[i].revents & SHOWN);
	}
}

/* op_select: SLOT[,SLOT]... [MSEC] [pselect] */
void op_select(const struct args *a)
{
	fd_set set[3];
	char *v[SLOTS];
	int n = split(a->v[0], v, SLOTS), top = -1, r;
	struct timeval t = {0, number(a, 1, 0) * 1000};
	struct timespec ts = {0, number(a, 1, 0) * 1000000};

	for (int k = 0; k < 3; k++) {
		FD_ZERO(&set[k]);
		for (int i = 0; i < n; i++) {
			int fd = fd_of(v[i]);

			if (fd < 0 || fd >= FD_SETSIZE)
				continue;
			if (k != 1 || !has(a, "in"))
				FD_SET(fd, &set[k]);
			if (fd > top)
				top = fd;
		}
	}
	r = has(a, "pselect") ? pselect(top + 1, &set[0], &set[1], &set[2], &ts, NULL) : select(top + 1, &set[0], &set[1], &set[2], &t);
	say_result(r);
	for (int i = 0; i < n && r >= 0; i++) {
		int fd = fd_of(v[i]);

		if (fd >= 0 && fd < FD_SETSIZE)
			say("%s %s%s%s.", v[i], FD_ISSET(fd, &set[0]) ? "r" : "", FD_ISSET(fd, &set[1]) ? "w" : "", FD_ISSET(fd, &set[2]) ? "x" : "");
	}
}

/* op_epoll: SLOT [old] */
void op_epoll(const struct args *a)
{
	int fd = has(a, "old") ? epoll_create(1) : epoll_create1(0);

	say_result(fd);
	put(slot_of(a->v[0]), fd, -1, 0);
}

static int index_of(const struct slot *s)
{
	return (int)(s - w->slots[me]);
}

/* op_ctl: EPOLL add|mod|del SLOT [EVENTS] [fd]. The data are the slot's number, or with fd that and the descriptor. */
void op_ctl(const struct args *a)
{
	struct slot *s = slot_of(a->v[2]);
	int op = *a->v[1] == 'a' ? EPOLL_CTL_ADD : *a->v[1] == 'm' ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
	struct epoll_event ev = {.events = a->n > 3 ? events_of(a->v[3]) : 0, .data.u64 = (uint64_t)index_of(s)};

	if (has(a, "fd"))
		ev.data.u64 = (uint64_t)(index_of(s) + 1) << 32 | (uint32_t)s->fd;
	say_result(epoll_ctl(fd_of(a->v[0]), op, s->fd, &ev));
}

static int by_data(const void *a, const void *b)
{
	const struct epoll_event *x = a, *y = b;

	return x->data.u64 < y->data.u64 ? -1 : x->data.u64 > y->data.u64;
}

/* op_ewait: EPOLL MOST [MSEC] [pwait|pwait2] */
void op_ewait(const struct args *a)
{
	struct epoll_event ev[64];
	int fd = fd_of(a->v[0]), most = (int)number(a, 1, 64), msec = (int)number(a, 2, 0), n;
	struct timespec t = {msec / 1000, msec % 1000 * 1000000l};

	if (most > 64)
		most = 64;
	apart();
	if (has(a, "pwait2"))
		n = epoll_pwait2(fd, ev, most, &t, NULL);
	else if (has(a, "pwait"))
		n = epoll_pwait(fd, ev, most, msec, NULL);
	else
		n = epoll_wait(fd, ev, most, msec);
	say_result(n);
	if (n <= 0)
		return;
	qsort(ev, (size_t)n, sizeof(*ev), by_data);
	for (int i = 0; i < n; i++) {
		uint64_t slot = ev[i].data.u64 > 0xffffffff ? (ev[i].data.u64 >> 32) - 1 : ev[i].data.u64;

		if (slot >= 20)
			say("e%d", (int)slot - 20);
		else
			say("s%d", (int)slot);
		say_events(ev[i].events);
	}
}
