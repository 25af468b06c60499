/*
 * Births: which descriptors are TCP sockets that nobody else can have, and how epoll knows them. Only
 * such a one can be exchanged inside connect: it was made here by socket(), was not dup'ed, and no
 * process was forked since. An event that is not seen
 * here can only take a descriptor out, not let one in.
 */
#include "preload.h"

#include <fcntl.h>
#include <pty.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define BIRTHS 65536 /* descriptors above stay with TCP */

struct birth {
	uint64_t cookie; /* of the socket; 0: not one of ours */
	uint64_t data;	 /* of its registration, as events and epfd */
	uint32_t generation;
	uint32_t registrations;
	uint32_t events;
	int32_t epfd;
	uint64_t listener; /* the cookie, once it listens */
	uint32_t options;  /* that were set, and that the connection is to have: options.c */
	uint32_t on;	   /* of these: those that were set to a value other than 0 */
	uint64_t on_of;	   /* the cookie of a listener that others have, too, of which on was read; 0: none */
	/* coarse_ms | 1 when a connect that does not wait began, which stays TCP; 0: none has */
	uint32_t begun;
	bool listens;	   /* and accept waits, as far as was seen */
	bool stays;	   /* connections that it accepts are to be TCP */
};

static struct birth births[BIRTHS];
static uint32_t generation = 1; /* counts forks */
static pid_t process;

__attribute__((constructor)) static void births_start(void)
{
	process = (pid_t)SYS(getpid);
}

uint32_t births_generation(void)
{
	return __atomic_load_n(&generation, __ATOMIC_SEQ_CST);
}

/* births_process is the process that the tables are of. */
pid_t births_process(void)
{
	return process;
}

static struct birth *birth_at(int fd)
{
	return fd >= 0 && fd < BIRTHS ? &births[fd] : NULL;
}

uint64_t cookie_of(int fd)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);

	return SYS(getsockopt, fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) == 0 ? cookie : 0;
}

/* birth_never takes a descriptor out: its connection will be TCP. */
void birth_never(int fd)
{
	struct birth *b = birth_at(fd);

	if (b)
		b->cookie = b->listener = 0;
}

/* unshared says whether no process was forked since a socket was made. */
static bool unshared(const struct birth *b)
{
	return b->generation == __atomic_load_n(&generation, __ATOMIC_RELAXED);
}

/* birth_listens takes note of a listener, and whether accept may look. */
void birth_listens(int fd, bool looks)
{
	struct birth *b = birth_at(fd);

	if (b) {
		b->listener = unshared(b) ? b->cookie : 0;
		b->cookie = 0;
		b->listens = looks;
	}
}

/*
 * birth_stays takes note of whether the connections that a listener accepts are to be TCP. They
 * stay so in a process that was forked.
 */
void birth_stays(int fd, bool stays)
{
	struct birth *b = birth_at(fd);

	if (b)
		b->stays = stays;
}

bool birth_is_tcp(int fd)
{
	const struct birth *b = birth_at(fd);

	return b && b->stays;
}

/* birth_hurries takes note of a listener where accept does not wait. */
void birth_hurries(int fd)
{
	struct birth *b = birth_at(fd);

	if (b)
		b->listens = false;
}

/* birth_option takes note of options that were set, and whether they are on. */
void birth_option(int fd, uint32_t options, bool on)
{
	struct birth *b = options ? birth_at(fd) : NULL;

	if (!b)
		return;
	__atomic_fetch_or(&b->options, options, __ATOMIC_RELAXED);
	if (on)
		__atomic_fetch_or(&b->on, options, __ATOMIC_RELAXED);
	else
		__atomic_fetch_and(&b->on, ~options, __ATOMIC_RELAXED);
}

/*
 * birth_options is which options a socket may have that connects, and birth_may_swap; or, if it listens,
 * those that it accepts.
 */
uint32_t birth_options(int fd)
{
	const struct birth *b = birth_at(fd);

	/* With io_uring others than we set them. */
	if (!b || !settings.rings || !unshared(b) ||
		(!b->cookie && (!b->listener || b->listener != cookie_of(fd))))
		return OPTIONS_ALL;
	return b->options;
}

/* birth_on finds the options that a socket has on. which is birth_options of it. False: that is not known. */
bool birth_on(int fd, uint32_t which, uint32_t *on)
{
	const struct birth *b = birth_at(fd);

	if (!b || (which == OPTIONS_ALL && (!b->on_of || b->on_of != cookie_of(fd))))
		return false;
	*on = __atomic_load_n(&b->on, __ATOMIC_RELAXED);
	return true;
}

