/*
 * Busy polling. The writer of a ring tells an event loop of new bytes by a token in the socket,
 * which costs both programs a system call, and often a wake-up. So a loop looks into the rings of
 * its instance by itself: a ring that was read to its end says to its writer that no token is
 * needed (PUB_LOOK), and epoll_wait looks at all such rings before the kernel and beside it. Before
 * it sleeps it takes the word back, and from then on the next bytes come with a token. A loop with
 * poll does the same: polls.c.
 *
 * Until it does, bytes can be in a ring of which the kernel does not know. So all that could sleep
 * on the descriptor has to come by here: the ring is one of an instance that was made here, in
 * which one thread waits, that is in no other instance and was never given to poll or select, or of
 * one thread that has polled it while it was never given to anything else, and its process is one
 * that nobody was forked from.
 */
#include "ring.h"

#include <sched.h>

#define MOST 64		   /* rings of one instance; others have tokens */
#define ASK_FIRST_NSEC 4000 /* the same, at first, where rings may have tokens that are looked at soon */
#define ASK_NSEC 50000	   /* after which the kernel is asked although rings have bytes */
#define SPARE 4	   /* looks in a row that the kernel may end without one more ring that is looked at */
#define SELDOM 16	   /* waits between two looks where it does not pay, at first */

/* A ring of an instance, with the registration of its descriptor. */
struct member {
	struct ring *ring; /* NULL: the place is free */
	uint64_t told; /* the head of which an edge was told */
	uint64_t data;
	uint32_t events; /* 0: it is not registered any more */
	int32_t fd;
	int32_t epfd; /* the instance, of a stray */
};

/*
 * The rings of an epoll instance that are looked at. The thread that waits takes members out, others at most
 * change them. A handler of a signal may leave a call by longjmp while it has the lock, and a process may be
 * forked meanwhile: so a member comes and goes with one store, and stays where it is.
 */
struct busy {
	uint64_t lock;	 /* calls.c */
	uint32_t serial; /* of the instance */
	uint32_t n;	 /* members, and free places between them */
	uint32_t next;	/* the member that comes first */
	uint64_t asked; /* when the kernel was */
	uint32_t known;	/* the most members since the loop has slept, when the kernel ended a look */
	uint32_t spare; /* more looks that it may end */
	bool gathers;	/* no look has paid since the loop has slept */
	struct luck luck;
	struct member members[MOST];
};

static struct busy busies[EPOLL_SETS];

/*
 * Rings with bytes of which the kernel does not know, registered with instances that are none of
 * ours. No ring there is looked at any more, and one that is read leaves.
 */
static struct busy strays;
static uint32_t stray; /* their number */

#define lock(b) thread_lock(&(b)->lock)

static void unlock(struct busy *b)
{
	thread_unlock(&b->lock);
}

/*
 * take_out frees the place of a member. A call that is left between its two steps keeps the memory of the
 * ring.
 */
static void take_out(struct member *m)
{
	struct ring *r = m->ring;

	__atomic_store_n(&m->ring, NULL, __ATOMIC_SEQ_CST);
	if (r)
		ring_unref(r);
}

/* anew is for a loop that has rings looked at from now on which it has not read yet. */
static void anew(struct busy *b)
{
	b->known = b->spare = 0;
	b->gathers = true;
}

/* forget takes all members out of an instance that is no more. The lock is held. */
static void forget(struct busy *b, uint32_t serial)
{
	for (uint32_t i = 0; i < b->n; i++)
		take_out(&b->members[i]);
	b->n = b->next = 0;
	b->asked = 0;
	b->luck = (struct luck){0};
	anew(b);
	__atomic_store_n(&b->serial, serial, __ATOMIC_SEQ_CST);
}

static struct member *find(struct busy *b, int epfd, int fd, const struct ring *r)
{
	for (uint32_t i = 0; i < b->n; i++)
		if (b->members[i].fd == fd && b->members[i].epfd == epfd && b->members[i].ring == r)
			return &b->members[i];
	return NULL;
}

