/* Which descriptors are ends of pairs, and whether their directions may join rings. */
#include "ring.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <unistd.h>

#define STILL_NSEC 40000000u
#define PENDING                                                                                              \
	~0u /* of connecting: a connect that did not wait, which may be for a peer that speaks SMC-R */
#define UNTAKEN (~0u - 1) /* one that was accepted, may begin with a Proposal, and has no engine */
#define CONNECTING_TURNS 1000 /* of waiting for a connect: a tenth of a second */

static struct end ends[ENDS];
static uint32_t top; /* one more than the highest descriptor that was one */

/*
 * end_foreign says whether this is another process than the one whose memory this is: after vfork. It
 * leaves the table alone.
 */
bool end_foreign(void)
{
	return SYS(getpid) != births_process();
}

/*
 * settled waits while connect has a socket in another thread, and TCP has connected it: reads and
 * writes there are by now for the end that is about to take its place. It does not wait while TCP
 * does not answer, nor for a connect that was left by longjmp, or with its thread.
 */
static void settled(int fd, struct end *e)
{
	for (unsigned turn = 0;; turn++) {
		uint32_t owner = __atomic_load_n(&e->connecting, __ATOMIC_ACQUIRE);
		struct tcp_info info = {0};
		socklen_t len = sizeof(info);
		struct timespec wait = {.tv_nsec = 100000};

		if (owner == 0 || owner == ring_thread())
			return;
		if (owner == PENDING || owner == UNTAKEN) {
			if (owner == UNTAKEN)
				hosts_decline(fd);
			else if (!hosts_held())
				connect_settle(fd);
			return;
		}
		if (SYS(getsockopt, fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_state == TCP_SYN_SENT)
			return;
		if (turn == CONNECTING_TURNS ||
			(turn % 8 == 0 && SYS(tgkill, births_process(), owner, 0) == -ESRCH)) {
			__atomic_compare_exchange_n(&e->connecting, &owner, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
			return;
		}
		if (turn < 64)
			SYS(sched_yield);
		else
			SYS(nanosleep, &wait, NULL);
	}
}

/* end_at returns the entry of a descriptor, NULL if it is none of ours. */
struct end *end_at(int fd)
{
	struct end *e;

	if (fd < 0 || fd >= ENDS)
		return NULL;
	e = &ends[fd];
	if (__builtin_expect(__atomic_load_n(&e->connecting, __ATOMIC_RELAXED) != 0, 0))
		settled(fd, e);
	return __atomic_load_n(&e->cookie, __ATOMIC_ACQUIRE) ? e : NULL;
}

/*
 * end_connecting takes note that connect has a socket, whose place an end may take, and that it has it no
 * more.
 */
void end_connecting(int fd, bool has)
{
	if (fd >= 0 && fd < ENDS)
		__atomic_store_n(&ends[fd].connecting, has ? ring_thread() : 0, __ATOMIC_RELEASE);
}

/* end_pending takes note that a connect has not waited for a peer that may speak SMC-R. */
void end_pending(int fd)
{
	if (fd >= 0 && fd < ENDS)
		__atomic_store_n(&ends[fd].connecting, PENDING, __ATOMIC_RELEASE);
}

/*
 * end_untaken takes note that no engine has taken a connection that was accepted, whose peer may speak
 * SMC-R.
 */
void end_untaken(int fd)
{
	if (fd >= 0 && fd < ENDS)
		__atomic_store_n(&ends[fd].connecting, UNTAKEN, __ATOMIC_RELEASE);
}

static bool settling(int fd, uint32_t what)
{
	uint32_t is = what;

	return fd >= 0 && fd < ENDS && __atomic_load_n(&ends[fd].connecting, __ATOMIC_RELAXED) == what &&
		__atomic_compare_exchange_n(
			&ends[fd].connecting, &is, ring_thread(), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/*
 * end_settling says, in one thread alone, whether a descriptor is pending and to be looked at: it has it
 * until end_connecting or end_pending.
 */
bool end_settling(int fd)
{
	return settling(fd, PENDING);
}

/* end_declining is the same for one that is untaken, until end_connecting or end_untaken. */
bool end_declining(int fd)
{
	return settling(fd, UNTAKEN);
}

/*
 * end_carried takes note that the peer of an end that was born just now is an engine, which knows no rings.
 */
void end_carried(int fd)
{
	struct end *e = end_at(fd);

	if (e)
		__atomic_fetch_or(&e->never, NEVER_OUT | NEVER_IN, __ATOMIC_SEQ_CST);
}

/* end_of is the descriptor whose ring this is, for sending or for receiving. */
int end_of(struct ring *const *where, bool *out)
{
	size_t at = (size_t)((const char *)where - (const char *)ends);

	*out = at % sizeof(struct end) == offsetof(struct end, out);
	return (int)(at / sizeof(struct end));
}

int ends_top(void)
{
	return (int)__atomic_load_n(&top, __ATOMIC_RELAXED);
}

/*
 * end_is says whether a descriptor still is the socket that its entry is of. If a filter of system
 * calls refuses the question, it is: that is no reason to lose the bytes in a ring.
 */
bool end_is(int fd, const struct end *e)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);
	long r = SYS(getsockopt, fd, SOL_SOCKET, SO_COOKIE, &cookie, &len);

	if (r == -EBADF || r == -ENOTSOCK)
		return false;
	return r != 0 || __atomic_load_n(&e->cookie, __ATOMIC_RELAXED) == cookie;
}

/*
 * end_still is end_is, asked once in STILL_NSEC, for the path of the data: of a thousand
 * connections that an event loop answers each is used once in some milliseconds. The functions of
 * libc that close or replace descriptors take them out of the table; end_still is for a program
 * that does so by other means.
 */
bool end_still(int fd, struct end *e)
{
	uint64_t now = ring_now();

	if (now - __atomic_load_n(&e->seen, __ATOMIC_RELAXED) < STILL_NSEC)
		return true;
	if (!end_is(fd, e))
		return false;
	__atomic_store_n(&e->seen, now, __ATOMIC_RELAXED);
	idle_tick(now);
	return true;
}

/*
 * regained says whether the processes that had a descriptor as well, since one was forked, have closed
 * it all. What they have kept of the connection is this process's then.
 */
static bool regained(struct end *e)
{
	uint32_t generation = births_generation(); /* before it asks: who forks now adds a holder first */

	if (!holders_alone(e))
		return false;
	__atomic_fetch_or(&e->never, options_gone((int)(e - ends)), __ATOMIC_SEQ_CST);
	holders_forget(e);
	__atomic_store_n(&e->generation, generation, __ATOMIC_SEQ_CST);
	return generation == births_generation();
}

/* end_own is end_alone where this is known to be the process whose memory this is. */
bool end_own(const struct end *e)
{
	if (__atomic_load_n(&e->generation, __ATOMIC_SEQ_CST) == births_generation())
		return true;
	return __builtin_expect(__atomic_load_n(&e->held, __ATOMIC_RELAXED) != 0, 0) && regained(&ends[e - ends]);
}

/*
 * end_alone says whether nobody but this process can have the descriptor: it was not dup'ed, nor passed
 * on, and no process was forked since that has it still.
 */
bool end_alone(const struct end *e)
{
	return !end_foreign() && end_own(e);
}

/* end_held is the record of a descriptor's holders, 0 if it has none. */
uint32_t end_held(int fd)
{
	return __atomic_load_n(&ends[fd].held, __ATOMIC_SEQ_CST);
}

/*
 * ends_candidates does something with each descriptor that may be given to a process that is forked, as
 * nothing here waits for it by epoll.
 */
void ends_candidates(void (*what)(struct end *e))
{
	for (int fd = 0; fd < ends_top(); fd++) {
		struct end *e = &ends[fd];

		if (__atomic_load_n(&e->cookie, __ATOMIC_RELAXED) && e->held == 0 &&
			!__atomic_load_n(&e->watched, __ATOMIC_SEQ_CST) &&
			__atomic_load_n(&e->generation, __ATOMIC_SEQ_CST) == births_generation())
			what(e);
	}
}

static void drop(struct ring **where)
{
	struct ring *r = __atomic_exchange_n(where, NULL, __ATOMIC_SEQ_CST);
	bool out;

	if (r && (r->member || r->busy))
		busy_dropped(end_of(where, &out), r);
	if (r)
		ring_unref(r);
}

/* end_drop forgets a descriptor that is closed, or about to be. */
void end_drop(int fd)
{
	struct end *e;

	if (end_settling(fd) || end_declining(fd))
		end_connecting(fd, false);
	e = end_at(fd);

	epoll_closed(fd);
	guard_drop(fd);
	if (!e || end_foreign())
		return;
	edges_closed(fd);
	quiet_over(fd, false);
	holders_leave(e); /* a connection goes on where others have it */
	admission_ended(e);
	__atomic_store_n(&e->cookie, 0, __ATOMIC_SEQ_CST);
	tally_over(e);
	drop(&e->out);
	drop(&e->in);
	gift_drop(e);
}

/*
 * is_standard says whether a descriptor is that of a standard stream, of which libc reads and to which it
 * writes inside, where nobody asks us.
 */
static bool is_standard(int fd)
{
	return fd >= 0 && fd <= STDERR_FILENO;
}

/*
 * born takes a descriptor that is the end of a pair, with the generation of the processes that can have it,
 * 0 if others can, too. False: none is taken here.
 */
static bool born(int fd, uint64_t cookie, bool waits, uint32_t generation, uint32_t never)
{
	struct end *e;
	uint32_t have = __atomic_load_n(&top, __ATOMIC_RELAXED);

	if (!settings.rings || fd < 0 || fd >= ENDS || end_foreign())
		return false;
	e = &ends[fd];
	end_drop(fd);
	drop(&e->out);
	drop(&e->in);
	gift_drop(e);
	e->generation = generation;
	e->never = never | (is_standard(fd) ? NEVER_OUT | NEVER_IN : 0);
	e->streak = 0;
	/*
	 * Threads may wait still in the descriptor that had the number before, and leave its gates
	 * later. The thread that has closed one may be of another process.
	 */
	gate_open(&e->sending);
	gate_open(&e->receiving);
	e->cork = CORK_KERNEL;
	e->turns = e->turned = e->answers = e->edges = e->watched = e->on = e->admission = e->loop = 0;
	e->waits = waits;
	e->sent = e->seen = e->asked = 0;
	holders_forget(e);
	e->copied = 0;
	e->tally = NULL;
	while ((uint32_t)fd >= have &&
		!__atomic_compare_exchange_n(
			&top, &have, (uint32_t)fd + 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	__atomic_store_n(&e->cookie, cookie, __ATOMIC_RELEASE);
	return true;
}

/* ends_tally says whether a descriptor of this process is counted in a slot. */
bool ends_tally(const struct tally *a)
{
	for (int fd = 0; fd < ends_top(); fd++)
		if (__atomic_load_n(&ends[fd].tally, __ATOMIC_RELAXED) == a)
			return true;
	return false;
}

/* ends_tallies calls a function with the slot of each descriptor that has one. */
void ends_tallies(void (*each)(struct tally *a))
{
	for (int fd = 0; fd < ends_top(); fd++) {
		struct tally *a = __atomic_load_n(&ends[fd].tally, __ATOMIC_ACQUIRE);

		if (a)
			each(a);
	}
}

/* end_born takes a descriptor that has become the end of a pair just now, and the cookie of that. */
void end_born(int fd, uint64_t cookie, bool waits)
{
	if (born(fd, cookie, waits, births_generation(), 0))
		tally_born(&ends[fd], false);
	adopt_mark(fd);
}

/* end_admitted has it noted whether the connection of an end that was born just now is short. */
void end_admitted(int fd, uint32_t entry)
{
	struct end *e = entry ? end_at(fd) : NULL;

	if (e)
		__atomic_store_n(&e->admission, entry, __ATOMIC_RELAXED);
}

/* ends_over is called when the program ends: connections that it has not closed by itself end now, too. */
__attribute__((destructor)) static void ends_over(void)
{
	if (!settings.on || guard_on() || end_foreign())
		return;
	for (int fd = 0; fd < ends_top(); fd++)
		if (__atomic_load_n(&ends[fd].cookie, __ATOMIC_RELAXED))
			admission_ended(&ends[fd]);
	admission_over();
}

/*
 * end_adopt takes a descriptor that comes from another program, if it is an end. It goes on as copies do:
 * in-band.
 */
void end_adopt(int fd)
{
	struct identity id;
	uint64_t cookie;

	if (!settings.on || !identity_of(fd, &id))
		return;
	cookie = cookie_of(fd);
	if (!cookie)
		return;
	if (born(fd, cookie, false, 0, NEVER_OUT | NEVER_IN | (options_later(fd) ? GONE_LATER : 0)))
		tally_born(&ends[fd], true);
}

/* end_waits takes note of O_NONBLOCK. */
void end_waits(int fd, bool waits)
{
	struct end *e = end_at(fd);

	if (e)
		__atomic_store_n(&e->waits, waits, __ATOMIC_RELAXED);
}

/* end_limited takes note that receives may have a time limit. */
void end_limited(int fd)
{
	struct end *e = end_at(fd);

	if (e)
		__atomic_fetch_or(&e->never, LIMITED, __ATOMIC_SEQ_CST);
}

/* end_shared keeps a descriptor in-band, or on the rings that it has: others are about to get it. */
void end_shared(int fd)
{
	struct end *e = end_at(fd);

	epoll_shared(fd);
	if (e) {
		quiet_over(fd, true);
		options_settle(fd);
		__atomic_fetch_or(&e->never, NEVER_OUT | NEVER_IN, __ATOMIC_SEQ_CST);
		__atomic_store_n(&e->generation, 0, __ATOMIC_SEQ_CST);
		holders_share(e);
		gift_drop(e);
	}
}

static void copy(struct ring *const *from, struct ring **to)
{
	struct ring *r;

	if (!ring_enter(from, &r))
		return;
	ring_ref(r);
	__atomic_store_n(to, r, __ATOMIC_SEQ_CST);
	ring_exit(r);
}

/*
 * end_dup takes a copy of a descriptor, after end_shared. False: the bytes in its ring would be
 * lost to the copy's owner.
 */
bool end_dup(int fd, int to)
{
	struct end *e = end_at(fd);
	struct end *d;

	if (to < 0 || to == fd)
		return true;
	end_drop(to);
	epoll_dup(fd, to);
	guard_copy(fd, to);
	if (!e && fd >= 0 && fd < ENDS) { /* whichever is used first looks */
		uint32_t state = __atomic_load_n(&ends[fd].connecting, __ATOMIC_RELAXED);

		if (state == PENDING)
			end_pending(to);
		else if (state == UNTAKEN)
			end_untaken(to);
	}
	if (!e)
		return true;
	if (is_standard(to)) {
		(void)leave_out(e, fd);
		(void)leave_in(e, fd);
		tally_lent(fd, 1); /* for good */
	}
	if (to >= ENDS || end_foreign()) {
		tally_lent(fd, 1); /* the next program may find it */
		return leave_out(e, fd) && leave_in(e, fd);
	}
	born(to, cookie_of(to), false, 0,
		NEVER_OUT | NEVER_IN | (e->never & (ASKED_ROOM | GONE_SHUT | GONE_RESET)));
	d = &ends[to];
	tally_copied(e, d);
	copy(&e->out, &d->out);
	copy(&e->in, &d->in);
	edges_dup(fd, to);
	return true;
}

/* end_replaced takes the end of another pair that has the place of a descriptor now, and knows no rings. */
void end_replaced(int fd, uint64_t cookie, bool waits)
{
	struct end *e = &ends[fd];
	uint32_t never = __atomic_load_n(&e->never, __ATOMIC_SEQ_CST);
	uint64_t was = __atomic_exchange_n(&e->cookie, 0, __ATOMIC_SEQ_CST);

	drop(&e->out);
	drop(&e->in);
	gift_drop(e);
	holders_leave(e);
	e->never = NEVER_OUT | NEVER_IN | (never & (ASKED_ROOM | GONE_SHUT | GONE_RESET));
	__atomic_store_n(&e->generation, 0, __ATOMIC_SEQ_CST);
	e->waits = waits;
	e->on = 0;
	e->seen = 0;
	__atomic_store_n(&e->cookie, cookie, __ATOMIC_RELEASE);
	tally_moved(e, was);
	adopt_mark(fd);
}

/*
 * end_leave keeps a descriptor in-band from now on, for code that knows no rings. False: bytes are in one,
 * and cannot be handed over.
 */
bool end_leave(int fd)
{
	struct end *e = end_at(fd);

	if (!e) {
		epoll_shared(fd);
		return true;
	}
	end_shared(fd);
	return leave_out(e, fd) && (leave_in(e, fd) || hand_over(e, fd));
}

/*
 * end_to_standard keeps a descriptor in-band from now on, if it is about to become a standard stream. Bytes
 * in its ring are handed over.
 */
void end_to_standard(int fd, int to)
{
	if (is_standard(to) && end_at(fd)) /* else no end is concerned */
		(void)end_leave(fd);
}

/*
 * ends_leave_all keeps everything in-band from now on. False: bytes are in a ring. The others see that there
 * are to be no rings before this looks for theirs, and look after they have shown them.
 */
bool ends_leave_all(void)
{
	bool all = true;

	__atomic_store_n(&settings.rings, false, __ATOMIC_SEQ_CST);
	for (int fd = 0; fd < ends_top(); fd++) {
		all = end_leave(fd) && all;
		tally_lent(fd, 1); /* for good: all that moves bytes from now on is not seen */
	}
	epoll_plain_all();
	return all;
}

/* end_forget takes a ring that has ended away from a descriptor. The caller is in it. */
void end_forget(struct ring **where, struct ring *r)
{
	struct ring *have = r;

	if (__atomic_compare_exchange_n(where, &have, NULL, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		ring_unref(r);
}

/*
 * end_leaves has a direction come back in-band, in the way that its side has for that, with the lock. False:
 * there are bytes in the ring. A descriptor that is something else by now has nothing to leave, nor has a
 * thread that was interrupted in the middle.
 */
bool end_leaves(const struct end *e, int fd, struct ring **where, void (*leaves)(struct ring *r, int fd))
{
	struct ring *r;
	bool left;

	if (!ring_enter(where, &r))
		return true;
	if (!end_is(fd, e) || !ring_lock(r)) {
		ring_exit(r);
		return true;
	}
	leaves(r, fd);
	left = r->side->state != RING_WAITING && r->side->state != RING_JOINED;
	if (r->side->state == RING_ENDED)
		end_forget(where, r);
	ring_unlock(r);
	ring_exit(r);
	return left;
}

/* A gate is passed by calls that know no ring. It is closed while one comes. */

bool gate_enter_from(uint32_t *gate, uintptr_t frame)
{
	if (__builtin_expect(calls_depth != 0, 0))
		calls_bury(frame);
	for (unsigned turn = 0; turn < 100000; turn++) {
		uint32_t v = __atomic_load_n(gate, __ATOMIC_SEQ_CST);

		if ((v & GATE_CLOSED) && call_has(gate))
			return false; /* and its ring is not known to the peer, or is known here */
		else if (v & GATE_CLOSED)
			SYS(sched_yield);
		else if (__atomic_compare_exchange_n(gate, &v, v + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
			call_in_gate(gate, frame);
			return true;
		}
	}
	return false; /* it was closed by a thread that is not there: we were forked away from it */
}

void gate_exit_from(uint32_t *gate, uintptr_t frame)
{
	call_over(NULL, gate, frame);
	__atomic_fetch_sub(gate, 1, __ATOMIC_SEQ_CST);
}

/* gate_close closes it if only the caller has passed. */
bool gate_close(uint32_t *gate)
{
	uint32_t me = 1;

	return __atomic_compare_exchange_n(gate, &me, 1 | GATE_CLOSED, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

void gate_open(uint32_t *gate)
{
	__atomic_fetch_and(gate, ~GATE_CLOSED, __ATOMIC_SEQ_CST);
}

/*
 * would_wait says whether a call waits where it can do nothing at once. Where that cannot be asked the
 * kernel decides, in the call that would wait.
 */
bool would_wait(int fd, int flags)
{
	long status;

	if (flags & MSG_DONTWAIT)
		return false;
	status = SYS(fcntl, fd, F_GETFL);
	return status < 0 || !(status & O_NONBLOCK);
}

/* end_joined says whether a descriptor has a ring. */
bool end_joined(int fd)
{
	struct end *e = end_at(fd);

	return e && (__atomic_load_n(&e->out, __ATOMIC_SEQ_CST) || __atomic_load_n(&e->in, __ATOMIC_SEQ_CST));
}
