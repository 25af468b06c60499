/* Filters of system calls that nobody sees. */
#ifndef FILTERS_H
#define FILTERS_H

#include <sys/syscall.h>

/*
 * filter_unseen gives this process a filter of system calls, a struct sock_fprog, by an inline system call: the library, which stands before prctl, does
 * not see it, as it does not see one that was there before the program. It returns 0, or an error below 0.
 */
static inline long filter_unseen(const void *program)
{
#if defined(__x86_64__)
	long r;
	register long fourth __asm__("r10") = 0;
	register long fifth __asm__("r8") = 0;

	__asm__ volatile("syscall"
			 : "=a"(r)
			 : "a"((long)SYS_prctl), "D"(22L /* PR_SET_SECCOMP */), "S"(2L /* SECCOMP_MODE_FILTER */), "d"(program), "r"(fourth), "r"(fifth)
			 : "rcx", "r11", "memory");
	return r;
#else
	register long number __asm__("x8") = SYS_prctl;
	register long r __asm__("x0") = 22; /* PR_SET_SECCOMP */
	register long mode __asm__("x1") = 2; /* SECCOMP_MODE_FILTER */
	register const void *third __asm__("x2") = program;
	register long fourth __asm__("x3") = 0;
	register long fifth __asm__("x4") = 0;

	__asm__ volatile("svc 0" : "+r"(r) : "r"(number), "r"(mode), "r"(third), "r"(fourth), "r"(fifth) : "memory");
	return r;
#endif
}

#endif