/* add makes a ring a member. serial: 0 is an instance that is none of ours. */
static bool add(
	int epfd, uint32_t serial, int fd, struct ring *r, const struct epoll_event *ev, uint64_t told)
{
	struct busy *b = serial ? &busies[epfd] : &strays;
	struct member *m;
	uint32_t i = 0;

	if (!lock(b))
		return false;
	if (b->serial != serial)
		forget(b, serial);
	m = find(b, epfd, fd, r);
	if (m) {
		m->told = told;
		m->data = ev->data.u64;
		m->events = ev->events;
		unlock(b);
		return true;
	}
	while (i < b->n && b->members[i].ring)
		i++;
	if (i < MOST) {
		m = &b->members[i];
		m->ring = NULL;
		*m = (struct member){
			.told = told, .data = ev->data.u64, .events = ev->events, .fd = fd, .epfd = epfd};
		ring_ref(r);
		if (serial)
			r->epfd = epfd;
		r->member = 1;
		__atomic_store_n(&m->ring, r, __ATOMIC_SEQ_CST);
		if (i == b->n)
			__atomic_store_n(&b->n, i + 1, __ATOMIC_SEQ_CST);
		if (!serial)
			__atomic_store_n(&stray, b->n, __ATOMIC_SEQ_CST);
	}
	unlock(b);
	return m != NULL;
}

/*
 * polls says whether this thread is the only one that has polled a descriptor, and nothing else could wait
 * for it.
 */
static bool polls(const struct end *e)
{
	return __atomic_load_n(&e->loop, __ATOMIC_SEQ_CST) == (LOOP_POLLS | ring_thread()) &&
		e->generation == births_generation();
}

static bool same_processor(const struct ring *r)
{
	return __atomic_load_n(&r->h->processor, __ATOMIC_RELAXED) == (uint32_t)sched_getcpu() + 1;
}

/* busy_loop says whether a descriptor is waited for by an event loop of this thread alone. */
bool busy_loop(const struct end *e, int fd)
{
	struct epoll_event ev;
	uint32_t serial;

	return polls(e) || epoll_registered(e, fd, &ev, &serial) >= 0;
}

/*
 * busy_drained is for a ring that was read to its end just now, and is armed: its writer need send
 * no token if this thread's event loop has the descriptor. The lock of the ring is held.
 */
void busy_drained(const struct end *e, struct ring *r, int fd)
{
	uint64_t pub = pub_load(r), code = 1;
	struct epoll_event ev;
	uint32_t serial;
	bool polled = polls(e);
	int epfd = -1;

	if ((pub & PUB_LOOK) || !(pub & PUB_ARMED) || (pub & PUB_LEFT) || used(r, pub) != 0 ||
		outstanding(r, pub) != 0 || r->side->edges ||
		__atomic_load_n(&r->users, __ATOMIC_SEQ_CST) != 1)
		return;
	if (!polled) {
		epfd = epoll_registered(e, fd, &ev, &serial);
		if (epfd < 0 || !(ev.events & (EPOLLIN | EPOLLRDNORM)) ||
			!add(epfd, serial, fd, r, &ev, pub & PUB_HEAD))
			return;
	}
	while (code < 15 && 1ull << code <= r->size / 2)
		code++;
	r->busy = 1;
	/*
	 * Others that are about to sleep say so before they have tokens sent again, and we look after we have
	 * had them left out.
	 */
	if (pub_swap(r, &pub, pub | code << PUB_LOOK_SHIFT) &&
		(polled ? !polls(e) : epoll_registered(e, fd, &ev, &serial) != epfd))
		busy_cool(r);
}

/*
 * busy_cool has the next bytes of a ring come with a token, and says whether there are some of
 * which the kernel does not know.
 */
bool busy_cool(struct ring *r)
{
	uint64_t pub;

	if (!r->busy)
		return false;
	pub = __atomic_fetch_and(&r->h->pub, ~PUB_LOOK, __ATOMIC_SEQ_CST);
	if (used(r, pub) != 0 && outstanding(r, pub) == 0)
		return true;
	r->busy = 0;
	return false;
}

/*
 * busy_shown is for a descriptor that something else than its instance is about to wait for. It says
 * whether that need not wait.
 */
bool busy_shown(int fd)
{
	struct end *e = end_at(fd);
	struct ring *r;
	bool there;

	if (!e)
		return false;
	__atomic_store_n(&e->loop, LOOP_OTHERS, __ATOMIC_SEQ_CST);
	if (!__atomic_load_n(&e->in, __ATOMIC_SEQ_CST) || !ring_enter(&e->in, &r))
		return false;
	there = busy_cool(r);
	ring_exit(r);
	return there;
}

