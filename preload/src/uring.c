/*
 * io_uring: reads and writes of a queue are not seen here, so a process that has one keeps its connections
 * in-band. Most queues are made by a call that is: liburing's, or syscall(2). liburing makes its system calls
 * inline, and so does a program that has a copy of it in itself; such a queue shows in the memory of the
 * process, as liburing does, and before a ring is taken the library looks there.
 */
#include "ring.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <signal.h>

#define PAUSES                                                                                               \
	50 /* times as long as a look has taken, nobody looks again: a program may have thousands of         \
	      mappings */

static uint32_t found;	    /* by a look, and not all have left their rings yet */
static uint64_t look_again; /* when a look is due */

/* A file of /proc/self/maps is read in pieces. A name may be in two of them. */
static const char queue[] = "[io_uring]";
static const char library[] = "/liburing";
#define LONGEST sizeof(queue)

/* has is memmem, for words whose first letter is rare: which takes a tenth of the instructions then. */
static bool has(const char *text, size_t n, const char *word, size_t len)
{
	const char *end = text + n;

	for (; (text = memchr(text, word[0], (size_t)(end - text))) && (size_t)(end - text) >= len; text++)
		if (memcmp(text, word, len) == 0)
			return true;
	return false;
}

/*
 * mapped says whether this process has a queue mapped, or liburing. Where /proc is not to be seen nobody can
 * say. No handler of a signal runs meanwhile: one that leaves by longjmp would leave the descriptor open.
 */
