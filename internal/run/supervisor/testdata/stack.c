/*
 * A program whose threads have little room: stack CASE SEED. The part of a thread's stack that a call takes is not zero any more, and it is little where
 * the library does the work of the call, too.
 */
#include "program.h"

#define STACK (256u << 10)
#define MOST 3072
#define PIECE 20000

static char buf[PIECE];

static void *accepts(void *fd)
{
	*(int *)fd = accept(*(int *)fd, NULL, NULL);
	return NULL;
}

static void *sends(void *fd)
{
	(void)!send(*(int *)fd, buf, sizeof(buf), MSG_NOSIGNAL);
	return NULL;
}

static void *receives(void *fd)
{
	(void)!recv(*(int *)fd, buf, sizeof(buf), 0);
	return NULL;
}

/* taken is how much of a new stack is used for a call by a thread that does nothing else. */
static size_t taken(void *(*call)(void *), int *fd)
{
	char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_attr_t attr;
	pthread_t thread;
	size_t low = 0;

	CHECK(stack != MAP_FAILED && pthread_attr_init(&attr) == 0 && pthread_attr_setstack(&attr, stack, STACK) == 0);
	CHECK(pthread_create(&thread, &attr, call, fd) == 0 && pthread_join(thread, NULL) == 0);
	while (low < STACK && stack[low] == 0)
		low++;
	munmap(stack, STACK);
	return STACK - low;
}

/* costs fails if a call takes much more for a descriptor than for none. */
static void costs(const char *name, void *(*call)(void *), int *fd)
{
	int none = -1;
	size_t least = taken(call, &none), now = taken(call, fd);

	if (now > least + MOST) {
		fprintf(stderr, "%s takes %zu bytes of the stack, want %u at most\n", name, now - least, MOST);
		_exit(1);
	}
}

int main(void)
{
	struct sockaddr_in a;
	int s = server(&a), c = connected_to(&a);

	costs("accept", accepts, &s);
	for (int i = 0; i < 200; i++) {
		int from = i % 2 ? c : s, to = i % 2 ? s : c;

		costs("send", sends, &from);
		costs("recv", receives, &to);
	}
	CHECK(!getenv("RINGS") || mapped_rings() == 4);
	return 0;
}