/*
 * busy_polled is busy_shown for a descriptor that this thread is about to poll. True: its ring is looked at
 * and stays so, as no other has had the descriptor, and looks says that it may. Else *there is set if poll
 * need not wait.
 */
bool busy_polled(int fd, bool looks, bool *there)
{
	struct end *e = end_at(fd);
	uint32_t none = 0, me = LOOP_POLLS | ring_thread();
	struct ring *r;

	if (!e)
		return false;
	if (!__atomic_compare_exchange_n(&e->loop, &none, me, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) &&
		none != me) {
		*there |= busy_shown(fd);
		return false;
	}
	if (!__atomic_load_n(&e->in, __ATOMIC_SEQ_CST) || !ring_enter(&e->in, &r))
		return false;
	looks = looks && r->busy && polls(e);
	if (!looks)
		*there |= busy_cool(r);
	ring_exit(r);
	return looks;
}

/*
 * busy_beneath says whether the writer of a descriptor's ring last ran where this thread does, so that to
 * look keeps it from writing.
 */
bool busy_beneath(int fd)
{
	struct end *e = end_at(fd);
	struct ring *r;
	bool is;

	if (!e || !__atomic_load_n(&e->in, __ATOMIC_SEQ_CST) || !ring_enter(&e->in, &r))
		return false;
	is = same_processor(r);
	ring_exit(r);
	return is;
}

/* busy_bytes says whether a ring of which the kernel need not know has bytes. */
bool busy_bytes(int fd)
{
	struct end *e = end_at(fd);
	struct ring *r;
	bool there;

	if (!e || !__atomic_load_n(&e->in, __ATOMIC_SEQ_CST) || !ring_enter(&e->in, &r))
		return false;
	there = r->busy && used(r, pub_load(r)) != 0;
	ring_exit(r);
	return there;
}

/* busy_instance is busy_shown for an epoll instance that is about to be waited for as a descriptor. */
bool busy_instance(int epfd, uint32_t serial)
{
	struct busy *b = &busies[epfd];
	bool there = false;

	if (b->serial != serial || b->n == 0 || !lock(b))
		return false;
	for (uint32_t i = 0; i < b->n; i++)
		there |= b->members[i].ring && busy_cool(b->members[i].ring) &&
			(b->members[i].events & (EPOLLIN | EPOLLRDNORM));
	unlock(b);
	return there;
}

/* busy_control takes note of a change of a registration. */
void busy_control(struct end *e, uint32_t serial, int epfd, int op, int fd, const struct epoll_event *ev)
{
	struct ring *r;

	if (op == EPOLL_CTL_ADD) {
		uint32_t none = 0;

		if (!__atomic_compare_exchange_n(&e->loop, &none, serial ? serial : LOOP_OTHERS, false,
			    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) &&
			none != serial)
			__atomic_store_n(&e->loop, LOOP_OTHERS, __ATOMIC_SEQ_CST);
	}
	if (!__atomic_load_n(&e->in, __ATOMIC_SEQ_CST) || !ring_enter(&e->in, &r))
		return;
	if (e->loop == LOOP_OTHERS)
		busy_cool(r);
	if (r->busy && op != EPOLL_CTL_DEL) {
		uint64_t pub = pub_load(r);

		/* The kernel tells of it by itself if it has a token. */
		if (ev)
			add(epfd, serial, fd, r, ev, outstanding(r, pub) ? pub & PUB_HEAD : ~0ull);
	} else if (r->member) {
		/* also one that is looked at no more: it would tell of the registration as that was */
		struct busy *b = serial ? &busies[epfd] : &strays;
		struct member *m;

		if (lock(b)) {
			m = b->serial == serial ? find(b, epfd, fd, r) : NULL;
			if (m)
				m->events = 0;
			unlock(b);
		}
	}
	ring_exit(r);
}

/*
 * busy_registered is busy_control for an end with a registration that its socket had before it was connected.
 * Without it a thread that polls the end, too, would have bytes come without a token, of which the instance
 * never told. Nobody looks into the rings of one with edges: its bytes have tokens, each of which is an edge.
 */
void busy_registered(int epfd, int fd, const struct epoll_event *ev)
{
	struct end *e = end_at(fd);
	uint32_t serial = 0;

	if (!edges_are(ev->events))
		epoll_instance(epfd, &serial);
	if (e)
		busy_control(e, serial, epfd, EPOLL_CTL_ADD, fd, ev);
}

