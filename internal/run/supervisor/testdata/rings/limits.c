/* Resources that a process is short of, calls that it may not make, and memory that it must not believe. */
#include "rings.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* The reader has no descriptor left when the writer switches. */
void test_starved(void)
{
	struct rlimit few = {50, 50};
	int a, b;

	both_ends(&a, &b);
	for (int i = 0; i < 4; i++) {
		fill(&ab, LARGE);
		CHECK(write(a, buf, LARGE) == LARGE);
		ab.at += LARGE;
		if (i == 1) {
			CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
			while (dup(0) >= 0)
				;
			CHECK(errno == EMFILE);
		}
		take(b, &ab_in, LARGE, LARGE);
	}
}

/* No file may be so large: that is no reason to get SIGXFSZ for a ring. */
void test_small_files(void)
{
	struct rlimit small = {100000, 100000};
	int a, b;

	CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
	both_ends(&a, &b);
	for (int i = 0; i < 3; i++) {
		fill(&ab, LARGE);
		CHECK(write(a, buf, LARGE) == LARGE);
		ab.at += LARGE;
		take(b, &ab_in, LARGE, LARGE);
	}
}

/* ring_memory is where this process has a ring. */
static char *ring_memory(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	unsigned long at = 0;

	while (fgets(line, sizeof(line), f))
		if (strstr(line, "gosmc-ring"))
			at = strtoul(line, NULL, 16);
	fclose(f);
	return (char *)at;
}

/* A ring has all of its memory from the beginning where RESERVED=1, and with RESERVED=0 it has not. The bytes go through it. */
void test_reserved(void)
{
	const char *told = getenv("RESERVED");
	char line[512], path[600] = "";
	struct stat st;
	FILE *f;
	int a, b;

	joined(&a, &b);
	f = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof(line), f))
		if (strstr(line, "gosmc-ring"))
			snprintf(path, sizeof(path), "/proc/self/map_files/%.*s", (int)strcspn(line, " "), line);
	fclose(f);
	CHECK(stat(path, &st) == 0 && told);
	printf("%ld of %ld bytes\n", (long)st.st_blocks * 512, (long)st.st_size);
	CHECK((st.st_blocks * 512 >= st.st_size) == (*told == '1'));
	for (int i = 0; i < 100; i++) {
		fill(&ab, LARGE);
		CHECK(write(a, buf, LARGE) == LARGE);
		ab.at += LARGE;
		take(b, &ab_in, LARGE, LARGE);
	}
}

static void quick(ssize_t r)
{
	CHECK(r >= 0 || errno == EAGAIN || errno == EPIPE || errno == ECONNRESET);
}

/*
 * A peer writes values that it must not into the memory that both have. There may be wrong bytes, which it could have sent as well,
 * and a reset; nothing waits that must not, and nothing is touched that is not the ring's.
 */
void test_scribble(void)
{
	static const uint64_t values[] = {0, ~0ull, 1, 1ull << 39, (1ull << 40) - 1, 1ull << 40, 1ull << 41, 0xffffull << 41, 1ull << 57,
					  1ull << 58, 1ull << 59, 7ull << 57, 1ull << 63, 1 << 20, 2 << 20, (1 << 20) + 1};
	static const int places[] = {0, 8, 64, 128, 192, 256};

	signal(SIGPIPE, SIG_IGN);
	alarm(50);
	for (unsigned i = 0; i < 3 * sizeof(places) / sizeof(places[0]) * sizeof(values) / sizeof(values[0]); i++) {
		int place = places[i % 6], full = i / 6 / 16, a, b;
		uint64_t value = values[i / 6 % 16], old;
		char *ring;

		joined(&a, &b);
		ring = ring_memory();
		if (!ring)
			return;
		if (full) /* a part of the ring, or all */
			while (send(a, buf, LARGE, MSG_DONTWAIT) > 0 && full == 2)
				;
		memcpy(&old, ring + place, 8);
		if (i % 5 == 0)
			value ^= old;
		if (i % 5 == 1)
			value += old;
		memcpy(ring + place, &value, place > 128 || place == 8 ? 4 : 8);
		for (int j = 0; j < 40; j++) {
			if (j == 20) /* let it be, and see */
				memcpy(ring + place, &old, place > 128 || place == 8 ? 4 : 8);
			quick(send(a, buf, LARGE, MSG_DONTWAIT));
			if (!full || j >= 10) {
				quick(recv(b, buf, LARGE, MSG_DONTWAIT | MSG_PEEK));
				quick(recv(b, buf, LARGE / 2, MSG_DONTWAIT));
			}
		}
		close(a);
		for (ssize_t r = 1; r > 0;) {
			r = recv(b, buf, LARGE, MSG_DONTWAIT);
			quick(r);
		}
		close(b);
		have(0);
	}
	/* It has taken the tokens, and says that it has read everything, with the ring as full as it was. */
	int a, b;

	joined(&a, &b);
	while (send(a, buf, LARGE, MSG_DONTWAIT) > 0)
		;
	while (syscall(SYS_recvfrom, b, buf, 100, MSG_DONTWAIT, NULL, NULL) > 0)
		;
	*(uint64_t *)(ring_memory() + 64) |= 1ull << 40;
	CHECK(send(a, buf, LARGE, MSG_DONTWAIT) < 0 && errno == ECONNRESET);
	CHECK(recv(b, buf, LARGE, MSG_DONTWAIT) >= 0);
}

