/* The order of steps: which process carries out which step, and when the next one comes. */
#include "player.h"

#include <dlfcn.h>

#include <linux/futex.h>
#include <linux/sockios.h>

#define ASLEEP 200 /* milliseconds until a step counts as one that sleeps, whatever it does */

static void wake(int actor, int thread)
{
	__atomic_add_fetch(&w->wake[actor][thread], 1, __ATOMIC_SEQ_CST);
	futex(&w->wake[actor][thread], FUTEX_WAKE, 1, -1);
}

static void end_if_done(void)
{
	if (__atomic_load_n(&w->now, __ATOMIC_SEQ_CST) < w->steps)
		return;
	for (unsigned i = 0; i < w->steps; i++)
		if (__atomic_load_n(&w->step[i].state, __ATOMIC_SEQ_CST) != STATE_DONE)
			return;
	__atomic_store_n(&w->over, 1, __ATOMIC_SEQ_CST);
	futex(&w->over, FUTEX_WAKE, 1, -1);
	for (int a = 0; a < ACTORS; a++)
		for (int t = 0; t < THREADS; t++)
			if (w->tid[a][t])
				wake(a, t);
}

/* advance makes a step the next one. Steps of processes that are not there are left out. */
static void advance(unsigned to)
{
	for (; to < w->steps; to++) {
		struct step *s = &w->step[to];

		if (w->pid[s->actor] && !w->dead[s->actor])
			break;
		strcpy(s->result, "gone");
		__atomic_store_n(&s->state, STATE_DONE, __ATOMIC_SEQ_CST);
	}
	__atomic_store_n(&w->now, to, __ATOMIC_SEQ_CST);
	if (to < w->steps)
		wake(w->step[to].actor, w->step[to].thread);
	else
		end_if_done();
}

/* direct makes a system call of libc: the one of the library would be a call that a program has not made. */
long direct(long nr, long a, long b, long c, long d, long e)
{
	static long (*call)(long, ...);

	if (!call)
		*(void **)&call = dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "syscall");
	return call(nr, a, b, c, d, e);
}

/* sleeps says whether a thread of any process does. It is asked without libc's functions for descriptors. */
bool sleeps(int pid, int tid)
{
	char path[64], b[512], *p;
	long fd, n;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", pid, tid);
	fd = direct(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0);
	if (fd < 0)
		return true;
	n = direct(SYS_pread64, fd, (long)b, sizeof(b) - 1, 0, 0);
	direct(SYS_close, fd, 0, 0, 0, 0);
	if (n <= 0)
		return true;
	b[n] = 0;
	p = strrchr(b, ')');
	return p && p[1] && p[2] == 'S';
}

/* calm waits until the steps that have started before a step are done, or sleep. */
static void calm(unsigned before)
{
	for (unsigned i = 0; i < before; i++) {
		struct step *s = &w->step[i];

		if (s->kind != '~')
			continue;
		for (int turn = 0; turn < ASLEEP * 10; turn++) {
			if (__atomic_load_n(&s->state, __ATOMIC_SEQ_CST) == STATE_DONE)
				break;
			if (__atomic_load_n(&s->state, __ATOMIC_SEQ_CST) == STATE_STARTED && sleeps(w->pid[s->actor], s->tid))
				break;
			usleep(100);
		}
	}
}

/* is_tcp says whether a descriptor is a TCP socket to the kernel. */
static bool is_tcp(int fd)
{
	int domain = AF_UNIX;
	socklen_t len = sizeof(domain);

	return direct(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, (long)&domain, (long)&len) == 0 && domain != AF_UNIX;
}

#define FEW 4096 /* bytes for which a peer has room as a rule: they arrive, if only later on a busy machine */

/* settle has TCP deliver the sent bytes, also under 'gosmc run' where a connection stays TCP; other ways need no time for it. */
void settle(int fd)
{
	int n, last = -1;

	if (fd < 0 || (!w->bare && !is_tcp(fd)))
		return;
	for (int turn = 0, same = 0; turn < 2000 && same < (last < FEW ? 2000 : 60); turn++) {
		if (ioctl(fd, SIOCOUTQ, &n) != 0 || n == 0)
			return;
		same = n == last ? same + 1 : 0;
		last = n;
		usleep(50);
	}
}

struct thread {
	int actor, thread;
	unsigned from;
};

static void *run_thread(void *arg)
{
	struct thread t = *(struct thread *)arg;

	free(arg);
	act(t.actor, t.thread, t.from);
	return NULL;
}

/* act carries out the steps of a thread, from one on, and ends the process when all are done. */
void act(int actor, int thread, unsigned from)
{
	bool made[THREADS] = {false};

	me = actor;
	my_thread = thread;
	w->tid[actor][thread] = (int)syscall(SYS_gettid);
	for (unsigned i = from; i < w->steps; i++) {
		struct step *s = &w->step[i];
		char text[sizeof(s->text)];
		pthread_t t;

		if (s->actor != actor)
			continue;
		if (s->thread != thread) {
			if (thread == 0 && !made[s->thread]) {
				struct thread *arg = malloc(sizeof(*arg));

				*arg = (struct thread){actor, s->thread, i};
				made[s->thread] = true;
				CHECK(pthread_create(&t, NULL, run_thread, arg) == 0);
			}
			continue;
		}
		for (;;) {
			uint32_t seen = __atomic_load_n(&w->wake[actor][thread], __ATOMIC_SEQ_CST);

			if (__atomic_load_n(&w->now, __ATOMIC_SEQ_CST) >= i)
				break;
			futex(&w->wake[actor][thread], FUTEX_WAIT, seen, -1);
		}
		calm(i);
		self = s;
		s->tid = (int)syscall(SYS_gettid);
		__atomic_store_n(&s->state, STATE_STARTED, __ATOMIC_SEQ_CST);
		if (s->kind != ' ')
			advance(i + 1);
		strcpy(text, s->text);
		carry_out(text);
		__atomic_store_n(&s->state, STATE_DONE, __ATOMIC_SEQ_CST);
		if (s->kind == ' ')
			advance(i + 1);
		else
			end_if_done();
	}
	while (!__atomic_load_n(&w->over, __ATOMIC_SEQ_CST)) {
		uint32_t seen = __atomic_load_n(&w->wake[actor][thread], __ATOMIC_SEQ_CST);

		if (!w->over)
			futex(&w->wake[actor][thread], FUTEX_WAIT, seen, -1);
	}
	if (thread == 0) {
		w->dead[actor] = 1;
		_exit(0);
	}
	pause();
}