/*
 * busy_inherited has another instance tell of the rings of one that has bytes of which the kernel does not
 * know: a copy of it (ev is NULL), or one with which it is registered. serial: of that, 0 if it is none of
 * ours.
 */
void busy_inherited(int from, int epfd, uint32_t serial, const struct epoll_event *ev)
{
	struct busy *b = from >= 0 && from < EPOLL_SETS ? &busies[from] : NULL;
	struct member there[MOST];
	uint32_t n = 0;

	if (!b || b->n == 0 || !lock(b))
		return;
	for (uint32_t i = 0; i < b->n; i++)
		/* An instance is readable for those of its events that are there, whatever else is. */
		if (b->members[i].ring && busy_cool(b->members[i].ring) &&
			(ev ? b->members[i].events & (EPOLLIN | EPOLLRDNORM) : b->members[i].events)) {
			there[n] = b->members[i];
			ring_ref(there[n++].ring);
		}
	unlock(b);
	for (uint32_t i = 0; i < n; i++) {
		struct epoll_event own = {.events = there[i].events, .data.u64 = there[i].data};

		add(epfd, serial, there[i].fd, there[i].ring, ev ? ev : &own, ~0ull);
		ring_unref(there[i].ring);
	}
}

/* busy_closed forgets an instance that is none of ours. */
void busy_closed(int epfd)
{
	if (__atomic_load_n(&stray, __ATOMIC_RELAXED) == 0 || !lock(&strays))
		return;
	for (uint32_t i = 0; i < strays.n; i++)
		if (strays.members[i].epfd == epfd)
			strays.members[i].events = 0;
	unlock(&strays);
}

/* head_of is the head of a member, and how many bytes are there. */
static uint64_t head_of(const struct member *m, size_t *there)
{
	uint64_t pub = pub_load(m->ring);

	*there = used(m->ring, pub);
	return pub & PUB_HEAD;
}

/* is_ready says whether an instance would tell of a member. */
static bool is_ready(const struct member *m)
{
	size_t there;
	uint64_t head;

	if (!m->ring)
		return false;
	head = head_of(m, &there);
	return there != 0 && (!(m->events & EPOLLET) || head != m->told);
}

/* compact takes out the members that are none any more. The lock is held, and this thread may do so. */
static void compact(struct busy *b)
{
	uint32_t n = b->n;

	for (uint32_t i = 0; i < n; i++)
		if (b->members[i].ring && !b->members[i].events)
			take_out(&b->members[i]);
	while (n && !b->members[n - 1].ring)
		n--;
	__atomic_store_n(&b->n, n, __ATOMIC_SEQ_CST);
	if (b == &strays)
		__atomic_store_n(&stray, n, __ATOMIC_SEQ_CST);
}

/*
 * busy_dropped is for a descriptor that is about to be closed, or another one's. Bytes that come from then
 * on find nobody, as their token says.
 */
void busy_dropped(int fd, struct ring *r)
{
	busy_cool(r);
	for (int i = 0; i < 2; i++) {
		struct busy *b = i ? &strays : &busies[r->epfd];

		if (b->n == 0 || !lock(b))
			continue;
		for (uint32_t k = 0; k < b->n; k++)
			if (b->members[k].fd == fd && b->members[k].ring == r)
				b->members[k].events = 0;
		/* A forked process would count among those that have the ring as long as it has the member. */
		if (b == &strays || epoll_sole(r->epfd) || epoll_forked(r->epfd))
			compact(b);
		unlock(b);
	}
}

/*
 * busy_again has instances with edges tell once more of the bytes in the ring of a descriptor: something has
 * happened to that, of which the kernel tells, and it does not know of the bytes. events: to those that are
 * registered for one of them; 0 is all.
 */
void busy_again(int fd, uint32_t events)
{
	struct end *e = end_at(fd);
	struct ring *r;

	if (!e || !__atomic_load_n(&e->in, __ATOMIC_SEQ_CST) || !ring_enter(&e->in, &r))
		return;
	for (int i = 0; r->member && i < 2; i++) {
		struct busy *b = i ? &strays : &busies[r->epfd];

		if (b->n == 0 || !lock(b))
			continue;
		for (uint32_t k = 0; k < b->n; k++)
			if (b->members[k].fd == fd && b->members[k].ring == r &&
				(!events || (b->members[k].events & events)))
				b->members[k].told = ~0ull;
		unlock(b);
	}
	ring_exit(r);
}

