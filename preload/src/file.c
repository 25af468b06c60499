/*
 * Files that are sent. The kernel copies them into a socket faster than we into a ring, so the
 * sending direction leaves its ring for good. Small ones are read and sent as other bytes are,
 * which costs no more. A program that answers with one again and again is given a small ring for
 * it: one wake-up goes through the socket then, in place of a header and the pages of a file.
 */
#include "ring.h"

#include <sys/sendfile.h>

#define SMALL 4096

/* send_small sends a small piece of a file. NOT_OURS: nothing was done. */
static ssize_t send_small(int out, int in, off64_t *offset, size_t n)
{
	struct end *e = end_at(out);
	char piece[SMALL];
	struct iovec one = {piece, 0};
	ssize_t sent;
	long got;

	if (!e || !offset || n == 0 || n > sizeof(piece))
		return NOT_OURS;
	got = SYS(pread64, in, piece, n, *offset);
	if (got < 0)
		return NOT_OURS; /* it has no offsets, or cannot be read: the kernel says so, or can */
	if (got == 0)
		return 0; /* the end of the file */
	send_answers(e);
	one.iov_len = (size_t)got;
	sent = end_send(e, out, &one, 1, 0);
	if (sent > 0)
		*offset += sent;
	return sent;
}

EXPORT ssize_t sendfile64(int out, int in, off64_t *offset, size_t n)
{
	ssize_t sent = send_small(out, in, offset, n);
	long r;

	if (sent != NOT_OURS)
		return sent;
	end_in_band(out);
	r = SYS(sendfile, out, in, offset, n);
	tally_in_band(end_at(out), true, r);
	return sys_return(r);
}

EXPORT ssize_t sendfile(int out, int in, off_t *offset, size_t n)
{
	_Static_assert(sizeof(off_t) == sizeof(off64_t), "off_t");
	return sendfile64(out, in, offset, n);
}
