/* The settings of the environment, which are read before main. */
#include "ring.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

struct settings settings;

static const char *dir_of(const char *path, size_t n, char *dir)
{
	memcpy(dir, path, n);
	dir[n] = 0;
	return dir;
}

/*
 * program_mark maps the file of the supervisor that is called <its socket>.run, whose name is then in
 * /proc/PID/maps. The tools, and the supervisor, find the program by that for as long as it runs: many
 * servers write their title over the environment. Nobody reads the file, which is empty, and children have
 * the mapping too. Where the file cannot be opened, as by a program of another user, the environment has to
 * do.
 */
static void program_mark(void)
{
	static const char suffix[] = ".run";
	char path[sizeof(settings.socket) + sizeof(suffix)];
	size_t n = strlen(settings.socket);
	long fd;

	memcpy(path, settings.socket, n);
	memcpy(path + n, suffix, sizeof(suffix));
	fd = SYS(openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return;
	SYS(mmap, NULL, 1, PROT_NONE, MAP_PRIVATE, (int)fd, 0);
	SYS(close, (int)fd);
}

#define QUEUE_LEAST (16u << 10)
#define QUEUE_MOST (4u << 20) /* the kernel gives at most net.core.wmem_max */
#define QUEUES 2048	      /* that fill the memory that rings may have */

/*
 * queue_of is how many bytes a socket may hold in-band, by the memory that rings may have. The
 * kernel counts both for the control group, and kills where TCP, whose queues it keeps small when
 * memory is short, would go on.
 */
static int queue_of(uint64_t memory)
{
	uint64_t n = memory / QUEUES;

	return (int)(memory == 0 || n > QUEUE_MOST ? QUEUE_MOST : n < QUEUE_LEAST ? QUEUE_LEAST : n);
}

/*
 * part_of is how much of a directory of supervisors is before the number of the user whose part it is; 0:
 * it is not one user's part.
 */
static size_t part_of(const char *path, size_t dir)
{
	static const char name[] = "/run-";
	size_t n = dir - 1; /* without the last slash */

	while (n && path[n - 1] >= '0' && path[n - 1] <= '9')
		n--;
	return n < dir - 1 && n >= sizeof(name) - 1 &&
			memcmp(path + n - (sizeof(name) - 1), name, sizeof(name) - 1) == 0
		? n
		: 0;
}

__attribute__((constructor)) static void start(void)
{
	const char *path = getenv("GOSMC_RUN");
	char dir[sizeof(settings.socket)];
	struct stat st;
	const char *slash, *v;
	size_t n;

	next_resolve();
	if (!path || path[0] != '/' || getauxval(AT_SECURE) || policy_disabled(getenv("GOSMC_DISABLED")))
		return;
	n = strlen(path);
	if (n >= sizeof(settings.socket))
		return;
	memcpy(settings.socket, path, n + 1);
	slash = strrchr(settings.socket, '/');
	settings.dir = (size_t)(slash - settings.socket) + 1;
	settings.uid = (uid_t)SYS(geteuid);
	settings.part = part_of(settings.socket, settings.dir);
	settings.letters = SYS(newfstatat, AT_FDCWD, dir_of(settings.socket, settings.dir, dir), &st, 0) == 0 &&
			   st.st_uid == settings.uid && !(st.st_mode & 077);
	if (settings.letters)
		resets_open();
	program_mark();
	policy_read();
	shake_start(getenv("GOSMC_RUN_SHAKE"));
	v = getenv("GOSMC_RUN_RINGS");
	settings.rings = !v || policy_disabled(v); /* the same words mean no */
	v = getenv("GOSMC_RING_AFTER");
	settings.ring_after = v ? strtoull(v, NULL, 10) : 0; /* a size in bytes: gosmc has seen to units */
	v = v ? NULL : getenv("GOSMC_RUN_RING_AFTER");	      /* the default of 'gosmc run' */
	settings.bulk_after = v ? strtoull(v, NULL, 10) : 0;
	v = getenv("GOSMC_SHORT_AFTER");
	v = v ? v : getenv("GOSMC_RUN_SHORT_AFTER"); /* the default of 'gosmc run' */
	settings.short_after = v ? (uint32_t)strtoul(v, NULL, 10) : 0; /* off is no number */
	v = getenv("GOSMC_RUN_MEMORY"); /* the limit that 'gosmc run' has found to be right here */
	settings.memory = v ? strtoull(v, NULL, 10) : 0;
	settings.queue = queue_of(settings.memory);
	if (settings.memory == 0 || settings.memory > RINGS_BYTES)
		settings.memory = RINGS_BYTES;
	v = getenv("GOSMC_MEMORY");
	if (v)
		settings.memory = strtoull(v, NULL, 10);
	hosts_read(getenv("GOSMC_RUN_PEERS"));
	calls_start();
	settings.on = true;
	if (settings.rings)
		adopt_all();
}

/* netns_of is the cookie of a socket's network namespace, 0 if the kernel does not know it (before 5.14). */
uint64_t netns_of(int fd)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);

	if (SYS(getsockopt, fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &len) != 0)
		return 0;
	return cookie;
}
