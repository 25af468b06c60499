/*
 * Registrations with epoll that no call of ours has made: by a program that makes its system calls inline.
 * One that a socket has before connect would stay with the TCP socket, report that it hangs up, and be gone
 * then; so that connection is TCP. The kernel tells them of an instance, in /proc.
 *
 * Each number of a descriptor is looked at once, until it is closed. Left out are instances that were made
 * here and whose registrations come by epoll_ctl.
 */
#include "ring.h"

#include <fcntl.h>
#include <sys/stat.h>

#define NUMBERS 1024 /* where instances are looked for */
#define CHUNK 64     /* numbers in one call of ppoll */

static uint64_t others[NUMBERS / CHUNK]; /* a bit for each number: open, and no instance */

/* unseen_closed forgets that a number was no instance. */
void unseen_closed(int fd)
{
	if (fd >= 0 && fd < NUMBERS && (__atomic_load_n(&others[fd / CHUNK], __ATOMIC_RELAXED) >> fd % CHUNK & 1))
		__atomic_fetch_and(&others[fd / CHUNK], ~(1ull << fd % CHUNK), __ATOMIC_SEQ_CST);
}

/* path_of writes the path of a descriptor's entry in a directory of /proc. */
static void path_of(char path[static 40], const char *directory, int fd)
{
	char digits[10];
	size_t n = 0, at = strlen(directory);

	memcpy(path, directory, at);
	do
		digits[n++] = (char)('0' + fd % 10);
	while (fd /= 10);
	while (n)
		path[at++] = digits[--n];
	path[at] = 0;
}

static bool is_instance(int fd)
{
	static const char name[] = "anon_inode:[eventpoll]";
	char path[40], target[sizeof(name)];

	path_of(path, "/proc/self/fd/", fd);
	return SYS(readlinkat, AT_FDCWD, path, target, sizeof(target)) == sizeof(name) - 1 &&
		memcmp(target, name, sizeof(name) - 1) == 0;
}

/* number gets a number that follows a word in a line, 0 if there is none. */
static uint64_t number(const char *line, const char *word, unsigned base)
{
	const char *p = strstr(line, word);
	uint64_t v = 0;

	if (!p)
		return 0;
	for (p += strlen(word); *p == ' '; p++)
		;
	for (;; p++) {
		unsigned digit = *p >= '0' && *p <= '9' ? (unsigned)(*p - '0')
			: *p >= 'a' && *p <= 'f'	? (unsigned)(*p - 'a') + 10
							: base;

		if (digit >= base)
			return v;
		v = v * base + digit;
	}
}

/*
 * parse takes a line of the kernel's list of an instance, and is true if it is about a descriptor that is
 * this file: "tfd:        5 events:       19 data:                5  pos:0 ino:1f3a sdev:8".
 */
static bool parse(const char *line, int fd, uint64_t inode, struct epoll_event *event)
{
	if (strncmp(line, "tfd:", 4) != 0 || number(line, "tfd:", 10) != (uint64_t)fd ||
		number(line, " ino:", 16) != inode)
		return false;
	event->events = (uint32_t)number(line, " events:", 16);
	event->data.u64 = number(line, " data:", 16);
	return true;
}

/* registered looks for a registration in an instance. */
static bool registered(int epfd, int fd, uint64_t inode, struct epoll_event *event)
{
	char path[40], text[1024]; /* threads may have small stacks */
	bool found = false;
	size_t have = 0;
	long n, in;

	path_of(path, "/proc/self/fdinfo/", epfd);
	in = SYS(openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
	if (in < 0)
		return false;
	while (!found && (n = SYS(read, (int)in, text + have, sizeof(text) - 1 - have)) > 0) {
		char *line = text, *end;

		have += (size_t)n;
		text[have] = 0;
		for (; !found && (end = strchr(line, '\n')); line = end + 1) {
			*end = 0;
			found = parse(line, fd, inode, event);
		}
		have -= (size_t)(line - text);
		memmove(text, line, have);
		if (have == sizeof(text) - 1)
			break; /* no line is so long */
	}
	SYS(close, (int)in);
	return found;
}

/* inode_of is the number by which the kernel's list of an instance names a file. */
static uint64_t inode_of(int fd)
{
	struct stat st;

	return SYS(fstat, fd, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/*
 * open_of finds out which numbers are descriptors. The kernel looks at no more of them at a time than the
 * process may have open. False: it cannot be asked.
 */
static bool open_of(struct pollfd *p, nfds_t n)
{
	struct timespec none = {0};

	for (nfds_t at = 0, most = n; at < n;) {
		nfds_t part = n - at < most ? n - at : most;
		long r = SYS(ppoll, p + at, part, &none, NULL, 0);

		if (r == -EINVAL && most > 1)
			most /= 2;
		else if (r < 0)
			return false;
		else
			at += part;
	}
	return true;
}

/*
 * each looks into the instances of the process for registrations of a descriptor, in those alone where some
 * may be unseen or in all, and returns how many of them it has found, which are not more than most. *sure:
 * there are no others.
 */
static size_t each(int fd, bool all, struct registered *list, size_t most, bool *sure)
{
	uint64_t inode = inode_of(fd);
	size_t found = 0;
	bool more = true;

	*sure = inode != 0;
	for (int first = 0; inode && first < NUMBERS && (more || fd >= first); first += CHUNK) {
		struct pollfd p[CHUNK];
		nfds_t n = 0;

		more = others[first / CHUNK] >> CHUNK / 2;
		for (int i = first; i < first + CHUNK; i++)
			if (i != fd && !(others[first / CHUNK] >> i % CHUNK & 1) && (all || !epoll_has_all(i)))
				p[n++] = (struct pollfd){.fd = i};
		*sure = open_of(p, n);
		if (!*sure)
			return found;
		for (nfds_t i = 0; i < n; i++) {
			if (p[i].revents & POLLNVAL)
				continue;
			more = more || p[i].fd >= first + CHUNK / 2;
			if (!is_instance(p[i].fd))
				__atomic_fetch_or(&others[first / CHUNK], 1ull << p[i].fd % CHUNK, __ATOMIC_SEQ_CST);
			else if (found < most && registered(p[i].fd, fd, inode, &list[found].event))
				list[found++].epfd = p[i].fd;
		}
	}
	return found;
}

/*
 * unseen_registration says whether a socket that is about to be moved has a registration that we have not
 * seen.
 */
bool unseen_registration(int fd)
{
	struct epoll_event event;
	struct registered one[2];
	bool sure;
	int epfd = -1;
	size_t n = each(fd, false, one, 2, &sure);

	return !sure || n > 1 || (n == 1 && !(birth_registration(fd, &epfd, &event) && epfd == one[0].epfd));
}

/* unseen_all finds all registrations of a descriptor, as the kernel has them. */
size_t unseen_all(int fd, struct registered *list, size_t most)
{
	bool sure;

	return each(fd, true, list, most, &sure);
}
