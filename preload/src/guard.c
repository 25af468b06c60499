/*
 * Filters of system calls (seccomp) that a program gives itself: they permit those that it makes on TCP, and
 * may kill it for another. So before there is one every connection goes in-band, and is read and written by
 * the program's own calls from then on; new connections are TCP.
 *
 * A filter that a program installs by an inline system call is not seen, and nobody asks for one: the
 * question could kill the program.
 */
#include "ring.h"

#include <linux/seccomp.h>
#include <sys/prctl.h>

static uint32_t guarded;
static uint8_t
	were[ENDS / 8]; /* ends of pairs when the filter came: nobody asks the kernel for their names */
static uint8_t since[ENDS / 8]; /* by SCM_RIGHTS since */

bool guard_on(void)
{
	return __builtin_expect(__atomic_load_n(&guarded, __ATOMIC_RELAXED) != 0, 0);
}

/* guard_knows says whether a descriptor was the end of a pair when there was no filter yet. */
bool guard_knows(int fd)
{
	return fd >= 0 && fd < ENDS && (__atomic_load_n(&were[fd / 8], __ATOMIC_RELAXED) & 1u << fd % 8);
}

/* guard_end says whether a descriptor is the end of a pair. */
bool guard_end(int fd)
{
	struct identity id;

	return guard_on() ? guard_knows(fd) : identity_of(fd, &id);
}

/*
 * guard_came takes note of a descriptor that another program has sent. It may be the end of a pair, and
 * nobody asks.
 */
void guard_came(int fd)
{
	if (fd >= 0 && fd < ENDS)
		__atomic_fetch_or(&since[fd / 8], (uint8_t)(1u << fd % 8), __ATOMIC_RELAXED);
}

/*
 * guard_may says whether a descriptor is an end, or may be one where there is a filter. It is for answers of
 * the kernel that a program of TCP could not understand, and that others hardly miss.
 */
bool guard_may(int fd)
{
	return guard_end(fd) ||
		(guard_on() && fd >= 0 && fd < ENDS &&
			(__atomic_load_n(&since[fd / 8], __ATOMIC_RELAXED) & 1u << fd % 8));
}

/* guard_copy takes note of a copy of a descriptor, and guard_drop of one that is closed. */
void guard_copy(int fd, int to)
{
	if (!guard_on() || to < 0 || to >= ENDS)
		return;
	if (guard_knows(fd))
		__atomic_fetch_or(&were[to / 8], (uint8_t)(1u << to % 8), __ATOMIC_RELAXED);
	else if (guard_may(fd))
		guard_came(to);
}

void guard_drop(int fd)
{
	if (!guard_on() || fd < 0 || fd >= ENDS)
		return;
	__atomic_fetch_and(&were[fd / 8], (uint8_t)~(1u << fd % 8), __ATOMIC_RELAXED);
	__atomic_fetch_and(&since[fd / 8], (uint8_t)~(1u << fd % 8), __ATOMIC_RELAXED);
}

/* begins is for before there is a filter. It says whether rings were allowed. */
static bool begins(void)
{
	bool rings = settings.rings;
	struct identity id;
	int none = 0;

	if (!settings.on || guard_on())
		return rings;
	ends_leave_all();
	for (int fd = 0; fd < ends_top(); fd++) {
		if (!end_at(fd) || end_joined(fd) || !identity_of(fd, &id))
			continue; /* bytes in a ring that could not be brought back are read from there */
		end_drop(fd);
		/*
		 * The offer of a ring would end a receive of the program's own, which then waits for an edge though
		 * more is there.
		 */
		SYS(setsockopt, fd, SOL_SOCKET, SO_PASSRIGHTS, &none, sizeof(none));
		__atomic_fetch_or(&were[fd / 8], (uint8_t)(1u << fd % 8), __ATOMIC_RELAXED);
	}
	epoll_forget_all();
	__atomic_store_n(&guarded, 1, __ATOMIC_SEQ_CST);
	return rings;
}

/* ended is for when there is none, as the kernel has refused it. */
static long ended(long r, bool rings, bool before)
{
	if (r < 0 && !before) {
		__atomic_store_n(&guarded, 0, __ATOMIC_SEQ_CST);
		__atomic_store_n(&settings.rings, rings, __ATOMIC_SEQ_CST);
	}
	return r;
}

/* guard_seccomp is the system call seccomp. */
long guard_seccomp(const long a[6])
{
	bool before = guard_on(), rings = settings.rings;

	/* Some programs ask in this way for the kernel's abilities, without a filter. */
	if (a[0] == SECCOMP_SET_MODE_STRICT || (a[0] == SECCOMP_SET_MODE_FILTER && a[2]))
		rings = begins();
	return ended(SYS(seccomp, a[0], a[1], a[2]), rings, before);
}

/* guard_prctl is the system call prctl. */
long guard_prctl(const long a[6])
{
	bool before = guard_on(), rings = settings.rings;

	if (a[0] == PR_SET_SECCOMP && (a[1] == SECCOMP_MODE_STRICT || (a[1] == SECCOMP_MODE_FILTER && a[2])))
		rings = begins();
	return ended(SYS(prctl, a[0], a[1], a[2], a[3], a[4]), rings, before);
}

EXPORT int prctl(int option, ...)
{
	long a[6] = {option};
	va_list args;

	va_start(args, option);
	for (int i = 1; i < 5; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	return (int)sys_return(guard_prctl(a));
}
