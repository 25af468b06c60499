/*
 * The next definition of each function that may block, so that cancellation and other preloaded libraries
 * work.
 */
#include "preload.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <signal.h>
#include <string.h>

/* The oldest version of dlsym that every glibc has, so that an older one than the build's can load us. */
#if defined(__x86_64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
#endif
extern __typeof__(dlsym) dlsym __attribute__((weak));

/* System calls, for the time before libc can be asked, and for where it cannot. */
static int raw_accept(int fd, struct sockaddr *sa, socklen_t *len)
{
	return (int)sys_return(SYS(accept4, fd, sa, len, 0));
}

static int raw_accept4(int fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	return (int)sys_return(SYS(accept4, fd, sa, len, flags));
}

static int raw_connect(int fd, const struct sockaddr *sa, socklen_t len)
{
	return (int)sys_return(SYS(connect, fd, sa, len));
}

static ssize_t raw_sendto(
	int fd, const void *b, size_t n, int flags, const struct sockaddr *sa, socklen_t len)
{
	return sys_return(SYS(sendto, fd, b, n, flags, sa, len));
}

static ssize_t raw_sendmsg(int fd, const struct msghdr *m, int flags)
{
	return sys_return(SYS(sendmsg, fd, m, flags));
}

static int raw_sendmmsg(int fd, struct mmsghdr *m, unsigned int n, int flags)
{
	return (int)sys_return(SYS(sendmmsg, fd, m, n, flags));
}

static ssize_t raw_recvfrom(int fd, void *b, size_t n, int flags, struct sockaddr *sa, socklen_t *len)
{
	return sys_return(SYS(recvfrom, fd, b, n, flags, sa, len));
}

static ssize_t raw_recvmsg(int fd, struct msghdr *m, int flags)
{
	return sys_return(SYS(recvmsg, fd, m, flags));
}

static int raw_recvmmsg(int fd, struct mmsghdr *m, unsigned int n, int flags, struct timespec *timeout)
{
	return (int)sys_return(SYS(recvmmsg, fd, m, n, flags, timeout));
}

static ssize_t raw_read(int fd, void *b, size_t n)
{
	return sys_return(SYS(read, fd, b, n));
}

static ssize_t raw_write(int fd, const void *b, size_t n)
{
	return sys_return(SYS(write, fd, b, n));
}

static ssize_t raw_readv(int fd, const struct iovec *v, int n)
{
	return sys_return(SYS(readv, fd, v, n));
}

static ssize_t raw_writev(int fd, const struct iovec *v, int n)
{
	return sys_return(SYS(writev, fd, v, n));
}

static ssize_t raw_preadv2(int fd, const struct iovec *v, int n, off_t at, int flags)
{
	return sys_return(SYS(preadv2, fd, v, n, at, 0, flags));
}

static ssize_t raw_pwritev2(int fd, const struct iovec *v, int n, off_t at, int flags)
{
	return sys_return(SYS(pwritev2, fd, v, n, at, 0, flags));
}

static ssize_t raw_recv(int fd, void *b, size_t n, int flags)
{
	return sys_return(SYS(recvfrom, fd, b, n, flags, NULL, NULL));
}

static ssize_t raw_send(int fd, const void *b, size_t n, int flags)
{
	return sys_return(SYS(sendto, fd, b, n, flags, NULL, 0));
}

static int raw_close(int fd)
{
	return (int)sys_return(SYS(close, fd));
}

/* glibc has these two since 2.35 and 2.34. */
static int raw_epoll_pwait2(
	int epfd, struct epoll_event *events, int max, const struct timespec *timeout, const sigset_t *mask)
{
	return (int)sys_return(SYS(epoll_pwait2, epfd, events, max, timeout, mask, 8));
}

static pid_t raw_fork(void)
{
	return (pid_t)sys_return(SYS(clone, SIGCHLD));
}

struct next next = {
	.read = raw_read,
	.write = raw_write,
	.readv = raw_readv,
	.writev = raw_writev,
	.preadv2 = raw_preadv2,
	.pwritev2 = raw_pwritev2,
	.recv = raw_recv,
	.send = raw_send,
	.close = raw_close,
	.accept = raw_accept,
	.accept4 = raw_accept4,
	.connect = raw_connect,
	.sendto = raw_sendto,
	.sendmsg = raw_sendmsg,
	.sendmmsg = raw_sendmmsg,
	.recvfrom = raw_recvfrom,
	.recvmsg = raw_recvmsg,
	.recvmmsg = raw_recvmmsg,
	.epoll_pwait2 = raw_epoll_pwait2,
	._Fork = raw_fork,
};

/*
 * Before glibc 2.34 dlsym was in a library of its own, and many programs load no libdl. The library then
 * reads the symbol tables of the objects that were loaded after it, in the order in which RTLD_NEXT would
 * look at them.
 */
struct lookup {
	const char *name;
	uint32_t hash;
	bool after; /* our own object was seen */
	void *found;
};

