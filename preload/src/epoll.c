/*
 * Epoll. The kernel is told which events of the ends of pairs it is to report when the program
 * waits, not each time that the program changes its mind. Many programs turn to writing and back to
 * reading with every message, in several calls. If a socket that is to be written to can be, that
 * is said without telling the kernel at all.
 *
 * An instance is treated so if it was made here, and only one thread waits for it, by waiting for
 * events. As soon as anybody else could see a change that the kernel was not told, the kernel is
 * told, and the instance is as libc has it from then on. That may be another thread that waits,
 * another process or descriptor that has it, or poll, select or another epoll that looks at it.
 * Sockets that others can have are as libc has them, too, and so are registrations that are
 * edge-triggered or otherwise special.
 */
#include "ring.h"

#define CHANGES 128 /* that wait to be told */
#define SHOWN 64    /* events of ours in one call */
#define UNSETTLED ~0u /* events that no program wants: a call was left while it told the kernel */
#define ROUNDS 2    /* calls in a row in which we say that a socket can be written to */

/* The events that may be told later. All of these mean the same to poll. */
#define PLAIN (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | EPOLLERR | EPOLLHUP)
_Static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT && EPOLLRDHUP == POLLRDHUP && EPOLLPRI == POLLPRI &&
		EPOLLERR == POLLERR && EPOLLHUP == POLLHUP,
	"events");

/* A registration. */
struct watch {
	uint64_t cookie; /* of the socket */
	uint64_t data, want_data;
	uint32_t events, want; /* as the kernel knows them, and as it should */
	uint32_t serial; /* of the instance; 0: nothing is known */
	uint32_t listed; /* the instance in whose changes it is */
	int32_t epfd;
	bool gone; /* it should not be there */
	bool shown;
	uint8_t rounds;
};

/* An epoll instance that was made here. */
struct set {
	uint64_t lock;	 /* calls.c */
	uint32_t serial; /* 0: none */
	uint32_t owner;	 /* the thread that waits */
	uint32_t generation;
	uint32_t plain;	 /* it is as libc has it */
	uint32_t others; /* registrations whose data is not their descriptor */
	uint32_t called; /* some were made by epoll_ctl, and so are all */
	uint32_t count;
	int32_t changes[CHANGES];
};

static struct watch watches[ENDS];
static struct set sets[EPOLL_SETS];
static uint32_t serials, sets_top;

static struct set *set_at(int fd)
{
	if (fd < 0 || (uint32_t)fd >= __atomic_load_n(&sets_top, __ATOMIC_ACQUIRE))
		return NULL;
	return __atomic_load_n(&sets[fd].serial, __ATOMIC_ACQUIRE) ? &sets[fd] : NULL;
}

/*
 * set_lock returns false to a handler of a signal that has interrupted the lock's owner. A call that has
 * the lock may be left by longjmp after each step.
 */
#define set_lock(s) thread_lock(&(s)->lock)

static void set_unlock(struct set *s)
{
	thread_unlock(&s->lock);
}

static bool alone(const struct set *s)
{
	return !s->plain && s->generation == births_generation();
}

/* sole says whether this thread is the only one that waits for an instance. */
static bool sole(const struct set *s)
{
	return s->owner == ring_thread();
}

/* settle tells the kernel of one registration. The lock is held. */
static void settle(struct watch *w, int fd)
{
	struct epoll_event ev = {.events = w->want, .data.u64 = w->want_data};

	w->rounds = 0;
	if (w->gone) {
		SYS(epoll_ctl, w->epfd, EPOLL_CTL_DEL, fd, NULL);
		w->serial = 0;
	} else if (w->want != w->events || w->want_data != w->data) {
		long r;

		__atomic_store_n(&w->events, UNSETTLED, __ATOMIC_SEQ_CST);
		r = SYS(epoll_ctl, w->epfd, EPOLL_CTL_MOD, fd, &ev);
		if (r == -ENOENT) /* it was to be gone first, in a call that was left */
			r = SYS(epoll_ctl, w->epfd, EPOLL_CTL_ADD, fd, &ev);
		if (r != 0)
			w->serial = 0;
		w->events = w->want;
		w->data = w->want_data;
	}
}

/* settle_all tells the kernel of all registrations that have changed. The lock is held. */
static void settle_all(struct set *s)
{
	for (uint32_t i = 0; i < s->count; i++) {
		struct watch *w = &watches[s->changes[i]];

		if (w->listed != s->serial)
			continue;
		if (w->serial == s->serial)
			settle(w, s->changes[i]);
		w->listed = 0;
	}
	s->count = 0;
}

