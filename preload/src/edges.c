/*
 * Edges. A program that is told when bytes come, and not whether bytes are there, relies on being
 * told of every arrival. Such are registrations with EPOLLET or EPOLLEXCLUSIVE, epoll instances
 * that are registered so themselves, and O_ASYNC. A ring has one token while bytes are in it, which
 * comes with the first of them. So epoll_wait, when it tells of an event of such a descriptor, arms
 * the ring although bytes are in it. The next publication comes with a token, and that is an edge.
 * Bytes that come before the program is told again need no other one.
 *
 * If others can be told, too, and we do not see that, each receive that leaves bytes arms the ring,
 * and so does FIONREAD.
 */
#include "ring.h"

#define BUCKETS 65536 /* 1 MiB of zeros, of which pages are taken when they are used */
#define WAYS 4

/* The data of a descriptor's registration, by which epoll_wait finds the descriptor. */
static uint64_t datas[ENDS];
static uint8_t known[ENDS]; /* enum known */
static int32_t owners[ENDS]; /* the instance, of a descriptor that is KNOWN_ONCE */
static struct registration {
	int32_t epfd;
	uint32_t events; /* 0: not for edges */
} registrations[ENDS];
/* one more than a descriptor; 0: none. An entry that is not valid any more stays until its place is needed */
static uint32_t buckets[BUCKETS][WAYS];

enum known {
	KNOWN_NOT = 0,
	KNOWN_ONCE = 1,
	KNOWN_TWICE = 2, /* by two instances, with the same data */
};

bool edges_used;
static bool unfound; /* some cannot be found by their data: all are looked at */
static bool all;     /* each end is to be treated so */

bool edges_are(uint32_t events)
{
	return events & (EPOLLET | EPOLLEXCLUSIVE);
}

static uint32_t *bucket(uint64_t data)
{
	return buckets[(data * 0x9e3779b97f4a7c15ull) >> 48];
}

