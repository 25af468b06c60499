/* Programs that wait for each other, and threads that wait together. */
#include "rings.h"

static void at_once(int fd)
{
	int on = 1;

	CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
}

/* stay keeps the two processes apart, each on a processor, or has them share one. */
static void stay(pid_t child, int apart)
{
	cpu_set_t all, mine;
	int first = -1, last = 0;

	CHECK(sched_getaffinity(0, sizeof(all), &all) == 0);
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &all)) {
			first = first < 0 ? i : first;
			last = i;
		}
	CPU_ZERO(&mine);
	CPU_SET(apart && child ? last : first, &mine);
	CHECK(sched_setaffinity(0, sizeof(mine), &mine) == 0);
}

/* turn sends to the other end and waits for as much to come back, or the other way round. */
static void turn(int fd, pid_t child, unsigned n)
{
	if (child)
		put(fd, &ab, n, n);
	take(fd, child ? &ba_in : &ab_in, n, n);
	if (!child)
		put(fd, &ba, n, n);
}

/*
 * over_to takes turns until there are so many rings, which on a machine that has no time for both processes is later: in so many turns or a multiple, and 20,000 at most. *last
 * is the last one, for both of them.
 */
static void over_to(int rings, int fd, pid_t child, int turns, volatile int *last)
{
	for (int i = 1, over = 0; !over; i++) {
		if (child && i % turns == 0 && (!on_rings() || mapped_rings() == rings || i == 20000))
			*last = i;
		turn(fd, child, 64);
		over = *last == i;
	}
}

/* Two programs that wait for each other go over to rings, and see to them without system calls for as long as that pays. */
void test_turns(void)
{
	pid_t child;
	cpu_set_t all;
	int fd, *last = mmap(NULL, sizeof(*last), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(last != MAP_FAILED && sched_getaffinity(0, sizeof(all), &all) == 0);
	child = both(&fd);
	at_once(fd);
	stay(child, 1);
	over_to(2, fd, child, 200, last);
	have(2);
	for (int i = 0; i < 10000; i++)
		turn(fd, child, 1 + (unsigned)i * 7 % 3000);
	/* A part is read, and poll says that there is more: the writer must not think that all of it was waited for. */
	for (int i = 0; i < 3000; i++) {
		unsigned n = 20 + (unsigned)i % 300, part = 1 + (unsigned)i % 19;

		if (child) {
			put(fd, &ab, n, n);
			take(fd, &ba_in, n, n);
		} else {
			struct pollfd p = {.fd = fd, .events = POLLIN};
			int more = 0;

			take(fd, &ab_in, part, part);
			CHECK(poll(&p, 1, 20000) == 1 && p.revents == POLLIN);
			while (more < (int)(n - part))
				CHECK(ioctl(fd, FIONREAD, &more) == 0 && more <= (int)(n - part));
			take(fd, &ab_in, n - part, n - part);
			CHECK(poll(&p, 1, 0) == 0);
			put(fd, &ba, n, n);
		}
	}
	close(fd);
	done(child);
	/* On one processor it does not pay. */
	ab = ba = ab_in = ba_in = (struct stream){0, 0};
	ba.dir = ba_in.dir = 1;
	CHECK(sched_setaffinity(0, sizeof(all), &all) == 0);
	child = both(&fd);
	at_once(fd);
	stay(child, 0);
	*last = 0;
	over_to(0, fd, child, 5000, last);
	have(0);
	close(fd);
	done(child);
}

/* Two threads read, as soon as something is there, and one of them only after poll has said so. */
static int look_at;

static void *polls(void *arg)
{
	struct pollfd p = {.fd = look_at, .events = POLLIN};
	char part[16];
	long n = 0;

	for (;;) {
		CHECK(poll(&p, 1, 20000) == 1);
		ssize_t r = recv(look_at, part, 1 + (unsigned)n % sizeof(part), MSG_DONTWAIT);
		if (r == 0)
			break;
		CHECK(r > 0 || errno == EAGAIN);
		n += r > 0 ? r : 0;
	}
	*(long *)arg = n;
	return NULL;
}

void test_readers(void)
{
	long n = 0, other = 0;
	pthread_t t;
	pid_t child = both(&look_at);

	at_once(look_at);
	stay(child, 1);
	for (int i = 0; i < 200; i++)
		turn(look_at, child, 64);
	if (child) {
		for (int i = 0; i < 20000; i++) {
			CHECK(write(look_at, buf, 40) == 40);
			if (i % 16 == 0)
				sched_yield();
		}
		shutdown(look_at, SHUT_WR);
		CHECK(read(look_at, buf, 1) == 0);
	} else {
		CHECK(pthread_create(&t, NULL, polls, &other) == 0);
		for (ssize_t r; (r = read(look_at, buf, 50)) > 0;)
			n += r;
		CHECK(pthread_join(t, NULL) == 0 && n + other == 20000 * 40);
	}
	close(look_at);
	done(child);
}

static void *reader(void *arg)
{
	static char mine[1000];
	long n = 0;
	ssize_t r;

	while ((r = read(*(int *)arg, mine, sizeof(mine))) > 0)
		n += r;
	return (void *)n;
}

/* Two threads read and two write: no byte is lost, whichever thread gets it. */
void test_threads(void)
{
	int a, b;
	pthread_t t[2];
	void *n[2];

	both_ends(&a, &b);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&t[i], NULL, reader, &b) == 0);
	put(a, &ab, 20000000, 40000);
	CHECK(shutdown(a, SHUT_WR) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(t[i], &n[i]) == 0);
	CHECK((long)n[0] + (long)n[1] == 20000000);
}
