/* Declarations that the programs of these tests have in common. */
#ifndef PROGRAM_H
#define PROGRAM_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "filters.h"

#define CHECK(what)                                                                            \
	do {                                                                                   \
		if (!(what)) {                                                                 \
			fprintf(stderr, "%s:%d: pid %d: %s (%s)\n", __FILE__, __LINE__, getpid(), #what, strerror(errno)); \
			_exit(1);                                                              \
		}                                                                              \
	} while (0)

#define PATIENCE 60000 /* milliseconds that nothing may take */

/* system_call is a system call that no library sees, as some programs make it. */
#if defined(__x86_64__)
static inline long system_call(long n, long a, long b, long c, long d)
{
	long r;
	register long r10 __asm__("r10") = d;

	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
	return r;
}
#else
static inline long system_call(long n, long a, long b, long c, long d)
{
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}
#endif

/* random_of gives a number below n, of a sequence that begins with *seed. */
static inline unsigned random_of(unsigned long *seed, unsigned n)
{
	*seed = *seed * 6364136223846793005ul + 1442695040888963407ul;
	return (unsigned)(*seed >> 33) % n;
}

/* await waits until a descriptor is ready, or the peer has gone. */
static inline void await(int fd, short events)
{
	struct pollfd p = {.fd = fd, .events = events};

	CHECK(poll(&p, 1, PATIENCE) == 1);
}

/* server listens at a port of its own, which is in *a then. */
static inline int server(struct sockaddr_in *a)
{
	socklen_t len = sizeof(*a);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	*a = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	CHECK(bind(l, (struct sockaddr *)a, len) == 0 && listen(l, 5) == 0 && getsockname(l, (struct sockaddr *)a, &len) == 0);
	return l;
}

/* connected returns a connection to an address. */
static inline int connected_to(const struct sockaddr_in *a)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(connect(fd, (const struct sockaddr *)a, sizeof(*a)) == 0);
	return fd;
}

/* both_ends makes both ends of a connection in this process. */
static inline void both_ends(int *c, int *s)
{
	struct sockaddr_in a;
	int l = server(&a);

	*c = connected_to(&a);
	*s = accept(l, NULL, NULL);
	CHECK(*s >= 0);
	close(l);
}

/* mapped_rings is how many rings this process has. */
static inline int mapped_rings(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	while (fgets(line, sizeof(line), f))
		n += strstr(line, "gosmc-ring") != NULL;
	fclose(f);
	return n;
}

/* used_rings is how many of them have bytes, or had: their memory is more than the first page. */
static inline int used_rings(void)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	char line[512], *dash;
	bool ring = false;
	int n = 0, kb;

	while (fgets(line, sizeof(line), f)) {
		dash = strchr(line, '-');
		if (dash && strspn(line, "0123456789abcdef") == (size_t)(dash - line))
			ring = strstr(line, "gosmc-ring") != NULL;
		else if (ring && sscanf(line, "Rss: %d kB", &kb) == 1)
			n += kb > 4;
	}
	fclose(f);
	return n;
}

#endif
