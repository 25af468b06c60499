/*
 * shutdown(SHUT_RD). TCP tells the peer nothing: bytes that have come and bytes that come later can
 * be read, and a receive that would wait returns 0. A Unix socket refuses bytes that the peer sends
 * from then on. So the kernel is not told, where nobody else could notice: the end is this
 * process's alone, no other thread can be waiting, and no epoll instance has it. As soon as
 * somebody could, the kernel is told after all.
 */
#include "ring.h"

#include <fcntl.h>
#include <sys/stat.h>

#define QUIET 16 /* ends of one process; more are the kernel's */

static int32_t quiet[QUIET]; /* one more than the descriptor; 0: none */
static uint32_t count;

/* end_watched takes note that an epoll instance has a descriptor. */
void end_watched(int fd)
{
	struct end *e = end_at(fd);

	if (!e)
		return;
	__atomic_store_n(&e->watched, 1, __ATOMIC_SEQ_CST);
	quiet_over(fd, true);
}

/* one_thread says whether this process has no other thread. */
static bool one_thread(void)
{
	struct stat st;

	return SYS(newfstatat, AT_FDCWD, "/proc/self/task", &st, 0) == 0 && st.st_nlink == 3;
}

/* quiet_has says whether reading of an end was shut down without the kernel. */
bool quiet_has(const struct end *e)
{
	return __atomic_load_n(&e->never, __ATOMIC_RELAXED) & GONE_QUIET;
}

/* quiet_shut shuts reading down without the kernel. False: the kernel is to do it. */
bool quiet_shut(struct end *e, int fd)
{
	if (quiet_has(e))
		return true;
	if (__atomic_load_n(&e->watched, __ATOMIC_SEQ_CST) || !end_alone(e) ||
		(__atomic_load_n(&e->never, __ATOMIC_SEQ_CST) & GONE_SHUT) || !end_is(fd, e) || !one_thread())
		return false;
	for (int i = 0; i < QUIET; i++) {
		if (quiet[i])
			continue;
		quiet[i] = fd + 1;
		count++;
		__atomic_fetch_or(&e->never, GONE_QUIET, __ATOMIC_SEQ_CST);
		return true;
	}
	return false;
}

/* quiet_over forgets an end, or has the kernel shut it down. */
void quiet_over(int fd, bool told)
{
	struct end *e = count ? end_at(fd) : NULL;

	for (int i = 0; e && i < QUIET; i++) {
		int32_t have = fd + 1;

		if (!__atomic_compare_exchange_n(&quiet[i], &have, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			continue;
		__atomic_fetch_sub(&count, 1, __ATOMIC_SEQ_CST);
		__atomic_fetch_and(&e->never, ~GONE_QUIET, __ATOMIC_SEQ_CST);
		if (told && end_is(fd, e))
			SYS(shutdown, fd, SHUT_RD);
	}
}

/* quiet_over_all is for a process that will not be the only one with its descriptors. */
void quiet_over_all(void)
{
	for (int i = 0; count && i < QUIET; i++)
		if (quiet[i])
			quiet_over(quiet[i] - 1, true);
}

/* The events that poll reports of such an end. */
#define SAYS (POLLIN | POLLRDNORM | POLLRDHUP)

static struct end *quiet_at(int fd)
{
	struct end *e = count ? end_at(fd) : NULL;

	return e && quiet_has(e) && end_is(fd, e) ? e : NULL;
}

/* quiet_asked says whether poll need not wait. */
bool quiet_asked(const struct pollfd *p, nfds_t n)
{
	for (nfds_t i = 0; count && p && i < n; i++)
		if ((p[i].events & SAYS) && quiet_at(p[i].fd))
			return true;
	return false;
}

/* quiet_polled adds the events that the kernel does not know to its answer. */
int quiet_polled(struct pollfd *p, nfds_t n, int r)
{
	for (nfds_t i = 0; r >= 0 && p && i < n; i++) {
		short says = (p[i].events & SAYS) && quiet_at(p[i].fd) ? (short)(p[i].events & SAYS) : 0;

		r += says && !p[i].revents;
		p[i].revents |= says;
	}
	return r;
}

/* quiet_selects says which such ends are in a set: a bit for each of quiet. */
uint32_t quiet_selects(int n, const fd_set *in)
{
	uint32_t which = 0;

	for (int i = 0; count && in && i < QUIET; i++)
		if (quiet[i] && quiet[i] - 1 < n && FD_ISSET(quiet[i] - 1, in) && quiet_at(quiet[i] - 1))
			which |= 1u << i;
	return which;
}

/* quiet_selected is quiet_polled for select. */
int quiet_selected(uint32_t which, fd_set *in, int r)
{
	for (int i = 0; r >= 0 && i < QUIET; i++) {
		if (!(which & 1u << i) || !quiet[i] || FD_ISSET(quiet[i] - 1, in))
			continue;
		FD_SET(quiet[i] - 1, in);
		r++;
	}
	return r;
}
