/*
 * Looks of calls that wait for many descriptors, before they sleep: how long one lasts, whether looks have
 * paid lately, and signals. busy.c and polls.c find out what has come.
 *
 * A handler of a signal that runs meanwhile has to end the wait, as it would have in the kernel. To keep
 * signals out until the look is over takes two system calls for each wait, as much as TCP makes for a
 * request. So it is seen whether one has run: the kernel writes the state that it has interrupted below the
 * stack pointer and the 128 bytes that functions may use there. The look leaves a trace in that place first,
 * beyond the reach of the calls that it makes by itself. That is so on x86-64, where handlers have no stack
 * of their own, and not under valgrind, which reports such writes. Elsewhere signals are kept out as soon as
 * a look takes longer.
 */
#include "ring.h"

#include <signal.h>
#include <stdlib.h>

#define LOOK_NSEC 50000
#define BRIEF_NSEC                                                                                           \
	3000 /* of it in which signals may come though it is not seen whether their handlers have run: they  \
		end no wait then */
#define TAKEN_NSEC 20000 /* between two looks: somebody else had the processor */
#define TURNS 8		 /* between two looks at the clock */

#define TRACE_WORDS 32
#define TRACE_STEP 2	 /* one word in so many */
#define TRACE_LAST 960 /* bytes below the frame: less than the least that the kernel writes, from 128 on */
#define TRACE_SPARE 96
#define STACK_LOOKS                                                                                          \
	1024 /* of a thread, after which it is asked again whether handlers have a stack of their own */

/* How far it is known whether the trace tells. */
enum traces {
	TRACES_UNKNOWN = 0,
	TRACES_YES = 1,
	TRACES_NO = 2,
};

static uint32_t traces;
static bool own_stacks; /* a thread of this process has a stack for handlers */
static __thread uint32_t stack_looks __attribute__((tls_model("initial-exec")));

static bool valgrind;

__attribute__((constructor)) static void start(void)
{
	const char *v = getenv("LD_PRELOAD");

	valgrind = v && strstr(v, "vgpreload");
}

EXPORT int sigaltstack(const stack_t *new, stack_t *old)
{
	if (plausible(new) && !(new->ss_flags & SS_DISABLE))
		__atomic_store_n(&own_stacks, true, __ATOMIC_SEQ_CST);
	return (int)sys_return(SYS(sigaltstack, new, old));
}

static volatile uint64_t *trace_at(uintptr_t frame)
{
	return (volatile uint64_t *)((frame - TRACE_LAST) & ~(uintptr_t)15);
}

#define UNDER_STACK __attribute__((noinline, no_sanitize("address", "undefined")))

UNDER_STACK static void trace_lay(uintptr_t frame)
{
	volatile uint64_t *at = trace_at(frame);

	for (int i = 0; i < TRACE_WORDS; i++)
		at[i * TRACE_STEP] = ~(uintptr_t)(at + i * TRACE_STEP);
}

UNDER_STACK static bool trace_gone(uintptr_t frame)
{
	volatile uint64_t *at = trace_at(frame);
	bool gone = false;

	for (int i = 0; i < TRACE_WORDS; i++)
		gone |= at[i * TRACE_STEP] != ~(uintptr_t)(at + i * TRACE_STEP);
	return gone;
}

/* tick looks at the clock. */
__attribute__((noinline)) static void tick(struct glance *g)
{
	g->now = precise_now();
}

/* deeper has a look at the clock take more of the stack than all that a look calls. */
__attribute__((noinline)) static void deeper(struct glance *g)
{
	volatile char more[TRACE_SPARE];

	more[0] = 0;
	tick(g);
	(void)more[0];
}

/* trace_try lays a trace, and says whether it is there still after what a look does by itself. */
static bool trace_try(struct glance *g)
{
	trace_lay(g->frame);
	deeper(g);
	return !trace_gone(g->frame);
}

/* may_trace says whether a handler that runs from now on leaves its trace. */
static bool may_trace(struct glance *g)
{
	uint32_t known = __atomic_load_n(&traces, __ATOMIC_RELAXED);
	stack_t s = {0};

	if (known == TRACES_NO)
		return false;
	if (stack_looks++ % STACK_LOOKS == 0 && (SYS(sigaltstack, NULL, &s) != 0 || !(s.ss_flags & SS_DISABLE)))
		__atomic_store_n(&own_stacks, true, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&own_stacks, __ATOMIC_RELAXED))
		return false;
	if (known == TRACES_UNKNOWN) {
#if defined(__x86_64__)
		known = valgrind || !trace_try(g) ? TRACES_NO : TRACES_YES;
#else
		(void)g;
		known = TRACES_NO;
#endif
		__atomic_store_n(&traces, known, __ATOMIC_RELAXED);
	}
	return known == TRACES_YES;
}

/* glance_begin begins a look. */
__attribute__((noinline)) void glance_begin(struct glance *g, uint64_t now)
{
	*g = (struct glance){.begin = now, .now = now, .frame = (uintptr_t)__builtin_frame_address(0)};
	g->traces = may_trace(g);
	if (g->traces)
		trace_lay(g->frame);
}

/* glance_on waits for a moment. False: it has looked for long enough. g->now: when it last saw the clock. */
__attribute__((noinline)) bool glance_on(struct glance *g)
{
	uint64_t before = g->now;

	pause_cpu();
	if (++g->turns % TURNS != 0)
		return true;
	tick(g);
	if (g->now - g->begin > LOOK_NSEC || g->now - before > TAKEN_NSEC)
		return false;
	if (g->now - g->begin > BRIEF_NSEC && !g->traces && !g->off) {
		g->signals = signals_off();
		g->off = true;
	}
	return true;
}

/*
 * glance_over ends a look. came: for which the call returns in any case. True: a handler has run that ends
 * a call which waits.
 */
__attribute__((noinline)) bool glance_over(struct glance *g, bool came)
{
	if (g->off)
		return signals_on(g->signals, came ? ENDING_NOT : ENDING_ALL);
	if (came || !g->traces || !trace_gone(g->frame))
		return false;
	if (trace_try(g))
		return true;
	/* Something else than a handler writes there. */
	__atomic_store_n(&traces, TRACES_NO, __ATOMIC_RELAXED);
	return false;
}

#define LUCK_FIRST 4
#define LUCK_MOST 8
#define MISS 2	    /* times that it has to pay for each that it has not */
#define SELDOMEST 4096

/*
 * luck_tries says whether to look: it has paid lately, or is to be found out, first after so many waits as
 * seldom says.
 */
bool luck_tries(struct luck *luck, uint32_t seldom)
{
	if (luck->seldom == 0)
		*luck = (struct luck){.left = LUCK_FIRST, .seldom = seldom};
	if (luck->left <= 0 && ++luck->waits < luck->seldom)
		return false;
	luck->waits = 0;
	return true;
}

/* luck_paid takes note of whether a look has paid. */
void luck_paid(struct luck *luck, bool paid, uint32_t seldom)
{
	if (paid) {
		if (luck->left < 0)
			luck->left = 0;
		luck->left += luck->left < LUCK_MOST;
		luck->seldom = seldom;
	} else if (luck->left > 0) {
		luck->left -= MISS;
	} else if (luck->seldom < SELDOMEST) {
		luck->seldom *= 2;
	}
}

/* luck_again has the next wait look, too: this look has neither paid nor not. */
void luck_again(struct luck *luck)
{
	luck->waits = luck->seldom;
}
