/*
 * Calls that a thread is in. A handler of a signal may leave a call by longjmp. Then nothing of it
 * runs any more: its counts stay, and a side of a ring that it was at work on stays locked. So each
 * call is on record while it lasts, with its place on the stack. The next call of the thread, or its
 * next poll, repairs the state that such a call has left behind. So does the end of the thread, as a
 * thread can be cancelled in a call.
 *
 * A call of which nobody knows whether it is over is taken for one that a handler has interrupted.
 *
 * Locks that threads of one process have for a moment are no such calls, as they are taken in the middle of
 * others. They have their owner's place on the stack in themselves.
 */
#include "ring.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#define CALLS 8 /* in one thread: one, but for handlers of signals that interrupt each other */

/*
 * The fewest bytes on a stack between a call and the handler that interrupts it: the state that the
 * kernel has to put back.
 */
#define LEAST_FRAME 512

struct call {
	struct ring *r; /* one of these, or neither while it is written */
	uint32_t *gate;
	uintptr_t frame; /* of a function that is at work as long as the call */
	int fd;
	bool out;
};

__thread uint32_t calls_depth __attribute__((tls_model("initial-exec")));
static __thread struct call calls[CALLS] __attribute__((tls_model("initial-exec")));

/* A handler sees stores in the order of the program. */
#define ORDER() __atomic_signal_fence(__ATOMIC_SEQ_CST)

/*
 * libc calls thread_ends by this key when a thread ends that has made calls. It takes memory for
 * keys beyond the first ones.
 */
#define KEYS_WITHOUT_MEMORY 32

static pthread_key_t ends;
static bool has_ends;
static __thread bool watched __attribute__((tls_model("initial-exec")));

static void begin(struct ring *r, uint32_t *gate, int fd, bool out, uintptr_t frame)
{
	uint32_t i = calls_depth;

	if (__builtin_expect(!watched, 0)) {
		watched = true;
		if (has_ends)
			next.pthread_setspecific(ends, &calls_depth);
	}
	if (i >= CALLS)
		return;
	calls_depth = i + 1;
	ORDER();
	calls[i].frame = frame;
	calls[i].fd = fd;
	calls[i].out = out;
	ORDER();
	calls[i].gate = gate;
	calls[i].r = r;
	ORDER();
}

static void take_off(uint32_t i)
{
	calls[i].r = NULL;
	calls[i].gate = NULL;
	ORDER();
	calls_depth = i;
	ORDER();
}

void call_in_ring(struct ring *r, int fd, bool out, uintptr_t frame)
{
	begin(r, NULL, fd, out, frame);
}

void call_in_gate(uint32_t *gate, uintptr_t frame)
{
	begin(NULL, gate, -1, false, frame);
}

/* mend puts the side of a ring right that a call was at work on. */
static void mend(const struct call *c)
{
	struct ring *r = c->r;
	struct end *e;

	if (!ring_locked(r))
		return;
	e = end_at(c->fd);
	if (!e || (c->out ? e->out : e->in) != r || !end_is(c->fd, e)) {
		if (r->side->state != RING_ENDED)
			r->side->state = RING_BROKEN; /* no descriptor is left to do it with */
	} else if (c->out) {
		send_mend(r, c->fd);
	} else {
		receive_mend(r, c->fd);
	}
	ring_unlock(r);
}

/* bury ends the call of the last record. If it is left by longjmp itself the next one goes on with it. */
static void bury(uint32_t i, uintptr_t frame)
{
	struct call c = calls[i];

	calls[i].frame = frame;
	ORDER();
	if (c.r)
		mend(&c);
	if (c.gate && (__atomic_load_n(c.gate, __ATOMIC_SEQ_CST) & GATE_CLOSED))
		gate_open(c.gate); /* the call that has closed it was alone */
	take_off(i);
	if (c.r)
		ring_left(c.r);
	if (c.gate)
		__atomic_fetch_sub(c.gate, 1, __ATOMIC_SEQ_CST);
}

/* call_over takes a call off the record. Those that began after it are over, too. */
void call_over(const struct ring *r, const uint32_t *gate, uintptr_t frame)
{
	for (uint32_t i = calls_depth; i-- > 0;) {
		if (calls[i].r != r || calls[i].gate != gate || calls[i].frame != frame)
			continue;
		while (calls_depth > i + 1)
			bury(calls_depth - 1, frame);
		take_off(i);
		return;
	}
}

/*
 * call_has says whether a call of this thread, beneath a handler of a signal that we are in, has passed a
 * gate.
 */
bool call_has(const uint32_t *gate)
{
	for (uint32_t i = calls_depth; i-- > 0;)
		if (calls[i].gate == gate)
			return true;
	return false;
}

static bool hex(const char **p, const char *end, uintptr_t *v)
{
	const char *at = *p;

	for (*v = 0; at < end; at++) {
		char c = *at;

		if (c >= '0' && c <= '9')
			*v = *v << 4 | (uintptr_t)(c - '0');
		else if (c >= 'a' && c <= 'f')
			*v = *v << 4 | (uintptr_t)(c - 'a' + 10);
		else
			break;
	}
	if (at == *p)
		return false;
	*p = at;
	return true;
}

/*
 * is_stack says whether a line of /proc/self/maps is the stack that the kernel or libc has given this
 * thread, with both addresses in it.
 */
