/*
 * A program that relies on an edge of every arrival: edges CASE [SEED]. Bare, with TCP, it behaves the same. With the environment variable MOVED
 * set to 1 its connections are not TCP; with SHAKE they may have rings or not, and else they have one.
 */
#include "moved.h"

#include <sys/epoll.h>

#define SETS 3	      /* instances that look at one connection */
#define LARGE 16384
#define FLOW 20000000 /* bytes, through a ring that is full most of the time */

static unsigned long seed = 1;
static size_t most = 20000, large = LARGE; /* bytes that may be unread, and of one send: TCP takes as many at once */

static unsigned rnd(unsigned n)
{
	return random_of(&seed, n);
}

static unsigned char byte_at(size_t n)
{
	return (unsigned char)(n * 31 + n / 251);
}

/* A connection: b writes, a reads. */
static int a, b;
static size_t written, taken;

static void put(size_t n)
{
	static unsigned char buf[LARGE];

	for (size_t i = 0; i < n; i++)
		buf[i] = byte_at(written + i);
	CHECK(send(b, buf, n, 0) == (ssize_t)n);
	written += n;
}

static void check(const unsigned char *buf, ssize_t n)
{
	for (ssize_t i = 0; i < n; i++)
		CHECK(buf[i] == byte_at(taken + (size_t)i));
}

/* take reads at most n bytes; peek leaves them there. */
static ssize_t take(size_t n, bool peek)
{
	static unsigned char buf[LARGE];
	struct iovec parts[2] = {{buf, n / 2}, {buf + n / 2, n - n / 2}};
	ssize_t got;

	if (!moved() && taken != written)
		await(a, POLLIN); /* TCP may still be delivering on a busy machine */
	if (peek)
		got = recv(a, buf, n, MSG_PEEK);
	else if (rnd(2))
		got = read(a, buf, n);
	else
		got = readv(a, parts, 2);
	CHECK(got > 0 || (got < 0 && errno == EAGAIN && taken == written));
	check(buf, got);
	if (got > 0 && !peek)
		taken += (size_t)got;
	return got;
}

static int unread(void)
{
	int n = -1;

	CHECK(ioctl(a, FIONREAD, &n) == 0);
	return n;
}

/* connect_both makes the connection; a is not waited for. */
static void connect_both(void)
{
	int on = 1;

	both_ends(&a, &b);
	for (int i = 0; i < 100 && !as_it_should(a); i++) { /* on a busy machine one may stay TCP */
		close(a);
		close(b);
		both_ends(&a, &b);
	}
	CHECK(as_it_should(a) && fcntl(a, F_SETFL, O_NONBLOCK) == 0);
	CHECK(setsockopt(b, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0); /* TCP would wait with small sends */
	written = taken = 0;
}

/* join has the bytes that b writes go through a ring. */
static void join(void)
{
	for (int i = 0; i < 20; i++) {
		put(large);
		while (taken < written) {
			await(a, POLLIN);
			take(LARGE, false);
		}
	}
	CHECK(!moved() || getenv("SHAKE") || mapped_rings() == 2);
}

static int instance(void)
{
	int ep = epoll_create1(EPOLL_CLOEXEC);

	CHECK(ep >= 0);
	return ep;
}

static void add(int ep, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event ev = {.events = events, .data.u64 = data};

	CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) == 0);
}

/* comes waits until an instance tells of something to read. */
static void comes(int ep, uint64_t data)
{
	struct epoll_event e;

	do
		CHECK(epoll_wait(ep, &e, 1, PATIENCE) == 1 && e.data.u64 == data);
	while (!(e.events & EPOLLIN)); /* that there is room, too, may be told */
}

static void none(int ep)
{
	struct epoll_event e;

	while (epoll_wait(ep, &e, 1, 0) > 0)
		;
}

/* one_of waits until one of some instances tells of anything. */
static void one_of(const int *sets, int n)
{
	struct epoll_event e;

	for (int i = 0; epoll_wait(sets[i % n], &e, 1, 0) == 0; i++) {
		CHECK(i < 100000000);
		sched_yield();
	}
}

