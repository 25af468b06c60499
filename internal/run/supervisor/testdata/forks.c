/*
 * Processes that are made while there are connections, or while other threads make some: forks CASE. Bare, with TCP, it behaves the same. With the environment variable
 * MOVED set to 1 its connections are not TCP.
 */
#include "moved.h"

#include <pty.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/time.h>

#define LARGE 32768

static char buf[LARGE];

static void exchange(int from, int to, size_t n)
{
	CHECK(write(from, buf, n) == (ssize_t)n);
	for (ssize_t r; n; n -= (size_t)r)
		CHECK((r = read(to, buf, n)) > 0);
}

/* stream has a direction go over to its ring, if it can. */
static void stream(int from, int to)
{
	for (int i = 0; i < 4; i++)
		exchange(from, to, LARGE);
}

static void *connects(void *arg)
{
	static int c;
	const struct sockaddr_in *at = arg;

	c = connected_to(at);
	return &c;
}

/* A process that was forked while another thread was in the middle of connect keeps nothing open of that connection that it could not close. */
static void test_blocked(void)
{
	struct sockaddr_in at;
	int l = server(&at), s[2];
	struct pollfd p = {.events = POLLRDHUP};
	pthread_t thread;
	void *c;
	pid_t child;

	CHECK(listen(l, 0) == 0);
	int first = connected_to(&at); /* fills the queue */
	CHECK(pthread_create(&thread, NULL, connects, &at) == 0);
	usleep(300000);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		for (int fd = 3; fd <= l || fd <= first || fd <= first + 1; fd++) /* the last one is the thread's socket */
			close(fd);
		CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
		pause();
	}
	CHECK((s[0] = accept(l, NULL, NULL)) >= 0 && (s[1] = accept(l, NULL, NULL)) >= 0); /* the second one has asked again by then */
	CHECK(pthread_join(thread, &c) == 0);
	p.fd = *(int *)c;
	CHECK(as_it_should(p.fd) && as_it_should(first));
	close(s[1]);
	CHECK(poll(&p, 1, 5000) == 1);
	close(p.fd);
	p.fd = s[0];
	close(first);
	CHECK(poll(&p, 1, 5000) == 1);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

/* serve has another process accept connections, and close each at once. */
static pid_t serve(int l)
{
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
		for (;;)
			close(accept(l, NULL, NULL));
	}
	return child;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int current = -1, missed;
static volatile bool enough;