static bool is_stack(const char *line, const char *end, uintptr_t a, uintptr_t b)
{
	static const char name[] = "[stack]";
	uintptr_t from, to,
		self = (uintptr_t)&calls_depth; /* libc keeps a thread's own variables above its stack */

	if (!hex(&line, end, &from) || line >= end || *line++ != '-' || !hex(&line, end, &to))
		return false;
	if (a < from || a >= to || b < from || b >= to)
		return false;
	if (self >= from && self < to)
		return true;
	return (size_t)(end - line) >= sizeof(name) - 1 &&
		memcmp(end - (sizeof(name) - 1), name, sizeof(name) - 1) == 0;
}

/*
 * same_stack is false also where a program has made a stack by itself: then whether one address is above
 * another means nothing.
 */
static bool same_stack(uintptr_t a, uintptr_t b)
{
	char text[512]; /* handlers may run on small stacks */
	size_t have = 0;
	bool found = false;
	long fd = SYS(openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
	long n;

	if (fd < 0)
		return false;
	while (!found && (n = SYS(read, fd, text + have, sizeof(text) - have)) > 0) {
		char *line = text, *end;

		have += (size_t)n;
		while (!found && (end = memchr(line, '\n', (size_t)(text + have - line)))) {
			found = is_stack(line, end, a, b);
			line = end + 1;
		}
		have = (size_t)(text + have - line);
		memmove(text, line, have);
		if (have == sizeof(text))
			have = 0; /* a name that long is no stack's */
	}
	SYS(close, fd);
	return found;
}

/* on_other_stack says whether this is a handler that has a stack of its own. */
static bool on_other_stack(void)
{
	stack_t s = {0};

	return SYS(sigaltstack, NULL, &s) != 0 || (s.ss_flags & SS_ONSTACK);
}

/*
 * handler_runs says whether this may be a handler: its signal is kept out meanwhile, unless it was made
 * otherwise.
 */
static bool handler_runs(void)
{
	uint64_t blocked = ~0ull;

	SYS(rt_sigprocmask, SIG_BLOCK, NULL, &blocked, sizeof(blocked));
	for (int sig = 1; sig <= 64; sig++) {
		struct kernel_action action = {0};

		if (SYS(rt_sigaction, sig, NULL, &action, sizeof(blocked)) != 0 ||
			action.handler <= (uintptr_t)SIG_IGN)
			continue;
		if ((action.flags & SA_NODEFER) || (blocked & 1ull << (sig - 1)))
			return true;
	}
	return false;
}

/* left says whether a call was left by longjmp. The caller's stack reaches from here up to the frame. */
static bool left(const struct call *c, uintptr_t here, uintptr_t frame)
{
	if (!c->r && !c->gate)
		return true; /* it was not even written down */
	if (c->frame >= here && c->frame - LEAST_FRAME <= frame)
		return true; /* we are where it was */
	if (on_other_stack() || (c->frame > here && handler_runs()))
		return false;
	return same_stack(c->frame, here);
}

/* calls_bury ends the calls that were left by longjmp. */
void calls_bury(uintptr_t frame)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);

	while (calls_depth > 0 && left(&calls[calls_depth - 1], here, frame))
		bury(calls_depth - 1, frame);
}

#define LOCK_TURNS 100000
#define LOCK_LOOKS 64 /* turns between two looks whether the owner is there */

/*
 * lock_left says whether a call of this thread that has a lock was left. low is the lower half of its place
 * on the stack, which is nearer than that is large.
 */
static bool lock_left(uint32_t low, uintptr_t frame)
{
	uint32_t none = 0;
	struct call c = {.gate = &none, .frame = frame + (uintptr_t)(intptr_t)(int32_t)(low - (uint32_t)frame)};

	return left(&c, (uintptr_t)__builtin_frame_address(0), frame);
}

/*
 * thread_lock_from takes a lock that is held for short, by threads of this process: a word that has its owner
 * and its owner's place on the stack. It takes one that was left by longjmp, or whose owner is no thread of
 * this process: it has ended, or we were forked away from it. What such a lock guards is right after each
 * step. False: this is a handler of a signal that has interrupted the owner, or the owner does not go on.
 */
bool thread_lock_from(uint64_t *lock, uintptr_t frame)
{
	uint32_t me = ring_thread();
	uint64_t mine = (uint64_t)me << 32 | (uint32_t)frame;
	long process;

	for (unsigned turn = 1; turn <= LOCK_TURNS; turn++) {
		uint64_t had = 0;
		uint32_t owner;

		if (__atomic_compare_exchange_n(lock, &had, mine, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return true;
		owner = (uint32_t)(had >> 32);
		if (owner == me && !lock_left((uint32_t)had, frame))
			return false;
		process = turn % LOCK_LOOKS == 0 ? SYS(getpid) : 0;
		if (owner == me || (process && SYS(tgkill, process, owner, 0) == -ESRCH)) {
			if (__atomic_compare_exchange_n(lock, &had, mine, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
				return true;
		}
		SYS(sched_yield);
	}
	return false;
}

void thread_unlock(uint64_t *lock)
{
	__atomic_store_n(lock, 0, __ATOMIC_SEQ_CST);
}

/*
 * thread_ends ends the calls in which a thread was cancelled, or was when a handler called pthread_exit:
 * libc has unwound its stack.
 */
static void thread_ends(void *depth)
{
	(void)depth;
	while (calls_depth > 0)
		bury(calls_depth - 1, (uintptr_t)__builtin_frame_address(0));
	watched = false; /* other destructors may come, and make calls */
}

/* calls_start is for before main. */
void calls_start(void)
{
	if (!next.pthread_key_create || !next.pthread_setspecific ||
		next.pthread_key_create(&ends, thread_ends) != 0)
		return;
	has_ends = ends < KEYS_WITHOUT_MEMORY;
}