/* Every arrival is told, however many of the earlier bytes were read. */
static void test_each(uint32_t special, uint64_t datas)
{
	int sets[SETS], n = 1 + (int)rnd(SETS), before = (int)rnd((unsigned)n + 1);

	connect_both();
	for (int i = 0; i < n; i++)
		sets[i] = instance();
	for (int i = 0; i < before; i++)
		add(sets[i], a, EPOLLIN | special, datas + (uint64_t)i);
	join();
	for (int i = before; i < n; i++)
		add(sets[i], a, EPOLLIN | special, datas + (uint64_t)i);
	for (int i = 0; i < n; i++)
		none(sets[i]);
	for (int step = 0; step < 3000; step++) {
		switch (rnd(8)) {
		case 0:
			take(1 + rnd(LARGE), false);
			break;
		case 1:
			take(1 + rnd(10), false);
			break;
		case 2:
			take(1 + rnd(1000), true);
			break;
		case 3:
			if (rnd(8) == 0)
				while (take(LARGE, false) > 0)
					;
			break;
		case 4:
			if (rnd(8) == 0) { /* the descriptor is another one, and registered as before */
				int c = dup(a);

				CHECK(c >= 0 && close(a) == 0);
				a = c;
			}
			break;
		default:
			for (unsigned k = rnd(3); written - taken < most; k--) {
				put(1 + (rnd(8) ? rnd(100) : rnd((unsigned)large)));
				if (k == 0)
					break;
			}
			if (written - taken >= most) {
				while (taken < written)
					take(LARGE, false);
				break;
			}
			if (special & EPOLLEXCLUSIVE)
				one_of(sets, n);
			for (int i = 0; i < n; i++)
				if (rnd(8) && !(special & EPOLLEXCLUSIVE))
					comes(sets[i], datas + (uint64_t)i);
				else
					none(sets[i]);
			if (rnd(4) == 0)
				while ((size_t)unread() != written - taken)
					sched_yield();
			break;
		}
	}
	CHECK(!moved() || getenv("SHAKE") || mapped_rings() == 2);
	for (int i = 0; i < n; i++)
		close(sets[i]);
	close(a);
	close(b);
}

/* Many have the same data, so that it does not say which it is. */
static void test_alike(void)
{
	int ep = instance(), c, s;

	for (int i = 0; i < 10; i++) {
		both_ends(&c, &s);
		add(ep, s, EPOLLIN | EPOLLET, 7);
	}
	connect_both();
	join();
	add(ep, a, EPOLLIN | EPOLLET, 7);
	for (int i = 0; i < 100; i++) {
		put(10);
		comes(ep, 7);
	}
}

/* Another instance looks at the connection, too, for bytes that are there: its registration, and changes of it, do not concern the first one. */
static void test_beside(void)
{
	int ep = instance(), beside = instance();
	struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.u64 = 2};

	connect_both();
	join();
	add(ep, a, EPOLLIN | EPOLLET, 1);
	for (int way = 0; way < 3; way++) {
		if (way == 0) /* it has none */
			CHECK(epoll_ctl(beside, EPOLL_CTL_DEL, a, &ev) == -1 && errno == ENOENT);
		else
			add(beside, a, EPOLLIN, 2);
		if (way == 1)
			CHECK(epoll_ctl(beside, EPOLL_CTL_DEL, a, &ev) == 0);
		if (way == 2) /* it is one for edges now */
			CHECK(epoll_ctl(beside, EPOLL_CTL_MOD, a, &ev) == 0);
		none(ep);
		for (int i = 0; i < 10; i++) {
			put(10);
			comes(ep, 1);
			if (way == 2)
				comes(beside, 2);
		}
	}
}