static uint32_t gnu_hash(const char *name)
{
	uint32_t h = 5381;

	for (; *name; name++)
		h = h * 33 + (uint8_t)*name;
	return h;
}

/* The part of an object's symbol table that a lookup needs. */
struct symbols {
	const ElfW(Sym) *table;
	const char *strings;
	const uint32_t *hash;	/* DT_GNU_HASH */
	const uint16_t *version; /* of each symbol; the highest bit says that it is not the default one */
};

static bool symbols_of(const struct dl_phdr_info *info, struct symbols *s)
{
	const ElfW(Dyn) *d = NULL;

	for (size_t i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			d = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	*s = (struct symbols){0};
	for (; d && d->d_tag != DT_NULL; d++) {
		/* The loader has relocated these addresses, except the vDSO's. */
		const void *at =
			(const void *)(d->d_un.d_ptr < info->dlpi_addr ? info->dlpi_addr + d->d_un.d_ptr
								       : d->d_un.d_ptr);

		switch (d->d_tag) {
		case DT_SYMTAB:
			s->table = at;
			break;
		case DT_STRTAB:
			s->strings = at;
			break;
		case DT_GNU_HASH:
			s->hash = at;
			break;
		case DT_VERSYM:
			s->version = at;
			break;
		}
	}
	return s->table && s->strings && s->hash;
}

/*
 * look_in looks a function up in one object. The layout of DT_GNU_HASH: four words, the Bloom filter, the
 * buckets, the chains.
 */
static int look_in(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct lookup *l = arg;
	const uint32_t *buckets, *chains;
	struct symbols s;

	(void)size;
	if (!l->after) {
		for (size_t i = 0; i < info->dlpi_phnum; i++) {
			uintptr_t from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;

			if (info->dlpi_phdr[i].p_type == PT_LOAD && (uintptr_t)&next - from < info->dlpi_phdr[i].p_memsz)
				l->after = true;
		}
		return 0;
	}
	if (!symbols_of(info, &s) || s.hash[0] == 0)
		return 0;
	buckets = s.hash + 4 + s.hash[2] * (sizeof(ElfW(Addr)) / sizeof(*s.hash));
	chains = buckets + s.hash[0];
	for (uint32_t i = buckets[l->hash % s.hash[0]]; i >= s.hash[1]; i++) {
		uint32_t hash = chains[i - s.hash[1]];
		const ElfW(Sym) *sym = &s.table[i];

		if ((hash | 1) == (l->hash | 1) && strcmp(s.strings + sym->st_name, l->name) == 0 &&
			sym->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(sym->st_info) == STT_FUNC &&
			!(s.version && (s.version[i] & 0x8000))) {
			l->found = (void *)(info->dlpi_addr + sym->st_value);
			return 1;
		}
		if (hash & 1)
			break;
	}
	return 0;
}

/* next_find returns the next definition of a function, NULL if there is none. */
void *next_find(const char *name)
{
	struct lookup l = {.name = name, .hash = gnu_hash(name)};

	if (dlsym)
		return dlsym(RTLD_NEXT, name);
	dl_iterate_phdr(look_in, &l);
	return l.found;
}

#define RESOLVE_AS(field, name)                                        \
	do {                                                           \
		void *found = next_find(name);                              \
		if (found)                                             \
			__builtin_memcpy(&next.field, &found, sizeof(found)); \
	} while (0)
#define RESOLVE(name) RESOLVE_AS(name, #name)

void next_resolve(void)
{
	RESOLVE(read);
	RESOLVE(write);
	RESOLVE(readv);
	RESOLVE(writev);
	RESOLVE(preadv2);
	RESOLVE(pwritev2);
	RESOLVE(recv);
	RESOLVE(send);
	RESOLVE(close);
	RESOLVE(closefrom);
	RESOLVE(vdprintf);
	RESOLVE_AS(vdprintf_chk, "__vdprintf_chk");
	RESOLVE(fdopen);
	RESOLVE(system);
	RESOLVE(popen);
	RESOLVE(posix_spawn);
	RESOLVE(posix_spawnp);
	RESOLVE(posix_spawn_file_actions_adddup2);
	RESOLVE(execvpe);
	RESOLVE(accept);
	RESOLVE(accept4);
	RESOLVE(connect);
	RESOLVE(sendto);
	RESOLVE(sendmsg);
	RESOLVE(sendmmsg);
	RESOLVE(recvfrom);
	RESOLVE(recvmsg);
	RESOLVE(recvmmsg);
	RESOLVE(epoll_wait);
	RESOLVE(epoll_pwait);
	RESOLVE(epoll_pwait2);
	RESOLVE(poll);
	RESOLVE(ppoll);
	RESOLVE(select);
	RESOLVE(pselect);
	RESOLVE(fork);
	RESOLVE(_Fork);
	RESOLVE(forkpty);
	RESOLVE(clone);
	RESOLVE(daemon);
	RESOLVE(fcntl);
	RESOLVE(fcntl64);
	RESOLVE(pthread_key_create);
	RESOLVE(pthread_setspecific);
}