static int flooded;

/* floods sends in-band for as long as there is somebody to take it. */
static void *floods(void *arg)
{
	while (syscall(SYS_sendto, flooded, buf, LARGE, MSG_NOSIGNAL, NULL, 0) > 0)
		;
	return arg;
}

/* A peer says that the place where its ring begins is on its way, and it never comes. A program that gives the descriptor away does not wait for it for ever. */
void test_flood(void)
{
	pthread_t thread;
	char *ring;
	int b;

	both_ends(&flooded, &b);
	CHECK(send(flooded, buf, LARGE, 0) == LARGE && recv(b, buf, LARGE, MSG_WAITALL) == LARGE);
	ring = ring_memory();
	if (!ring || *(uint32_t *)(ring + 256) != 1)
		return;
	*(uint32_t *)(ring + 256) = 4;
	CHECK(pthread_create(&thread, NULL, floods, NULL) == 0);
	await(b, POLLIN);
	CHECK(fdopen(b, "r+") == NULL);
	CHECK(pthread_join(thread, NULL) == 0); /* the connection was reset */
}

/* forbid has the kernel refuse a system call. */
static void forbid(int number)
{
	struct sock_filter f[] = {
		{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)},
		{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (unsigned)number},
		{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
		{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
	};
	struct sock_fprog all = {sizeof(f) / sizeof(f[0]), f};

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && filter_unseen(&all) == 0);
}

static int option(int fd, int name)
{
	int v = -1;
	socklen_t len = sizeof(v);

	CHECK(getsockopt(fd, IPPROTO_TCP, name, &v, &len) == 0 && len == sizeof(v));
	return v;
}

/* Some set TCP_CORK twice with every answer. A process that gets the socket finds it as it was left. */
void test_cork(void)
{
	int on = 1, off = 0, a, b, c;

	both_ends(&a, &b);
	CHECK(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
	CHECK(setsockopt(a, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)) == 0 && option(a, TCP_CORK) == 1 && option(a, TCP_NODELAY) == 1);
	CHECK(option(b, TCP_CORK) == 0);
	c = dup(a);
	CHECK(c >= 0 && option(c, TCP_CORK) == 1 && option(a, TCP_CORK) == 1);
	CHECK(setsockopt(c, IPPROTO_TCP, TCP_CORK, &off, sizeof(off)) == 0 && option(a, TCP_CORK) == 0);
	CHECK(setsockopt(b, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(option(b, TCP_CORK) == 1 && setsockopt(b, IPPROTO_TCP, TCP_CORK, &off, sizeof(off)) == 0);
		_exit(0);
	}
	done(child);
	CHECK(option(b, TCP_CORK) == 0 && option(a, TCP_NODELAY) == 1);
	both_ends(&a, &b);
	if (on_rings()) {
		forbid(SYS_setsockopt);
		forbid(SYS_getsockname);
	}
	for (int i = 0; i < 100; i++) {
		CHECK(setsockopt(a, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)) == 0 && option(a, TCP_CORK) == 1);
		CHECK(setsockopt(a, IPPROTO_TCP, TCP_CORK, &off, sizeof(off)) == 0 && option(a, TCP_CORK) == 0);
	}
}
