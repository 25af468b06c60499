/*
 * A program that has rings, and refuses itself a system call of ours from then on, as programs do that have a list of those which they need: sandbox CASE SEED,
 * CASE being what it says to it, eperm or enosys.
 */
#include "program.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#define PIECE 20000

static char buf[PIECE];

static void send_on(int from, int to)
{
	CHECK(write(from, buf, PIECE) == PIECE);
	await(to, POLLIN);
	CHECK(recv(to, buf, PIECE, MSG_WAITALL) == PIECE);
}

static void refuse(unsigned nr, unsigned error)
{
	struct sock_filter list[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog all = {.len = sizeof(list) / sizeof(list[0]), .filter = list};

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0);
}

int main(int argc, char **argv)
{
	int c, s;

	both_ends(&c, &s);
	for (int i = 0; i < 200; i++) {
		if (i == 100) {
			CHECK(!getenv("RINGS") || mapped_rings() == 4);
			refuse(SYS_sendmmsg, argc > 1 && strcmp(argv[1], "eperm") == 0 ? EPERM : ENOSYS);
		}
		send_on(c, s);
		send_on(s, c);
	}
	close(c);
	CHECK(read(s, buf, 1) == 0);
	return 0;
}