/* An instance that another one watches for edges tells of every arrival, whatever it has the connection for. */
static void test_nested(void)
{
	int inner = instance(), middle = instance(), outer = instance();
	bool first = rnd(2);

	connect_both();
	if (first)
		add(inner, a, EPOLLIN, 1);
	add(middle, inner, EPOLLIN, 2);
	if (rnd(2))
		join();
	add(outer, middle, EPOLLIN | EPOLLET, 3);
	join();
	if (!first)
		add(inner, a, EPOLLIN, 1);
	none(outer);
	for (int i = 0; i < 1000; i++) {
		if (written - taken > most || rnd(4) == 0)
			take(1 + rnd(10), rnd(2));
		while (written - taken > most)
			take(LARGE, false);
		put(1 + rnd(100));
		comes(outer, 3);
		if (rnd(2))
			comes(inner, 1);
	}
}

/* A program that is told once asks again. */
static void test_once(void)
{
	int ep = instance();
	struct epoll_event ev = {.events = EPOLLIN | EPOLLONESHOT | (rnd(2) ? EPOLLET : 0), .data.u64 = 5}, e;

	connect_both();
	join();
	add(ep, a, ev.events, 5);
	for (int i = 0; i < 1000; i++) {
		put(1 + rnd(100));
		comes(ep, 5);
		if (rnd(2))
			put(1 + rnd(100));
		CHECK(epoll_wait(ep, &e, 1, 0) == 0);
		if (rnd(2) || written - taken > most)
			take(rnd(2) ? 3 : LARGE, false);
		if (taken == written)
			put(1);
		while (written - taken > most)
			take(LARGE, false);
		if (taken == written)
			put(1);
		await(a, POLLIN);
		CHECK(epoll_ctl(ep, EPOLL_CTL_MOD, a, &ev) == 0);
		comes(ep, 5);
		CHECK(epoll_ctl(ep, EPOLL_CTL_MOD, a, &ev) == 0);
		comes(ep, 5);
		while (take(LARGE, false) > 0)
			;
		CHECK(epoll_ctl(ep, EPOLL_CTL_MOD, a, &ev) == 0);
	}
}