/* busy_writable is the part of the wanted events that is about writing, as far as it is so now. */
uint32_t busy_writable(int fd, uint32_t wanted)
{
	const struct end *e = end_at(fd);
	struct pollfd p = {.fd = fd};
	struct timespec none = {0};

	wanted &= EPOLLOUT | EPOLLWRNORM;
	if (!wanted || (e && send_has_room(e)))
		return wanted;
	p.events = (short)wanted;
	return SYS(ppoll, &p, 1, &none, NULL, 0) == 1 ? (uint32_t)p.revents & wanted : 0;
}

/*
 * collect makes events of the members that are ready. cools: no ring is looked at any more. sole: this is the
 * thread that may take members out.
 */
static int collect(struct busy *b, int epfd, struct epoll_event *events, int max, bool cools, bool sole)
{
	int n = 0;

	if (!lock(b))
		return 0;
	for (uint32_t i = 0, at = b->next; i < b->n; i++, at++) {
		struct member *m = &b->members[at % b->n];
		struct end *e;

		if (!m->ring || m->epfd != epfd)
			continue;
		e = end_at(m->fd);
		if (!e || __atomic_load_n(&e->in, __ATOMIC_SEQ_CST) != m->ring || !m->events) {
			busy_cool(m->ring);
			m->events = 0; /* it is another descriptor's number by now, or nobody is told */
			continue;
		}
		if (cools && !busy_cool(m->ring) && !is_ready(m)) {
			m->events = 0;
			continue;
		}
		if (n == max || !is_ready(m) || !(m->events & (EPOLLIN | EPOLLRDNORM)))
			continue;
		m->told = pub_load(m->ring) & PUB_HEAD;
		events[n].events = (m->events & (EPOLLIN | EPOLLRDNORM)) | busy_writable(m->fd, m->events);
		events[n++].data.u64 = m->data;
		if (m->events & EPOLLONESHOT) {
			struct epoll_event off = {.events = EPOLLONESHOT, .data.u64 = m->data};

			SYS(epoll_ctl, epfd, EPOLL_CTL_MOD, m->fd, &off);
			m->events = 0;
		}
		if (n == max)
			b->next = at + 1;
	}
	if (sole)
		compact(b);
	unlock(b);
	return n;
}

/* merge adds k events of the kernel behind n of ours, and leaves one event of each registration. */
static int merge(struct epoll_event *events, int n, int k)
{
	int kept = n;

	for (int j = n; j < n + k; j++) {
		int i = 0;

		while (i < n && events[i].data.u64 != events[j].data.u64)
			i++;
		if (i < n)
			events[i].events |= events[j].events;
		else
			events[kept++] = events[j];
	}
	return kept;
}

/* ask asks the kernel, and adds its events to n of ours. Below 0: its error, where there are none. */
static int ask(struct busy *b, int epfd, struct epoll_event *events, int n, int max, const sigset_t *mask,
	uint64_t now)
{
	int k = (int)SYS(epoll_pwait, epfd, events + n, max - n, 0, mask, 8);

	b->asked = now;
	if (k <= 0)
		return n ? n : k;
	if (edges_used)
		edges_told(events + n, k);
	return merge(events, n, k);
}

/*
 * busy_due says whether the kernel is to be asked for the events of an instance that has others already:
 * where it has rings that are looked at, and was asked just now, it need not be. True: it is about to be.
 */
bool busy_due(int epfd, uint32_t serial)
{
	struct busy *b = &busies[epfd];
	uint64_t now;

	if (b->serial != serial || b->n == 0)
		return true;
	now = precise_now();
	if (now - b->asked <= ASK_NSEC)
		return false;
	b->asked = now;
	return true;
}

/* may_look says whether looking is worth it: it has paid, or it is to be found out. */
static bool may_look(struct busy *b)
{
	if (!luck_tries(&b->luck, SELDOM))
		return false;
	for (uint32_t i = 0; i < b->n; i++)
		if (b->members[i].ring && same_processor(b->members[i].ring))
			return false;
	return true;
}

/*
 * any_writes says whether an instance would tell that there is room, of which the kernel is to be asked
 * before a look.
 */
