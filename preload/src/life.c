/*
 * Events that end the use of rings, or give a descriptor to code that knows none: close, shutdown,
 * other programs, calls inside libc, and system calls that move bytes by themselves.
 */
#include "ring.h"

#include <alloca.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2
#endif
#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC 4
#endif

EXPORT int close(int fd)
{
	struct end *e = end_at(fd);

	calls_tidy();
	if (e && e->in) {
		int saved = errno;

		receive_tidy(e, fd);
		errno = saved;
	}
	end_drop(fd);
	return next.close(fd);
}

static void forget(unsigned first, unsigned last)
{
	for (unsigned fd = first; fd <= last && (fd < EPOLL_SETS || fd < (unsigned)ends_top()); fd++)
		end_drop((int)fd);
}

EXPORT int close_range(unsigned first, unsigned last, int flags)
{
	if ((flags & CLOSE_RANGE_UNSHARE) && !ends_leave_all())
		return (int)sys_return(-ENOMEM);
	if (!(flags & CLOSE_RANGE_CLOEXEC))
		forget(first, last);
	return (int)sys_return(SYS(close_range, first, last, flags));
}

EXPORT void closefrom(int first)
{
	forget(first < 0 ? 0 : (unsigned)first, ~0u);
	if (next.closefrom)
		next.closefrom(first);
	else
		SYS(close_range, first, ~0u, 0);
}

/* Some programs do these without libc's own functions. */
EXPORT long syscall(long n, ...)
{
	long a[6];
	va_list args;

	va_start(args, n);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	switch (n) {
	case SYS_close:
		return close((int)a[0]);
	case SYS_close_range:
		return close_range((unsigned)a[0], (unsigned)a[1], (int)a[2]);
#ifdef SYS_dup2
	case SYS_dup2:
		return dup2((int)a[0], (int)a[1]);
#endif
	case SYS_dup3:
		return dup3((int)a[0], (int)a[1], (int)a[2]);
	case SYS_setsockopt:
		return setsockopt((int)a[0], (int)a[1], (int)a[2], (const void *)a[3], (socklen_t)a[4]);
	case SYS_unshare:
		return unshare((int)a[0]);
	case SYS_seccomp:
		return sys_return(guard_seccomp(a));
	case SYS_prctl:
		return sys_return(guard_prctl(a));
	case SYS_dup:
		return dup((int)a[0]);
	case SYS_read:
		return read((int)a[0], (void *)a[1], (size_t)a[2]);
	case SYS_write:
		return write((int)a[0], (const void *)a[1], (size_t)a[2]);
	case SYS_epoll_ctl:
		return epoll_ctl((int)a[0], (int)a[1], (int)a[2], (struct epoll_event *)a[3]);
#ifdef SYS_epoll_wait
	case SYS_epoll_wait:
		return epoll_wait((int)a[0], (struct epoll_event *)a[1], (int)a[2], (int)a[3]);
#endif
	case SYS_epoll_pwait:
		return epoll_pwait(
			(int)a[0], (struct epoll_event *)a[1], (int)a[2], (int)a[3], (const sigset_t *)a[4]);
	case SYS_epoll_pwait2:
		return epoll_pwait2((int)a[0], (struct epoll_event *)a[1], (int)a[2],
			(const struct timespec *)a[3], (const sigset_t *)a[4]);
	case SYS_clone:
#ifdef SYS_clone3
	case SYS_clone3:
#endif
#ifdef SYS_fork
	case SYS_fork:
#endif
		return sys_return(births_clone(n, a));
	case SYS_io_uring_setup: { /* reads and writes there are not seen */
		long r = uring_begins();

		if (r != 0)
			return sys_return(r);
		break;
	}
	case SYS_io_uring_register:
		uring_registers((unsigned)a[1], (const void *)a[2], (unsigned)a[3]);
		break;
	}
	return sys_return(sys6(n, a[0], a[1], a[2], a[3], a[4], a[5]));
}