/* A child is told of a descriptor that its parent has registered, and reads from it; or the other way round. */
static void test_heirs(void)
{
	int ep = instance(), go[2], status;
	bool parent_writes = rnd(2);
	pid_t child;
	char c;

	connect_both();
	if (rnd(2))
		add(ep, a, EPOLLIN | EPOLLET, 9);
	else
		add(ep, a, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET, 9);
	join();
	none(ep);
	CHECK(pipe(go) == 0 && (child = fork()) >= 0);
	if ((child == 0) == parent_writes) {
		for (int i = 0; i < 500; i++) {
			comes(ep, 9);
			if (rnd(2))
				CHECK(recv(a, &c, 1, 0) == 1);
			CHECK(write(go[1], "", 1) == 1);
		}
	} else {
		for (int i = 0; i < 500; i++) {
			put(1 + rnd(100));
			CHECK(read(go[0], &c, 1) == 1);
		}
	}
	if (child == 0)
		_exit(0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* A send to a peer that has gone resets the connection, which is told. */
static void test_reset(bool joins)
{
	struct epoll_event e;
	int ep = instance();

	connect_both();
	if (joins)
		join();
	CHECK(fcntl(b, F_SETFL, O_NONBLOCK) == 0);
	put(100);
	CHECK(send(a, "x", 1, 0) == 1);
	await(b, POLLIN);
	CHECK(shutdown(a, SHUT_RDWR) == 0);
	add(ep, b, EPOLLIN | EPOLLET, 6);
	comes(ep, 6);
	await(b, POLLRDHUP);
	none(ep);
	CHECK(send(b, "y", 1, MSG_NOSIGNAL) == 1);
	do
		CHECK(epoll_wait(ep, &e, 1, PATIENCE) == 1);
	while (e.data.u64 != 6);
	CHECK((e.events & (EPOLLIN | EPOLLHUP)) == (EPOLLIN | EPOLLHUP));
	CHECK(send(b, "y", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
	close(a);
	close(b);
}

static sig_atomic_t volatile signals;

static void on_signal(int sig)
{
	(void)sig;
	signals++;
}

/* Every arrival is a signal. */
static void test_signals(void)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	int on = 1;

	CHECK(sigaction(SIGIO, &action, NULL) == 0);
	connect_both();
	if (rnd(2))
		join();
	CHECK(fcntl(a, F_SETOWN, getpid()) == 0);
	if (rnd(2))
		CHECK(fcntl(a, F_SETFL, O_NONBLOCK | O_ASYNC) == 0);
	else
		CHECK(ioctl(a, FIOASYNC, &on) == 0);
	for (int i = 0; i < 1000; i++) {
		int before = signals;

		if (rnd(2))
			take(1 + rnd(20), rnd(2));
		while (written - taken > most)
			take(LARGE, false);
		before = signals;
		put(1 + rnd(100));
		while (signals == before)
			sched_yield();
	}
}

/* writes sends as much as there is room for, each time that it is told that there is. */
static void *writes(void *arg)
{
	static unsigned char buf[65536];
	int ep = instance();
	struct epoll_event e;

	CHECK(fcntl(b, F_SETFL, O_NONBLOCK) == 0);
	add(ep, b, EPOLLOUT | EPOLLET, 1);
	while (written < FLOW) {
		size_t n = FLOW - written < sizeof(buf) ? FLOW - written : sizeof(buf);
		ssize_t sent;

		for (size_t i = 0; i < n; i++)
			buf[i] = byte_at(written + i);
		sent = send(b, buf, n, 0);
		CHECK(sent > 0 || errno == EAGAIN);
		if (sent < 0)
			CHECK(epoll_wait(ep, &e, 1, PATIENCE) == 1);
		else
			written += (size_t)sent;
	}
	return arg;
}

/* The bytes that are there are counted, as many are read, and then the next edge is waited for. */
static void test_flow(bool joins)
{
	pthread_t writer;
	int ep = instance();

	connect_both();
	if (joins)
		join();
	taken = written = 0;
	add(ep, a, EPOLLIN | EPOLLET, 1);
	CHECK(pthread_create(&writer, NULL, writes, NULL) == 0);
	while (taken < FLOW) {
		int n;

		comes(ep, 1);
		for (n = unread(); n > 0;) {
			unsigned char buf[8192];
			ssize_t got = read(a, buf, n < (int)sizeof(buf) ? (size_t)n : sizeof(buf));

			CHECK(got > 0);
			check(buf, got);
			taken += (size_t)got;
			n -= (int)got;
		}
	}
	CHECK(pthread_join(writer, NULL) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 2);
	signal(SIGPIPE, SIG_IGN);
	if (getenv("SHAKE")) { /* rings are tiny */
		most = 1000;
		large = 1500;
	}
	if (argc > 2)
		seed = strtoul(argv[2], NULL, 10);
	if (strcmp(argv[1], "each") == 0)
		for (int i = 0; i < 2; i++)
			test_each(EPOLLET, 1);
	else if (strcmp(argv[1], "pointers") == 0)
		for (int i = 0; i < 2; i++)
			test_each(EPOLLET, (uint64_t)(uintptr_t)&a);
	else if (strcmp(argv[1], "exclusive") == 0)
		test_each(EPOLLET | EPOLLEXCLUSIVE, 1);
	else if (strcmp(argv[1], "alike") == 0)
		test_alike();
	else if (strcmp(argv[1], "beside") == 0)
		test_beside();
	else if (strcmp(argv[1], "nested") == 0)
		test_nested();
	else if (strcmp(argv[1], "once") == 0)
		test_once();
	else if (strcmp(argv[1], "heirs") == 0)
		test_heirs();
	else if (strcmp(argv[1], "reset") == 0)
		for (int i = 0; i < 4; i++)
			test_reset(i & 1);
	else if (strcmp(argv[1], "signals") == 0)
		test_signals();
	else if (strcmp(argv[1], "flow") == 0)
		test_flow(false);
	else if (strcmp(argv[1], "flow-joined") == 0)
		test_flow(true);
	else
		return 2;
	return 0;
}