static bool any_writes(const struct busy *b)
{
	for (uint32_t i = 0; i < b->n; i++)
		if (b->members[i].ring && (b->members[i].events & (EPOLLOUT | EPOLLWRNORM)) &&
			!(b->members[i].events & EPOLLET))
			return true;
	return false;
}

static bool any_ready(const struct busy *b)
{
	for (uint32_t i = 0; i < b->n; i++)
		if (is_ready(&b->members[i]))
			return true;
	return false;
}

/*
 * gathers says whether a look that the kernel has ended counts neither way. A loop that has slept looks into
 * the rings alone that it has read since. Where it has many, the next bytes are in another one, which is
 * looked at from then on. Without this a loop that has slept once would sleep each time: by the turn of the
 * one ring that it looks into, the look is over.
 */
static bool gathers(struct busy *b)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < b->n; i++)
		n += b->members[i].ring && b->members[i].events;
	if (n > b->known) {
		b->known = n;
		b->spare = SPARE;
	} else if (b->spare == 0) {
		return false;
	} else {
		b->spare--;
	}
	return true;
}

/* look looks for a while whether something comes. *n: events of the kernel, or its error. */
static bool look(struct busy *b, int epfd, struct epoll_event *events, int max, const sigset_t *mask,
	uint64_t begin, int *n)
{
	uint64_t patience = b->gathers ? ASK_FIRST_NSEC : ASK_NSEC;
	struct glance g;
	bool paid = false;

	*n = 0;
	glance_begin(&g, begin);
	while (*n == 0 && !(paid = any_ready(b)) && glance_on(&g)) {
		if (g.now - b->asked <= patience)
			continue;
		*n = ask(b, epfd, events, 0, max, mask, g.now);
		patience = patience < ASK_NSEC / 2 ? patience * 2 : ASK_NSEC;
	}
	if (*n > 0 && gathers(b))
		luck_again(&b->luck);
	else if (*n >= 0) /* an event of the kernel would have come earlier without the look */
		luck_paid(&b->luck, paid, SELDOM);
	b->gathers &= !paid;
	/*
	 * What is there is told of before a signal is, as by the kernel: the signal of O_ASYNC comes after its
	 * bytes.
	 */
	if (glance_over(&g, paid || *n) && !(paid = any_ready(b)) &&
		(*n = ask(b, epfd, events, 0, max, mask, g.now)) == 0)
		*n = -EINTR;
	return paid;
}

/*
 * busy_wait is epoll_wait as far as that need not sleep: it returns a number of events, an error of
 * the kernel below 0, or BUSY_SLEEP. waits: whether the program would wait.
 */
int busy_wait(int epfd, uint32_t serial, bool sole, struct epoll_event *events, int max, bool waits,
	const sigset_t *mask)
{
	struct busy *b = serial ? &busies[epfd] : &strays;
	uint64_t now;
	int n, k = 0;
	bool due;

	if (b->serial != serial || b->n == 0)
		return BUSY_SLEEP;
	sole |= b == &strays; /* where nobody looks without the lock */
	now = precise_now();
	due = now - b->asked > ASK_NSEC;
	n = collect(b, epfd, events, due ? max / 2 : max, false, sole);
	if (due || (n == 0 && !waits)) {
		n = ask(b, epfd, events, n, max, mask, now);
		if (n == 0 && max == 1)
			n = collect(b, epfd, events, max, false, sole);
	} else if (n == 0 && any_writes(b)) {
		n = ask(b, epfd, events, 0, max, mask, now);
	}
	if (n != 0 || !waits)
		return n;
	if (sole && serial && may_look(b) && look(b, epfd, events, max, mask, now, &k))
		n = collect(b, epfd, events, max, false, sole);
	if (n == 0 && k != 0)
		return k;
	if (n == 0) {
		n = collect(b, epfd, events, max, true, sole);
		anew(b);
	}
	return n ? n : BUSY_SLEEP;
}

/* busy_more adds events of rings to n events that an instance has already. */
int busy_more(int epfd, uint32_t serial, bool sole, struct epoll_event *events, int n, int max)
{
	struct busy *b = &busies[epfd];
	struct epoll_event found[MOST];
	int k;

	if (b->serial != serial || b->n == 0 || n >= max)
		return n;
	k = collect(b, epfd, found, max - n < MOST ? max - n : MOST, false, sole);
	for (int i = 0; i < k; i++)
		events[n + i] = found[i];
	return merge(events, n, k);
}