EXPORT int shutdown(int fd, int how)
{
	struct end *e = end_at(fd);
	long r;

	if (end_over(fd))
		return (int)sys_return(-ENOTCONN);
	if (e && how == SHUT_RD && quiet_shut(e, fd))
		return 0;
	if (e && how == SHUT_WR && quiet_has(e))
		how = SHUT_RDWR;
	if (e && how != SHUT_RD)
		leave_out(e, fd);
	if (e && how != SHUT_WR)
		receive_shut(e, how == SHUT_RDWR);
	r = SYS(shutdown, fd, how);
	if (e && r == 0)
		busy_again(fd, 0);
	if (e && r == 0 && how == SHUT_RDWR)
		quiet_over(fd, false);
	if (e && r == 0 && how != SHUT_RD)
		end_shut(fd);
	if (r == 0 && how != SHUT_RD)
		reset_mark(fd, false); /* the end of the sent bytes has come before a reset, and stays an end */
	return (int)sys_return(r);
}

/* Descriptors that another program would inherit, and that had to be kept from it. */
struct kept {
	uint8_t bits[ENDS / 8];
	bool any;
};

/*
 * keep_from has the descriptors go in-band that another program will inherit, or all. One that has
 * bytes in its ring is not inherited: a reader there finds no descriptor, in place of bytes that
 * were never sent.
 */
static void keep_from(struct kept *k, bool all)
{
	k->any = false;
	epoll_settle_all();
	hand_may_wait(true);
	for (int fd = 0; fd < ends_top(); fd++) {
		long flags;

		if (!end_at(fd))
			continue;
		flags = SYS(fcntl, fd, F_GETFD);
		if (flags < 0 || (!all && (flags & FD_CLOEXEC)))
			continue;
		if (end_leave(fd) || (flags & FD_CLOEXEC)) {
			if (!(flags & FD_CLOEXEC))
				tally_lent(fd, 1);
			continue;
		}
		if (!k->any)
			memset(k->bits, 0, sizeof(k->bits));
		k->any = true;
		k->bits[fd / 8] |= (uint8_t)(1u << fd % 8);
		SYS(fcntl, fd, F_SETFD, flags | FD_CLOEXEC);
	}
	hand_may_wait(false);
}

/* keep_no_more is for afterwards; ran: there is another program. */
static void keep_no_more(const struct kept *k, bool ran)
{
	int saved = errno;

	for (int fd = 0; !ran && fd < ends_top(); fd++) {
		long flags = end_at(fd) ? SYS(fcntl, fd, F_GETFD) : -1;

		if (flags >= 0 && !(flags & FD_CLOEXEC))
			tally_lent(fd, -1);
	}
	for (int fd = 0; k->any && fd < ENDS; fd++) {
		long flags;

		if (!(k->bits[fd / 8] & (1u << fd % 8)))
			continue;
		flags = SYS(fcntl, fd, F_GETFD);
		SYS(fcntl, fd, F_SETFD, flags & ~FD_CLOEXEC);
	}
	errno = saved;
}

EXPORT int execve(const char *path, char *const *argv, char *const *envp)
{
	struct kept k;
	long r;

	keep_from(&k, false);
	r = SYS(execve, path, argv, envp);
	keep_no_more(&k, false);
	return (int)sys_return(r);
}

EXPORT int execv(const char *path, char *const *argv)
{
	return execve(path, argv, environ);
}

EXPORT int execvpe(const char *file, char *const *argv, char *const *envp)
{
	struct kept k;
	int r;

	if (!next.execvpe)
		next_resolve();
	keep_from(&k, false);
	r = next.execvpe(file, argv, envp);
	keep_no_more(&k, false);
	return r;
}

EXPORT int execvp(const char *file, char *const *argv)
{
	return execvpe(file, argv, environ);
}

EXPORT int execveat(int dir, const char *path, char *const *argv, char *const *envp, int flags);
int execveat(int dir, const char *path, char *const *argv, char *const *envp, int flags)
{
	struct kept k;
	long r;

	keep_from(&k, false);
	r = SYS(execveat, dir, path, argv, envp, flags);
	keep_no_more(&k, false);
	return (int)sys_return(r);
}

