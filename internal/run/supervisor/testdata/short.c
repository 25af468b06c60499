/*
 * Programs that live for one connection, one of which ends in some way after it has written: short cold|warm|late AT-ONCE
 *
 * It does each cell of the table of connections and endings, by two programs of its own, and prints one line of all that the one that has not
 * ended has seen, up to " over ": TCP, a pair, or both where one program has the one and one the other. Bare, with TCP, it prints the same. With the
 * environment variable RINGS set to 1, and warm, both directions of a pair are on rings by then.
 *
 * cold: at once. warm: after both have sent much. late: the server accepts when the client has ended, or has closed and goes on.
 */
#include "program.h"

#include <spawn.h>
#include <sys/prctl.h>

extern char **environ;

#define WARM (4 * 32768) /* bytes each way, after which a direction is on a ring */
#define LEFT 10          /* bytes that the one which ends does not read, or of which it reads a part */

enum ending { END_EXIT, END_SHUT, END_CLOSE, END_PART, END_UNREAD, END_UNREAD_CLOSE, END_KILL, END_EXEC, END_EXEC_CLOSE, END_FORK, END_DAEMON, END_SPAWN, ENDINGS };
static const char *const endings[ENDINGS] = {"exit", "shut", "close", "part", "unread", "unread-close", "kill", "exec", "exec-close", "fork", "daemon", "spawn"};

static const size_t sizes[] = {5, 64 << 10, 3 << 20};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* Descriptors of both programs of a cell, and of the process that has started them. */
enum { PORT_READ = 200, PORT_WRITE, LIFE_READ, LIFE_WRITE, BYE_READ, BYE_WRITE };

/* A message of the one that ends to the other one, over a pipe that ends after its last process: how much was sent, and why no more. */
struct word {
	uint64_t sent;
	int error;
	int closed; /* this process goes on, and has no connection any more */
	int domain; /* of its socket: AF_INET, or AF_UNIX */
};

static struct cell {
	int way; /* 'c' cold, 'w' warm, 'l' late */
	int ends; /* 's' the server ends, 'c' the client */
	enum ending how;
	size_t size; /* bytes that it writes before */
} cell;

static unsigned char buf[64 << 10];
static int domain; /* of our socket */

/* leaves says whether the one that ends leaves bytes unread. */
static int leaves(void)
{
	return cell.how == END_PART || cell.how == END_UNREAD || cell.how == END_UNREAD_CLOSE;
}

static unsigned char byte_at(size_t i)
{
	return (unsigned char)(i * 31 ^ i >> 7 ^ i >> 15);
}

static void say(uint64_t sent, int error, int closed)
{
	struct word w = {.sent = sent, .error = error, .closed = closed, .domain = domain};

	CHECK(write(LIFE_WRITE, &w, sizeof(w)) == sizeof(w));
}

/* put writes bytes from..to, and says so. Nobody reads bytes that come late: then it writes as much as there is room for. */
static void put(int fd, size_t from, size_t to)
{
	size_t at = from;
	int error = 0;

	while (at < to && !error) {
		size_t n = to - at < sizeof(buf) ? to - at : sizeof(buf);
		ssize_t r;

		for (size_t i = 0; i < n; i++)
			buf[i] = byte_at(at + i);
		r = cell.way == 'l' ? send(fd, buf, n, MSG_DONTWAIT) : write(fd, buf, n);
		if (r < 0)
			error = errno;
		else
			at += (size_t)r;
	}
	say(at - from, cell.way == 'l' && error == EAGAIN ? 0 : error, 0);
}

/* linger_on stays without a connection until the other one has seen all that it wants to see. */
static void linger_on(void)
{
	say(0, 0, 1);
	CHECK(read(BYE_READ, buf, 1) == 0);
}

/* become goes on in another program, as the one in which rest is. */
static void become(int fd, size_t from, int spawned)
{
	char a[6][24];
	char *argv[] = {"short", "rest", a[0], a[1], a[2], a[3], a[4], NULL};
	posix_spawn_file_actions_t actions;

	snprintf(a[0], sizeof(a[0]), "%d", spawned ? 1 : fd);
	snprintf(a[1], sizeof(a[1]), "%c", cell.way);
	snprintf(a[2], sizeof(a[2]), "%d", cell.how);
	snprintf(a[3], sizeof(a[3]), "%zu", from);
	snprintf(a[4], sizeof(a[4]), "%zu", cell.size);
	if (!spawned) {
		execv("/proc/self/exe", argv);
		CHECK(!"execv");
	}
	CHECK(posix_spawn_file_actions_init(&actions) == 0 && posix_spawn_file_actions_adddup2(&actions, fd, 1) == 0);
	CHECK(posix_spawn(&(pid_t){0}, "/proc/self/exe", &actions, NULL, argv, environ) == 0);
}