static void *connects_often(void *at)
{
	while (!enough) {
		struct pollfd p = {.events = POLLIN};

		pthread_mutex_lock(&lock);
		current = socket(AF_INET, SOCK_STREAM, 0);
		pthread_mutex_unlock(&lock);
		CHECK(connect(current, at, sizeof(struct sockaddr_in)) == 0);
		p.fd = current;
		missed += poll(&p, 1, 2000) != 1;
		pthread_mutex_lock(&lock);
		close(current);
		current = -1;
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

/* As before, at any moment of a connect. */
static void test_often(void)
{
	enum { FORKS = 400 };
	static pid_t children[FORKS];
	struct sockaddr_in at;
	int l = server(&at);
	pid_t server = serve(l);
	pthread_t thread;

	close(l);
	CHECK(pthread_create(&thread, NULL, connects_often, &at) == 0);
	for (int i = 0; i < FORKS; i++) {
		usleep((useconds_t)rand() % 300);
		pthread_mutex_lock(&lock);
		CHECK((children[i] = fork()) >= 0);
		if (children[i] == 0) {
			CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
			close(current);
			pause();
		}
		pthread_mutex_unlock(&lock);
	}
	enough = true;
	CHECK(pthread_join(thread, NULL) == 0);
	for (int i = 0; i < FORKS; i++)
		CHECK(kill(children[i], SIGKILL) == 0 && waitpid(children[i], NULL, 0) == children[i]);
	CHECK(kill(server, SIGKILL) == 0 && waitpid(server, NULL, 0) == server);
	CHECK(missed == 0);
}

static pid_t interrupted = -1;

static void forks(int sig)
{
	(void)sig;
	interrupted = fork();
	for (int i = 0; interrupted == 0 && i < 8; i++)
		CHECK(open("/dev/null", O_RDWR) >= 0); /* in the place of whatever was closed */
}

/* Two processes go on with a connect in which a handler has forked, and have the connection. */
static void test_within(void)
{
	struct sigaction sa = {.sa_handler = forks, .sa_flags = SA_RESTART};
	struct itimerval soon = {.it_value.tv_usec = 300000};
	struct sockaddr_in at;
	int l = server(&at), c, s;
	pid_t first;

	CHECK(listen(l, 0) == 0);
	close(connected_to(&at)); /* fills the queue */
	first = fork();
	if (first == 0) {
		CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
		usleep(700000);
		close(accept(l, NULL, NULL));
		CHECK((s = accept(l, NULL, NULL)) >= 0 && recv(s, buf, 2, MSG_WAITALL) == 2 && buf[0] + buf[1] == 'p' + 'c' && read(s, buf, 1) == 0);
		_exit(0);
	}
	close(l);
	c = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(sigaction(SIGALRM, &sa, NULL) == 0 && setitimer(ITIMER_REAL, &soon, NULL) == 0);
	CHECK(connect(c, (struct sockaddr *)&at, sizeof(at)) == 0 && interrupted >= 0 && as_it_should(c));
	CHECK(send(c, interrupted ? "p" : "c", 1, MSG_NOSIGNAL) == 1);
	close(c);
	if (interrupted == 0)
		_exit(0);
	for (int i = 0, status; i < 2; i++)
		CHECK(wait(&status) > 0 && status == 0);
}

static int shared, go[2], sums[2];

static int writes_other(void *arg)
{
	(void)arg;
	CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && read(go[0], buf, 1) == 1);
	for (int i = 0; i < 20000; i++)
		CHECK(write(shared, "c", 1) == 1);
	_exit(0);
}

static void *reads(void *end)
{
	static char some[LARGE];

	for (ssize_t n; (n = read(*(int *)end, some, sizeof(some))) != 0;) {
		CHECK(n > 0);
		for (ssize_t i = 0; i < n; i++)
			sums[some[i] == 'c']++;
	}
	return NULL;
}

/* make makes a process that writes, otherwise than by fork. */
static pid_t make(int how)
{
	static char stack[65536];
	int terminal;
	pid_t child;

	if (how == 0)
		return clone(writes_other, stack + sizeof(stack), SIGCHLD, NULL);
	child = how == 1 ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : forkpty(&terminal, NULL, NULL, NULL);
	if (child == 0)
		writes_other(NULL);
	return child;
}

/* Such a process shares a connection that there is, or the socket of one that there will be. */
static void test_otherwise(void)
{
	for (int i = 0; i < 6; i++) {
		struct sockaddr_in at;
		int l = server(&at), s = -1, status;
		bool before = i % 2;
		pthread_t thread;
		pid_t child = -1;

		CHECK(pipe(go) == 0);
		shared = socket(AF_INET, SOCK_STREAM, 0);
		if (before)
			CHECK((child = make(i / 2)) > 0);
		CHECK(connect(shared, (struct sockaddr *)&at, sizeof(at)) == 0 && (s = accept(l, NULL, NULL)) >= 0);
		stream(shared, s);
		if (!before)
			CHECK(as_it_should(shared) && (child = make(i / 2)) > 0);
		sums[0] = sums[1] = 0;
		CHECK(pthread_create(&thread, NULL, reads, &s) == 0 && write(go[1], "x", 1) == 1);
		for (int j = 0; j < 20000; j++)
			CHECK(write(shared, "p", 1) == 1);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		close(shared);
		CHECK(pthread_join(thread, NULL) == 0 && sums[0] == 20000 && sums[1] == 20000);
		close(s);
		close(l);
		close(go[0]);
		close(go[1]);
	}
}

static pid_t forked(void)
{
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0)
		CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	return child;
}

