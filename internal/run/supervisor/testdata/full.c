/*
 * A server that has as many descriptors as it may, but for N, when it listens: full N. It does not wait for one that never comes, and serves its client.
 */
#include "program.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

#define SOON 1000 /* milliseconds; a wait for the supervisor takes 2000 */

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(at);
	int l = socket(AF_INET, SOCK_STREAM, 0), go[2], s, status, most;
	char c;
	long before;
	pid_t child;

	CHECK(argc > 1 && bind(l, (struct sockaddr *)&at, len) == 0 && getsockname(l, (struct sockaddr *)&at, &len) == 0 && pipe(go) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
		close(l);
		CHECK(read(go[0], &c, 1) == 1);
		s = connected_to(&at);
		CHECK(write(s, "x", 1) == 1 && read(s, &c, 1) == 1 && c == 'x');
		_exit(0);
	}
	close(go[0]);
	while ((most = dup(0)) < 32)
		CHECK(most >= 0);
	CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)most + 1, (rlim_t)most + 1}) == 0);
	for (int i = 0; i < atoi(argv[1]); i++)
		close(most - i);
	before = now();
	CHECK(listen(l, 5) == 0 && now() - before < SOON);
	CHECK(write(go[1], "x", 1) == 1);
	before = now();
	CHECK((s = accept(l, NULL, NULL)) >= 0 && now() - before < SOON);
	CHECK(read(s, &c, 1) == 1 && write(s, &c, 1) == 1);
	close(s);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}
