/*
 * Looking before sleeping: a blocking receive, from a ring or in-band, and a blocking accept, look for some
 * microseconds whether there is anything, where that has paid. To be woken up on another processor takes
 * longer than most answers do. It does not pay where the two programs share a processor, or others want it:
 * then it is done seldom.
 */
#include "ring.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>

static __thread struct luck accepting __attribute__((tls_model("initial-exec")));

#define LOOK                                                                                                 \
	100000 /* nanoseconds, at a socket: it takes as long to wake both programs up on a virtual machine,  \
		  and so does a connection until its first answer */
#define LOOK_RING 50000 /* and into a ring */
#define SELDOM 64	/* waits between two looks where it does not pay; twice as many each time */
#define PAYS_MOST 8	/* looks into a ring in a row that do not pay, until that is seldom, too */

/* look_before waits a while for something to read or accept. The call that comes next finds out which. */
void look_before(int fd, struct luck *luck)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	struct timespec none = {0};
	uint64_t until = 0;
	bool paid = false;

	if (!luck_tries(luck, SELDOM) || SYS(ppoll, &p, 1, &none, NULL, 0) != 0 || !would_wait(fd, 0))
		return;
	for (unsigned i = 0; !paid; i++) {
		pause_cpu();
		paid = SYS(ppoll, &p, 1, &none, NULL, 0) != 0;
		if (until == 0)
			until = precise_now() + LOOK;
		else if (i % 8 == 0 && precise_now() > until)
			break;
	}
	luck_paid(luck, paid, SELDOM);
}

/* look_accept is look_before for a listener. */
void look_accept(int fd)
{
	if (guard_on() || !birth_accepts(fd))
		return;
	if (would_wait(fd, 0))
		look_before(fd, &accepting);
	else
		birth_hurries(fd);
}

/*
 * While it looks no signal comes: a handler that left by longjmp would leave bytes for which there is no
 * token, so that no poll says that they are there. For the same reason the thread is not cancelled. Signals
 * that report an error of the program itself come all the same, and so does the one for which libc waits when
 * a program changes its user.
 */
#define SIGSETXID 33

static uint64_t bit_of(int sig)
{
	return 1ull << (sig - 1);
}

uint64_t signals_off(void)
{
	uint64_t off = ~(bit_of(SIGSEGV) | bit_of(SIGBUS) | bit_of(SIGFPE) | bit_of(SIGILL) |
		bit_of(SIGTRAP) | bit_of(SIGSYS) | bit_of(SIGSETXID));
	uint64_t old = 0;

	SYS(rt_sigprocmask, SIG_BLOCK, &off, &old, sizeof(old));
	return old;
}

/* signals_on lets them in. It is true if one came for which a system call that waits would have returned. */
bool signals_on(uint64_t old, enum ending ending)
{
	uint64_t came = 0;
	bool ends = false;

	if (ending != ENDING_NOT)
		SYS(rt_sigpending, &came, sizeof(came));
	came &= ~old;
	for (int sig = 1; came && sig <= 64; sig++) {
		struct kernel_action action = {0};

		if ((came & bit_of(sig)) && SYS(rt_sigaction, sig, NULL, &action, sizeof(came)) == 0)
			ends |= action.handler > (uintptr_t)SIG_IGN &&
				(ending == ENDING_ALL || !(action.flags & SA_RESTART));
	}
	SYS(rt_sigprocmask, SIG_SETMASK, &old, NULL, sizeof(old));
	return ends;
}

/*
 * look_ring has a blocking reader look into the empty ring for a while, where that has paid: neither side
 * makes a system call then but those about signals. The writer leaves out the token as long as all that it
 * has written fits the size that the reader has asked for, so that no byte is left for which there is no
 * token. *signals: for signals_on. ending: which signals would end the receive.
 */
enum looked look_ring(struct ring *r, size_t want, uint64_t *signals, enum ending ending)
{
	struct ring_side *side = r->side;
	uint64_t code = 1, pub;
	bool begun;

	side->futile++;
	if ((side->pays == 0 && ++side->looks % SELDOM != 0) ||
	    __atomic_load_n(&r->h->processor, __ATOMIC_RELAXED) == (uint32_t)sched_getcpu() + 1)
		return LOOKED_NOT;
	if (want > r->size / 2)
		want = r->size / 2;
	while (code < 15 && 1ull << code <= want)
		code++;
	*signals = signals_off();
	begun = ring_lock(r);
	if (begun) {
		pub = pub_load(r);
		begun = side->state == RING_JOINED && used(r, pub) == 0 && (pub & PUB_ARMED) &&
			!(pub & (PUB_LOOK | PUB_LEFT)) && outstanding(r, pub) == 0 &&
			pub_swap(r, &pub, pub | code << PUB_LOOK_SHIFT);
		ring_unlock(r);
	}
	if (!begun) {
		signals_on(*signals, ENDING_NOT);
		return LOOKED_NOT;
	}
	pub |= code << PUB_LOOK_SHIFT;
	for (uint64_t i = 0, until = 0; pub_load(r) == pub; i++) {
		if (i % 64 == 0 && until == 0)
			until = precise_now() + LOOK_RING;
		else if (i % 64 == 0 && precise_now() > until)
			break;
		pause_cpu();
	}
	if (used(r, __atomic_fetch_and(&r->h->pub, ~PUB_LOOK, __ATOMIC_SEQ_CST)) != 0) {
		side->pays = PAYS_MOST;
		side->futile = 0;
		return LOOKED_PAID;
	}
	if (side->pays)
		side->pays--;
	return signals_on(*signals, ending) ? LOOKED_SIGNAL : LOOKED_NOT;
}