static int rest(char **a)
{
	cell = (struct cell){.way = a[1][0], .how = (enum ending)atoi(a[2]), .size = strtoul(a[4], NULL, 10)};
	if (cell.how == END_EXEC_CLOSE) {
		CHECK(fcntl(atoi(a[0]), F_GETFD) < 0);
		linger_on();
	} else {
		put(atoi(a[0]), strtoul(a[3], NULL, 10), cell.size);
	}
	return 0;
}

/* inherit waits, in a child, until its parent has ended. */
static void inherit(pid_t parent)
{
	while (getppid() == parent)
		sched_yield();
}

static void warm(int fd, int first)
{
	memset(buf, 'w', sizeof(buf));
	for (int turn = 0; turn < 2; turn++)
		for (size_t n = 0; n < WARM;) {
			size_t most = WARM - n < 32768 ? WARM - n : 32768;
			ssize_t r = turn == first ? read(fd, buf, most) : write(fd, buf, most);

			CHECK(r > 0);
			n += (size_t)r;
		}
}

/* end is the part of the one that ends. */
static void end(int fd)
{
	size_t half = cell.size / 2;
	pid_t self = getpid();
	int n = 0;

	if (cell.way == 'w') {
		warm(fd, 0);
		CHECK(!getenv("RINGS") || domain != AF_UNIX || mapped_rings() == 2);
		/* Whatever the other one's last write leaves in the socket is there now, and is taken out: ending with it there is a reset. */
		CHECK(read(BYE_READ, buf, 1) == 1);
		CHECK(leaves() || (recv(fd, buf, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN));
	}
	if (leaves()) {
		while (n < LEFT)
			CHECK(ioctl(fd, FIONREAD, &n) == 0 && poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, PATIENCE) == 1);
		CHECK(cell.how != END_PART || read(fd, buf, 4) == 4);
	}
	switch (cell.how) {
	case END_SHUT:
		put(fd, 0, cell.size);
		CHECK(shutdown(fd, SHUT_WR) == 0);
		break;
	case END_CLOSE:
	case END_UNREAD_CLOSE:
		put(fd, 0, cell.size);
		close(fd);
		linger_on();
		break;
	case END_KILL:
		put(fd, 0, cell.size);
		kill(self, SIGKILL);
		break;
	case END_EXEC_CLOSE:
		put(fd, 0, cell.size);
		CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
		become(fd, 0, 0);
		break;
	case END_EXEC:
	case END_SPAWN:
		put(fd, 0, half);
		become(fd, half, cell.how == END_SPAWN);
		break;
	case END_FORK:
	case END_DAEMON:
		put(fd, 0, half);
		if (cell.how == END_DAEMON)
			CHECK(daemon(1, 1) == 0);
		else if (fork() != 0)
			break;
		inherit(self);
		put(fd, half, cell.size);
		break;
	default:
		put(fd, 0, cell.size);
	}
	_exit(0);
}

/* hear adds up the messages of the one that ends, until it has ended or closed. */
static struct word hear(void)
{
	struct word w, all = {0};
	ssize_t n;

	while (!all.closed && (n = read(LIFE_READ, &w, sizeof(w))) != 0) {
		CHECK(n == sizeof(w));
		all.sent += w.sent;
		all.error = all.error ? all.error : w.error;
		all.closed |= w.closed;
		all.domain = w.domain ? w.domain : all.domain;
	}
	return all;
}

static const char *said(ssize_t n)
{
	return n > 0 ? "taken" : n == 0 ? "end" : errno == EPIPE ? "EPIPE" : errno == ECONNRESET ? "ECONNRESET" : strerror(errno);
}

/* see is the part of the other one: it reads until there is an end, sends into the void, and prints the result. */
static void see(int fd, struct word before)
{
	struct word w;
	char line[300], *to = line;
	size_t got = 0;
	ssize_t n;

	if (cell.way == 'w') {
		warm(fd, 1);
		CHECK(write(BYE_WRITE, "w", 1) == 1);
	}
	if (leaves())
		CHECK(write(fd, buf, LEFT) == LEFT);
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		for (ssize_t i = 0; i < n; i++)
			CHECK(buf[i] == byte_at(got++));
	to += sprintf(to, "%c %c %s %zu: %s", cell.way, cell.ends, endings[cell.how], cell.size, said(n));
	w = cell.way == 'l' ? before : hear();
	/* TCP drops bytes that had not arrived when there are bytes unread: nothing is said of that. */
	if (got != w.sent && (!leaves() || got > w.sent || (domain == AF_UNIX && w.domain == AF_UNIX)))
		to += sprintf(to, ", %zu of %zu bytes", got, (size_t)w.sent);
	if (w.error)
		to += sprintf(to, ", writer had %s", strerror(w.error));
	if (w.sent != cell.size && cell.way != 'l')
		to += sprintf(to, ", writer was stopped");
	to += sprintf(to, ", then %s", said(read(fd, buf, 1)));
	if (w.domain == domain) {
		to += sprintf(to, ", sends %s", said(send(fd, "x", 1, MSG_NOSIGNAL)));
		await(fd, 0);
		n = send(fd, "x", 1, MSG_NOSIGNAL);
		/*
		 * A supervisor that has given an end away and not closed it yet has it take the first byte, which is unread then. That is one of the
		 * differences to TCP, where this one has heard of the end before.
		 */
		if (n < 0 && cell.how == END_SHUT && errno == ECONNRESET)
			errno = EPIPE;
		to += sprintf(to, ", %s", said(n));
	}
	to += sprintf(to, " over %s\n", w.domain != domain ? "both" : domain == AF_UNIX ? "a pair" : "TCP");
	CHECK(write(1, line, (size_t)(to - line)) == to - line);
}

