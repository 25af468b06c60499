/*
 * Tallies: how many bytes of a connection this side has sent and received, for 'gosmc ss', 'top' and
 * 'metrics'. They are in memory that our supervisor has made, cannot be cut off, and is there when a program
 * has been killed. Each end has a slot, which all processes of the supervisor share that have the end. When
 * the last of them closes it, its bytes are added to a sum for all ends before.
 *
 * Bytes in rings are counted by plain stores under the lock of the ring's side, and bytes in-band, next to a
 * system call, by atomic additions. A descriptor may be given to a program that counts nothing, as it is
 * static, or has lost LD_PRELOAD. So each descriptor that is given away is counted as lent, until a program
 * with the library finds it. The bytes of an end with descriptors that are lent are not known.
 *
 * Every program of the supervisor can write there: a slot decides nothing. docs/shared-memory.md has the
 * layout.
 */
#include "ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define TALLY_MAGIC 0x31796c74736f67ull
#define TALLIES 32768
#define TALLIES_FEW                                                                                          \
	1024 /* those that are tried first, in as few pages: to touch a page for the first time costs more   \
		than all that is done here */
#define TALLY_WAYS 16	   /* places that an end may have among these, and as many among all */
#define TALLY_BUSY (~0ull) /* somebody is about to use the slot, or to clear it */
#define TALLY_CROWD 0x80000000u
#define TALLY_MARK 64 /* bytes of a mark, at most */

struct tallies {
	uint64_t magic;
	uint8_t pad0[56];
	uint64_t gone[2];    /* bytes of ends that are gone, received and sent */
	uint64_t missed;     /* ends for which no slot was free */
	uint8_t pad1[TABLE_PAGE - 88];
	struct tally list[TALLIES];
};
_Static_assert(sizeof(struct tally) == 64, "struct tally");
_Static_assert(offsetof(struct tallies, gone) == 64 && sizeof(struct tallies) == TABLE_PAGE + 64 * TALLIES,
	"struct tallies");

static struct tallies *table;
static bool tried; /* to map it */
static uint32_t namespace; /* of process IDs; 0: the numbers of others say nothing */

/*
 * map maps the tallies. The supervisor's mark, the file <its socket>.run, has the path of their descriptor in
 * /proc. In another namespace of process IDs that may be something else, so it is opened only by its name,
 * and has to be memory that cannot be cut off.
 */
static struct tallies *map(void)
{
	static const char suffix[] = ".run", name[] = "/memfd:gosmc-tally (deleted)";
	char path[sizeof(settings.socket) + sizeof(suffix)], mark[TALLY_MARK], link[sizeof(name)];
	struct tallies *t = NULL;
	size_t len = strlen(settings.socket);
	struct stat st;
	long fd, n, p, seals;

