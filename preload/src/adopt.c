/*
 * Ends of pairs that come from another program: ends that this one was executed with, and ends that
 * were sent to it. It goes on with them as with copies: in-band, without the rings that the peer
 * offers (ends.c). The names of descriptors say which of them are ends (identity.c). So no program
 * hands a list over, which may be lost, old or false.
 *
 * To ask a socket for its name may kill a program that was executed with a filter of system calls.
 * So a program asks only for those with a mark, with fcntl: a hint about the lifetime of written
 * data. The inode keeps it, and sockets have no use for it.
 */
#include "ring.h"

#include <fcntl.h>

#ifndef F_GET_RW_HINT
#define F_GET_RW_HINT 1035
#define F_SET_RW_HINT 1036
#endif
#define MARK 5u /* RWH_WRITE_LIFE_EXTREME */

#define GAP 8 /* numbers in a row that are no descriptors, behind which none is looked for */

/*
 * adopt_mark marks an end. The kernel lets only the owner do it: a process with another user than its peer
 * may be refused.
 */
void adopt_mark(int fd)
{
	uint64_t hint = MARK;

	SYS(fcntl, fd, F_SET_RW_HINT, &hint);
}

/* adopt takes a descriptor if it is an end. False: there is none. */
static bool adopt(int fd)
{
	uint64_t hint = 0;
	long r = SYS(fcntl, fd, F_GET_RW_HINT, &hint);

	if (r == 0 && hint == MARK)
		end_adopt(fd);
	return r != -EBADF;
}

/*
 * adopt_all takes the ends that this program was executed with. /proc would have all descriptors, but the
 * kernel makes the directories of a process when it is first asked.
 */
void adopt_all(void)
{
	int none = 0;

	for (int fd = 0; fd < ENDS && none < GAP; fd++)
		none = adopt(fd) ? 0 : none + 1;
}

/* adopt_sent takes the ends that have come with a message. */
void adopt_sent(struct msghdr *m)
{
	if (m->msg_controllen == 0 || !settings.on || (!settings.rings && !guard_on()))
		return;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c))
		for (size_t i = 0; c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
			CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len;
			i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			if (guard_on())
				guard_came(fd);
			else
				adopt(fd);
		}
}