/* role is one of the two programs. */
static int role(char **a)
{
	struct sockaddr_in at;
	struct word before = {0};
	int fd, l;
	socklen_t len = sizeof(domain);

	cell = (struct cell){.way = a[1][0], .ends = a[2][0], .how = (enum ending)atoi(a[3]), .size = strtoul(a[4], NULL, 10)};
	if (a[0][0] == cell.ends) {
		close(LIFE_READ);
		close(BYE_WRITE);
	} else {
		close(LIFE_WRITE);
		close(BYE_READ);
	}
	if (a[0][0] == 's') {
		close(PORT_READ);
		l = server(&at);
		CHECK(write(PORT_WRITE, &at, sizeof(at)) == sizeof(at));
		if (cell.way == 'l')
			before = hear();
		fd = accept(l, NULL, NULL);
		close(l);
	} else {
		close(PORT_WRITE);
		CHECK(read(PORT_READ, &at, sizeof(at)) == sizeof(at));
		fd = connected_to(&at);
	}
	CHECK(fd >= 0 && syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0);
	if (a[0][0] == cell.ends)
		end(fd);
	see(fd, before);
	return 0;
}

static void start(const char *which)
{
	char a[4][24];
	char *argv[] = {"short", "role", (char *)which, a[0], a[1], a[2], a[3], NULL};

	snprintf(a[0], sizeof(a[0]), "%c", cell.way);
	snprintf(a[1], sizeof(a[1]), "%c", cell.ends);
	snprintf(a[2], sizeof(a[2]), "%d", cell.how);
	snprintf(a[3], sizeof(a[3]), "%zu", cell.size);
	CHECK(posix_spawn(&(pid_t){0}, "/proc/self/exe", NULL, NULL, argv, environ) == 0);
}

static void close_all(int but)
{
	for (int at = PORT_READ; at <= BYE_WRITE; at++)
		if (at != but)
			close(at);
}

/* reap waits for all processes that there are, and says whether one has failed. */
static int reap(void)
{
	int status, bad = 0;

	while (wait(&status) > 0)
		bad |= status != 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && cell.how == END_KILL);
	return bad;
}

/*
 * do_cell does one, and ends when no process of it is left. The processes of the one that ends have a parent of their own: it keeps the pipe
 * open until all of them have ended, since the kernel may close a process's pipe before its connection.
 */
static void do_cell(void)
{
	int bad;

	for (int at = PORT_READ; at <= BYE_READ; at += 2) {
		int p[2];

		CHECK(pipe(p) == 0 && dup2(p[0], at) == at && dup2(p[1], at + 1) == at + 1);
		close(p[0]);
		close(p[1]);
	}
	if (fork() == 0) {
		CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
		start(cell.ends == 's' ? "s" : "c");
		close_all(LIFE_WRITE);
		_exit(reap());
	}
	start(cell.ends == 's' ? "c" : "s");
	close_all(-1);
	bad = reap();
	if (bad)
		fprintf(stderr, "failed: %c %c %s %zu\n", cell.way, cell.ends, endings[cell.how], cell.size);
	_exit(bad);
}

int main(int argc, char **argv)
{
	int running = 0, bad = 0, status;

	if (argc == 7 && strcmp(argv[1], "rest") == 0)
		return rest(argv + 2);
	if (argc == 7 && strcmp(argv[1], "role") == 0)
		return role(argv + 2);
	if (argc != 3)
		return 2;
	cell.way = argv[1][0];
	for (int i = 0; i < 2 * ENDINGS * (int)SIZES; i++) {
		cell.ends = i % 2 ? 's' : 'c';
		cell.how = (enum ending)(i / 2 % ENDINGS);
		cell.size = sizes[i / 2 / ENDINGS];
		/* The one that accepts late is the server, and has sent nothing before. */
		if (cell.way == 'l' && (cell.ends == 's' || leaves()))
			continue;
		if (running == atoi(argv[2])) {
			bad |= wait(&status) < 0 || status != 0;
			running--;
		}
		if (fork() == 0)
			do_cell();
		running++;
	}
	while (wait(&status) > 0)
		bad |= status != 0;
	return bad;
}
