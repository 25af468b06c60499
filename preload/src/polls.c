/*
 * Busy polling with poll. A ring that was read to its end by the one thread that polls its descriptor says to
 * its writer that no token is needed, as in an event loop with epoll: busy.c. So poll looks at such rings
 * before the kernel and beside it, and before it sleeps it has the next bytes come with tokens.
 *
 * A program may poll other descriptors each time. So the kernel is left out only where it was asked about the
 * same ones just now.
 */
#include "ring.h"

#include <signal.h>

#define MOST 64	       /* rings of one call; others have tokens */
#define ASK_NSEC 50000 /* after which the kernel is asked although rings have bytes */
#define SELDOM 16      /* waits between two looks where it does not pay, at first */
#define READS (POLLIN | POLLRDNORM)
#define WRITES (POLLOUT | POLLWRNORM)

static __thread struct luck luck __attribute__((tls_model("initial-exec")));

/* When this thread has asked the kernel last, and about which descriptors. */
static __thread struct {
	uint64_t at, which;
} asked __attribute__((tls_model("initial-exec")));

/* The descriptors of a call whose rings are looked at. */
struct rings {
	int32_t fd[MOST];
	int n;
	uint64_t which; /* a hash of all descriptors and events */
	bool there;	/* others have something to read of which the kernel does not know */
	bool writes;	/* the call waits for room, too */
};

/* gather finds them. All descriptors are seen to, as the call may sleep on each. */
static void gather(struct rings *g, const struct pollfd *p, nfds_t n)
{
	g->n = 0;
	g->which = (uint64_t)n;
	g->there = g->writes = false;
	for (nfds_t i = 0; i < n; i++) {
		uint32_t serial;

		g->which = (g->which ^ (uint32_t)p[i].fd ^ (uint64_t)(uint16_t)p[i].events << 32) * 0x100000001b3ull;
		g->writes |= (p[i].events & WRITES) != 0;
		if (!(p[i].events & READS))
			continue;
		if (epoll_instance(p[i].fd, &serial)) {
			g->there |= busy_instance(p[i].fd, serial);
			continue;
		}
		if (busy_polled(p[i].fd, g->n < MOST, &g->there))
			g->fd[g->n++] = p[i].fd;
	}
}

/*
 * any_ready looks into each ring by a call of its own: a handler of a signal may leave the look by longjmp,
 * and another thread may close a descriptor.
 */
static bool any_ready(const struct rings *g)
{
	for (int i = 0; i < g->n; i++)
		if (busy_bytes(g->fd[i]))
			return true;
	return false;
}

static bool same_processor(const struct rings *g)
{
	for (int i = 0; i < g->n; i++)
		if (busy_beneath(g->fd[i]))
			return true;
	return false;
}

/* cool has the next bytes come with tokens. True: there are some of which the kernel does not know. */
static bool cool(const struct rings *g)
{
	bool there = false;

	for (int i = 0; i < g->n; i++)
		busy_polled(g->fd[i], false, &there);
	return there;
}

static int ask(const struct rings *g, struct pollfd *p, nfds_t n, const sigset_t *mask, uint64_t now)
{
	struct timespec none = {0};

	asked.at = now;
	asked.which = g->which;
	return (int)SYS(ppoll, p, n, &none, mask, 8);
}

/* add adds the events that the kernel does not know to its answer. knows: it was asked. */
static int add(struct pollfd *p, nfds_t n, int r, bool knows)
{
	for (nfds_t i = 0; r >= 0 && i < n; i++) {
		short says = p[i].events & READS;
		uint32_t serial;

		if (!says ||
			!(epoll_instance(p[i].fd, &serial) ? busy_instance(p[i].fd, serial)
							   : busy_bytes(p[i].fd)))
			continue;
		if (!knows)
			says |= (short)busy_writable(p[i].fd, (uint32_t)p[i].events);
		r += p[i].revents == 0;
		p[i].revents |= says;
	}
	return r;
}

/* answer is for a call that has something to tell of. */
static int answer(const struct rings *g, struct pollfd *p, nfds_t n, const sigset_t *mask, uint64_t now)
{
	bool due = g->there || asked.which != g->which || now - asked.at > ASK_NSEC;

	if (due)
		return add(p, n, ask(g, p, n, mask, now), true);
	for (nfds_t i = 0; i < n; i++)
		p[i].revents = 0;
	return add(p, n, 0, false);
}

/* look looks for a while whether something comes. *r: what the kernel says, or a signal. */
static bool look(
	const struct rings *g, struct pollfd *p, nfds_t n, const sigset_t *mask, uint64_t begin, int *r)
{
	struct glance at;
	bool paid = false;

	*r = 0;
	glance_begin(&at, begin);
	while (*r == 0 && !(paid = any_ready(g)) && glance_on(&at))
		if (asked.which != g->which || at.now - asked.at > ASK_NSEC)
			*r = ask(g, p, n, mask, at.now);
	if (*r >= 0) /* an event of the kernel would have come earlier without the look */
		luck_paid(&luck, paid, SELDOM);
	/* As in busy.c: what is there is told of before a signal is. */
	if (glance_over(&at, paid || *r) && !(paid = any_ready(g)) && (*r = ask(g, p, n, mask, at.now)) == 0)
		*r = -EINTR;
	return paid;
}

/*
 * polls_wait is poll as far as that need not sleep: it returns a number of descriptors, an error of the
 * kernel below 0, or POLLS_SLEEP. waits: whether the program would wait.
 */
int polls_wait(struct pollfd *p, nfds_t n, bool waits, const sigset_t *mask)
{
	struct rings g;
	uint64_t now;
	bool there;
	int r = 0;

	if (!p || ends_top() == 0)
		return POLLS_SLEEP;
	gather(&g, p, n);
	if (g.n == 0 && !g.there)
		return POLLS_SLEEP;
	now = precise_now();
	there = g.there || any_ready(&g);
	if (!there && waits && g.writes)
		r = ask(&g, p, n, mask, now);
	if (!there && waits && r == 0 && luck_tries(&luck, SELDOM) && !same_processor(&g))
		there = look(&g, p, n, mask, now, &r);
	if (there)
		r = answer(&g, p, n, mask, now);
	else if (r != 0)
		r = add(p, n, r, true);
	if (r == 0 && waits && cool(&g))
		r = answer(&g, p, n, mask, now);
	return r != 0 ? r : POLLS_SLEEP;
}