static void ended(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* takes_turns is the client of echoes. */
static void takes_turns(int c)
{
	for (int i = 0; i < 100; i++) {
		CHECK(write(c, buf, LARGE) == LARGE);
		for (ssize_t r, n = LARGE; n; n -= r)
			CHECK((r = read(c, buf, (size_t)n)) > 0);
	}
}

static int most_rings; /* that this process had at a time: one ends with its direction */

static void echoes(int s)
{
	for (ssize_t n; (n = read(s, buf, LARGE)) != 0;) {
		int rings = mapped_rings();

		CHECK(n > 0);
		most_rings = rings > most_rings ? rings : most_rings;
		for (ssize_t sent = 0, r; sent < n; sent += r)
			CHECK((r = write(s, buf + sent, (size_t)(n - sent))) > 0);
	}
}

/* A server that makes a process for each connection, and closes its own descriptor: both directions get rings. */
static void test_server(void)
{
	struct sockaddr_in at;
	int l = server(&at);
	pid_t servant = forked();

	CHECK(pipe(go) == 0);
	if (servant == 0) {
		for (int i = 0; i < 5; i++) {
			int s = accept(l, NULL, NULL);
			pid_t child = forked();

			if (child == 0) {
				close(l);
				CHECK(read(go[0], buf, 1) == 1); /* it is closed there */
				echoes(s);
				CHECK(most_rings == (moved() ? 2 : 0));
				_exit(0);
			}
			close(s);
			CHECK(write(go[1], "x", 1) == 1);
			ended(child);
		}
		_exit(0);
	}
	close(l);
	for (int i = 0; i < 5; i++) {
		int c = connected_to(&at);

		CHECK(as_it_should(c));
		takes_turns(c);
		CHECK(mapped_rings() == (moved() ? 2 : 0));
		close(c);
	}
	ended(servant);
}

/* A process that is still there when the one that it has made has ended is alone again. So is one that could make none. */
static void test_again(void)
{
	for (int i = 0; i < 2; i++) {
		struct sockaddr_in at;
		int l = server(&at), s;
		pid_t client = forked();

		if (client == 0) {
			takes_turns(connected_to(&at));
			_exit(0);
		}
		CHECK((s = accept(l, NULL, NULL)) >= 0);
		if (i == 0) {
			pid_t child = forked();

			if (child == 0)
				_exit(0);
			ended(child);
		} else
			CHECK(syscall(SYS_clone, CLONE_FS | CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0) == -1);
		usleep(100000); /* the kernel is not asked all the time */
		most_rings = 0;
		echoes(s);
		CHECK(most_rings == (moved() ? 2 : 0));
		close(s);
		close(l);
		ended(client);
	}
}

/* parts reads part of a stream of numbered words in one process, and says which. */
static void part(int fd, uint32_t first, uint32_t n)
{
	for (uint32_t i = first, word; i < first + n; i++)
		CHECK(recv(fd, &word, sizeof(word), MSG_WAITALL) == sizeof(word) && word == i);
}

#define WORDS 65536u

static void numbers(int c)
{
	static uint32_t words[LARGE / 4];

	for (uint32_t i = 0; i < 3 * WORDS; i++) {
		words[i % (LARGE / 4)] = i;
		if (i % (LARGE / 4) == LARGE / 4 - 1)
			CHECK(send(c, words, LARGE, 0) == LARGE);
	}
}

static void pass(int over, int fd)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} u = {.h = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	struct iovec one = {"", 1};
	struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = sizeof(u)};

	memcpy(CMSG_DATA(&u.h), &fd, sizeof(fd));
	CHECK(sendmsg(over, &m, 0) == 1);
}

static int passed(int over)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} u;
	char c;
	struct iovec one = {&c, 1};
	struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = sizeof(u)};
	int fd;

	CHECK(recvmsg(over, &m, 0) == 1 && CMSG_FIRSTHDR(&m));
	memcpy(&fd, CMSG_DATA(&u.h), sizeof(fd));
	return fd;
}