/* set_plain leaves an instance to the kernel. */
static void set_plain(struct set *s)
{
	if (!s || !set_lock(s))
		return;
	s->plain = 1;
	settle_all(s);
	set_unlock(s);
}

/* epoll_shared is for a descriptor that others are about to get. */
void epoll_shared(int fd)
{
	struct watch *w = fd >= 0 && fd < ENDS ? &watches[fd] : NULL;
	struct set *s = w && w->serial ? set_at(w->epfd) : NULL;

	set_plain(set_at(fd));
	if (s && w->serial == s->serial && set_lock(s)) {
		settle(w, fd);
		w->serial = 0;
		set_unlock(s);
	}
}

/* epoll_plain_all is for a process that does things which we do not see. */
void epoll_plain_all(void)
{
	for (int fd = 0; (uint32_t)fd < sets_top; fd++)
		set_plain(set_at(fd));
}

/* epoll_forget_all leaves all instances to the kernel for good. */
void epoll_forget_all(void)
{
	epoll_plain_all();
	for (int fd = 0; fd < ends_top(); fd++)
		watches[fd].serial = 0;
	__atomic_store_n(&sets_top, 0, __ATOMIC_RELEASE);
}

/* epoll_dup is for a copy of a descriptor, which is left to the kernel. */
void epoll_dup(int fd, int to)
{
	if (set_at(fd))
		busy_inherited(fd, to, 0, NULL);
}

/* epoll_next is the next epoll instance that was made here, -1 if there is none; the first after -1. */
int epoll_next(int epfd)
{
	for (epfd++; epfd < (int)__atomic_load_n(&sets_top, __ATOMIC_ACQUIRE); epfd++)
		if (set_at(epfd))
			return epfd;
	return -1;
}

/* epoll_has_all says whether a descriptor is an instance whose registrations have all been seen. */
bool epoll_has_all(int fd)
{
	const struct set *s = set_at(fd);

	return s && s->called;
}

/* epoll_settle_all is for a process that will not be the only one with its descriptors. */
void epoll_settle_all(void)
{
	for (int fd = 0; (uint32_t)fd < sets_top; fd++) {
		struct set *s = set_at(fd);

		if (s && s->count && set_lock(s)) {
			settle_all(s);
			set_unlock(s);
		}
	}
}

/*
 * forgotten forgets the registration of a descriptor that is about to be closed. A change that waits to be
 * told is told if another thread waits at the instance: until the descriptor is closed that would hear of a
 * registration which it has taken back, and whose data its program has freed.
 */
static void forgotten(struct watch *w, int fd)
{
	struct set *s = set_at(w->epfd);

	if (s && s->serial == w->serial && w->listed == w->serial && !sole(s) && set_lock(s)) {
		if (w->serial == s->serial)
			settle(w, fd);
		set_unlock(s);
	}
	w->serial = 0;
}

/*
 * epoll_closed forgets a descriptor: the kernel has no registration of it any more, as nobody else has the
 * socket.
 */
void epoll_closed(int fd)
{
	struct set *s = set_at(fd);
	bool watched = fd >= 0 && fd < ENDS && watches[fd].serial;

	unseen_closed(fd);
	busy_closed(fd);
	if ((!s && !watched) ||
		(pid_t)SYS(getpid) != births_process()) /* after vfork the tables are another process's */
		return;
	if (watched)
		forgotten(&watches[fd], fd);
	if (s)
		__atomic_store_n(&s->serial, 0, __ATOMIC_SEQ_CST);
}