	memcpy(path, settings.socket, len);
	memcpy(path + len, suffix, sizeof(suffix));
	fd = SYS(openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return NULL;
	n = SYS(read, fd, mark, sizeof(mark) - 1);
	SYS(close, fd);
	if (n <= 0 || memcmp(mark, "/proc/", 6) != 0)
		return NULL;
	mark[n] = 0;
	if (SYS(readlinkat, AT_FDCWD, mark, link, sizeof(link)) != sizeof(name) - 1 ||
		memcmp(link, name, sizeof(name) - 1) != 0)
		return NULL;
	fd = SYS(openat, AT_FDCWD, mark, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return NULL;
	seals = SYS(fcntl, fd, F_GET_SEALS);
	if (SYS(fstat, fd, &st) == 0 && st.st_uid == settings.uid && st.st_size == (off_t)sizeof(*t) &&
		seals >= 0 && (seals & F_SEAL_SHRINK)) {
		p = SYS(mmap, NULL, sizeof(*t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if ((unsigned long)p <= -4096UL)
			t = (struct tallies *)p;
	}
	SYS(close, fd);
	if (t && t->magic != TALLY_MAGIC) {
		SYS(munmap, t, sizeof(*t));
		return NULL;
	}
	if (t && SYS(newfstatat, AT_FDCWD, "/proc/self/ns/pid", &st, 0) == 0)
		namespace = (uint32_t)st.st_ino;
	return t;
}

/*
 * tally_open maps the tallies, once: for a listener, whose heirs may have another user, or for the first end.
 * A program that has another user by then, or may not see the supervisor in /proc, has none.
 */
static struct tallies *tally_open(void)
{
	struct tallies *t = __atomic_load_n(&table, __ATOMIC_ACQUIRE);

	if (t || __atomic_load_n(&tried, __ATOMIC_RELAXED) ||
		__atomic_exchange_n(&tried, true, __ATOMIC_RELAXED) || guard_on())
		return t;
	t = map();
	__atomic_store_n(&table, t, __ATOMIC_RELEASE);
	return t;
}

void tally_listens(void)
{
	(void)tally_open();
}

/* add_holder notes that this process has the end of a slot. */
static void add_holder(struct tally *a)
{
	int32_t me = (int32_t)births_process();

	for (size_t i = 0; i < TALLY_HOLDERS; i++)
		if (__atomic_load_n(&a->holders[i], __ATOMIC_SEQ_CST) == me)
			return;
	for (size_t i = 0; i < TALLY_HOLDERS; i++) {
		int32_t none = 0;

		if (__atomic_load_n(&a->namespace, __ATOMIC_RELAXED) == namespace &&
		    __atomic_compare_exchange_n(&a->holders[i], &none, me, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return;
	}
	__atomic_fetch_or(&a->forks, TALLY_CROWD, __ATOMIC_SEQ_CST);
}

/* held says whether somebody has the end of a slot; with dead, processes that have ended count for nobody. */
static bool held(const struct tally *a, bool dead)
{
	if (__atomic_load_n(&a->forks, __ATOMIC_SEQ_CST))
		return true;
	for (size_t i = 0; i < TALLY_HOLDERS; i++) {
		int32_t pid = __atomic_load_n(&a->holders[i], __ATOMIC_SEQ_CST);

		if (pid && !(dead && pid > 0 && SYS(kill, pid, 0) == -ESRCH))
			return true;
	}
	return false;
}

/*
 * settle adds the bytes of a slot, which is busy, to the sum for ends that are gone. They are in one of the
 * two places at most: a reader of both meanwhile finds too few.
 */
static void settle(struct tallies *t, struct tally *a)
{
	uint64_t n[2];

	for (size_t i = 0; i < 2; i++) {
		n[i] = __atomic_load_n(&a->in_band[i], __ATOMIC_RELAXED) +
			__atomic_load_n(&a->ring[i], __ATOMIC_RELAXED);
		__atomic_store_n(&a->in_band[i], 0, __ATOMIC_RELAXED);
		__atomic_store_n(&a->ring[i], 0, __ATOMIC_RELAXED);
	}
	for (size_t i = 0; i < TALLY_HOLDERS; i++)
		__atomic_store_n(&a->holders[i], 0, __ATOMIC_RELAXED);
	__atomic_store_n(&a->lent, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&a->forks, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&a->namespace, 0, __ATOMIC_RELAXED);
	for (size_t i = 0; i < 2; i++)
		if (n[i])
			__atomic_fetch_add(&t->gone[i], n[i], __ATOMIC_RELEASE);
}

/* begin gives a slot, which is busy, to an end of this process. */
static struct tally *begin(struct tally *a, uint64_t cookie)
{
	__atomic_store_n(&a->namespace, namespace, __ATOMIC_RELAXED);
	__atomic_store_n(&a->holders[0], (int32_t)births_process(), __ATOMIC_RELAXED);
	__atomic_store_n(&a->key, cookie, __ATOMIC_RELEASE);
	return a;
}

/* place is the nth place that an end may have. */
static struct tally *place(struct tallies *t, uint64_t cookie, size_t n)
{
	return &t->list[(cookie + n % TALLY_WAYS) % (n < TALLY_WAYS ? TALLIES_FEW : TALLIES)];
}

/*
 * claim takes a slot for an end, by its cookie: one that is free, or whose processes have ended. NULL:
 * there is none.
 */
static struct tally *claim(struct tallies *t, uint64_t cookie)
{
	for (size_t i = 0; i < 2 * TALLY_WAYS; i++) {
		struct tally *a = place(t, cookie, i);
		uint64_t none = 0;

		if (__atomic_compare_exchange_n(
			    &a->key, &none, TALLY_BUSY, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return begin(a, cookie);
	}
	for (size_t i = 0; i < 2 * TALLY_WAYS; i++) {
		struct tally *a = place(t, cookie, i);
		uint64_t has = __atomic_load_n(&a->key, __ATOMIC_SEQ_CST);

		if (has == TALLY_BUSY || namespace == 0 ||
			__atomic_load_n(&a->namespace, __ATOMIC_RELAXED) != namespace || held(a, true) ||
			!__atomic_compare_exchange_n(
				&a->key, &has, TALLY_BUSY, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			continue;
		settle(t, a);
		return begin(a, cookie);
	}
	__atomic_fetch_add(&t->missed, 1, __ATOMIC_RELAXED);
	return NULL;
}

/*
 * find is the slot that an end has already, with this process among those that have it; NULL if it has
 * none.
 */
static struct tally *find(struct tallies *t, uint64_t cookie)
{
	for (size_t i = 0; i < 2 * TALLY_WAYS; i++) {
		struct tally *a = place(t, cookie, i);

		if (__atomic_load_n(&a->key, __ATOMIC_SEQ_CST) != cookie)
			continue;
		add_holder(a);
		if (__atomic_load_n(&a->key, __ATOMIC_SEQ_CST) == cookie)
			return a;
	}
	return NULL;
}

/*
 * tally_born counts the bytes of an end that was born just now, or, from, that another program has given
 * away.
 */
void tally_born(struct end *e, bool from)
{
	struct tallies *t = tally_open();
	struct tally *a;

	if (!t)
		return;
	a = from ? find(t, e->cookie) : NULL;
	if (!a)
		a = claim(t, e->cookie);
	if (a && from)
		__atomic_fetch_sub(&a->lent, 1, __ATOMIC_SEQ_CST);
	e->copied = from; /* this process may have others */
	__atomic_store_n(&e->tally, a, __ATOMIC_RELEASE);
}

/* tally_copied has a copy of a descriptor be counted with it. */
void tally_copied(struct end *from, struct end *to)
{
	from->copied = to->copied = true;
	__atomic_store_n(&to->tally, __atomic_load_n(&from->tally, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
}

/* leave gives a slot up, and clears it if nobody has its end any more. */
static void leave(struct tally *a)
{
	struct tallies *t = __atomic_load_n(&table, __ATOMIC_ACQUIRE);
	uint64_t key = __atomic_load_n(&a->key, __ATOMIC_SEQ_CST);

	for (size_t i = 0; i < TALLY_HOLDERS; i++) {
		int32_t me = (int32_t)births_process();

		if (__atomic_load_n(&a->holders[i], __ATOMIC_RELAXED) == me)
			__atomic_compare_exchange_n(&a->holders[i], &me, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	}
	if (key == TALLY_BUSY || __atomic_load_n(&a->lent, __ATOMIC_SEQ_CST) > 0 || held(a, false) ||
	    !__atomic_compare_exchange_n(&a->key, &key, TALLY_BUSY, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return;
	settle(t, a);
	__atomic_store_n(&a->key, 0, __ATOMIC_RELEASE);
}

/* tally_over ends the count of a descriptor that is closed. */
void tally_over(struct end *e)
{
	struct tally *a = __atomic_exchange_n(&e->tally, NULL, __ATOMIC_SEQ_CST);

	if (a && !(e->copied && ends_tally(a)))
		leave(a);
}

/*
 * tally_moved has an end that has taken the place of another one go on with the bytes of that. was is its
 * cookie.
 */
void tally_moved(struct end *e, uint64_t was)
{
	struct tallies *t = __atomic_load_n(&table, __ATOMIC_ACQUIRE);
	struct tally *old = __atomic_load_n(&e->tally, __ATOMIC_ACQUIRE), *a;

	if (!t || !old)
		return;
	a = find(t, e->cookie);
	if (!a)
		a = claim(t, e->cookie);
	__atomic_store_n(&e->tally, a, __ATOMIC_RELEASE);
	if (__atomic_load_n(&old->key, __ATOMIC_SEQ_CST) != was)
		return; /* a copy of the descriptor was moved before */
	for (size_t i = 0; a && i < 2; i++)
		__atomic_fetch_add(&a->in_band[i],
			__atomic_exchange_n(&old->in_band[i], 0, __ATOMIC_SEQ_CST) +
				__atomic_exchange_n(&old->ring[i], 0, __ATOMIC_SEQ_CST),
			__ATOMIC_SEQ_CST);
	if (a)
		__atomic_fetch_add(&a->lent, __atomic_exchange_n(&old->lent, 0, __ATOMIC_SEQ_CST), __ATOMIC_SEQ_CST);
	leave(old);
}

/* tally_lent notes that a descriptor is given to others, and with -1 that it was not. */
void tally_lent(int fd, int n)
{
	struct end *e = end_at(fd);
	struct tally *a = e ? __atomic_load_n(&e->tally, __ATOMIC_ACQUIRE) : NULL;

	if (!a)
		return;
	e->copied = true; /* it may come back */
	__atomic_fetch_add(&a->lent, n, __ATOMIC_SEQ_CST);
}

static void forking(struct tally *a)
{
	__atomic_fetch_add(&a->forks, 1, __ATOMIC_SEQ_CST);
}

static void not_forked(struct tally *a)
{
	uint32_t has = __atomic_load_n(&a->forks, __ATOMIC_SEQ_CST);

	while ((has & ~TALLY_CROWD) &&
		!__atomic_compare_exchange_n(
			&a->forks, &has, has - 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
}

static void forked(struct tally *a)
{
	add_holder(a);
	not_forked(a);
}

/* tally_forking, tally_not_forked and tally_forked are for a fork, as in ring.c. */
void tally_forking(void)
{
	if (__atomic_load_n(&table, __ATOMIC_ACQUIRE))
		ends_tallies(forking);
}

void tally_not_forked(void)
{
	if (__atomic_load_n(&table, __ATOMIC_ACQUIRE))
		ends_tallies(not_forked);
}

void tally_forked(void)
{
	if (!__atomic_load_n(&table, __ATOMIC_ACQUIRE))
		return;
	if (guard_on() || SYS(getppid) == 0)
		namespace = 0; /* another one than our parent's, or we may not ask */
	ends_tallies(forked);
}
