/*
 * Hidden descriptors: the ends of a pair that a connect has now, and of which the program does not
 * know. A process that is forked meanwhile has copies, which nobody there would close: the server's
 * end would stay open when the server closes it, and the client's when the client does. So they are
 * on a list, and the new process closes them.
 *
 * The kernel copies the descriptors of a process before its memory. So while a fork is under way
 * nothing is taken off the list, nor are there new pairs, and it begins when those are on the list
 * that are being made: a new process finds there all of which it may have a copy. It looks at their
 * cookies, as a number may be something else by then. Neither waits for ever: a handler of a signal
 * may have interrupted the other one.
 */
#include "ring.h"

#define CLOSED (1ull << 63)
#define TURNS 1000 /* of waiting: a tenth of a second */

static uint64_t hidden[ENDS]; /* the socket's cookie, with CLOSED when it is; 0: none */
static int top;		      /* one more than the highest */
static uint32_t forking;      /* forks that are under way */
static uint32_t making;	      /* pairs that are being made */

/*
 * The ends of the connect that this thread is in. A handler of a signal that has interrupted it may
 * fork, and both processes go on with it.
 */
static __thread struct hidden mine __attribute__((tls_model("initial-exec")));

/* none waits until there is none of a kind. False: there is still. */
static bool none(const uint32_t *count)
{
	struct timespec wait = {.tv_nsec = 100000};

	for (int turn = 0; __atomic_load_n(count, __ATOMIC_SEQ_CST); turn++) {
		if (turn == TURNS)
			return false;
		SYS(nanosleep, &wait, NULL);
	}
	return true;
}

static uint64_t add(int fd)
{
	uint64_t cookie = cookie_of(fd);
	int before = __atomic_load_n(&top, __ATOMIC_RELAXED);

	if (fd >= ENDS)
		return cookie;
	__atomic_store_n(&hidden[fd], cookie, __ATOMIC_SEQ_CST);
	while (before <= fd &&
		!__atomic_compare_exchange_n(
			&top, &before, fd + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		;
	return cookie;
}

/* begin is for before descriptors are made that will be on the list. *before: the argument of hidden_end. */
static void begin(struct hidden *before)
{
	*before = mine;
	for (;;) {
		__atomic_fetch_add(&making, 1, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(&forking, __ATOMIC_SEQ_CST) == 0)
			break;
		__atomic_fetch_sub(&making, 1, __ATOMIC_SEQ_CST);
		if (!none(&forking)) {
			__atomic_fetch_add(&making, 1, __ATOMIC_SEQ_CST);
			break;
		}
	}
}

/*
 * made puts n ends on the list, and returns the cookie of the first. 0: they are closed, as a filter of
 * system calls refuses the question.
 */
static uint64_t made(const int *ends, size_t n, const struct hidden *before)
{
	uint64_t cookie = 0;

	for (size_t i = 0; n && i < 2; i++)
		mine.cookies[i] = i < n ? add(ends[i]) : 0;
	if (n)
		cookie = mine.cookies[0];
	if (n && cookie == 0) {
		for (size_t i = 0; i < n; i++)
			SYS(close, ends[i]);
		mine = *before;
	}
	__atomic_fetch_sub(&making, 1, __ATOMIC_SEQ_CST);
	return cookie;
}

/*
 * hidden_pair makes a pair, and puts it on the list: its first end's cookie, 0 if there is none. *before:
 * the argument of hidden_end.
 */
uint64_t hidden_pair(int pair[2], struct hidden *before)
{
	begin(before);
	return made(pair, SYS(socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0 ? 2 : 0, before);
}

/*
 * hidden_came is hidden_pair for an end that comes from another process: come receives it, or returns below
 * 0.
 */
uint64_t hidden_came(int (*come)(void *), void *from, int *end, struct hidden *before)
{
	begin(before);
	*end = come(from);
	return made(end, *end >= 0, before);
}

/* hidden_socket is hidden_pair for an end that is to be connected, and does not wait. */
uint64_t hidden_socket(int *end, struct hidden *before)
{
	begin(before);
	*end = (int)SYS(socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	return made(end, *end >= 0, before);
}

/* hidden_end is for when all of them are closed. */
void hidden_end(const struct hidden *before)
{
	mine = *before;
}

/* hidden_close closes one that is on the list. */
void hidden_close(int fd)
{
	uint64_t cookie = fd < ENDS ? __atomic_load_n(&hidden[fd], __ATOMIC_RELAXED) : 0;
	uint64_t closed = cookie | CLOSED;

	if (cookie)
		__atomic_store_n(&hidden[fd], closed, __ATOMIC_SEQ_CST);
	SYS(close, fd);
	if (cookie &&
		__atomic_load_n(&forking, __ATOMIC_SEQ_CST) ==
			0) /* unless the number is another one's already */
		__atomic_compare_exchange_n(&hidden[fd], &closed, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* hidden_forking is for a process that is about to fork. */
void hidden_forking(void)
{
	__atomic_fetch_add(&forking, 1, __ATOMIC_SEQ_CST);
	(void)none(&making);
}

/* hidden_forked is for that process when it has. */
void hidden_forked(void)
{
	if (__atomic_sub_fetch(&forking, 1, __ATOMIC_SEQ_CST) != 0)
		return;
	for (int fd = 0; fd < __atomic_load_n(&top, __ATOMIC_SEQ_CST); fd++) {
		uint64_t closed = __atomic_load_n(&hidden[fd], __ATOMIC_RELAXED);

		if (closed & CLOSED)
			__atomic_compare_exchange_n(&hidden[fd], &closed, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	}
}

/* hidden_drop is for the new process. */
void hidden_drop(void)
{
	forking = making = 0;
	for (int fd = 0; fd < top; fd++) {
		uint64_t cookie = hidden[fd] & ~CLOSED;

		if (cookie == 0 || cookie == mine.cookies[0] || cookie == mine.cookies[1])
			continue;
		if (cookie_of(fd) == cookie)
			SYS(close, fd);
		hidden[fd] = 0;
	}
}
