/* A program with an interval timer: it listens, and ends. Its supervisor says nothing, for which it waits twice: for the board, and for its announcement. */
#include "program.h"

#include <sys/time.h>

static void tick(int signal) { (void)signal; }

int main(void)
{
	struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
	struct itimerval often = {.it_interval = {.tv_usec = 300000}, .it_value = {.tv_usec = 300000}};
	struct sockaddr_in a;

	CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
	server(&a);
	return 0;
}