static int made(long fd)
{
	struct set *s = fd >= 0 && fd < EPOLL_SETS ? &sets[fd] : NULL;
	uint32_t have = __atomic_load_n(&sets_top, __ATOMIC_RELAXED);

	if (!s || !settings.on || !settings.rings)
		return (int)sys_return(fd);
	s->lock = s->owner = s->plain = s->others = s->called = s->count = 0;
	s->generation = births_generation();
	__atomic_store_n(&s->serial, __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED), __ATOMIC_SEQ_CST);
	while ((uint32_t)fd >= have &&
		!__atomic_compare_exchange_n(
			&sets_top, &have, (uint32_t)fd + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		;
	return (int)fd;
}

EXPORT int epoll_create(int size)
{
#ifdef SYS_epoll_create
	if (guard_on())
		return (int)sys_return(SYS(epoll_create, size));
#endif
	return made(size > 0 ? SYS(epoll_create1, 0) : -EINVAL);
}

EXPORT int epoll_create1(int flags)
{
	return made(SYS(epoll_create1, flags));
}

/* change takes a change of a registration that is known. It is told later. The lock is held. */
static long change(struct set *s, struct watch *w, int op, int fd, const struct epoll_event *ev)
{
	if (op == EPOLL_CTL_ADD ? !w->gone : w->gone)
		return op == EPOLL_CTL_ADD ? -EEXIST : -ENOENT;
	if (w->listed != s->serial) { /* first: a change that is not listed would never be told */
		if (s->count == CHANGES)
			settle_all(s);
		s->changes[s->count] = fd;
		__atomic_store_n(&s->count, s->count + 1, __ATOMIC_SEQ_CST);
		__atomic_store_n(&w->listed, s->serial, __ATOMIC_SEQ_CST);
	}
	w->gone = op == EPOLL_CTL_DEL;
	if (!w->gone) {
		w->want = ev->events;
		w->want_data = ev->data.u64;
	}
	return 0;
}

/* learn takes a registration that the kernel has taken just now. The lock is held. */
static void learn(struct set *s, int epfd, struct watch *w, const struct end *e, const struct epoll_event *ev)
{
	const struct set *other = w->serial ? set_at(w->epfd) : NULL;

	if (other && other != s && other->serial == w->serial)
		return; /* it is known where it was registered before, too */
	w->cookie = e->cookie;
	w->data = w->want_data = ev->data.u64;
	w->events = w->want = ev->events;
	w->epfd = epfd;
	w->gone = w->shown = false;
	w->rounds = 0;
	w->serial = s->serial;
}

/* epoll_instance says whether a descriptor is an instance that was made here. */
bool epoll_instance(int fd, uint32_t *serial)
{
	const struct set *s = set_at(fd);

	if (s)
		*serial = s->serial;
	return s;
}

/* epoll_sole says so of a descriptor. */
bool epoll_sole(int epfd)
{
	const struct set *s = set_at(epfd);

	return s && sole(s);
}

/*
 * epoll_forked says whether the thread that waits for an instance is none of this process, as we were
 * forked away from it.
 */
bool epoll_forked(int epfd)
{
	const struct set *s = set_at(epfd);
	long process = SYS(getpid);

	return s && s->owner && SYS(tgkill, process, s->owner, 0) == -ESRCH;
}

/*
 * epoll_registered is the instance that has the one registration of a descriptor, if this thread is the only
 * one that waits there, and nobody else can see the descriptor. -1: there is none.
 */
int epoll_registered(const struct end *e, int fd, struct epoll_event *ev, uint32_t *serial)
{
	const struct watch *w = &watches[fd];
	const struct set *s = w->serial ? set_at(w->epfd) : NULL;
	int epfd = w->epfd;

	if (s && s->serial == w->serial && w->cookie == e->cookie && !w->gone) {
		*ev = (struct epoll_event){.events = w->want, .data.u64 = w->want_data};
	} else {
		epfd = edges_registration(fd, ev);
		s = epfd >= 0 ? set_at(epfd) : NULL;
	}
	if (!s || !alone(s) || s->owner != ring_thread() ||
		__atomic_load_n(&e->loop, __ATOMIC_SEQ_CST) != s->serial ||
		e->generation != births_generation())
		return -1;
	*serial = s->serial;
	return epfd;
}

/* is_set says whether a descriptor that is registered at epfd, or about to be, is an epoll instance. */
static bool is_set(int epfd, int fd)
{
	/* One that is knows that it has not epfd, which would be a loop; anything else is no instance to ask. */
	return fd < EPOLL_SETS ? set_at(fd) != NULL : SYS(epoll_ctl, fd, EPOLL_CTL_DEL, epfd, NULL) == -ENOENT;
}

/* epoll_control is epoll_ctl with the result of the kernel. */
long epoll_control(int epfd, int op, int fd, struct epoll_event *ev)
{
	struct set *s = set_at(epfd);
	struct end *e = end_at(fd);
	struct watch *w;
	struct epoll_event without;
	bool plain, known, later;
	long r;

	if (ev && (op == EPOLL_CTL_ADD || op == EPOLL_CTL_MOD) && (ev->events & EPOLLWRBAND) &&
		(e || (guard_on() && guard_may(fd)))) {
		without = *ev;
		without.events &= ~(uint32_t)EPOLLWRBAND; /* which TCP never reports */
		ev = &without;
	}
	if (op == EPOLL_CTL_ADD)
		set_plain(set_at(fd));
	if (ev && op != EPOLL_CTL_DEL && (e || is_set(epfd, fd)) && edges_are(ev->events)) {
		if (e)
			edges_registered(epfd, op, fd, ev);
		else
			edges_nested();
	}
	if (e && op == EPOLL_CTL_DEL)
		edges_gone(epfd, fd);
	if (e && op == EPOLL_CTL_ADD)
		end_watched(fd);
	if (e && ev && op != EPOLL_CTL_DEL && (ev->events & EPOLLOUT))
		send_asked(e, fd);
	if (!s) {
		r = SYS(epoll_ctl, epfd, op, fd, ev);
		if (e && r == 0)
			busy_control(e, 0, epfd, op, fd, ev);
		else if (op == EPOLL_CTL_ADD && r == 0 && set_at(fd))
			busy_inherited(fd, epfd, 0, ev);
		return r;
	}
	s->called = 1;
	if (op != EPOLL_CTL_DEL && ev && ev->data.u64 != (uint64_t)fd)
		__atomic_store_n(&s->others, 1, __ATOMIC_SEQ_CST);
	if (!e || (op != EPOLL_CTL_ADD && op != EPOLL_CTL_MOD && op != EPOLL_CTL_DEL) || !set_lock(s)) {
		r = SYS(epoll_ctl, epfd, op, fd, ev);
		if (e && r == 0)
			busy_control(e, s->serial, epfd, op, fd, ev);
		else if (op == EPOLL_CTL_ADD && r == 0 && set_at(fd))
			busy_inherited(fd, epfd, s->serial, ev);
		return r;
	}
	w = &watches[fd];
	plain = op == EPOLL_CTL_DEL || (ev && !(ev->events & ~PLAIN));
	known = w->serial == s->serial && w->cookie == e->cookie && end_still(fd, e);
	later = plain && alone(s) && s->owner == ring_thread() && end_own(e);
	if (known && later) {
		r = change(s, w, op, fd, ev);
	} else {
		if (known) {
			settle(w, fd);
			w->serial = 0;
		}
		r = SYS(epoll_ctl, epfd, op, fd, ev);
		if (r == 0 && op != EPOLL_CTL_DEL)
			edges_registered_as(epfd, fd, ev->events);
		if (r == 0 && plain && op != EPOLL_CTL_DEL && alone(s) && end_own(e) && end_is(fd, e))
			learn(s, epfd, w, e, ev);
	}
	set_unlock(s);
	if (r == 0)
		busy_control(e, s->serial, epfd, op, fd, ev);
	return r;
}

/*
 * epoll_nudge has an instance tell once more of a descriptor that is registered for edges, and of which the
 * kernel does not know that something has happened to it.
 */
void epoll_nudge(int fd)
{
	struct epoll_event ev;
	int epfd = edges_registration(fd, &ev);
	struct set *s = epfd >= 0 ? set_at(epfd) : NULL;

	if (!s || !set_lock(s))
		return;
	/* It is the same still, and no other thread can change it. */
	if (edges_registration(fd, &ev) == epfd)
		SYS(epoll_ctl, epfd, EPOLL_CTL_MOD, fd, &ev);
	set_unlock(s);
}

/*
 * can_write finds out which sockets that are to be written to can be, and leaves the kernel as it is about
 * them. It tells it of all others. The kernel is not asked about those whose rings have room: then the rest
 * of their events is not found. The lock is held.
 */
static int can_write(struct set *s, struct epoll_event *found, int max)
{
	struct pollfd p[SHOWN];
	struct timespec none = {0};
	uint32_t kept = 0;
	int n = 0, shown = 0, known = 0;

	for (uint32_t i = 0; i < s->count; i++) {
		struct watch *w = &watches[s->changes[i]];
		const struct end *e;

		if (w->listed == s->serial && w->serial == s->serial && !w->gone &&
			(w->want & EPOLLOUT & ~w->events) && w->rounds < ROUNDS && w->want_data == w->data &&
			n < max && n < SHOWN) {
			p[n++] = (struct pollfd){.fd = s->changes[i], .events = (short)w->want};
			e = end_at(s->changes[i]);
			if (e && send_has_room(e)) {
				p[n - 1] = p[known];
				p[known++] = (struct pollfd){.fd = s->changes[i], .revents = POLLOUT};
			}
		}
	}
	if (n == 0 || s->others || (n > known && SYS(ppoll, p + known, n - known, &none, NULL, 0) < 0)) {
		settle_all(s);
		return 0;
	}
	for (int i = 0; i < n; i++) {
		struct watch *w = &watches[p[i].fd];

		w->shown = (p[i].revents & POLLOUT) && !(p[i].revents & POLLNVAL);
		if (w->shown) {
			w->rounds++;
			found[shown].events = (uint32_t)p[i].revents & (w->want | EPOLLERR | EPOLLHUP);
			found[shown++].data.u64 = w->data;
		}
	}
	for (uint32_t i = 0; i < s->count; i++) {
		int fd = s->changes[i];
		struct watch *w = &watches[fd];

		if (w->listed == s->serial && w->serial == s->serial && w->shown) {
			s->changes[kept++] = fd;
		} else if (w->listed == s->serial) {
			if (w->serial == s->serial)
				settle(w, fd);
			w->listed = 0;
		}
	}
	s->count = kept;
	return shown;
}

/*
 * before tells the kernel the changes that it has to know before the program waits, and returns how
 * many events it need not wait for.
 */
static int before(struct set *s, struct epoll_event *found, int max)
{
	uint32_t me = ring_thread();
	int n = 0;

	if (!set_lock(s))
		return 0;
	if (s->owner == 0)
		s->owner = me;
	if (s->owner != me)
		s->plain = 1;
	if (s->count) {
		if (alone(s))
			n = can_write(s, found, max / 2);
		else
			settle_all(s);
	}
	set_unlock(s);
	return n;
}

/* together adds our events to the kernel's, and makes one of those that are about the same socket. */
static int together(struct set *s, struct epoll_event *events, int n, struct epoll_event *found, int shown)
{
	int kept = 0;

	for (int i = 0; i < n; i++) {
		uint64_t fd = events[i].data.u64;
		uint32_t more = events[i].events;
		int k = 0;

		while (k < shown && found[k].data.u64 != fd)
			k++;
		if (k == shown || fd >= ENDS ||
			watches[fd].serial != s->serial) /* a call that was left may have had it shown */
			events[kept++] = events[i];
		else
			found[k].events |= more & (watches[fd].want | EPOLLERR | EPOLLHUP);
	}
	for (int i = 0; i < shown; i++) {
		watches[found[i].data.u64].shown = false;
		events[kept++] = found[i];
	}
	return kept;
}

/* interrupted is the answer of a call that a signal has ended, by that of one which did not wait. */
static int interrupted(int found)
{
	return found ? found : (int)sys_return(-EINTR);
}

static bool is_none(const struct timespec *t)
{
	return t && t->tv_sec == 0 && t->tv_nsec == 0;
}

/*
 * waits is whether it waits at all. first is the arguments with which it waits for a second before longer,
 * where rings may have memory to give back. once is those with which it does not wait: after a signal, which
 * the kernel would tell of where there is nothing else.
 */
#define WAIT(name, parameters, arguments, mask, waits, longer, first, once)                                  \
	EXPORT int name parameters                                                                           \
	{                                                                                                    \
		struct set *s = events && max > 0 ? set_at(epfd) : NULL;                                     \
		struct epoll_event found[SHOWN];                                                             \
		int shown, n;                                                                                \
		bool twice;                                                                                  \
                                                                                                             \
		calls_tidy();                                                                                \
		if (!idle_look(ENDING_ALL) && (waits))                                                       \
			return interrupted(name once);                                                       \
		shown = s ? before(s, found, max) : 0;                                                       \
		if (shown) {                                                                                 \
			n = busy_due(epfd, s->serial)                                                        \
				? (int)SYS(epoll_pwait, epfd, events, max - shown, 0, mask, 8)               \
				: 0;                                                                         \
			if (edges_used)                                                                      \
				edges_told(events, n);                                                       \
			n = together(s, events, n < 0 ? 0 : n, found, shown);                                \
			return busy_more(epfd, s->serial, sole(s), events, n, max);                          \
		}                                                                                            \
		n = events && max > 0                                                                        \
			? busy_wait(epfd, s ? s->serial : 0, s && sole(s), events, max, waits, mask)         \
			: BUSY_SLEEP;                                                                        \
		if (n != BUSY_SLEEP)                                                                         \
			return (int)sys_return(n);                                                           \
		if (!next.name)                                                                              \
			next_resolve();                                                                      \
		twice = longer; /* which takes the first wait off the limit */                               \
		n = twice ? next.name first : next.name arguments;                                           \
		if (twice && n == 0) {                                                                       \
			if (!idle_again(ENDING_ALL))                                                         \
				return interrupted(name once);                                               \
			n = next.name arguments;                                                             \
		}                                                                                            \
		if (edges_used)                                                                              \
			edges_told(events, n);                                                               \
		return n;                                                                                    \
	}

static const struct timespec second = {.tv_sec = IDLE_MSEC / 1000}, no_time;

WAIT(epoll_wait, (int epfd, struct epoll_event *events, int max, int timeout), (epfd, events, max, timeout),
	NULL, timeout != 0, idle_msec(&timeout), (epfd, events, max, IDLE_MSEC), (epfd, events, max, 0))
WAIT(epoll_pwait, (int epfd, struct epoll_event *events, int max, int timeout, const sigset_t *mask),
	(epfd, events, max, timeout, mask), mask, timeout != 0, idle_msec(&timeout),
	(epfd, events, max, IDLE_MSEC, mask), (epfd, events, max, 0, mask))
WAIT(epoll_pwait2,
	(int epfd, struct epoll_event *events, int max, const struct timespec *timeout, const sigset_t *mask),
	(epfd, events, max, timeout, mask), mask, !is_none(timeout),
	idle_spec(&timeout, &(struct timespec){0}), (epfd, events, max, &second, mask),
	(epfd, events, max, &no_time, mask))

/*
 * A call that looks at an epoll instance sees the kernel's state of it; a call that asks for room
 * is to find it. False: a signal has ended the call.
 */

#define KEPT_BAND                                                                                            \
	0x1000 /* POLLWRBAND, in the events that the program has asked for: no descriptor reports this */

/*
 * looked_at sets band if band_again is to be called. TCP never reports POLLWRBAND, and a Unix socket does
 * whenever it can be written to.
 */
static bool looked_at(struct pollfd *p, nfds_t n, bool waits, bool *band)
{
	calls_tidy();
	*band = false;
	if (!idle_look(ENDING_ALL) && waits)
		return false;
	if (!p || (__atomic_load_n(&sets_top, __ATOMIC_RELAXED) == 0 && ends_top() == 0 && !guard_on()))
		return true;
	for (nfds_t i = 0; i < n; i++) {
		struct end *e = p[i].events & (POLLOUT | POLLWRBAND) ? end_at(p[i].fd) : NULL;

		set_plain(set_at(p[i].fd));
		if (e && (p[i].events & POLLOUT))
			send_asked(e, p[i].fd);
		if ((p[i].events & POLLWRBAND) && (e || (guard_on() && guard_may(p[i].fd)))) {
			p[i].events ^= POLLWRBAND | KEPT_BAND;
			*band = true;
		}
	}
	return true;
}

/*
 * shown says whether a descriptor that is waited for by other means than its instance has something to read
 * of which the kernel does not know.
 */
static bool shown(int fd)
{
	const struct set *s = set_at(fd);

	return s ? busy_instance(fd, s->serial) : busy_shown(fd);
}

/* shown_selected says whether select need not wait. All descriptors are seen to, as it may wait for each. */
static bool shown_selected(int n, const fd_set *in)
{
	bool there = false;

	for (int fd = 0; in && fd < n && fd < ends_top(); fd++)
		if (FD_ISSET(fd, in) && shown(fd))
			there = true;
	return there;
}

/*
 * selected_shown adds the descriptors of which the kernel does not know to its answer; asked is what the
 * program has asked for.
 */
static int selected_shown(int n, const fd_set *asked, fd_set *in, int r)
{
	for (int fd = 0; r >= 0 && fd < n && fd < ends_top(); fd++) {
		if (!FD_ISSET(fd, asked) || FD_ISSET(fd, in) || !shown(fd))
			continue;
		FD_SET(fd, in);
		r++;
	}
	return r;
}

static void band_again(struct pollfd *p, nfds_t n)
{
	for (nfds_t i = 0; i < n; i++)
		if (p[i].events & KEPT_BAND)
			p[i].events ^= POLLWRBAND | KEPT_BAND;
}

/* polled is for the answer of poll. */
static int polled(struct pollfd *p, nfds_t n, int r, bool band)
{
	if (__builtin_expect(band, 0))
		band_again(p, n);
	if (r > 0 && ends_top() != 0)
		urgent_polled(p, n);
	return r;
}

static bool selected(int n, const fd_set *in, const fd_set *out, bool waits)
{
	calls_tidy();
	if (!idle_look(ENDING_ALL) && waits)
		return false;
	for (int fd = 0; in && fd < n && (uint32_t)fd < sets_top; fd++)
		if (FD_ISSET(fd, in))
			set_plain(set_at(fd));
	for (int fd = 0; out && fd < n && fd < ends_top(); fd++) {
		struct end *e = FD_ISSET(fd, out) ? end_at(fd) : NULL;

		if (e)
			send_asked(e, fd);
	}
	return true;
}

/* The arguments of select, over which it writes its answer. */
struct sets {
	fd_set in, out, except;
	int n;
};

/* sets_keep keeps it. False: a program has sets that are larger than libc's. */
static bool sets_keep(struct sets *kept, int n, const fd_set *in, const fd_set *out, const fd_set *except)
{
	if (n < 0 || n > FD_SETSIZE || ends_top() == 0)
		return false;
	/* As much of them as select looks at: the rest need not be there. */
	for (int i = 0; i < (n + NFDBITS - 1) / NFDBITS; i++) {
		if (in)
			__FDS_BITS(&kept->in)[i] = __FDS_BITS(in)[i];
		if (out)
			__FDS_BITS(&kept->out)[i] = __FDS_BITS(out)[i];
		if (except)
			__FDS_BITS(&kept->except)[i] = __FDS_BITS(except)[i];
	}
	kept->n = n;
	return true;
}

static void sets_again(const struct sets *kept, fd_set *in, fd_set *out, fd_set *except)
{
	for (int i = 0; i < (kept->n + NFDBITS - 1) / NFDBITS; i++) {
		if (in)
			__FDS_BITS(in)[i] = __FDS_BITS(&kept->in)[i];
		if (out)
			__FDS_BITS(out)[i] = __FDS_BITS(&kept->out)[i];
		if (except)
			__FDS_BITS(except)[i] = __FDS_BITS(&kept->except)[i];
	}
}

/*
 * select_interrupted is interrupted of select, which leaves its sets as they are when a signal has ended
 * it.
 */
static int select_interrupted(int n, fd_set *in, fd_set *out, fd_set *except)
{
	struct timeval none = {0};
	struct sets kept;
	int found;

	if (!sets_keep(&kept, n, in, out, except))
		return (int)sys_return(-EINTR);
	found = select(n, in, out, except, &none);
	if (found == 0)
		sets_again(&kept, in, out, except);
	return interrupted(found);
}

EXPORT int poll(struct pollfd *p, nfds_t n, int timeout)
{
	bool band;
	int found;

	if (!looked_at(p, n, timeout != 0, &band))
		return interrupted(poll(p, n, 0));
	if (!next.poll)
		next_resolve();
	if (__builtin_expect(quiet_asked(p, n), 0))
		return polled(p, n, quiet_polled(p, n, next.poll(p, n, 0)), band);
	found = polls_wait(p, n, timeout != 0, NULL);
	if (found != POLLS_SLEEP)
		return polled(p, n, (int)sys_return(found), band);
	if (idle_msec(&timeout)) {
		found = next.poll(p, n, IDLE_MSEC);
		if (found != 0)
			return polled(p, n, found, band);
		if (!idle_again(ENDING_ALL))
			return polled(p, n, interrupted(next.poll(p, n, 0)), band);
	}
	return polled(p, n, next.poll(p, n, timeout), band);
}

EXPORT int ppoll(struct pollfd *p, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	bool band;
	struct timespec rest;
	int found;
	struct timespec none = {0};

	if (!looked_at(p, n, !is_none(timeout), &band))
		return interrupted(ppoll(p, n, &no_time, mask));
	if (!next.ppoll)
		next_resolve();
	if (__builtin_expect(quiet_asked(p, n), 0))
		return polled(p, n, quiet_polled(p, n, next.ppoll(p, n, &none, mask)), band);
	found = polls_wait(p, n, !is_none(timeout), mask);
	if (found != POLLS_SLEEP)
		return polled(p, n, (int)sys_return(found), band);
	if (idle_spec(&timeout, &rest)) {
		found = next.ppoll(p, n, &second, mask);
		if (found != 0)
			return polled(p, n, found, band);
		if (!idle_again(ENDING_ALL))
			return polled(p, n, interrupted(next.ppoll(p, n, &no_time, mask)), band);
	}
	return polled(p, n, next.ppoll(p, n, timeout, mask), band);
}

EXPORT int select(int n, fd_set *in, fd_set *out, fd_set *except, struct timeval *timeout)
{
	struct timeval first = {.tv_sec = IDLE_MSEC / 1000};
	struct timespec rest, limit;
	const struct timespec *longer = NULL;
	struct sets kept;
	int found;
	uint32_t quiet = quiet_selects(n, in);
	struct timeval none = {0};

	if (!selected(n, in, out, !timeout || timeout->tv_sec || timeout->tv_usec))
		return select_interrupted(n, in, out, except);
	if (!next.select)
		next_resolve();
	if (__builtin_expect(quiet != 0, 0))
		return urgent_selected(
			n, in, except, quiet_selected(quiet, in, next.select(n, in, out, except, &none)));
	if (__builtin_expect(shown_selected(n, in), 0) && sets_keep(&kept, n, in, out, except))
		return urgent_selected(n, in, except,
			selected_shown(n, &kept.in, in, next.select(n, in, out, except, &none)));
	if (timeout) {
		limit = (struct timespec){.tv_sec = timeout->tv_sec, .tv_nsec = timeout->tv_usec};
		longer = &limit;
	}
	if (sets_keep(&kept, n, in, out, except) && idle_spec(&longer, &rest)) {
		found = next.select(n, in, out, except, &first);
		if (timeout) /* the program is told the rest of it */
			timeout->tv_sec -= IDLE_MSEC / 1000 - first.tv_sec, timeout->tv_usec += first.tv_usec;
		if (timeout && timeout->tv_usec >= 1000000)
			timeout->tv_sec++, timeout->tv_usec -= 1000000;
		if (found != 0)
			return urgent_selected(n, in, except, found);
		sets_again(&kept, in, out, except);
		if (!idle_again(ENDING_ALL))
			return select_interrupted(n, in, out, except);
	}
	return urgent_selected(n, in, except, next.select(n, in, out, except, timeout));
}

EXPORT int pselect(
	int n, fd_set *in, fd_set *out, fd_set *except, const struct timespec *timeout, const sigset_t *mask)
{
	struct timespec rest;
	struct sets kept;
	int found;
	uint32_t quiet = quiet_selects(n, in);
	struct timespec none = {0};

	if (!selected(n, in, out, !is_none(timeout)))
		return select_interrupted(n, in, out, except);
	if (!next.pselect)
		next_resolve();
	if (__builtin_expect(quiet != 0, 0))
		return urgent_selected(n, in, except,
			quiet_selected(quiet, in, next.pselect(n, in, out, except, &none, mask)));
	if (__builtin_expect(shown_selected(n, in), 0) && sets_keep(&kept, n, in, out, except))
		return urgent_selected(n, in, except,
			selected_shown(n, &kept.in, in, next.pselect(n, in, out, except, &none, mask)));
	if (sets_keep(&kept, n, in, out, except) && idle_spec(&timeout, &rest)) {
		found = next.pselect(n, in, out, except, &second, mask);
		if (found != 0)
			return urgent_selected(n, in, except, found);
		sets_again(&kept, in, out, except);
		if (!idle_again(ENDING_ALL))
			return select_interrupted(n, in, out, except);
	}
	return urgent_selected(n, in, except, next.pselect(n, in, out, except, timeout, mask));
}

/* poll and ppoll where the compiler knows the size of the array. */
EXPORT int __poll_chk(struct pollfd *p, nfds_t n, int timeout, size_t size);
int __poll_chk(struct pollfd *p, nfds_t n, int timeout, size_t size)
{
	if (size / sizeof(*p) < n)
		__builtin_trap();
	return poll(p, n, timeout);
}

EXPORT int __ppoll_chk(
	struct pollfd *p, nfds_t n, const struct timespec *timeout, const sigset_t *mask, size_t size);
int __ppoll_chk(struct pollfd *p, nfds_t n, const struct timespec *timeout, const sigset_t *mask, size_t size)
{
	if (size / sizeof(*p) < n)
		__builtin_trap();
	return ppoll(p, n, timeout, mask);
}