EXPORT int fexecve(int fd, char *const *argv, char *const *envp)
{
	return execveat(fd, "", argv, envp, AT_EMPTY_PATH);
}

#define ARGUMENTS(argv, first, args)                                               \
	va_start(args, first);                                                     \
	for (n = 1; va_arg(args, char *); n++)                                     \
		;                                                                  \
	va_end(args);                                                              \
	argv = alloca((n + 1) * sizeof(char *));                                   \
	argv[0] = (char *)(uintptr_t)first;                                        \
	va_start(args, first);                                                     \
	for (n = 1; (argv[n] = va_arg(args, char *)); n++)                         \
		;

EXPORT int execl(const char *path, const char *arg, ...)
{
	va_list args;
	char **argv;
	size_t n;

	ARGUMENTS(argv, arg, args)
	va_end(args);
	return execve(path, argv, environ);
}

EXPORT int execlp(const char *file, const char *arg, ...)
{
	va_list args;
	char **argv;
	size_t n;

	ARGUMENTS(argv, arg, args)
	va_end(args);
	return execvpe(file, argv, environ);
}

EXPORT int execle(const char *path, const char *arg, ...)
{
	va_list args;
	char **argv;
	char *const *envp;
	size_t n;

	ARGUMENTS(argv, arg, args)
	envp = va_arg(args, char *const *);
	va_end(args);
	return execve(path, argv, envp);
}

EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
	const posix_spawnattr_t *attr, char *const *argv, char *const *envp)
{
	struct kept k;
	int r;

	if (!next.posix_spawn)
		next_resolve();
	keep_from(&k, false);
	r = next.posix_spawn(pid, path, actions, attr, argv, envp);
	keep_no_more(&k, r == 0);
	return r;
}

EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
	const posix_spawnattr_t *attr, char *const *argv, char *const *envp)
{
	struct kept k;
	int r;

	if (!next.posix_spawnp)
		next_resolve();
	keep_from(&k, false);
	r = next.posix_spawnp(pid, file, actions, attr, argv, envp);
	keep_no_more(&k, r == 0);
	return r;
}

/* The copy is made inside libc: nobody asks us then. */
EXPORT int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *actions, int fd, int to)
{
	if (!next.posix_spawn_file_actions_adddup2)
		next_resolve();
	if (!end_leave(fd))
		return EBUSY;
	tally_lent(fd, 1);
	return next.posix_spawn_file_actions_adddup2(actions, fd, to);
}

EXPORT int system(const char *command)
{
	struct kept k;
	int r;

	if (!next.system)
		next_resolve();
	keep_from(&k, false);
	r = next.system(command);
	keep_no_more(&k, r != -1);
	return r;
}

EXPORT FILE *popen(const char *command, const char *mode)
{
	struct kept k;
	FILE *f;

	if (!next.popen)
		next_resolve();
	keep_from(&k, false);
	f = next.popen(command, mode);
	keep_no_more(&k, f);
	return f;
}

/* A stream reads and writes inside libc. */
EXPORT FILE *fdopen(int fd, const char *mode)
{
	if (!next.fdopen)
		next_resolve();
	if (!end_leave(fd)) {
		errno = ENOMEM;
		return NULL;
	}
	tally_lent(fd, 1); /* for good */
	return next.fdopen(fd, mode);
}

/* end_in_band has sending stay in-band for good: libc writes by itself, and so does the kernel. */
void end_in_band(int fd)
{
	struct end *e = end_at(fd);

	if (e) {
		__atomic_fetch_or(&e->never, NEVER_OUT, __ATOMIC_SEQ_CST);
		leave_out(e, fd);
	}
}

EXPORT int vdprintf(int fd, const char *format, va_list args)
{
	int r;

	if (!next.vdprintf)
		next_resolve();
	end_in_band(fd);
	r = next.vdprintf(fd, format, args);
	tally_in_band(end_at(fd), true, r);
	return r;
}