/* birth_on_is takes note of the options that a socket has on. */
void birth_on_is(int fd, uint32_t on)
{
	struct birth *b = birth_at(fd);

	if (!b)
		return;
	__atomic_store_n(&b->on, on, __ATOMIC_RELAXED);
	b->on_of = cookie_of(fd);
}

bool birth_accepts(int fd)
{
	const struct birth *b = birth_at(fd);

	return b && b->listens;
}

/* birth_may_swap says whether connect may put something else in the place of this socket. */
bool birth_may_swap(int fd)
{
	const struct birth *b = birth_at(fd);

	return b && b->cookie != 0 && unshared(b) &&
	       b->registrations <= 1 && b->cookie == cookie_of(fd);
}

#define BEGUN_MS 100 /* after which the attempt may have failed, and the next connect is another one */

/* birth_begins takes note of a connect that does not wait, and stays TCP, or that there is none any more. */
void birth_begins(int fd, bool begins)
{
	struct birth *b = birth_at(fd);

	if (b)
		b->begun = begins ? coarse_ms() | 1 : 0;
}

/*
 * birth_begun says whether connect is called again for such a one, as programs do that want to know how it
 * went.
 */
bool birth_begun(int fd)
{
	const struct birth *b = birth_at(fd);

	return b && b->begun && (coarse_ms() | 1) - b->begun < BEGUN_MS;
}

/*
 * birth_place says whether something else can take the place of a descriptor: a limit that has come down
 * since may be below it, and a filter of system calls may refuse dup3. Were that seen afterwards the
 * connection would be lost.
 */
bool birth_place(int fd)
{
	struct rlimit64 most = {0};

	return SYS(dup3, fd, fd, 0) == -EINVAL && SYS(prlimit64, 0, RLIMIT_NOFILE, NULL, &most) == 0 &&
		(uint64_t)fd < most.rlim_cur;
}

/* birth_registration returns the one registration with epoll that the socket has. False: it has none. */
bool birth_registration(int fd, int *epfd, struct epoll_event *event)
{
	const struct birth *b = birth_at(fd);

	if (!b || b->registrations != 1)
		return false;
	*epfd = b->epfd;
	event->events = b->events;
	event->data.u64 = b->data;
	return true;
}

static bool digits(const char **p, unsigned base, uint64_t *v)
{
	const char *from = *p;

	for (*v = 0;; ++*p) {
		unsigned c = (unsigned char)**p, d = c - '0' < 10 ? c - '0' : c - 'a' < 6 ? c - 'a' + 10 : 16;

		if (d >= base)
			return *p != from;
		*v = *v * base + d;
	}
}

#define REGISTRATIONS                                                                                        \
	8192 /* bytes that are read of the kernel's list of an instance: some hundred registrations */
#define PRIVATE (EPOLLWAKEUP | EPOLLONESHOT | EPOLLET | EPOLLEXCLUSIVE)

/*
 * birth_told says whether a one-shot registration has told of its event already. The kernel knows,
 * and shows the events that are left of it. Of an instance that has hundreds only the first are
 * looked at.
 */
