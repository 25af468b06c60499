/*
 * A peer that changes the memory that both have at the worst moment, again and again: a tracer does so at each system call that a call makes which is not to wait. It
 * returns all the same. vain CASE.
 */
#include "program.h"

#include <sys/ptrace.h>

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

#define SOME 100
#define ROUNDS 40   /* of an exchange, until there is a ring */
#define MOST 200000 /* system calls that one call may make, and ends of them */
#define RING_PUB 64 /* docs/shared-memory.md, section 10 */
#define RING_WANTED 192
#define COUNT (1ull << 41)
#define COUNTS (0xffffull << 41)

static struct {
	int fd; /* the liar's end */
} *plan;

static int c, s;
static unsigned char buf[SOME], got[SOME], large[1 << 16];

/* The tracer, which is the liar. */

static int memory; /* of the child */
static off_t ring; /* in it */
static int end;	   /* a copy of the liar's */

static uint64_t word(off_t at)
{
	uint64_t v;

	CHECK(pread(memory, &v, sizeof(v), ring + at) == sizeof(v));
	return v;
}

static void store(off_t at, uint64_t v)
{
	CHECK(pwrite(memory, &v, sizeof(v), ring + at) == sizeof(v));
}

/* tokens announces a token that nothing is behind, and sends it. */
static void tokens(void)
{
	uint64_t pub = word(RING_PUB);

	store(RING_PUB, (pub & ~COUNTS) | ((pub + COUNT) & COUNTS));
	send(end, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void not_wanted(void)
{
	store(RING_WANTED, 0);
}

/* begin finds the ring that c writes. */
static void begin(pid_t child)
{
	char path[64], line[512];
	int pidfd = (int)syscall(SYS_pidfd_open, child, 0);
	FILE *f;

	CHECK(pidfd >= 0);
	end = (int)syscall(SYS_pidfd_getfd, pidfd, plan->fd, 0);
	CHECK(end >= 0);
	snprintf(path, sizeof(path), "/proc/%d/mem", child);
	memory = open(path, O_RDWR | O_CLOEXEC);
	snprintf(path, sizeof(path), "/proc/%d/maps", child);
	f = fopen(path, "r");
	CHECK(memory >= 0 && f);
	while (ring == 0 && fgets(line, sizeof(line), f))
		if (strstr(line, "gosmc-ring") && strstr(line, ".c"))
			ring = (off_t)strtoull(line, NULL, 16);
	CHECK(ring != 0);
	fclose(f);
	close(pidfd);
}

static int trace(pid_t child, void (*lie)(void))
{
	bool lies = false;
	int status;

	for (long n = 0;;) {
		int sig;

		CHECK(waitpid(child, &status, 0) == child);
		if (!WIFSTOPPED(status))
			return status;
		sig = WSTOPSIG(status);
		if (sig == SIGUSR1) {
			begin(child);
			lies = true;
		} else if (sig == SIGUSR2) {
			lies = false;
		} else if (sig == (SIGTRAP | 0x80) && lies) {
			CHECK(++n < MOST);
			lie();
		}
		if (sig == SIGUSR1 || sig == SIGUSR2 || sig == SIGSTOP || sig == (SIGTRAP | 0x80))
			sig = 0;
		CHECK(ptrace(PTRACE_SYSCALL, child, NULL, (void *)(long)sig) == 0);
	}
}

/* The program. */

static void joined(void)
{
	both_ends(&c, &s);
	CHECK(fcntl(c, F_SETFL, O_NONBLOCK) == 0 && fcntl(s, F_SETFL, O_NONBLOCK) == 0);
	for (int i = 0; i < ROUNDS; i++) {
		CHECK(write(c, buf, SOME) == SOME);
		for (ssize_t have = 0, r; have < SOME; have += r) {
			await(s, POLLIN);
			r = read(s, got, SOME - (size_t)have);
			CHECK(r > 0);
		}
	}
	CHECK(mapped_rings() == 2); /* both sides of one */
}

static void lied_to(bool sends)
{
	ssize_t r;

	joined();
	while (sends && write(c, large, sizeof(large)) > 0)
		;
	plan->fd = sends ? s : c;
	kill(getpid(), SIGUSR1);
	r = sends ? write(c, large, sizeof(large)) : read(s, got, SOME);
	kill(getpid(), SIGUSR2);
	CHECK(r > 0 || errno == EAGAIN || errno == ECONNRESET);
}

static const struct {
	const char *name;
	void (*lie)(void);
	bool sends;
} cases[] = {{"tokens", tokens, false}, {"wanted", not_wanted, true}};

int main(int argc, char **argv)
{
	size_t i = 0;
	pid_t child;

	alarm(100);
	CHECK(argc > 1);
	while (strcmp(cases[i].name, argv[1]) != 0)
		CHECK(++i < sizeof(cases) / sizeof(cases[0]));
	plan = mmap(NULL, sizeof(*plan), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(plan != MAP_FAILED);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0 && kill(getpid(), SIGSTOP) == 0);
		lied_to(cases[i].sends);
		_exit(0);
	}
	CHECK(waitpid(child, NULL, 0) == child);
	CHECK(ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)(long)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)) == 0 && ptrace(PTRACE_SYSCALL, child, NULL, NULL) == 0);
	return trace(child, cases[i].lie) != 0;
}