EXPORT int dprintf(int fd, const char *format, ...)
{
	va_list args;
	int r;

	va_start(args, format);
	r = vdprintf(fd, format, args);
	va_end(args);
	return r;
}

/* vdprintf and dprintf where the compiler is told to fortify. */
EXPORT int __vdprintf_chk(int fd, int flag, const char *format, va_list args);
int __vdprintf_chk(int fd, int flag, const char *format, va_list args)
{
	int r;

	if (!next.vdprintf_chk)
		next_resolve();
	end_in_band(fd);
	r = next.vdprintf_chk(fd, flag, format, args);
	tally_in_band(end_at(fd), true, r);
	return r;
}

EXPORT int __dprintf_chk(int fd, int flag, const char *format, ...);
int __dprintf_chk(int fd, int flag, const char *format, ...)
{
	va_list args;
	int r;

	va_start(args, format);
	r = __vdprintf_chk(fd, flag, format, args);
	va_end(args);
	return r;
}

#define SPLICE_PIECE 4096 /* a pipe that can be written to takes as much */
#define SPLICE_TURNS 1000

/*
 * splice_ring moves the bytes in a ring to a pipe, as the kernel would, until the kernel can do the
 * rest. It returns the number of bytes moved; 0: the ring has ended, or the kernel is to say why
 * not.
 */
static ssize_t splice_ring(struct end *e, int in, int out, size_t n, unsigned flags)
{
	struct stat st;
	size_t done = 0;
	int saved = errno;

	for (int turn = 0; done < n && turn < SPLICE_TURNS && !leave_in(e, in); turn++) {
		char piece[SPLICE_PIECE];
		struct iovec one = {piece, n - done < sizeof(piece) ? n - done : sizeof(piece)};
		struct pollfd p = {.fd = out, .events = POLLOUT};
		struct timespec none = {0};
		bool waits = done == 0 && !(flags & SPLICE_F_NONBLOCK) && would_wait(out, 0);
		long polled;
		ssize_t got;

		if (SYS(fstat, out, &st) != 0 || !S_ISFIFO(st.st_mode))
			return sys_return(-EINVAL);
		polled = SYS(ppoll, &p, 1, waits ? NULL : &none, NULL, 0);
		if (polled != 1 && polled != -EINVAL) /* with RLIMIT_NOFILE 0 none may be polled */
			return done ? (ssize_t)done : sys_return(waits ? -EINTR : -EAGAIN);
		if (p.revents & POLLERR) /* nobody reads there, which is a signal, too */
			return done ? (ssize_t)done : sys_return(SYS(write, out, "", 1));
		got = end_read(e, in, &one, 1, MSG_DONTWAIT);
		if (got == 0 || (got < 0 && errno != EAGAIN))
			return done ? (ssize_t)done : got == NOT_OURS ? 0 : got;
		for (ssize_t at = 0; at < got;) {
			long w = SYS(write, out, piece + at, got - at);

			if (w < 0 && w != -EINTR && w != -EAGAIN)
				return done ? (ssize_t)done : sys_return(w);
			at += w > 0 ? w : 0;
		}
		done += got > 0 ? (size_t)got : 0;
	}
	errno = saved;
	return (ssize_t)done;
}

EXPORT ssize_t splice(int in, off64_t *in_offset, int out, off64_t *out_offset, size_t n, unsigned flags)
{
	struct end *e = end_at(in);
	long r;

	end_in_band(out);
	if (e) {
		quiet_over(in, true); /* the kernel is to say that nothing more is waited for */
		__atomic_fetch_or(&e->never, NEVER_IN, __ATOMIC_SEQ_CST);
		if (!in_offset && !out_offset) {
			ssize_t moved = splice_ring(e, in, out, n, flags);

			if (moved != 0)
				return moved;
		}
		if (!leave_in(e, in))
			/* as of a file that cannot be spliced; the next time it may be in-band */
			return sys_return(-EINVAL);
	}
	r = SYS(splice, in, in_offset, out, out_offset, n, flags);
	tally_in_band(e, false, r);
	tally_in_band(end_at(out), true, r);
	return sys_return(r);
}
