/* A thread closes a descriptor in which another one waits, and gets its number again. */
#include "rings.h"

static volatile pid_t waiter;

static void *wait_there(void *fd)
{
	char c;

	waiter = (pid_t)syscall(SYS_gettid);
	read(*(int *)fd, &c, 1); /* its result is not the same everywhere */
	return NULL;
}

/* asleep waits until the other thread sleeps: there is nothing else in which it would. */
static void asleep(void)
{
	char path[64], line[256];

	while (waiter == 0)
		sched_yield();
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", waiter);
	for (int i = 0; i < PATIENCE; i++) {
		FILE *f = fopen(path, "r");
		char *state = f && fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;

		if (f)
			fclose(f);
		if (state && state[2] == 'S')
			return;
		usleep(1000);
	}
	CHECK(!"asleep");
}

static char much[16 << 20];

static void *wait_for_room(void *fd)
{
	waiter = (pid_t)syscall(SYS_gettid);
	send(*(int *)fd, much, sizeof(much), MSG_NOSIGNAL);
	return NULL;
}

/* reuse_sending has the thread wait for room in its ring. */
static void reuse_sending(void)
{
	struct sockaddr_in at;
	int l = server(&at), a, b, c, d;
	pthread_t thread;
	char text[8] = {0};

	joined(&b, &a);
	do
		c = dup(0);
	while (c >= 0 && c < b);
	close(c);
	c = b;
	waiter = 0;
	CHECK(pthread_create(&thread, NULL, wait_for_room, &c) == 0);
	asleep();
	CHECK(close(b) == 0 && connected_to(&at) == b);
	d = accept(l, NULL, NULL);
	CHECK(d >= 0);
	while (read(a, buf, sizeof(buf)) > 0)
		;
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(write(b, "there", 5) == 5 && recv(d, text, sizeof(text), 0) == 5 && memcmp(text, "there", 5) == 0);
	close(a);
	close(b);
	close(d);
	close(l);
}

static void reuse(int on_ring)
{
	struct sockaddr_in at;
	int l = server(&at), a, b, number, c, d;
	pthread_t thread;
	char text[8] = {0};

	if (on_ring)
		joined(&b, &a);
	else
		both_ends(&b, &a);
	number = a;
	do
		c = dup(0);
	while (c >= 0 && c < number); /* its number will be the next one */
	close(c);
	waiter = 0;
	CHECK(pthread_create(&thread, NULL, wait_there, &number) == 0);
	asleep();
	CHECK(close(a) == 0);
	c = connected_to(&at);
	CHECK(c == number);
	d = accept(l, NULL, NULL);
	CHECK(d >= 0 && write(d, "there", 5) == 5);
	if (on_ring)
		CHECK(write(b, "x", 1) == 1);
	close(b);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(recv(c, text, sizeof(text), 0) == 5 && memcmp(text, "there", 5) == 0);
	ab = ab_in = (struct stream){0, 0};
	for (int i = 0; i < 4; i++) {
		put(d, &ab, LARGE, LARGE);
		take(c, &ab_in, LARGE, LARGE);
	}
	have(2);
	close(c);
	close(d);
	close(l);
}

void test_reuse(void)
{
	reuse(0);
	reuse(1);
	reuse_sending();
}
