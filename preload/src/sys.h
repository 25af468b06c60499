/*
 * System calls without libc: they leave errno alone, are no cancellation points, work before libc
 * does, and pass other preloaded libraries by. The result is the kernel's: below 0 and above
 * -4096 it is an error number.
 */
#ifndef GOSMC_SYS_H
#define GOSMC_SYS_H

#include <errno.h>
#include <sys/syscall.h>

#if defined(__x86_64__)

static inline long sys6(long n, long a, long b, long c, long d, long e, long f)
{
	long ret;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
}

#elif defined(__aarch64__)

static inline long sys6(long n, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return x0;
}

#else
#error "gosmc run: amd64 and arm64 only"
#endif

#define SYS(name, ...) sys_pad(SYS_##name, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define sys_pad(n, a, b, c, d, e, f, ...) \
	sys6((n), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* sys_return turns the kernel's result into the result of libc's functions. */
static inline long sys_return(long ret)
{
	if (ret < 0 && ret > -4096) {
		errno = (int)-ret;
		return -1;
	}
	return ret;
}

#endif
