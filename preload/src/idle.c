/*
 * Memory of rings that are not used. The pages of a ring are there once it was written round,
 * however fast they are read, and a connection may be quiet for as long as it likes. So a writer
 * gives the pages of an empty ring back, and a reader leaves its ring and gives them back, when
 * nothing has gone through it for a second. A small ring stays, as it costs less than to make it again,
 * unless there are many: then it has a place that others need. Nobody looks at a clock for that: calls
 * that find a new time anyway say that it is time, and a call that waits, for a descriptor or for many,
 * waits for a second first.
 */
#include "ring.h"

#include <signal.h>
#include <sys/mman.h>

#define SHARED 10 /* times as long for rings that several processes or descriptors have, which get no other */
#define SIGNALS 64
#define SIGCANCEL 32 /* of libc's own, as SIGSETXID: they are there with threads */
#define SIGSETXID 33

uint32_t idle_due;	/* it is time to look at all rings */
static uint64_t next_look;

/* idle_tick is told the time now and then. */
void idle_tick(uint64_t now)
{
	if (now >= __atomic_load_n(&next_look, __ATOMIC_RELAXED))
		__atomic_store_n(&idle_due, 1, __ATOMIC_RELAXED);
}

/*
 * give_back has the kernel take the pages of an empty ring, which only its writer may while it is joined.
 * The lock is held.
 */
static void give_back(struct ring *r)
{
	struct ring_side *side = r->side;

	if (side->state != RING_JOINED || ((side->cursor - side->given) & PUB_HEAD) < IDLE_BYTES ||
	    __atomic_load_n(&r->h->tail, __ATOMIC_SEQ_CST) != side->cursor)
		return;
	SYS(madvise, r->data, r->size, MADV_REMOVE);
	side->given = side->cursor; /* where that is not possible it is not tried all the time */
}

/*
 * may_leave says whether there is something to do for a ring that is idle. many: a small one is to be left,
 * or was by its reader.
 */
static bool may_leave(const struct ring *r, bool out, bool many)
{
	return r->size > RING_BYTES_ANSWERS || (many && (!out || (pub_load(r) & PUB_READER_LEFT)));
}

/* look sees to the ring of a descriptor. */
static void look(struct ring **where, uint64_t now, bool many)
{
	struct ring *r;
	struct end *e;
	uint64_t idle;
	bool out;
	int fd;

	if (!ring_enter(where, &r))
		return;
	fd = end_of(where, &out);
	e = end_at(fd);
	idle = now - __atomic_load_n(&r->side->looked, __ATOMIC_RELAXED);
	if (e && idle < 1ull << 62 && idle >= (out || end_alone(e) ? IDLE_NSEC : SHARED * IDLE_NSEC) &&
		may_leave(r, out, many) && end_is(fd, e) && ring_try(r)) {
		if (out ? many && send_idle(e, r, fd) : receive_idle(r, fd, many))
			end_forget(where, r);
		else if (out && r->size > RING_BYTES_ANSWERS)
			give_back(r);
		ring_unlock(r);
	}
	ring_exit(r);
}

/* idle_sweep looks at all rings of this process. */
void idle_sweep(void)
{
	uint64_t now = ring_now();
	int saved = errno;
	bool many;

	__atomic_store_n(&next_look, now + IDLE_NSEC / 2, __ATOMIC_RELAXED);
	__atomic_store_n(&idle_due, 0, __ATOMIC_RELAXED);
	if (guard_on() || SYS(getpid) != births_process())
		return; /* after vfork the tables are another process's */
	many = ring_many();
	for (unsigned i = ring_next(0); i < RINGS; i = ring_next(i + 1)) {
		struct ring **where = ring_where(i);

		if (where)
			look(where, now, many);
	}
	errno = saved;
}

/*
 * idle_again is idle_sweep in a call that waits, which takes long where there is much to give back. A signal
 * that comes meanwhile would have ended the wait: it is kept out until then. False: one came whose handler
 * ends such a call, and has run.
 */
bool idle_again(enum ending ending)
{
	uint64_t signals;

	if (guard_on()) {
		__atomic_store_n(&idle_due, 0, __ATOMIC_RELAXED);
		return true;
	}
	signals = signals_off();
	idle_sweep();
	return !signals_on(signals, ending);
}

