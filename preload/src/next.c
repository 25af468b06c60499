/* The next definition of each function that may block, so that cancellation and other preloaded libraries work. */
#include "preload.h"

#include <dlfcn.h>

/* The oldest version of dlsym that every glibc has, so that an older one than that of the build can load us. */
#if defined(__x86_64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
#endif
extern __typeof__(dlsym) dlsym __attribute__((weak));

/* What there is before libc can be asked, and where it cannot. */
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

static ssize_t raw_sendto(int fd, const void *b, size_t n, int flags, const struct sockaddr *sa, socklen_t len)
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
};

#define RESOLVE_AS(field, name)                                        \
	do {                                                           \
		void *found = dlsym(RTLD_NEXT, name);                  \
		if (found)                                             \
			__builtin_memcpy(&next.field, &found, sizeof(found)); \
	} while (0)
#define RESOLVE(name) RESOLVE_AS(name, #name)

void next_resolve(void)
{
	if (!dlsym)
		return;
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