/*
 * Two processes read a connection in turn, which a third one had as well: the process that was forked, and what keeps the
 * connection where its maker has closed it. 0: the maker itself, which does not; 1: one that it was passed to; 2: a copy of
 * the maker's descriptor; 3: a process that its child has made.
 */
static void shares(int how)
{
	struct sockaddr_in at;
	int l = server(&at), turns[2][2], over[2];
	pid_t client = forked(), maker, third = -1;

	if (client == 0) {
		numbers(connected_to(&at));
		_exit(0);
	}
	for (int i = 0; i < 2; i++)
		CHECK(pipe(turns[i]) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, over) == 0);
	if (how == 1 && (third = forked()) == 0) {
		int s = passed(over[1]);

		CHECK(read(turns[0][0], buf, 1) == 1);
		part(s, WORDS, WORDS);
		CHECK(write(turns[1][1], "x", 1) == 1);
		_exit(0);
	}
	maker = forked();
	if (maker == 0) {
		int s = accept(l, NULL, NULL), copy = -1;
		pid_t child = fork();

		CHECK(child >= 0);
		if (child == 0) {
			pid_t other = how == 3 ? forked() : -1;

			if (other == 0) {
				CHECK(read(turns[0][0], buf, 1) == 1);
				part(s, WORDS, WORDS);
				CHECK(write(turns[1][1], "x", 1) == 1);
				_exit(0);
			}
			usleep(200000); /* the others have done all of it */
			part(s, 0, WORDS);
			CHECK(mapped_rings() == 0 && write(turns[0][1], "x", 1) == 1 && read(turns[1][0], buf, 1) == 1);
			part(s, 2 * WORDS, WORDS);
			CHECK(read(s, buf, 1) == 0 && write(over[0], "over", 4) == 4);
			_exit(0);
		}
		if (how == 1) {
			pass(over[0], s);
			close(s);
			_exit(0);
		}
		if (how == 2) {
			CHECK((copy = dup(s)) >= 0);
			close(s);
			s = copy;
		}
		if (how != 3) {
			CHECK(read(turns[0][0], buf, 1) == 1);
			part(s, WORDS, WORDS);
			CHECK(write(turns[1][1], "x", 1) == 1);
		}
		close(s);
		ended(child);
		_exit(0);
	}
	close(l);
	ended(maker);
	if (third > 0)
		ended(third);
	CHECK(recv(over[1], buf, 4, MSG_WAITALL) == 4);
	ended(client);
	for (int i = 0; i < 4; i++)
		close(turns[i / 2][i % 2]);
	close(over[0]);
	close(over[1]);
}

static void test_shared(void)
{
	for (int how = 0; how < 4; how++)
		shares(how);
}

/* So does a program that was executed: nobody knows what it does with its descriptors. */
static void test_executed(void)
{
	extern char **environ;
	char *const argv[] = {"sleep", "1", NULL};
	struct sockaddr_in at;
	int l = server(&at);
	pid_t client = forked(), maker;

	if (client == 0) {
		takes_turns(connected_to(&at));
		_exit(0);
	}
	maker = forked();
	if (maker == 0) {
		int s = accept(l, NULL, NULL);
		pid_t child = fork(), program;

		CHECK(child >= 0);
		if (child == 0) {
			usleep(200000);
			echoes(s);
			CHECK(most_rings == 0);
			_exit(0);
		}
		CHECK(posix_spawnp(&program, "sleep", NULL, NULL, argv, environ) == 0);
		close(s);
		ended(child);
		ended(program);
		_exit(0);
	}
	close(l);
	ended(client);
	ended(maker);
}

static const struct {
	const char *name;
	void (*test)(void);
} cases[] = {
	{"blocked", test_blocked},
	{"often", test_often},
	{"within", test_within},
	{"otherwise", test_otherwise},
	{"server", test_server},
	{"again", test_again},
	{"shared", test_shared},
	{"executed", test_executed},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < sizeof(cases) / sizeof(cases[0]); i++)
		if (strcmp(argv[1], cases[i].name) == 0) {
			cases[i].test();
			return 0;
		}
	return 2;
}