bool birth_told(int fd)
{
	char path[48] = "/proc/self/fdinfo/", text[REGISTRATIONS + 1];
	const struct birth *b = birth_at(fd);
	char decimal[10], *p = path + strlen(path);
	size_t n = 0, have = 0;
	long file, r;

	if (!b || b->registrations != 1 || !(b->events & EPOLLONESHOT))
		return false;
	for (unsigned v = (unsigned)b->epfd; n == 0 || v; v /= 10)
		decimal[n++] = (char)('0' + v % 10);
	while (n)
		*p++ = decimal[--n];
	file = SYS(openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return false;
	while (have < REGISTRATIONS && (r = SYS(read, file, text + have, REGISTRATIONS - have)) > 0)
		have += (size_t)r;
	SYS(close, file);
	text[have] = 0;
	for (const char *line = strstr(text, "tfd:"); line; line = strstr(line, "tfd:")) {
		uint64_t is, events;

		line += strlen("tfd:");
		line += strspn(line, " ");
		if (!digits(&line, 10, &is) || is != (uint64_t)fd || strncmp(line, " events:", 8) != 0)
			continue;
		line += 8;
		line += strspn(line, " ");
		return digits(&line, 16, &events) && *line == ' ' && !(events & ~(uint64_t)PRIVATE);
	}
	return false;
}

/* birth takes note of a socket that was made just now, and of the options that it may have. */
void birth(int fd, bool tcp, uint32_t options)
{
	struct birth *b = birth_at(fd);

	if (!b)
		return;
	b->cookie = tcp ? cookie_of(fd) : 0;
	b->generation = __atomic_load_n(&generation, __ATOMIC_RELAXED);
	b->registrations = 0;
	b->listener = 0;
	b->options = options;
	b->on = 0;
	b->on_of = 0;
	b->begun = 0;
	b->listens = false;
}

/* birth_registered takes note of the registrations that a new socket has taken over. */
void birth_registered(int fd, const struct registered *list, size_t n)
{
	struct birth *b = birth_at(fd);

	if (!b || n == 0)
		return;
	b->registrations = (uint32_t)n;
	b->epfd = list[0].epfd;
	b->events = list[0].event.events;
	b->data = list[0].event.data.u64;
}

EXPORT int socket(int domain, int type, int protocol)
{
	long fd = SYS(socket, domain, type, protocol);

	if (settings.on && !guard_on() && fd >= 0)
		birth((int)fd,
			(domain == AF_INET || domain == AF_INET6) && (type & 0xf) == SOCK_STREAM &&
				(protocol == 0 || protocol == IPPROTO_TCP),
			0);
	return (int)sys_return(fd);
}

EXPORT int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
	struct birth *b = birth_at(fd);
	long r;

	if (hosts_some()) { /* before, and not between what the kernel and what is noted here */
		connect_settle(fd);
		hosts_hold(true);
	}
	r = epoll_control(epfd, op, fd, event);
	if (hosts_some())
		hosts_hold(false);
	if (r == 0 && b && b->cookie) {
		bool same = b->registrations == 1 && b->epfd == epfd;

		if (op == EPOLL_CTL_ADD)
			b->registrations++;
		if ((op == EPOLL_CTL_ADD && b->registrations == 1) || (op == EPOLL_CTL_MOD && same)) {
			b->epfd = epfd;
			b->events = event->events;
			b->data = event->data.u64;
		}
		if (op == EPOLL_CTL_DEL && same)
			b->registrations = 0;
	}
	return (int)sys_return(r);
}

/* before_fork is for this process, which will not be the only one that has its descriptors. */
static void before_fork(void)
{
	options_settle_all();
	epoll_settle_all();
	quiet_over_all();
	holders_forking();
	__atomic_fetch_add(&generation, 1, __ATOMIC_SEQ_CST);
	ring_forking();
	hidden_forking();
}

/* forked is for the new process, whose tables these are now. */
static void forked(void)
{
	if (!guard_on()) /* nobody asks for it any more */
		process = (pid_t)SYS(getpid);
	ring_forked();
	holders_forked();
	hidden_drop();
}

/* not_forked is for this process if none was made. */
static void not_forked(void)
{
	ring_not_forked();
	holders_not_forked();
}

/* after_fork is for either process; child is the result of fork. */
static long after_fork(long child)
{
	if (child == 0)
		forked();
	else
		hidden_forked();
	if (child < 0)
		not_forked();
	return child;
}

EXPORT pid_t fork(void)
{
	if (!next.fork)
		next_resolve();
	before_fork();
	return (pid_t)after_fork(next.fork());
}

EXPORT pid_t _Fork(void)
{
	if (!next._Fork)
		next_resolve();
	before_fork();
	return (pid_t)after_fork(next._Fork());
}

/*
 * A thread that gets a table of descriptors of its own: the same number may be another descriptor
 * to it, and the tables here are the same for all threads. So from then on there are no rings in
 * this process.
 */
EXPORT int unshare(int flags)
{
	if ((flags & CLONE_FILES) && !ends_leave_all())
		return (int)sys_return(-ENOMEM);
	return (int)sys_return(SYS(unshare, flags));
}

/* These fork inside libc. */
EXPORT int daemon(int no_directory, int no_close)
{
	int r;

	if (!next.daemon)
		next_resolve();
	before_fork();
	r = next.daemon(no_directory, no_close);
	after_fork(births_process() == (pid_t)SYS(getpid));
	return r;
}

EXPORT pid_t forkpty(int *terminal, char *name, const struct termios *modes, const struct winsize *size)
{
	if (!next.forkpty)
		next_resolve();
	before_fork();
	return (pid_t)after_fork(next.forkpty(terminal, name, modes, size));
}

