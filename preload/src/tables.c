/*
 * Tables: files of the run directory that all programs of a user map and write. The supervisor
 * makes them. Every process with the user's rights can cut one off. After that a touch of a part
 * that is gone is a signal that ends the program. So each reader or writer of a part asks the
 * kernel first whether it is there.
 */
#include "ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* table_writable says whether a part of a table, within a page, can be written. */
bool table_writable(const void *part)
{
	uintptr_t page = (uintptr_t)part & ~(uintptr_t)(TABLE_PAGE - 1);
	long r = SYS(madvise, page, TABLE_PAGE, MADV_POPULATE_WRITE);

	return r != -EFAULT && r != -ENOMEM;
}

/*
 * table_readable says whether 8 bytes of a table can be read. The kernel is to read them, for a call that
 * does nothing else: it takes a fiftieth of the time that madvise takes.
 */
bool table_readable(const void *part)
{
	const int none = -1; /* no way to change signals */

	return SYS(rt_sigprocmask, none, part, NULL, 8) != -EFAULT;
}

/* coarse_ms is a clock that costs no system call, in milliseconds. */
uint32_t coarse_ms(void)
{
	struct timespec t = {0};

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (uint32_t)(t.tv_sec * 1000 + t.tv_nsec / 1000000);
}

/*
 * table_there says whether a part of a table can be written. been is of its page, and false at the beginning:
 * the first time the kernel is to give the page memory, or a place on disk, and later it may only have been
 * cut off.
 */
bool table_there(bool *been, const void *part)
{
	if (__atomic_load_n(been, __ATOMIC_RELAXED))
		return table_readable(part);
	if (!table_writable(part))
		return false;
	__atomic_store_n(been, true, __ATOMIC_RELAXED);
	return true;
}

/*
 * table_map maps the table of this name of the supervisor's directory, which begins with magic. NULL: there
 * is none of this user, or it is another version's.
 */
void *table_map(const char *name, size_t size, uint64_t magic)
{
	char path[sizeof(settings.socket) + 16];
	void *table = NULL;
	struct stat st;
	int fd;
	long p;

	if (settings.dir + strlen(name) >= sizeof(path))
		return NULL;
	memcpy(path, settings.socket, settings.dir);
	memcpy(path + settings.dir, name, strlen(name) + 1);
	fd = (int)SYS(openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return NULL;
	if (SYS(fstat, fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == settings.uid &&
		st.st_size == (off_t)size) {
		p = SYS(mmap, NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if ((unsigned long)p <= -4096UL)
			table = (void *)p;
	}
	SYS(close, fd);
	if (table && (!table_readable(table) || *(uint64_t *)table != magic)) {
		SYS(munmap, table, size);
		table = NULL;
	}
	return table;
}

/* fnv1a goes on with a hash, which begins with FNV1A_BASIS, by n bytes. */
uint64_t fnv1a(uint64_t hash, const void *data, size_t n)
{
	const uint8_t *p = data;

	while (n--)
		hash = (hash ^ *p++) * 0x100000001b3ull;
	return hash;
}
