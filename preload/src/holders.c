/*
 * Which processes have an end that was open when its process forked. A server that forks for each
 * connection closes its own descriptor at once. The new process is the only one then that has the end,
 * and the connection joins rings as any other one does. An event that is not seen here can only keep an
 * end in-band.
 *
 * A record is a page that is shared by the processes that come of a fork. Each has its own place for
 * it, at the address where its parent had it, and takes a new page for the ends of its next fork: a
 * process that was forked reaches the records of ends that it was given, and no others.
 */
#include "ring.h"

#include <sys/mman.h>

#define RECORDS 16 /* ends at a fork that nobody waits for yet: a server that closes them has one or two */
#define ASK_NSEC 40000000u

struct record {
	uint64_t cookie;	  /* of the end */
	uint32_t crowd;		  /* there are others of which nothing is known */
	/*
	 * processes that have the end, and below 0 those that are being made, by their maker's thread. 0: a
	 * place that is free
	 */
	int32_t holders[HOLDERS];
};

static uint8_t pages[RECORDS][RING_PAGE] __attribute__((aligned(RING_PAGE)));
static uint32_t taken;	/* a bit for each record that an end of this process has */
static __thread int32_t maker
	__attribute__((tls_model("initial-exec"))); /* the thread that forks, in both processes */

static struct record *record_of(uint32_t held)
{
	return (struct record *)pages[held - 1];
}

static bool exchange(struct record *r, int32_t from, int32_t to)
{
	for (size_t i = 0; i < HOLDERS; i++) {
		int32_t have = from;

		if (__atomic_compare_exchange_n(&r->holders[i], &have, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return true;
	}
	return false;
}

/* add has a crowd where there is no room. */
static void add(struct record *r, int32_t from, int32_t to)
{
	if (!exchange(r, from, to))
		__atomic_store_n(&r->crowd, 1, __ATOMIC_SEQ_CST);
}

/* begin gives an end that only this process has a record, if there is one. */
static void begin(struct end *e)
{
	uint32_t have = __atomic_load_n(&taken, __ATOMIC_SEQ_CST), held;
	struct record *r;

	do {
		if (have == (1u << RECORDS) - 1)
			return;
		held = (uint32_t)__builtin_ctz(~have) + 1;
	} while (!__atomic_compare_exchange_n(
		&taken, &have, have | 1u << (held - 1), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
	r = record_of(held);
	if (SYS(mmap, r, RING_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
		(long)r) {
		__atomic_fetch_and(&taken, ~(1u << (held - 1)), __ATOMIC_SEQ_CST);
		return;
	}
	r->holders[0] = (int32_t)births_process();
	r->cookie = __atomic_load_n(&e->cookie, __ATOMIC_SEQ_CST);
	__atomic_store_n(&e->asked, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->held, held, __ATOMIC_SEQ_CST);
}

/* each does something with the records that this process has. */
static void each(void (*what)(struct record *r))
{
	if (__atomic_load_n(&taken, __ATOMIC_SEQ_CST) == 0)
		return;
	for (int fd = 0; fd < ends_top(); fd++) {
		uint32_t held = end_held(fd);

		if (held)
			what(record_of(held));
	}
}

static void making(struct record *r)
{
	add(r, 0, -maker);
}

static void not_made(struct record *r)
{
	exchange(r, -maker, 0);
}

/*
 * made has this process be one of the holders. Where its number means nothing to others there is no
 * telling.
 */
static void made(struct record *r)
{
	if (guard_on() || SYS(getppid) == 0)
		__atomic_store_n(&r->crowd, 1, __ATOMIC_SEQ_CST);
	else
		add(r, maker ? -maker : INT32_MIN, (int32_t)births_process());
}

/* holders_forking is for a process that is about to fork, before its births have another generation. */
void holders_forking(void)
{
	if (ring_guard && !guard_on())
		ends_candidates(begin);
	maker = (int32_t)ring_thread();
	each(making);
}

/* holders_not_forked is for one that has not. */
void holders_not_forked(void)
{
	each(not_made);
}

/* holders_forked is for the new one. */
void holders_forked(void)
{
	each(made);
}

/* holders_forget gives the record of an end up. */
void holders_forget(struct end *e)
{
	uint32_t held = __atomic_exchange_n(&e->held, 0, __ATOMIC_SEQ_CST);

	if (held)
		__atomic_fetch_and(&taken, ~(1u << (held - 1)), __ATOMIC_SEQ_CST);
}

/* holders_share is holders_forget for an end that others are about to get, who say nothing here. */
void holders_share(struct end *e)
{
	uint32_t held = __atomic_load_n(&e->held, __ATOMIC_SEQ_CST);

	if (held)
		__atomic_store_n(&record_of(held)->crowd, 1, __ATOMIC_SEQ_CST);
	holders_forget(e);
}

/* holders_leave is holders_forget for a process that closes its only descriptor. */
void holders_leave(struct end *e)
{
	uint32_t held = __atomic_load_n(&e->held, __ATOMIC_SEQ_CST);

	if (held)
		exchange(record_of(held), (int32_t)births_process(), 0);
	holders_forget(e);
}

/*
 * holders_alone says whether all others have closed an end, or have ended. It asks the kernel about a
 * process once in ASK_NSEC. The record may be given up meanwhile, and be another end's.
 */
bool holders_alone(struct end *e)
{
	uint32_t held = __atomic_load_n(&e->held, __ATOMIC_SEQ_CST);
	const struct record *r;
	bool ask = false;

	if (!held || guard_on())
		return false;
	r = record_of(held);
	if (__atomic_load_n(&r->crowd, __ATOMIC_SEQ_CST) ||
		r->cookie != __atomic_load_n(&e->cookie, __ATOMIC_SEQ_CST))
		return false;
	for (size_t i = 0; i < HOLDERS; i++) {
		int32_t pid = __atomic_load_n(&r->holders[i], __ATOMIC_SEQ_CST);

		if (pid == 0 || pid == (int32_t)births_process())
			continue;
		if (!ask && ring_now() - __atomic_load_n(&e->asked, __ATOMIC_RELAXED) < ASK_NSEC)
			return false;
		ask = true;
		if (pid < 0 || SYS(kill, pid, 0) != -ESRCH) {
			__atomic_store_n(&e->asked, ring_now(), __ATOMIC_RELAXED);
			return false;
		}
	}
	return __atomic_load_n(&e->held, __ATOMIC_SEQ_CST) == held;
}