static bool mapped(void)
{
	const uint64_t all = ~0ull;
	uint64_t mask = 0;
	char text[128]; /* threads may have small stacks */
	size_t have = 0;
	bool is = false;
	long n, fd;

	if (SYS(rt_sigprocmask, SIG_SETMASK, &all, &mask, sizeof(mask)) != 0)
		return true; /* a filter of system calls refuses it */
	fd = SYS(openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
	while (fd >= 0 && !is && (n = SYS(read, fd, text + have, sizeof(text) - have)) > 0) {
		have += (size_t)n;
		is = has(text, have, queue, sizeof(queue) - 1) || has(text, have, library, sizeof(library) - 1);
		if (have > LONGEST) {
			memmove(text, text + have - LONGEST, LONGEST);
			have = LONGEST;
		}
	}
	if (fd >= 0)
		SYS(close, fd);
	SYS(rt_sigprocmask, SIG_SETMASK, &mask, NULL, sizeof(mask));
	return is;
}

/*
 * uring_seen says whether connections are to stay in-band, before one takes a ring. A call that has
 * passed a gate may ask for it, and so it takes no ring away: uring_settle does, which is for
 * afterwards.
 */
bool uring_seen(void)
{
	uint64_t began, now;

	if (!settings.rings)
		return true;
	began = precise_now();
	if (began < __atomic_load_n(&look_again, __ATOMIC_RELAXED))
		return false;
	if (mapped()) {
		settings.rings = false;
		__atomic_store_n(&found, 1, __ATOMIC_SEQ_CST);
		return true;
	}
	now = precise_now();
	__atomic_store_n(&look_again, now + (now - began) * PAUSES, __ATOMIC_RELAXED);
	return false;
}

void uring_settle(void)
{
	if (__builtin_expect(__atomic_load_n(&found, __ATOMIC_RELAXED) != 0, 0) &&
		__atomic_exchange_n(&found, 0, __ATOMIC_SEQ_CST))
		ends_leave_all();
}

/*
 * uring_begins is for before a queue is made: 0, or an error if bytes are in a ring that cannot be brought
 * back in-band. The kernel says the same where it has no memory.
 */
long uring_begins(void)
{
	return ends_leave_all() ? 0 : -ENOMEM;
}

/*
 * A queue can be given descriptors, to use them by itself: what takes the place of one later it does not
 * have. A client that has given it a socket before it connects has TCP. A queue that is given one by an entry
 * of its own, or by an inline system call, is not seen.
 */
static void given(const int *fds, unsigned n)
{
	for (unsigned i = 0; plausible(fds) && i < n; i++)
		birth_never(fds[i]);
}

#define REGISTERED_RING (1u << 31) /* of Linux 6.3: the queue's number is of those that are registered, too */

/* uring_registers is for the system call io_uring_register. */
void uring_registers(unsigned op, const void *arg, unsigned n)
{
	struct io_uring_files_update update;
	struct io_uring_rsrc_register all;
	struct io_uring_rsrc_update2 some;

	if (!plausible(arg))
		return;
	switch (op & ~REGISTERED_RING) {
	case IORING_REGISTER_FILES:
		given(arg, n);
		break;
	case IORING_REGISTER_FILES_UPDATE:
		memcpy(&update, arg, sizeof(update));
		given((const int *)(uintptr_t)update.fds, n);
		break;
	case IORING_REGISTER_FILES2:
		memcpy(&all, arg, sizeof(all));
		given((const int *)(uintptr_t)all.data, all.nr);
		break;
	case IORING_REGISTER_FILES_UPDATE2:
		memcpy(&some, arg, sizeof(some));
		given((const int *)(uintptr_t)some.data, some.nr);
		break;
	}
}

/* These return an error as the kernel does. */

#define BEGINS(name, parameters, arguments)                                        \
	EXPORT int name parameters;                                                \
	int name parameters                                                        \
	{                                                                          \
		int(*made) parameters = NULL;                                      \
		void *after = next_find(#name);                                    \
		long r = uring_begins();                                           \
										   \
		__builtin_memcpy(&made, &after, sizeof(after));                    \
		if (r != 0)                                                        \
			return (int)r;                                             \
		return made ? made arguments : -ENOSYS;                            \
	}

BEGINS(io_uring_queue_init, (unsigned entries, void *ring, unsigned flags), (entries, ring, flags))
BEGINS(io_uring_queue_init_params, (unsigned entries, void *ring, void *params), (entries, ring, params))
BEGINS(io_uring_queue_init_mem, (unsigned entries, void *ring, void *params, void *room, size_t size),
	(entries, ring, params, room, size))
BEGINS(io_uring_queue_init_try_nosqarr, (unsigned entries, void *ring, void *params), (entries, ring, params))

EXPORT int io_uring_setup(unsigned entries, void *params);
int io_uring_setup(unsigned entries, void *params)
{
	long r = uring_begins();

	return (int)(r != 0 ? r : SYS(io_uring_setup, entries, params));
}

/* REGISTERS is liburing's function that gives a queue descriptors. */
#define REGISTERS(name, parameters, arguments)                                     \
	EXPORT int name parameters;                                                \
	int name parameters                                                        \
	{                                                                          \
		int(*made) parameters = NULL;                                      \
		void *after = next_find(#name);                                    \
										   \
		__builtin_memcpy(&made, &after, sizeof(after));                    \
		given(files, n);                                                   \
		return made ? made arguments : -ENOSYS;                            \
	}

REGISTERS(io_uring_register_files, (void *ring, const int *files, unsigned n), (ring, files, n))
REGISTERS(io_uring_register_files_tags, (void *ring, const int *files, const uint64_t *tags, unsigned n),
	(ring, files, tags, n))
REGISTERS(io_uring_register_files_update, (void *ring, unsigned at, const int *files, unsigned n),
	(ring, at, files, n))
REGISTERS(io_uring_register_files_update_tag,
	(void *ring, unsigned at, const int *files, const uint64_t *tags, unsigned n),
	(ring, at, files, tags, n))

EXPORT int io_uring_register(unsigned fd, unsigned op, const void *arg, unsigned n);
int io_uring_register(unsigned fd, unsigned op, const void *arg, unsigned n)
{
	uring_registers(op, arg, n);
	return (int)SYS(io_uring_register, fd, op, arg, n);
}
