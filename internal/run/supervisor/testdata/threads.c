/*
 * Threads that send over one connection at the same time: a thread that sleeps until it is its turn is woken, and does not sleep until its time is up. Wakes
 * of the C library are private to the process, those of a ring are not: that tells them apart.
 */
#include "program.h"

#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <sys/prctl.h>

#define SENDERS 4
#define MESSAGE 1000

static atomic_int wakes;
static atomic_bool over;
static atomic_long sent;
static int c, s;

static void on_wake(int sig) { (void)sig; wakes++; } /* the call fails, and the sleeper looks by itself after some time */

/* trap has us know of each FUTEX_WAKE. */
static void trap(void)
{
	struct sigaction act = {.sa_handler = on_wake, .sa_flags = SA_RESTART};
	struct sock_filter f[] = {
		{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)},
		{BPF_JMP | BPF_JEQ | BPF_K, 0, 3, SYS_futex},
		{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, args[1])},
		{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, FUTEX_WAKE},
		{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_TRAP},
		{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
	};
	struct sock_fprog all = {sizeof(f) / sizeof(f[0]), f};

	CHECK(sigaction(SIGSYS, &act, NULL) == 0);
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && filter_unseen(&all) == 0);
}

static void *sender(void *unused)
{
	char message[MESSAGE] = {0};

	(void)unused;
	while (!over) {
		CHECK(send(c, message, sizeof(message), 0) == sizeof(message));
		sent += sizeof(message);
	}
	return NULL;
}

static void *receiver(void *total)
{
	static char b[1 << 16];
	ssize_t n;

	while ((n = recv(s, b, sizeof(b), 0)) > 0)
		*(long *)total += n;
	CHECK(n == 0);
	return NULL;
}

int main(int argc, char **argv)
{
	static const char first[1 << 16];
	pthread_t senders[SENDERS], reader;
	long received = 0;

	CHECK(argc > 1 && strcmp(argv[1], "send") == 0);
	both_ends(&c, &s);
	CHECK(pthread_create(&reader, NULL, receiver, &received) == 0);
	for (int i = 0; i < 64; i++) { /* until there is a ring */
		CHECK(send(c, first, sizeof(first), 0) == sizeof(first));
		sent += sizeof(first);
	}
	CHECK(mapped_rings() > 0);
	trap();
	for (int i = 0; i < SENDERS; i++)
		CHECK(pthread_create(&senders[i], NULL, sender, NULL) == 0);
	for (int i = 0; i < PATIENCE && wakes < 10; i++)
		usleep(1000);
	over = true;
	for (int i = 0; i < SENDERS; i++)
		CHECK(pthread_join(senders[i], NULL) == 0);
	CHECK(shutdown(c, SHUT_WR) == 0 && pthread_join(reader, NULL) == 0);
	CHECK(received == sent);
	CHECK(wakes > 0);
	return 0;
}
