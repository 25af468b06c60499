/*
 * Blocking calls that look before they sleep: how often they ask, while the answer is made up here. Each case is a way to wait. Nothing ever
 * comes, and the kernel says so at once.
 */
#include "program.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <ucontext.h>

static volatile int asked;  /* times since it was set to 0 */
static volatile int answer; /* to all but the first */

static void on_ppoll(int sig, siginfo_t *info, void *context)
{
	ucontext_t *c = context;
	long result = asked++ ? answer : 0;

	(void)sig;
	(void)info;
#if defined(__x86_64__)
	c->uc_mcontext.gregs[REG_RAX] = result;
#elif defined(__aarch64__)
	c->uc_mcontext.regs[0] = (unsigned long)result;
#endif
}

#define REFUSE(n) {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, n}, {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EAGAIN}

/* trap has us answer ppoll, and nobody wait. */
static void trap(void)
{
	struct sigaction act = {.sa_sigaction = on_ppoll, .sa_flags = SA_SIGINFO | SA_RESTART};
	struct sock_filter f[] = {
		{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)},
		{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_ppoll},
		{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_TRAP},
		REFUSE(SYS_accept), REFUSE(SYS_accept4), REFUSE(SYS_recvmsg), REFUSE(SYS_recvfrom),
		{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
	};
	struct sock_fprog all = {sizeof(f) / sizeof(f[0]), f};

	CHECK(sigaction(SIGSYS, &act, NULL) == 0);
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && filter_unseen(&all) == 0);
}

static int listener, end;

static int accepts(void) { return accept(listener, NULL, NULL); }
static int accepts4(void) { return accept4(listener, NULL, NULL, SOCK_CLOEXEC); }
static int receives(void) { char c; return (int)recv(end, &c, 1, 0); }
static int reads(void) { char c; return (int)read(end, &c, 1); }
static int peeks(void) { char c; return (int)recv(end, &c, 1, MSG_PEEK); }
static int hurries(void) { char c; return (int)recv(end, &c, 1, MSG_DONTWAIT); }

/* asks calls n times, and returns how many of the calls have asked, and in most how often one has. */
static int asks(int (*call)(void), int n, int *most)
{
	int calls = 0;

	*most = 0;
	for (int i = 0; i < n; i++) {
		asked = 0;
		CHECK(call() == -1 && errno == EAGAIN);
		calls += asked > 0;
		*most = asked > *most ? asked : *most;
	}
	return calls;
}

int main(int argc, char **argv)
{
	static const struct { const char *name; int (*call)(void); } ways[] = {
		{"accept", accepts}, {"accept4", accepts4}, {"recv", receives}, {"read", reads}, {"peek", peeks}, {"dontwait", hurries},
	};
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct timeval limit = {.tv_usec = 1000}; /* for read, which others need */
	int (*call)(void) = NULL;
	socklen_t len = sizeof(a);
	int client, most, off = 0;

	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		if (argc > 1 && strcmp(argv[1], ways[i].name) == 0)
			call = ways[i].call;
	CHECK(call);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(bind(listener, (struct sockaddr *)&a, len) == 0 && listen(listener, 5) == 0 && getsockname(listener, (struct sockaddr *)&a, &len) == 0);
	client = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(client, (struct sockaddr *)&a, len) == 0);
	end = accept(listener, NULL, NULL);
	CHECK(end >= 0);
	CHECK(setsockopt(end, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
	trap();
	if (!getenv("LOOKS") || call == peeks || call == hurries) {
		CHECK(asks(call, 20, &most) == 0);
		return 0;
	}
	/* It does not pay: some first calls look, then few. */
	CHECK(asks(call, 1, &most) == 1 && most > 2);
	CHECK(asks(call, 60, &most) <= 4);
	most = asks(call, 300, &most);
	CHECK(most >= 1 && most <= 4);
	/* It pays: one of them finds out, and all look. */
	answer = 1;
	asks(call, 1000, &most);
	CHECK(asks(call, 20, &most) == 20 && most == 2);
	/* A call that is not to wait does not. */
	CHECK(fcntl(call == accepts || call == accepts4 ? listener : end, F_SETFL, O_NONBLOCK) == 0);
	CHECK(asks(call, 20, &most) == 0);
	if (call == receives || call == reads) {
		CHECK(ioctl(end, FIONBIO, &off) == 0);
		CHECK(asks(call, 20, &most) == 20);
		off = 1;
		CHECK(ioctl(end, FIONBIO, &off) == 0);
		CHECK(asks(call, 20, &most) == 0);
		/* As another process would have set it, unseen. */
		CHECK(ioctl(end, FIONBIO, (off = 0, &off)) == 0);
		CHECK(syscall(SYS_fcntl, end, F_SETFL, O_NONBLOCK) == 0);
		asks(call, 20, &most);
		CHECK(most == 1);
	}
	return 0;
}
