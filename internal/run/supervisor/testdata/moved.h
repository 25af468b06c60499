/* Whether connections are as they should be, for programs that are told by the environment. */
#ifndef MOVED_H
#define MOVED_H

#include "program.h"

#include <stdbool.h>

/* moved says whether connections are to be none of TCP. */
static inline int moved(void)
{
	return getenv("MOVED") && atoi(getenv("MOVED"));
}

/* as_it_should is TCP, or not. */
static inline bool as_it_should(int fd)
{
	int domain = 0;
	socklen_t len = sizeof(domain);

	return syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain == (moved() ? AF_UNIX : AF_INET);
}

#endif