/* copies says whether clone makes a process with memory and descriptors of its own. */
static bool copies(uint64_t flags)
{
	return !(flags & (CLONE_VM | CLONE_FILES));
}

/* births_clone is syscall(2) for the calls that make processes, and threads. */
long births_clone(long n, const long a[6])
{
	bool makes = true;
	long r;

	if (n == SYS_clone)
		makes = copies((uint64_t)a[0]);
#ifdef SYS_clone3
	if (n == SYS_clone3)
		makes = a[0] && (unsigned long)a[1] >= sizeof(uint64_t) && copies(*(const uint64_t *)a[0]);
#endif
	if (makes)
		before_fork();
	else if (n == SYS_clone && (a[0] & CLONE_THREAD) && !(a[0] & CLONE_FILES))
		ends_leave_all();
	r = sys6(n, a[0], a[1], a[2], a[3], a[4], a[5]);
	return makes ? after_fork(r) : r;
}

/* A new process begins with the function that it is given. */
struct beginning {
	int (*function)(void *);
	void *argument;
};

static int begin(void *arg)
{
	const struct beginning *b = arg;

	forked();
	return b->function(b->argument);
}

EXPORT int clone(int (*function)(void *), void *stack, int flags, void *argument, ...)
{
	struct beginning b = {function, argument};
	pid_t *parent, *child;
	va_list args;
	void *tls;
	int r;

	va_start(args, argument);
	parent = va_arg(args, pid_t *);
	tls = va_arg(args, void *);
	child = va_arg(args, pid_t *);
	va_end(args);
	if (!next.clone)
		next_resolve();
	if ((flags & CLONE_THREAD) && !(flags & CLONE_FILES))
		ends_leave_all();
	if (!function || !copies((unsigned)flags))
		return next.clone(function, stack, flags, argument, parent, tls, child);
	before_fork();
	r = next.clone(begin, stack, flags, &b, parent, tls, child);
	hidden_forked();
	if (r < 0)
		not_forked();
	return r;
}

/* copied takes note of a copy that was made. It is undone if the bytes in a ring would be lost to it. */
static int copied(int fd, long to)
{
	if (to >= 0 && !end_dup(fd, (int)to)) {
		SYS(close, to);
		to = -EBUSY;
	}
	return (int)sys_return(to);
}

EXPORT int dup(int fd)
{
	birth_never(fd);
	end_shared(fd);
	return copied(fd, SYS(dup, fd));
}

EXPORT int dup2(int fd, int to)
{
	birth_never(fd);
	if (fd == to && !guard_on()) {
		long r = SYS(fcntl, fd, F_GETFD);

		return (int)sys_return(r < 0 ? r : to);
	}
#ifdef SYS_dup2
	if (guard_on()) {
		end_shared(fd);
		end_to_standard(fd, to);
		return copied(fd, SYS(dup2, fd, to));
	}
#endif
	return dup3(fd, to, 0);
}

EXPORT int dup3(int fd, int to, int flags)
{
	birth_never(fd);
	end_shared(fd);
	end_to_standard(fd, to);
	return copied(fd, SYS(dup3, fd, to, flags));
}

static bool duplicates(int cmd)
{
	return cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC;
}

#define FCNTL(name)                                                              \
	EXPORT int name(int fd, int cmd, ...)                                    \
	{                                                                        \
		va_list args;                                                    \
		void *arg;                                                       \
										 \
		va_start(args, cmd);                                             \
		arg = va_arg(args, void *);                                      \
		va_end(args);                                                    \
		if (duplicates(cmd)) {                                           \
			birth_never(fd);                                         \
			end_shared(fd);                                          \
			return copied(fd, SYS(fcntl, fd, cmd, arg));             \
		}                                                                \
		if (cmd == F_SETFL)                                              \
			end_waits(fd, !((uintptr_t)arg & O_NONBLOCK));           \
		if (cmd == F_SETFL && ((uintptr_t)arg & O_ASYNC))                \
			edges_signalled(fd);                                     \
		if (cmd == F_SETOWN || cmd == F_SETOWN_EX || cmd == F_SETSIG)    \
			owner_chosen(fd);                                        \
		if (next.name)                                                   \
			return next.name(fd, cmd, arg);                          \
		return (int)sys_return(SYS(fcntl, fd, cmd, arg));                \
	}

FCNTL(fcntl)
FCNTL(fcntl64)
