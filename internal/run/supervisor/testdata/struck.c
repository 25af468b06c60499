/*
 * A signal comes while the library gives memory of rings back, in a call that waits: struck CASE. The call ends as it would have with the signal, bare or not. A filter of
 * system calls that the library does not see tells when that is, and the call that it has stopped does nothing.
 */
#include "program.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <ucontext.h>

#define LIMIT 20000 /* milliseconds, after which nothing has ended a call */

static char buf[65536];
static int a, b;
static sig_atomic_t volatile struck, gave;

static void on_signal(int sig)
{
	(void)sig;
	struck++;
}

/* on_give is in the place of the first call that gives memory back. */
static void on_give(int sig, siginfo_t *info, void *context)
{
	ucontext_t *u = context;

	(void)sig;
	(void)info;
#if defined(__x86_64__)
	u->uc_mcontext.gregs[REG_RAX] = 0;
#else
	u->uc_mcontext.regs[0] = 0;
#endif
	if (gave++ == 0)
		kill(getpid(), SIGUSR1);
}

static void trap_giving(void)
{
	struct sock_filter f[] = {
		{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)},
		{BPF_JMP | BPF_JEQ | BPF_K, 0, 3, SYS_madvise},
		{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, args[2])},
		{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, MADV_REMOVE},
		{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_TRAP},
		{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
	};
	struct sock_fprog all = {sizeof(f) / sizeof(f[0]), f};

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && filter_unseen(&all) == 0);
}

/* speaks has something come when the call should have ended long before. */
static void *speaks(void *arg)
{
	sigset_t all;

	sigfillset(&all);
	CHECK(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0); /* else the kernel may have this thread take the signal */
	usleep(LIMIT * 1000);
	CHECK(send(b, "x", 1, 0) == 1);
	return arg;
}

/* waits waits for much longer than the library does before it gives memory back. */
static int waits(const char *how)
{
	struct timespec spec = {.tv_sec = LIMIT / 1000};
	struct timeval val = {.tv_sec = LIMIT / 1000};
	struct epoll_event ev;
	int ep = epoll_create1(0);
	pthread_t t;

	if (strcmp(how, "poll") == 0)
		return poll(NULL, 0, LIMIT);
	if (strcmp(how, "ppoll") == 0)
		return ppoll(NULL, 0, &spec, NULL);
	if (strcmp(how, "select") == 0)
		return select(0, NULL, NULL, NULL, &val);
	if (strcmp(how, "pselect") == 0)
		return pselect(0, NULL, NULL, NULL, &spec, NULL);
	if (strcmp(how, "epoll") == 0)
		return epoll_wait(ep, &ev, 1, LIMIT);
	if (strcmp(how, "epoll-mask") == 0)
		return epoll_pwait(ep, &ev, 1, LIMIT, NULL);
	CHECK(strcmp(how, "receive") == 0 && pthread_create(&t, NULL, speaks, NULL) == 0);
	return (int)recv(a, buf, 1, 0);
}

int main(int argc, char **argv)
{
	struct sigaction strikes = {.sa_handler = on_signal}, gives = {.sa_sigaction = on_give, .sa_flags = SA_SIGINFO};

	CHECK(argc >= 2 && sigaction(SIGUSR1, &strikes, NULL) == 0 && sigaction(SIGSYS, &gives, NULL) == 0);
	both_ends(&a, &b);
	for (int i = 0; i < 8; i++)
		CHECK(send(b, buf, 30000, 0) == 30000 && recv(a, buf, 30000, MSG_WAITALL) == 30000);
	trap_giving();
	if (!getenv("MOVED")) { /* nothing is given back there */
		CHECK(sigaction(SIGALRM, &strikes, NULL) == 0);
		alarm(2);
	}
	CHECK(waits(argv[1]) == -1 && errno == EINTR && struck == 1);
	return 0;
}
