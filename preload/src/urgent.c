/*
 * Urgent data. It comes in-band, and the kernel keeps it in a Unix socket almost as in a TCP
 * socket. FIONREAD is another thing there: it counts the bytes behind the urgent byte, and that
 * byte itself, on some kernels also when it was read. And a socket in which there is nothing else
 * is readable there.
 */
#include "ring.h"

#include <sys/ioctl.h>
#include <linux/sockios.h>

#define SCRATCH 1024
#define PARTS 64 /* of a peek: as many bytes before the mark are counted as these hold */

/* urgent_seen takes note that urgent data may have come. */
void urgent_seen(struct end *e)
{
	if (!(__atomic_load_n(&e->never, __ATOMIC_RELAXED) & URGENT))
		__atomic_fetch_or(&e->never, URGENT, __ATOMIC_SEQ_CST);
}

/* urgent_at_mark says whether the next byte is urgent, or would be, had it not been read already. */
bool urgent_at_mark(int fd)
{
	int at = 0;

	return SYS(ioctl, fd, SIOCATMARK, &at) == 0 && at;
}

/* in_line says whether the urgent byte is read with all others. */
static bool in_line(int fd)
{
	int on = 0;
	socklen_t len = sizeof(on);

	return SYS(getsockopt, fd, SOL_SOCKET, SO_OOBINLINE, &on, &len) == 0 && on;
}

/* before_mark counts by a peek, which ends at the mark. */
static size_t before_mark(int fd, size_t all)
{
	struct iovec parts[PARTS];
	char scratch[SCRATCH];
	struct msghdr m = {.msg_iov = parts, .msg_iovlen = PARTS};
	long n;

	if (in_line(fd))
		return all;
	if (urgent_at_mark(fd))
		return 0;
	for (size_t i = 0; i < PARTS; i++)
		parts[i] = (struct iovec){scratch, sizeof(scratch)};
	n = SYS(recvmsg, fd, &m, MSG_PEEK | MSG_DONTWAIT);
	return n > 0 ? (size_t)n : 0;
}

/* urgent_before_mark is how many of all bytes in a socket come before urgent data. */
size_t urgent_before_mark(struct end *e, int fd, size_t all)
{
	struct pollfd p = {.fd = fd, .events = POLLIN | POLLPRI};
	struct timespec none = {0};

	if (all == 0)
		return 0;
	/* Where bytes are said to be there, and nothing can be read, an urgent byte was. */
	if (!(__atomic_load_n(&e->never, __ATOMIC_RELAXED) & URGENT) && SYS(ppoll, &p, 1, &none, NULL, 0) >= 0 &&
	    (p.revents & (POLLIN | POLLPRI)) != POLLIN)
		urgent_seen(e);
	return __atomic_load_n(&e->never, __ATOMIC_RELAXED) & URGENT ? before_mark(fd, all) : all;
}

/* alone says whether a socket has urgent data and nothing else. */
static bool alone(int fd)
{
	char c;

	return end_at(fd) && urgent_at_mark(fd) && !in_line(fd) &&
		SYS(recvfrom, fd, &c, 1, MSG_PEEK | MSG_DONTWAIT, NULL, NULL) == -EAGAIN;
}

/* urgent_polled has a socket not be readable where nothing but urgent data can be read. */
void urgent_polled(struct pollfd *p, nfds_t n)
{
	for (nfds_t i = 0; i < n; i++)
		if ((p[i].revents & POLLPRI) && (p[i].revents & (POLLIN | POLLRDNORM)) && alone(p[i].fd))
			p[i].revents &= ~(POLLIN | POLLRDNORM);
}

/* urgent_selected is urgent_polled for select. */
int urgent_selected(int n, fd_set *in, const fd_set *except, int r)
{
	for (int fd = 0; in && except && r > 0 && fd < n && fd < ends_top(); fd++) {
		if (!FD_ISSET(fd, except) || !FD_ISSET(fd, in) || !alone(fd))
			continue;
		FD_CLR(fd, in);
		r--;
	}
	return r;
}