static bool pending(void)
{
	return __atomic_load_n(&ring_memory, __ATOMIC_RELAXED) > RING_BYTES_ANSWERS;
}

/*
 * idle_msec and idle_spec say whether to wait for IDLE_MSEC before the rest of a time limit, and take that
 * off.
 */
bool idle_msec(int *timeout)
{
	if (!pending() || (*timeout >= 0 && *timeout <= IDLE_MSEC))
		return false;
	if (*timeout > 0)
		*timeout -= IDLE_MSEC;
	return true;
}

bool idle_spec(const struct timespec **timeout, struct timespec *rest)
{
	if (!pending() || (*timeout && ((*timeout)->tv_sec < 2 || (*timeout)->tv_nsec < 0)))
		return false;
	if (*timeout) {
		*rest = **timeout;
		rest->tv_sec -= IDLE_MSEC / 1000;
		*timeout = rest;
	}
	return true;
}

/*
 * The effect of signal handlers on a receive that waits: all handlers have it go on, all end it, or
 * it depends.
 */
enum after {
	AFTER_DEPENDS,
	AFTER_GOES_ON,
	AFTER_ENDS,
};

static enum after after_signals(void)
{
	bool on = false, ends = false;

	for (int sig = 1; sig <= SIGNALS; sig++) {
		struct kernel_action action = {0};

		if (sig == SIGCANCEL || sig == SIGSETXID ||
			SYS(rt_sigaction, sig, NULL, &action, sizeof(uint64_t)) != 0)
			continue;
		/* A handler that SA_RESETHAND has taken away was there. */
		if (action.handler > (uintptr_t)SIG_IGN || (action.flags & SA_RESETHAND)) {
			on |= (action.flags & SA_RESTART) != 0;
			ends |= !(action.flags & SA_RESTART);
		}
	}
	return on && ends ? AFTER_DEPENDS : ends ? AFTER_ENDS : AFTER_GOES_ON;
}

/* uniform says whether all handlers of signals are of one kind, as far as was seen within the last second. */
static bool uniform(void)
{
	static struct {
		uint64_t at;
		bool is;
	} seen;
	uint64_t now = ring_now();

	if (now - __atomic_load_n(&seen.at, __ATOMIC_RELAXED) > IDLE_NSEC) {
		__atomic_store_n(&seen.is, after_signals() != AFTER_DEPENDS, __ATOMIC_RELAXED);
		__atomic_store_n(&seen.at, now, __ATOMIC_RELAXED);
	}
	return __atomic_load_n(&seen.is, __ATOMIC_RELAXED);
}

/*
 * idle_wait waits for a second where a receive is about to wait on an empty ring, and leaves the ring if
 * nothing has come. A receive goes on after a signal, or ends, as the signal's handler wants it, and poll
 * always ends: so only where all handlers want the same it waits here. False: the receive waits as ever.
 */
bool idle_wait(const struct end *e, struct ring *r, int fd, ssize_t *result)
{
	struct pollfd p = {.fd = fd, .events = POLLIN | POLLRDHUP};
	struct timespec second = {.tv_sec = IDLE_MSEC / 1000};
	bool left = false;
	uint64_t signals;
	int n;

	if (r->side->state != RING_JOINED || r->gift || r->size <= RING_BYTES_ANSWERS ||
		r->side->cursor < IDLE_BYTES || !next.ppoll ||
		(__atomic_load_n(&e->never, __ATOMIC_RELAXED) & LIMITED) ||
		__atomic_load_n(&e->generation, __ATOMIC_RELAXED) != births_generation() || !uniform())
		return false;
	n = next.ppoll(&p, 1, &second, NULL);
	if (n < 0 && errno == EINTR && after_signals() != AFTER_GOES_ON) {
		*result = -1;
		return true;
	}
	signals = n == 0 ? signals_off() : 0;
	if (n == 0 && end_is(fd, e) && ring_lock(r)) {
		left = receive_idle(r, fd, false);
		ring_unlock(r);
	}
	if (n == 0 && signals_on(signals, ENDING_SOME)) {
		*result = sys_return(-EINTR);
		return true;
	}
	*result = 1;
	return left || (n == 1 && p.revents == POLLIN);
}
