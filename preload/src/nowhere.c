/*
 * Receives that bring the program nothing: with MSG_TRUNC, of 0 bytes, and of errors. A Unix socket knows
 * none of them as TCP does.
 */
#include "ring.h"

/*
 * receive_nowhere reads where nothing is known of a pair: by a copy of the descriptor, or where there are
 * to be no rings.
 */
static ssize_t receive_nowhere(int fd, struct iovec *parts, size_t n, int flags, int *out)
{
	struct msghdr m = {.msg_iov = parts, .msg_iovlen = n};
	ssize_t got;

	if (!guard_end(fd))
		return NOT_OURS;
	got = next.recvmsg(fd, &m, flags);
	*out = m.msg_flags;
	return got;
}

/*
 * receive_unwanted reads with MSG_TRUNC: TCP throws the bytes away and touches no buffer, which may
 * be null, or smaller than the size that is asked for. A Unix socket does not know this. Nobody
 * reads the bytes that go nowhere, so threads need not agree. No more is read at a time than there
 * are parts for, which are no load on the stack of other calls.
 */
ssize_t receive_unwanted(struct end *e, int fd, size_t wanted, int flags, int *out)
{
	static char nowhere[1 << 16];
	struct iovec parts[SPAN_PARTS];
	struct span s;
	size_t n = 0;

	for (; wanted && n < SPAN_PARTS; n++) {
		parts[n] = (struct iovec){nowhere, wanted < sizeof(nowhere) ? wanted : sizeof(nowhere)};
		wanted -= parts[n].iov_len;
	}
	return e && span_init(&s, parts, n) ? receive_all(e, fd, s, flags, out)
					    : receive_nowhere(fd, parts, n, flags, out);
}

/*
 * receive_none receives 0 bytes: a Unix socket would hand the descriptor of a mark over with them,
 * and the mark would be one no more. TCP waits until something is there, and does not say whether
 * an error, a signal or the socket's time limit has ended a wait.
 */
ssize_t receive_none(struct end *e, int fd, int flags)
{
	struct iovec one = {(char[1]){0}, 1};
	int saved = errno, out;
	struct span s;
	ssize_t n;

	if (!end_is(fd, e)) {
		end_drop(fd);
		return NOT_OURS;
	}
	span_init(&s, &one, 1);
	n = receive_all(e, fd, s, MSG_PEEK | MSG_DONTWAIT, &out);
	if (n == NOT_OURS || (n < 0 && (errno != EAGAIN || !would_wait(fd, flags))))
		return n;
	if (n < 0 && (n = receive_all(e, fd, s, MSG_PEEK, &out)) == NOT_OURS)
		return n;
	if (n < 0)
		end_later(e);
	errno = saved;
	return 0;
}

/*
 * receive_error receives from the queue of errors, where TCP has errors only of operations that no pair
 * has. A Unix socket would give bytes.
 */
ssize_t receive_error(int fd)
{
	return guard_end(fd) ? sys_return(-EAGAIN) : NOT_OURS;
}
