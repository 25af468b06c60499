/* The memory of a ring: its maker, its holders, and the lock of one side. */
#include "ring.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static struct ring rings[RINGS];
/* a bit for each that is taken: the lowest one that is free is found in 64 words, however many there are */
static uint64_t slots[RINGS / 64];
static uint32_t taken;
uint64_t ring_memory; /* bytes of data of all rings of this process */
static __thread uint32_t thread __attribute__((tls_model("initial-exec")));

/*
 * A page that cannot be read. To send from it takes effect nowhere, and waits like any other send: for
 * room, with the socket's time limit, until a signal, and as a cancellation point.
 */
static uint8_t guard[2 * RING_PAGE] __attribute__((aligned(RING_PAGE)));
const uint8_t *ring_guard;

__attribute__((constructor)) static void guard_page(void)
{
	/* Where pages are larger than this it stays readable, and nobody joins a ring. */
	if (SYS(mprotect, guard, RING_PAGE, PROT_NONE) == 0)
		ring_guard = guard;
}

uint64_t ring_now(void)
{
	struct timespec t = {0};

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* each does something with the sides of all rings of this process. */
static void each(void (*what)(struct ring_side *side))
{
	for (unsigned i = ring_next(0); i < RINGS; i = ring_next(i + 1))
		if (__atomic_load_n(&rings[i].used, __ATOMIC_SEQ_CST) == 1 &&
			__atomic_load_n(&rings[i].refs, __ATOMIC_SEQ_CST))
			what(rings[i].side);
}

static void forking(struct ring_side *side)
{
	__atomic_fetch_add(&side->forks, 1, __ATOMIC_SEQ_CST);
}

static void not_forked(struct ring_side *side)
{
	__atomic_fetch_sub(&side->forks, 1, __ATOMIC_SEQ_CST);
}

static bool exchange(struct ring_side *side, int32_t from, int32_t to)
{
	for (size_t i = 0; i < HOLDERS; i++) {
		int32_t have = from;

		if (__atomic_compare_exchange_n(
			    &side->holders[i], &have, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return true;
	}
	return false;
}

/*
 * forked has this process be one of those that have an end. Where its number means nothing to the one that
 * has forked it there is no telling, nor where a filter of system calls may kill for the question.
 */
static void forked(struct ring_side *side)
{
	if (guard_on() || SYS(getppid) == 0 || !exchange(side, 0, (int32_t)births_process()))
		__atomic_store_n(&side->crowd, 1, __ATOMIC_SEQ_CST);
	not_forked(side);
}

/*
 * ring_forking is for a process that is about to fork, ring_not_forked for one that has not, and
 * ring_forked for the new one.
 */
void ring_forking(void)
{
	each(forking);
	tally_forking();
}

void ring_not_forked(void)
{
	each(not_forked);
	tally_not_forked();
}

void ring_forked(void)
{
	thread = 0;
	each(forked);
	tally_forked();
}

/* ring_alone says whether no other process has the end. */
bool ring_alone(const struct ring *r)
{
	const struct ring_side *side = r->side;

	if (__atomic_load_n(&side->forks, __ATOMIC_SEQ_CST) || __atomic_load_n(&side->crowd, __ATOMIC_SEQ_CST))
		return false;
	for (size_t i = 0; i < HOLDERS; i++) {
		int32_t pid = __atomic_load_n(&side->holders[i], __ATOMIC_SEQ_CST);

		if (pid && pid != (int32_t)births_process() && SYS(kill, pid, 0) != -ESRCH)
			return false;
	}
	return true;
}

/* ring_thread is the thread ID of the caller. */
uint32_t ring_thread(void)
{
	if (!thread)
		thread = (uint32_t)SYS(gettid);
	return thread;
}

static bool mapped(long p)
{
	return (unsigned long)p <= -4096UL;
}

static void give(uint32_t size)
{
	__atomic_fetch_sub(&ring_memory, size, __ATOMIC_SEQ_CST);
}

/* afford takes room for a ring off the memory that the policy leaves this process. */
static bool afford(uint32_t size)
{
	if (__atomic_add_fetch(&ring_memory, size, __ATOMIC_SEQ_CST) <= settings.memory || settings.memory == 0)
		return true;
	give(size);
	return false;
}

/*
 * slot_take takes a slot. It is not used before it is whole: a call that is late in the ring that had it
 * before finds nothing to release.
 */
static struct ring *slot_take(void)
{
	for (unsigned w = 0; w < RINGS / 64; w++) {
		uint64_t have = __atomic_load_n(&slots[w], __ATOMIC_RELAXED);

		while (~have) {
			unsigned bit = (unsigned)__builtin_ctzll(~have);

			if (__atomic_compare_exchange_n(&slots[w], &have, have | 1ull << bit, false,
				    __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
				__atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
				return &rings[w * 64 + bit];
			}
		}
	}
	return NULL;
}

static void slot_give(const struct ring *r)
{
	unsigned i = (unsigned)(r - rings);

	__atomic_fetch_sub(&taken, 1, __ATOMIC_RELAXED);
	__atomic_fetch_and(&slots[i / 64], ~(1ull << i % 64), __ATOMIC_SEQ_CST);
}

/* ring_next is the first slot from one on that is taken, RINGS if none is. */
unsigned ring_next(unsigned slot)
{
	for (; slot < RINGS; slot = (slot | 63) + 1) {
		uint64_t have = __atomic_load_n(&slots[slot / 64], __ATOMIC_SEQ_CST) >> slot % 64;

		if (have)
			return slot + (unsigned)__builtin_ctzll(have);
	}
	return RINGS;
}

/* ring_many says whether this process has so many rings that none is to stay which nothing goes through. */
bool ring_many(void)
{
	return __atomic_load_n(&taken, __ATOMIC_RELAXED) > RINGS_FEW;
}

/* ring_room says whether there is a slot for another one. */
bool ring_room(void)
{
	return __atomic_load_n(&taken, __ATOMIC_RELAXED) < RINGS;
}

/* ring_map makes a slot for RING_PAGE + size bytes of a memory file, from a place on. */
static struct ring *ring_map(int memfd, uint32_t size, off_t at)
{
	struct ring *r;
	long memory, side;

	if (!afford(size))
		return NULL;
	r = slot_take();
	if (!r) {
		give(size);
		return NULL;
	}
	memory = SYS(mmap, NULL, RING_PAGE + (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, at);
	side = SYS(mmap, NULL, RING_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!mapped(memory) || !mapped(side)) {
		if (mapped(memory))
			SYS(munmap, memory, RING_PAGE + (size_t)size);
		if (mapped(side))
			SYS(munmap, side, RING_PAGE);
		give(size);
		slot_give(r);
		return NULL;
	}
	r->size = size;
	r->busy = r->member = 0;
	r->epfd = 0;
	r->gift = false;
	__atomic_store_n(&r->where, NULL, __ATOMIC_RELAXED);
	r->h = (struct ring_header *)memory;
	r->data = (uint8_t *)memory + RING_PAGE;
	r->side = (struct ring_side *)side;
	r->side->state = RING_WAITING;
	r->side->pays = 4;
	r->side->holders[0] = (int32_t)births_process();
	__atomic_store_n(&r->refs, 1, __ATOMIC_SEQ_CST);
	__atomic_store_n(&r->used, 1, __ATOMIC_SEQ_CST);
	return r;
}

/*
 * few is a size for the debug switch. A program that asks whether there is room, and waits
 * otherwise, writes more at a time than fits the smallest ring.
 */
static uint32_t few(int end, bool asked)
{
	return asked && would_wait(end, 0) ? 16 * RING_BYTES_LEAST : RING_BYTES_LEAST;
}

/*
 * reserve takes all pages of a memory file where the kernel overcommits nothing (vm.overcommit_memory=2).
 * There the kernel can refuse a page that was not reserved, and the program that touches it, on either
 * side, gets SIGBUS. Elsewhere pages are taken when they are first written. Where the setting cannot be
 * read nothing is reserved.
 */
static bool reserve(long memfd, long bytes)
{
	long fd = SYS(openat, AT_FDCWD, "/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
	char mode = 0;

	if (fd < 0)
		return true;
	SYS(read, fd, &mode, 1);
	SYS(close, fd);
	return mode != '2' || SYS(fallocate, memfd, 0, 0L, bytes) == 0;
}

/* ring_make makes a ring for a direction that this process writes. The file is the caller's to close. */
struct ring *ring_make(int end, uint32_t size, bool asked, int *memfd)
{
	char name[64];
	struct ring *r = NULL;
	struct rlimit64 most = {0};
	long fd;

	if (shake(2))
		size = few(end, asked);
	/* To make a file larger than the program may is a signal to it. */
	if (!ring_guard || SYS(prlimit64, 0, RLIMIT_FSIZE, NULL, &most) != 0 || most.rlim_cur < RING_PAGE + size)
		return NULL;
	identity_ring(end, name);
	fd = SYS(memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return NULL;
	if (SYS(ftruncate, fd, RING_PAGE + (long)size) == 0 && SYS(fcntl, fd, F_ADD_SEALS, SEALS) == 0 &&
	    reserve(fd, RING_PAGE + (long)size))
		r = ring_map((int)fd, size, 0);
	if (!r) {
		SYS(close, fd);
		return NULL;
	}
	r->h->size = size;
	r->h->pub = PUB_ARMED;
	__atomic_store_n(&r->h->magic, RING_MAGIC, __ATOMIC_SEQ_CST);
	*memfd = (int)fd;
	return r;
}

/* ring_take maps the file that a writer has sent, if it is a ring and cannot change its size. */
struct ring *ring_take(int memfd)
{
	struct stat st;
	struct ring *r;
	uint32_t size;
	long seals = SYS(fcntl, memfd, F_GET_SEALS);

	if (!ring_guard || seals < 0 || (seals & SEALS) != SEALS || SYS(fstat, memfd, &st) != 0 ||
		st.st_size <= RING_PAGE || st.st_size > RING_PAGE + (off_t)RING_BYTES_MOST)
		return NULL;
	size = (uint32_t)(st.st_size - RING_PAGE);
	if (size < RING_BYTES_LEAST || (size & (size - 1)) != 0)
		return NULL;
	r = ring_map(memfd, size, 0);
	if (r && (r->h->magic != RING_MAGIC || r->h->size != size)) {
		ring_unref(r);
		r = NULL;
	}
	return r;
}

/*
 * ring_pair maps the rings of both directions of a connection, of which nobody has written anything yet: the
 * memory that 'gosmc agent' has made. The client's ring comes first. False: it is something else, or there is
 * no room. The file is the caller's to close.
 */
bool ring_pair(int memfd, struct ring *pair[2])
{
	const off_t half = RING_PAGE + (off_t)RING_BYTES_GIFT;
	struct stat st;
	long seals = SYS(fcntl, memfd, F_GET_SEALS);

	if (!ring_guard || seals < 0 || (seals & SEALS) != SEALS || SYS(fstat, memfd, &st) != 0 ||
		st.st_size != 2 * half)
		return false;
	for (size_t i = 0; i < 2; i++) {
		pair[i] = ring_map(memfd, RING_BYTES_GIFT, (off_t)i * half);
		if (!pair[i]) {
			if (i)
				ring_unref(pair[0]);
			return false;
		}
		pair[i]->gift = true;
	}
	return true;
}

/* release unmaps a ring that no descriptor and no call has any more. */
static void release(struct ring *r)
{
	uint32_t one = 1;

	if (__atomic_load_n(&r->refs, __ATOMIC_SEQ_CST) != 0 ||
		__atomic_load_n(&r->users, __ATOMIC_SEQ_CST) != 0 ||
		!__atomic_compare_exchange_n(&r->used, &one, 2, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return;
	exchange(r->side, (int32_t)births_process(), 0);
	SYS(munmap, r->h, RING_PAGE + (size_t)r->size);
	SYS(munmap, r->side, RING_PAGE);
	give(r->size);
	__atomic_store_n(&r->used, 0, __ATOMIC_SEQ_CST);
	slot_give(r);
}

void ring_ref(struct ring *r)
{
	__atomic_fetch_add(&r->refs, 1, __ATOMIC_SEQ_CST);
}

void ring_unref(struct ring *r)
{
	__atomic_fetch_sub(&r->refs, 1, __ATOMIC_SEQ_CST);
	release(r);
}

/* ring_left is for a call that is in a ring no more. */
void ring_left(struct ring *r)
{
	if (__atomic_sub_fetch(&r->users, 1, __ATOMIC_SEQ_CST) == 0 &&
		__atomic_load_n(&r->refs, __ATOMIC_SEQ_CST) == 0)
		release(r);
}

/*
 * ring_enter takes the ring that a descriptor points to, so that it stays until ring_exit. A slot
 * is always there to be counted in; if it is another one's by then that shows, as the descriptor
 * points elsewhere. A call that is in a ring, or has passed a gate, enters no other: calls.c would
 * take the first call for one that was left.
 */
bool ring_enter_from(struct ring *const *where, struct ring **out, uintptr_t frame)
{
	if (__builtin_expect(calls_depth != 0, 0))
		calls_bury(frame);
	for (;;) {
		struct ring *r = __atomic_load_n(where, __ATOMIC_SEQ_CST);
		bool sends;
		int fd;

		if (!r)
			return false;
		__atomic_fetch_add(&r->users, 1, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(where, __ATOMIC_SEQ_CST) == r) {
			fd = end_of(where, &sends);
			call_in_ring(r, fd, sends, frame);
			*out = r;
			return true;
		}
		ring_left(r);
	}
}

void ring_exit_from(struct ring *r, uintptr_t frame)
{
	call_over(r, NULL, frame);
	ring_left(r);
}

/*
 * In the lock beside the thread ID, as in a robust futex of the C library: somebody sleeps until it is
 * free.
 */
#define LOCK_AWAITED 0x80000000u

/*
 * ring_lock takes the lock of one side, from a dead owner if it must. False: this thread has it, and was
 * interrupted by a signal whose handler we are in.
 */
bool ring_lock(struct ring *r)
{
	uint32_t *lock = &r->side->lock;
	uint32_t me = ring_thread(), awaited = 0;

	for (unsigned turn = 0;; turn++) {
		uint32_t owner = 0;
		struct timespec wait = {.tv_nsec = 10000000}; /* then it is looked whether the owner lives */

		/* A thread that has slept does not know whether others do. */
		if (__atomic_compare_exchange_n(
			    lock, &owner, me | awaited, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return true;
		if ((owner & ~LOCK_AWAITED) == me)
			return false;
		if (turn < 64)
			continue;
		awaited = LOCK_AWAITED;
		if (turn % 8 == 0 && SYS(tkill, owner & ~LOCK_AWAITED, 0) == -ESRCH) {
			/* It has let the lock go, and ended since: a lock without an owner is not to be waited for. */
			if (!__atomic_compare_exchange_n(
				    lock, &owner, me | awaited, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
				continue;
			/* It may have been in the middle: neither bytes nor tokens are sure to be counted. */
			if (r->side->state != RING_ENDED)
				r->side->state = RING_BROKEN;
			return true;
		}
		if ((owner & LOCK_AWAITED) ||
			__atomic_compare_exchange_n(lock, &owner, owner | LOCK_AWAITED, false,
				__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			SYS(futex, lock, FUTEX_WAIT, owner | LOCK_AWAITED, &wait, NULL, 0);
	}
}

/* ring_locked reports whether this thread has the lock of the side. */
bool ring_locked(const struct ring *r)
{
	return (__atomic_load_n(&r->side->lock, __ATOMIC_SEQ_CST) & ~LOCK_AWAITED) == ring_thread();
}

/* ring_try is ring_lock for a caller that need not have it. */
bool ring_try(struct ring *r)
{
	uint32_t none = 0;

	return __atomic_compare_exchange_n(
		&r->side->lock, &none, ring_thread(), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* ring_where is where a descriptor points to the ring of a slot, or has, NULL if none does. */
struct ring **ring_where(unsigned slot)
{
	return __atomic_load_n(&rings[slot].used, __ATOMIC_RELAXED) == 1
		? __atomic_load_n(&rings[slot].where, __ATOMIC_RELAXED)
		: NULL;
}

void ring_unlock(struct ring *r)
{
	uint32_t *lock = &r->side->lock;

	if (__atomic_exchange_n(lock, 0, __ATOMIC_SEQ_CST) & LOCK_AWAITED)
		SYS(futex, lock, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* ring_broken resets a connection whose other side has written against the rules. The lock is held. */
void ring_broken(struct ring *r, int fd)
{
	r->side->state = RING_BROKEN;
	SYS(shutdown, fd, SHUT_RDWR);
}
