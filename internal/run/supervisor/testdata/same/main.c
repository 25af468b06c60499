/*
 * A program that does random things with TCP connections to itself, and prints the result of each: same SEED STEPS. Bare and
 * under 'gosmc run' it has to say the same. Left out are the differences that docs/run.md has. With the environment variable BARE it
 * waits until the bytes that TCP has sent are there; under us it always is.
 */
#include "same.h"

static void do_fork(void)
{
	int status;
	pid_t child;

	fflush(stdout);
	say("fork");
	fflush(stdout);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		for (int i = 0; i < 3; i++)
			step(2);
		fflush(stdout);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* step does one thing. Not all are done in a process that is one for a moment: its descriptors would not be there later. */
void step(int most)
{
	int i = (int)pick(CONNECTIONS), k = (int)pick(2);
	unsigned what = pick(most == 2 ? 12 : 24);

	if (most == 2 && (w->sides[i][k].fd < 0 || w->sides[i][k].reset))
		return;
	if (w->sides[i][k].fd < 0) {
		if (w->sides[i][!k].fd < 0 || pick(3) == 0) {
			anew(i);
			return;
		}
		k = !k;
	}
	switch (what) {
	case 0 ... 3:
		if (most != 2 || w->sides[i][!k].fd >= 0)
			do_send(i, k);
		break;
	case 4 ... 8:
		do_receive(i, k);
		break;
	case 9:
		do_poll();
		break;
	case 10:
		if (most == 0)
			do_ask(i, k);
		break;
	case 11:
		do_select(i, k);
		break;
	case 12:
		if (pick(4) == 0)
			do_shutdown(i, k);
		break;
	case 13 ... 15:
		do_register(i, k);
		break;
	case 16 ... 18:
		do_wait((int)pick(SETS));
		break;
	case 19:
		if (pick(2))
			do_copy(i, k);
		break;
	case 20:
		if (pick(4) == 0)
			do_set((int)pick(SETS));
		break;
	case 21:
		if (pick(3) == 0)
			do_fork();
		break;
	case 22:
		do_corked(i, k);
		break;
	default:
		if (pick(3) == 0) {
			say("close %d.%d with %ld", i, k, waiting(i, k));
			give_up(i, k);
		}
	}
}

int main(int argc, char **argv)
{
	socklen_t len = sizeof(where);
	int steps = argc > 2 ? atoi(argv[2]) : 1000;

	CHECK(argc > 1);
	signal(SIGPIPE, SIG_IGN);
	w = mmap(NULL, sizeof(*w), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(w != MAP_FAILED);
	w->random = 0x9e3779b97f4a7c15ull * (strtoull(argv[1], NULL, 10) + 1);
	l = socket(AF_INET, SOCK_STREAM, 0);
	where = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	CHECK(l >= 0 && bind(l, (struct sockaddr *)&where, sizeof(where)) == 0 && listen(l, 16) == 0);
	CHECK(getsockname(l, (struct sockaddr *)&where, &len) == 0);
	for (int e = 0; e < SETS; e++)
		w->sets[e] = epoll_create1(0);
	for (int i = 0; i < CONNECTIONS; i++)
		make(i);
	for (w->step = 0; w->step < steps; w->step++)
		step(0);
	fflush(stdout);
	return 0;
}