/* remember has a descriptor found by its data. */
static void remember(int fd, uint64_t data)
{
	uint32_t *b = bucket(data);

	for (int i = 0; i < WAYS; i++)
		if (__atomic_load_n(&b[i], __ATOMIC_SEQ_CST) == (uint32_t)fd + 1)
			return;
	for (int i = 0; i < WAYS; i++) {
		uint32_t v = __atomic_load_n(&b[i], __ATOMIC_SEQ_CST);

		if ((v == 0 || !known[v - 1] || bucket(datas[v - 1]) != b) &&
			__atomic_compare_exchange_n(
				&b[i], &v, (uint32_t)fd + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return;
	}
	__atomic_store_n(&unfound, true, __ATOMIC_SEQ_CST);
}

/* want takes note of how an end is told. */
static void want(int fd, uint32_t how)
{
	struct end *e = end_at(fd);
	struct ring *r;

	if (!e || (__atomic_fetch_or(&e->edges, how, __ATOMIC_SEQ_CST) & how) == how ||
		!(how & EDGES_ALWAYS) || !ring_enter(&e->in, &r))
		return;
	if (ring_lock(r)) {
		r->side->edges |= EDGE_ALWAYS;
		receive_arm(r, fd);
		ring_unlock(r);
	}
	ring_exit(r);
}

/*
 * end_low has a direction be in-band, where the kernel sees to SO_RCVLOWAT when it is read. Bytes that are
 * in the ring are read there.
 */
void end_low(int fd)
{
	struct end *e = end_at(fd);
	struct ring *r;
	int saved = errno;

	if (!e)
		return;
	__atomic_fetch_or(&e->never, NEVER_IN, __ATOMIC_SEQ_CST);
	want(fd, EDGES_ALWAYS);
	if (!leave_in(e, fd) && ring_enter(&e->in, &r)) {
		if (ring_lock(r)) {
			receive_no_more(r);
			ring_unlock(r);
		}
		ring_exit(r);
	}
	errno = saved;
}

/*
 * edges_signalled is for O_ASYNC. Nobody says when the program has had its signal that something
 * has come, so that direction is to be in-band. So is the other one, as the signal that there is
 * room again comes to a sender that the kernel has refused.
 */
void edges_signalled(int fd)
{
	int saved = errno;

	end_low(fd);
	end_in_band(fd);
	errno = saved;
}

/* edges_attached is for a ring that has come. */
void edges_attached(const struct end *e, struct ring *r)
{
	if (__atomic_load_n(&all, __ATOMIC_SEQ_CST) ||
		(__atomic_load_n(&e->edges, __ATOMIC_SEQ_CST) & EDGES_ALWAYS))
		r->side->edges |= EDGE_ALWAYS;
}

/* edges_nested is for an epoll instance that is registered for edges: each descriptor in it is. */
void edges_nested(void)
{
	__atomic_store_n(&all, true, __ATOMIC_SEQ_CST);
	__atomic_store_n(&edges_used, true, __ATOMIC_SEQ_CST);
	for (int fd = 0; fd < ends_top(); fd++)
		want(fd, EDGES_TOLD | EDGES_ALWAYS);
}

/* is_of says whether an instance has the one registration for edges that is known. */
static bool is_of(int epfd, int fd)
{
	return known[fd] == KNOWN_ONCE && owners[fd] == epfd;
}

/* edges_registered takes note of a registration for edges, before the kernel has it. */
void edges_registered(int epfd, int op, int fd, const struct epoll_event *ev)
{
	struct end *e = end_at(fd);

	if (!e)
		return;
	if (known[fd] == KNOWN_NOT || (op == EPOLL_CTL_MOD && is_of(epfd, fd))) {
		datas[fd] = ev->data.u64;
		owners[fd] = epfd;
		known[fd] = KNOWN_ONCE;
	} else if (datas[fd] != ev->data.u64) {
		__atomic_store_n(&unfound, true, __ATOMIC_SEQ_CST);
	} else if (op == EPOLL_CTL_ADD || !is_of(epfd, fd)) {
		known[fd] = KNOWN_TWICE;
	}
	remember(fd, datas[fd]);
	want(fd, end_alone(e) ? EDGES_TOLD : EDGES_TOLD | EDGES_ALWAYS);
	__atomic_store_n(&edges_used, true, __ATOMIC_SEQ_CST);
}

/* edges_dup is for a copy of a descriptor: the registration stays as long as there is one. */
void edges_dup(int fd, int to)
{
	struct end *e = end_at(fd), *d = end_at(to);

	if (!e || !d)
		return;
	d->edges = e->edges;
	if (known[fd]) {
		datas[to] = datas[fd];
		known[to] = KNOWN_TWICE;
		remember(to, datas[to]);
	}
}

/*
 * edges_registered_as keeps the events of a registration as the kernel has them. The lock of the instance
 * is held.
 */
void edges_registered_as(int epfd, int fd, uint32_t events)
{
	if (fd < 0 || fd >= ENDS)
		return;
	if (edges_are(events))
		registrations[fd] = (struct registration){epfd, events};
	else if (registrations[fd].epfd == epfd)
		registrations[fd].events = 0;
}

/*
 * edges_registration is the instance that has the one registration of a descriptor, -1 if there is none
 * that could be told to the kernel again.
 */
int edges_registration(int fd, struct epoll_event *ev)
{
	struct registration r = fd >= 0 && fd < ENDS ? registrations[fd] : (struct registration){0};

	if (!(r.events & EPOLLET) || (r.events & (EPOLLONESHOT | EPOLLEXCLUSIVE)) || !is_of(r.epfd, fd))
		return -1;
	*ev = (struct epoll_event){.events = r.events, .data.u64 = datas[fd]};
	return r.epfd;
}

/* edges_gone is for a registration that is no more. Another instance may have one for edges all the same. */
void edges_gone(int epfd, int fd)
{
	if (fd >= 0 && fd < ENDS && is_of(epfd, fd))
		known[fd] = KNOWN_NOT;
}

void edges_closed(int fd)
{
	if (fd >= 0 && fd < ENDS && known[fd]) {
		known[fd] = KNOWN_NOT;
		registrations[fd].events = 0;
	}
}

/* told arms the ring of a descriptor. */
static void told(int fd)
{
	struct end *e = end_at(fd);
	struct ring *r;

	if (!e || !__atomic_load_n(&e->in, __ATOMIC_SEQ_CST) || !ring_enter(&e->in, &r))
		return;
	if (!(pub_load(r) & PUB_ARMED) && end_still(fd, e) && ring_lock(r)) {
		receive_arm(r, fd);
		ring_unlock(r);
	}
	ring_exit(r);
}

/* hung_up has the next send look whether the peer has gone, as the program has been told so. */
static void hung_up(int fd)
{
	struct end *e = end_at(fd);
	struct ring *r;

	if (!e || !__atomic_load_n(&e->out, __ATOMIC_SEQ_CST) || !ring_enter(&e->out, &r))
		return;
	__atomic_store_n(&r->side->looked, 0, __ATOMIC_RELAXED);
	ring_exit(r);
}

/* edges_told is for events that epoll_wait is about to return. */
void edges_told(const struct epoll_event *ev, int n)
{
	int top = ends_top();

	if (__atomic_load_n(&unfound, __ATOMIC_RELAXED) || __atomic_load_n(&all, __ATOMIC_RELAXED)) {
		for (int fd = 0; n > 0 && fd < top; fd++) {
			const struct end *e = end_at(fd);

			if (e && (all || e->edges))
				told(fd);
		}
		return;
	}
	for (int i = 0; i < n; i++) {
		uint64_t data = ev[i].data.u64; /* which may be at an odd place */
		uint32_t *b = bucket(data);

		for (int k = 0; k < WAYS; k++) {
			uint32_t v = __atomic_load_n(&b[k], __ATOMIC_RELAXED);

			if (!v || !known[v - 1] || datas[v - 1] != data)
				continue;
			told((int)v - 1);
			if (ev[i].events & (EPOLLHUP | EPOLLERR))
				hung_up((int)v - 1);
		}
	}
}
