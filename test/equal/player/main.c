/*
 * The player of scripts: player [FD]. It reads scripts from standard input, plays each in processes of its own, and writes what each
 * step has observed to standard output. With FD it is a process of a script that has executed itself anew.
 *
 * Input:  "script NAME MSEC STALL\n", the steps, a line each, ".\n". MSEC is the time that the script may take. STALL, if it is not 0,
 *         is the time that it may stand still, in milliseconds.
 * Output: "script NAME\n", a line for each step, "moved CONNECTIONS JOINED OF\n", ".\n".
 */
#include "player.h"

#include <linux/futex.h>

struct world *w;
__thread struct step *self;
__thread int me, my_thread;
const char *program;
static int memory;

long futex(uint32_t *word, int op, uint32_t value, int msec)
{
	struct timespec t = {msec / 1000, msec % 1000 * 1000000l};

	return syscall(SYS_futex, word, op, value, msec < 0 ? NULL : &t, NULL, 0);
}

uint64_t msec_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void map(void)
{
	w = mmap(NULL, sizeof(*w), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	CHECK(w != MAP_FAILED);
}

/* step takes a line of a script: [~&]ACTOR[.THREAD] OPERATION. */
static bool step(const char *line)
{
	struct step *s = &w->step[w->steps];
	char *end;

	if (w->steps == STEPS)
		return false;
	*s = (struct step){.kind = ' '};
	if (*line == '~' || *line == '&')
		s->kind = *line++;
	s->actor = (int)strtol(line, &end, 10);
	if (*end == '.')
		s->thread = (int)strtol(end + 1, &end, 10);
	if (*end != ' ' || s->actor < 0 || s->actor >= ACTORS || s->thread < 0 || s->thread >= THREADS || strlen(end + 1) >= sizeof(s->text))
		return false;
	strcpy(s->text, end + 1);
	w->steps++;
	return true;
}

/* born says which actors are there from the beginning: those that no step forks. */
static bool born(int actor)
{
	char forks[16];
	bool used = false;

	snprintf(forks, sizeof(forks), "fork %d", actor);
	for (unsigned i = 0; i < w->steps; i++) {
		if (strcmp(w->step[i].text, forks) == 0)
			return false;
		used |= w->step[i].actor == actor;
	}
	return used;
}

static bool alive(void)
{
	for (int i = 0; i < ACTORS; i++)
		if (w->pid[i] && !w->dead[i] && kill(w->pid[i], 0) == 0)
			return true;
	return false;
}

/* stands says whether all threads that are in a step sleep, and *done, which grows with each step and byte, is as it was. */
static bool stands(int64_t *done)
{
	int64_t before = *done;
	bool asleep = true;

	*done = w->now;
	for (unsigned i = 0; i < w->steps; i++) {
		struct step *s = &w->step[i];
		uint32_t state = __atomic_load_n(&s->state, __ATOMIC_SEQ_CST);

		*done += state;
		asleep &= state != STATE_STARTED || sleeps(w->pid[s->actor], s->tid);
	}
	for (uint32_t i = 0; i < w->connections && i < CONNECTIONS; i++)
		for (int side = 0; side < 2; side++)
			*done += w->connection[i].sent[side] + w->connection[i].got[side];
	return asleep && *done == before;
}

#define TURN 100 /* milliseconds between two looks at the processes of a script */

/* play has the processes of a script do it, and kills them after a time. */
static void play(const char *name, int most, int stall)
{
	uint64_t until = msec_now() + (uint64_t)most;
	bool passes = false, first[ACTORS] = {false}, hung = false;
	uint32_t moved = 0, joined = 0;
	int64_t done = 0;
	int still = 0;
	static uint32_t state[STEPS]; /* of each step at the end */

	w->stuck = STUCK(most);
	for (unsigned i = 0; i < w->steps; i++)
		passes |= strncmp(w->step[i].text, "sendfd ", 7) == 0;
	for (int i = 0; i < ACTORS; i++) {
		int pair[2];

		w->passes[i][0] = w->passes[i][1] = -1;
		if (!passes)
			continue;
		CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
		for (int k = 0; k < 2; k++) {
			CHECK((w->passes[i][k] = fcntl(pair[k], F_DUPFD, PATH_FD)) >= 0);
			close(pair[k]);
		}
	}
	for (int i = 0; i < ACTORS; i++)
		for (int k = 0; k < SLOTS; k++)
			w->slots[i][k] = (struct slot){.fd = -1, .conn = -1};
	for (int i = 0; i < ACTORS; i++)
		first[i] = born(i);
	for (int i = 0; i < ACTORS; i++) {
		pid_t pid;

		if (!first[i])
			continue;
		pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			setpgid(0, 0);
			while (!__atomic_load_n(&w->ready, __ATOMIC_SEQ_CST))
				futex(&w->ready, FUTEX_WAIT, 0, -1);
			act(i, 0, 0);
		}
		w->pid[i] = pid;
	}
	__atomic_store_n(&w->ready, 1, __ATOMIC_SEQ_CST);
	futex(&w->ready, FUTEX_WAKE, ACTORS, -1);
	for (int i = 0; i < ACTORS; i++)
		for (int k = 0; k < 2; k++)
			if (w->passes[i][k] >= 0)
				close(w->passes[i][k]);
	while (!__atomic_load_n(&w->over, __ATOMIC_SEQ_CST)) {
		int status;
		pid_t pid = waitpid(-1, &status, WNOHANG); /* a crash, as none ends by itself before */

		if (pid > 0)
			for (int i = 0; i < ACTORS; i++)
				if (w->pid[i] == pid && !w->dead[i] && !w->over) {
					printf("died %d of signal %d\n", i, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
					until = 0;
				}
		if (msec_now() >= until) {
			hung = true;
			break;
		}
		futex(&w->over, FUTEX_WAIT, 0, TURN);
		still = stall && stands(&done) ? still + TURN : 0;
		if (stall && still >= stall)
			until = 0;
	}
	for (uint64_t end = msec_now() + 3000; !hung && alive() && msec_now() < end;) {
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		if (alive())
			usleep(100);
	}
	/* As it is now: the end of one process would have calls of another one return that hang. */
	for (unsigned i = 0; i < w->steps; i++)
		state[i] = __atomic_load_n(&w->step[i].state, __ATOMIC_SEQ_CST);
	for (int i = 0; i < ACTORS; i++)
		if (w->pid[i] > 0 && (hung || !w->dead[i]))
			kill(w->pid[i], SIGKILL);
	for (int i = 0; i < ACTORS; i++)
		if (first[i])
			waitpid(w->pid[i], NULL, 0);
	printf("script %s\n", name);
	for (unsigned i = 0; i < w->steps; i++) {
		printf("%s\n", state[i] == STATE_DONE ? w->step[i].result : state[i] == STATE_STARTED ? "HANGS" : "NEVER");
	}
	for (uint32_t i = 0; i < w->connections && i < CONNECTIONS; i++) {
		struct connection *c = &w->connection[i];

		moved += c->moved[0] && c->moved[1];
		joined += c->accepted && c->moved[0] != c->moved[1];
	}
	printf("moved %u %u %u\n.\n", moved, joined, w->connections);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	char line[512], name[64];
	int most, stall;

	bytes_make();
	program = "/proc/self/exe";
	if (argc > 3) { /* op_exec */
		memory = atoi(argv[1]);
		map();
		act(atoi(argv[2]), 0, (unsigned)atoi(argv[3]));
	}
	signal(SIGPIPE, SIG_IGN);
	memory = memfd_create("equal", 0);
	CHECK(memory >= 0 && ftruncate(memory, sizeof(*w)) == 0);
	CHECK(dup2(memory, PATH_FD - 1) == PATH_FD - 1);
	close(memory);
	memory = PATH_FD - 1;
	map();
	while (fgets(line, sizeof(line), stdin)) {
		bool good = true;

		memset(w, 0, offsetof(struct world, step));
		w->bare = getenv("EQUAL_BARE") != NULL;
		if (sscanf(line, "script %63s %d %d", name, &most, &stall) != 3) {
			fprintf(stderr, "player: not a script: %s", line);
			return 1;
		}
		while (fgets(line, sizeof(line), stdin) && strcmp(line, ".\n") != 0) {
			line[strcspn(line, "\n")] = 0;
			if (good && !step(line)) {
				fprintf(stderr, "player: not a step: %s\n", line);
				good = false;
			}
		}
		if (!good)
			return 1;
		play(name, most, stall);
	}
	return 0;
}
