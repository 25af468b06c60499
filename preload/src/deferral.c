/*
 * TCP_DEFER_ACCEPT: the kernel's accept waits until a client has sent bytes over TCP, which a
 * client whose connection is moved never does. An announced listener does not have the option:
 * plain TCP clients come to it as to any listener without it. Its socket keeps the value that the
 * program has set, so that every process that has the listener reads it back. The place for that is
 * SO_INCOMING_CPU: the kernel compares it with numbers of processors, which are not negative, and
 * accepted sockets get another value.
 */
#include "preload.h"

#include <netinet/tcp.h>
#include <string.h>

#define KEPT (-0x53470000) /* less the seconds */
#define SECONDS_MOST 0xffff

#define FIRST 1	 /* seconds until a SYN-ACK is sent again for the first time */
#define LAST 120 /* between two of them, at most */
#define TIMES 255

/* rounded is the time until as many SYN-ACKs were sent as the kernel makes of so many seconds. */
static int rounded(int seconds)
{
	int wait = FIRST, all = 0;

	for (int i = 0; i < TIMES && all < seconds; i++) {
		all += wait;
		wait = wait * 2 < LAST ? wait * 2 : LAST;
	}
	return all;
}

static int number(int fd, int level, int name, int none)
{
	int v = none;
	socklen_t len = sizeof(v);

	return SYS(getsockopt, fd, level, name, &v, &len) == 0 ? v : none;
}

static bool set(int fd, int level, int name, int v)
{
	return SYS(setsockopt, fd, level, name, &v, sizeof(v)) == 0;
}

/* is_kept says whether a value of SO_INCOMING_CPU is one of ours. */
bool deferral_is_kept(int cpu)
{
	return cpu < KEPT && cpu >= KEPT - SECONDS_MOST;
}

/* keep has a listener remember. A processor that the program has chosen itself stays chosen. */
static void keep(int fd, int seconds)
{
	int cpu = number(fd, SOL_SOCKET, SO_INCOMING_CPU, -1);

	if (cpu < 0 && (seconds || deferral_is_kept(cpu)))
		set(fd, SOL_SOCKET, SO_INCOMING_CPU, seconds ? KEPT - seconds : -1);
}

/*
 * deferral_kept is the value that the program has set for a listener that does not have it, 0 for all
 * others.
 */
int deferral_kept(int fd)
{
	int cpu = number(fd, SOL_SOCKET, SO_INCOMING_CPU, -1);

	return deferral_is_kept(cpu) && number(fd, SOL_SOCKET, SO_ACCEPTCONN, 0) ? KEPT - cpu : 0;
}

/* deferral_take takes the option from a listener that is about to be announced. */
void deferral_take(int fd)
{
	int seconds = number(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, 0);

	if (seconds > 0 && set(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, 0))
		keep(fd, seconds);
}

/* deferral_give gives it back to a listener that is not announced after all. */
void deferral_give(int fd)
{
	int seconds = deferral_kept(fd);

	if (seconds && set(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, seconds))
		keep(fd, 0);
}

/*
 * deferral_set is setsockopt of TCP_DEFER_ACCEPT. False: it is for the kernel to do. The listener need not
 * have been announced by this process, nor does this descriptor have to be the one.
 */
bool deferral_set(int fd, const void *val, socklen_t len, long *result)
{
	struct address local;
	int seconds;
	bool six;

	if (!number(fd, SOL_SOCKET, SO_ACCEPTCONN, 0) || number(fd, SOL_SOCKET, SO_PROTOCOL, 0) != IPPROTO_TCP ||
	    !address_of(fd, false, &local, &six) || (!deferral_kept(fd) && !connect_announced(fd, &local)))
		return false;
	*result = option_in(fd, val, len, &seconds);
	if (*result == 0) {
		set(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, 0); /* of before it was announced */
		keep(fd, rounded(seconds));
	}
	return true;
}
