/* Operations by name, and those that make, ask and end sockets. */
#include "player.h"

#include <linux/futex.h>
#include <linux/sockios.h>

void say(const char *format, ...)
{
	size_t n = strlen(self->result);
	va_list args;

	if (n && n + 2 < sizeof(self->result))
		self->result[n++] = ' ';
	va_start(args, format);
	vsnprintf(self->result + n, sizeof(self->result) - n, format, args);
	va_end(args);
}

/* say_result tells the return value of a call, with the error that it has left. */
void say_result(long r)
{
	if (r < 0)
		say("%ld %s", r, strerrorname_np(errno) ? strerrorname_np(errno) : "?");
	else
		say("%ld", r);
}

struct slot *slot_of(const char *name)
{
	int i = atoi(name + 1);

	if (*name == 'e')
		i += 20;
	return &w->slots[me][i >= 0 && i < SLOTS ? i : 0];
}

int fd_of(const char *name)
{
	return slot_of(name)->fd;
}

long number(const struct args *a, int i, long otherwise)
{
	return i < a->n ? strtol(a->v[i], NULL, 0) : otherwise;
}

bool has(const struct args *a, const char *word)
{
	for (int i = 0; i < a->n; i++)
		if (strcmp(a->v[i], word) == 0)
			return true;
	return false;
}

static const struct word {
	const char *name;
	unsigned value;
} flag_words[] = {
	{"peek", MSG_PEEK}, {"waitall", MSG_WAITALL}, {"trunc", MSG_TRUNC}, {"dontwait", MSG_DONTWAIT}, {"oob", MSG_OOB},
	{"more", MSG_MORE}, {"nosignal", MSG_NOSIGNAL}, {"errqueue", MSG_ERRQUEUE}, {"cloexec", MSG_CMSG_CLOEXEC}, {"eor", MSG_EOR},
	{"dontroute", MSG_DONTROUTE}, {"ctrunc", MSG_CTRUNC}, {"confirm", MSG_CONFIRM}, {NULL, 0},
}, event_words[] = {
	{"in", EPOLLIN}, {"out", EPOLLOUT}, {"pri", EPOLLPRI}, {"rdhup", EPOLLRDHUP}, {"et", EPOLLET}, {"oneshot", EPOLLONESHOT},
	{"excl", EPOLLEXCLUSIVE}, {"err", EPOLLERR}, {"hup", EPOLLHUP}, {"rdnorm", EPOLLRDNORM}, {"wrnorm", EPOLLWRNORM},
	{"rdband", EPOLLRDBAND}, {"wrband", EPOLLWRBAND}, {"nval", POLLNVAL}, {NULL, 0},
};

static unsigned sum(const struct word *words, const char *list)
{
	unsigned value = 0;
	char copy[128], *at = copy, *word;

	snprintf(copy, sizeof(copy), "%s", list);
	while ((word = strsep(&at, "|")) != NULL)
		for (const struct word *x = words; x->name; x++)
			if (strcmp(x->name, word) == 0)
				value |= x->value;
	return value;
}

int flags_of(const char *word)
{
	return (int)sum(flag_words, word);
}

unsigned events_of(const char *word)
{
	return sum(event_words, word);
}

void say_events(unsigned events)
{
	char b[128] = "";

	for (const struct word *x = event_words; x->name; x++)
		if (events & x->value) {
			if (*b)
				strcat(b, "|");
			strcat(b, x->name);
		}
	say("%s", *b ? b : "-");
}

/* put has a slot name a descriptor. The descriptor that it named before goes on without a name. */
void put(struct slot *s, int fd, int conn, int side)
{
	*s = (struct slot){.fd = fd, .conn = conn, .side = side};
}

/* moved says whether a descriptor is no TCP socket any more, asking the kernel itself. */
static bool moved(int fd)
{
	int domain = 0;
	socklen_t len = sizeof(domain);

	return direct(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, (long)&domain, (long)&len) == 0 && domain == AF_UNIX;
}

static unsigned port_of(const struct sockaddr_storage *ss)
{
	if (ss->ss_family == AF_INET6)
		return ntohs(((const struct sockaddr_in6 *)ss)->sin6_port);
	return ntohs(((const struct sockaddr_in *)ss)->sin_port);
}

static socklen_t loopback(struct sockaddr_storage *ss, bool six, unsigned port)
{
	memset(ss, 0, sizeof(*ss));
	if (six) {
		*(struct sockaddr_in6 *)ss = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = in6addr_loopback};
		return sizeof(struct sockaddr_in6);
	}
	*(struct sockaddr_in *)ss = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	return sizeof(struct sockaddr_in);
}

/* op_socket: SLOT [six] [nonblock] [cloexec] */
static void op_socket(const struct args *a)
{
	int type = SOCK_STREAM | (has(a, "nonblock") ? SOCK_NONBLOCK : 0) | (has(a, "cloexec") ? SOCK_CLOEXEC : 0);
	int fd = socket(has(a, "six") ? AF_INET6 : AF_INET, type, 0), on = 1;

	say_result(fd);
	put(slot_of(a->v[0]), fd, -1, has(a, "six") ? 6 : 0);
	if (fd >= 0) /* or TCP would wait for the peer's answer before it sends the last bytes */
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/* op_bind: SLOT */
static void op_bind(const struct args *a)
{
	struct sockaddr_storage ss;
	struct slot *s = slot_of(a->v[0]);
	socklen_t len = loopback(&ss, s->side == 6, 0);

	say_result(bind(s->fd, (struct sockaddr *)&ss, len));
}

/* op_listen: SLOT LISTENER BACKLOG */
static void op_listen(const struct args *a)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	struct slot *s = slot_of(a->v[0]);
	long l = strtol(a->v[1] + 1, NULL, 10) % LISTENERS;
	int r = listen(s->fd, (int)number(a, 2, 16));

	say_result(r);
	if (r == 0 && getsockname(s->fd, (struct sockaddr *)&ss, &len) == 0) {
		w->ports[l] = port_of(&ss);
		w->six[l] = ss.ss_family == AF_INET6;
	}
}

/* know finds which connection a client's slot has, once it has begun. */
void know(struct slot *s)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	uint32_t i;

	if (s->conn >= 0) {
		w->connection[s->conn].moved[0] = moved(s->fd);
		return;
	}
	if (getsockname(s->fd, (struct sockaddr *)&ss, &len) != 0 || port_of(&ss) == 0)
		return;
	i = __atomic_fetch_add(&w->connections, 1, __ATOMIC_SEQ_CST);
	CHECK(i < CONNECTIONS);
	w->connection[i] = (struct connection){.port = port_of(&ss), .moved = {moved(s->fd)}};
	s->conn = (int)i;
	s->side = 0;
}

/* op_connect: SLOT LISTENER */
static void op_connect(const struct args *a)
{
	struct sockaddr_storage ss;
	struct slot *s = slot_of(a->v[0]);
	long l = strtol(a->v[1] + 1, NULL, 10) % LISTENERS;
	socklen_t len = loopback(&ss, w->six[l], w->ports[l]);
	int r = connect(s->fd, (struct sockaddr *)&ss, len), error = errno;

	if (r == 0 || error == EINPROGRESS)
		know(s);
	errno = error;
	say_result(r);
}

/* op_disconnect: SLOT. It connects to nothing. */
static void op_disconnect(const struct args *a)
{
	struct sockaddr sa = {.sa_family = AF_UNSPEC};
	struct slot *s = slot_of(a->v[0]);

	say_result(connect(s->fd, &sa, sizeof(sa)));
	s->conn = -1;
	s->side = 0;
}

/* op_accept: SLOT LISTENING-SLOT [nonblock] [cloexec] [nowhere] [accept] */
static void op_accept(const struct args *a)
{
	struct sockaddr_storage ss = {0};
	socklen_t len = sizeof(ss);
	struct slot *l = slot_of(a->v[1]), *s = slot_of(a->v[0]);
	bool nowhere = has(a, "nowhere");
	int flags = (has(a, "nonblock") ? SOCK_NONBLOCK : 0) | (has(a, "cloexec") ? SOCK_CLOEXEC : 0), fd, on = 1;

	if (has(a, "accept"))
		fd = accept(l->fd, nowhere ? NULL : (struct sockaddr *)&ss, nowhere ? NULL : &len);
	else
		fd = accept4(l->fd, nowhere ? NULL : (struct sockaddr *)&ss, nowhere ? NULL : &len, flags);
	say_result(fd);
	if (fd < 0)
		return;
	put(s, fd, -1, 1);
	if (nowhere && getpeername(fd, (struct sockaddr *)&ss, &len) != 0)
		say("peer %s", strerrorname_np(errno));
	for (int i = (int)w->connections - 1; i >= 0; i--)
		if (w->connection[i].port == port_of(&ss)) {
			s->conn = i;
			w->connection[i].moved[1] = moved(fd);
			w->connection[i].accepted = true;
			break;
		}
	say("of %d family %d %u", s->conn, ss.ss_family, len);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/* op_close: SLOT [shutdown] [range] */
static void op_close(const struct args *a)
{
	struct slot *s = slot_of(a->v[0]);
	int r;

	if (has(a, "range") && s->fd >= 0)
		r = close_range((unsigned)s->fd, (unsigned)s->fd, 0);
	else
		r = close(s->fd);
	say_result(r);
	put(s, -1, -1, 0);
	if (w->bare)
		usleep(100);
}

/* op_shutdown: SLOT 0|1|2 */
static void op_shutdown(const struct args *a)
{
	say_result(shutdown(fd_of(a->v[0]), (int)number(a, 1, 1)));
	settle(fd_of(a->v[0]));
}

/* op_linger: SLOT ON SECONDS */
static void op_linger(const struct args *a)
{
	struct linger l = {(int)number(a, 1, 1), (int)number(a, 2, 0)};

	say_result(setsockopt(fd_of(a->v[0]), SOL_SOCKET, SO_LINGER, &l, sizeof(l)));
}

static const struct option {
	const char *name;
	int level, option;
} options[] = {
	{"nodelay", IPPROTO_TCP, TCP_NODELAY}, {"cork", IPPROTO_TCP, TCP_CORK}, {"keepidle", IPPROTO_TCP, TCP_KEEPIDLE},
	{"usertimeout", IPPROTO_TCP, TCP_USER_TIMEOUT}, {"quickack", IPPROTO_TCP, TCP_QUICKACK}, {"defer", IPPROTO_TCP, TCP_DEFER_ACCEPT},
	{"notsent", IPPROTO_TCP, TCP_NOTSENT_LOWAT}, {"syncnt", IPPROTO_TCP, TCP_SYNCNT}, {"reuseaddr", SOL_SOCKET, SO_REUSEADDR},
	{"keepalive", SOL_SOCKET, SO_KEEPALIVE}, {"broadcast", SOL_SOCKET, SO_BROADCAST}, {"oobinline", SOL_SOCKET, SO_OOBINLINE},
	{"rcvlowat", SOL_SOCKET, SO_RCVLOWAT}, {"sndlowat", SOL_SOCKET, SO_SNDLOWAT}, {"priority", SOL_SOCKET, SO_PRIORITY},
	{"error", SOL_SOCKET, SO_ERROR}, {"type", SOL_SOCKET, SO_TYPE}, {"domain", SOL_SOCKET, SO_DOMAIN},
	{"protocol", SOL_SOCKET, SO_PROTOCOL}, {"acceptconn", SOL_SOCKET, SO_ACCEPTCONN}, {"peekoff", SOL_SOCKET, SO_PEEK_OFF},
	{"sndbuf", SOL_SOCKET, SO_SNDBUF}, {"passcred", SOL_SOCKET, SO_PASSCRED}, {"busypoll", SOL_SOCKET, SO_BUSY_POLL}, {"dontroute", SOL_SOCKET, SO_DONTROUTE},
	{"tos", IPPROTO_IP, IP_TOS}, {"ttl", IPPROTO_IP, IP_TTL}, {"v6only", IPPROTO_IPV6, IPV6_V6ONLY}, {NULL, 0, 0},
};

/* option_of finds an option by its name, or as LEVEL:NUMBER. */
static struct option option_of(const char *name)
{
	struct option o = {.name = NULL};

	for (const struct option *x = options; x->name; x++)
		if (strcmp(x->name, name) == 0)
			return *x;
	sscanf(name, "%d:%d", &o.level, &o.option);
	return o;
}

/* op_set: SLOT OPTION VALUE [LENGTH] */
static void op_set(const struct args *a)
{
	struct option o = option_of(a->v[1]);
	int value[4] = {(int)number(a, 2, 1)};

	say_result(setsockopt(fd_of(a->v[0]), o.level, o.option, value, (socklen_t)number(a, 3, sizeof(int))));
}

/* op_get: SLOT OPTION [LENGTH]. The values of options without names are not shown. */
static void op_get(const struct args *a)
{
	struct option o = option_of(a->v[1]);
	int value[64] = {-1};
	socklen_t len = (socklen_t)number(a, 2, sizeof(int));
	int r = getsockopt(fd_of(a->v[0]), o.level, o.option, value, &len);

	say_result(r);
	if (r == 0 && o.name)
		say("%d of %u", value[0], len);
}

/* op_timeout: SLOT rcv|snd MSEC */
static void op_timeout(const struct args *a)
{
	struct timeval t = {number(a, 2, 0) / 1000, number(a, 2, 0) % 1000 * 1000};

	say_result(setsockopt(fd_of(a->v[0]), SOL_SOCKET, strcmp(a->v[1], "snd") == 0 ? SO_SNDTIMEO : SO_RCVTIMEO, &t, sizeof(t)));
}

/* op_ask: SLOT fionread|outq|outqnsd|atmark|name|peer|flags|fdflags */
static void op_ask(const struct args *a)
{
	struct sockaddr_storage ss = {0};
	socklen_t len = sizeof(ss);
	struct slot *s = slot_of(a->v[0]);
	const char *what = a->v[1];
	int n = -1, r;

	if (strcmp(what, "flags") == 0) {
		r = fcntl(s->fd, F_GETFL);
		say_result(r < 0 ? r : (r & ~O_LARGEFILE));
		return;
	}
	if (strcmp(what, "fdflags") == 0) {
		say_result(fcntl(s->fd, F_GETFD));
		return;
	}
	if (strcmp(what, "name") == 0 || strcmp(what, "peer") == 0) {
		r = *what == 'n' ? getsockname(s->fd, (struct sockaddr *)&ss, &len) : getpeername(s->fd, (struct sockaddr *)&ss, &len);
		say_result(r);
		if (r == 0 && s->conn >= 0)
			say("family %d %u %s", ss.ss_family, len, (port_of(&ss) == w->connection[s->conn].port) == ((*what == 'n') == (s->side == 0)) ? "right" : "WRONG");
		return;
	}
	r = ioctl(s->fd, strcmp(what, "fionread") == 0 ? FIONREAD : strcmp(what, "outq") == 0 ? SIOCOUTQ : strcmp(what, "outqnsd") == 0 ? SIOCOUTQNSD : SIOCATMARK, &n);
	say_result(r);
	if (r == 0)
		say("%d", n);
}

/* op_block: SLOT 0|1, by fcntl or ioctl */
static void op_block(const struct args *a)
{
	int fd = fd_of(a->v[0]), on = number(a, 1, 0) == 0, flags;

	if (has(a, "ioctl")) {
		say_result(ioctl(fd, FIONBIO, &on));
		return;
	}
	flags = fcntl(fd, F_GETFL);
	say_result(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
}

static const int signals[SIGNALS] = {SIGIO, SIGURG, SIGUSR1};
#define SIGNAL_OWN (SIGRTMIN + 3)

static void on_signal(int sig, siginfo_t *info, void *context)
{
	(void)context;
	for (int i = 0; i < SIGNALS; i++)
		if (sig == signals[i] || (i == 0 && sig == SIGNAL_OWN)) {
			w->signals[me][i]++;
			w->band[me][i] |= sig == SIGNAL_OWN && info->si_code > 0 ? (int)info->si_band : 0;
		}
}

/* op_catch: [restart]. This process counts the signals that it gets. */
static void op_catch(const struct args *a)
{
	struct sigaction s = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | (has(a, "restart") ? SA_RESTART : 0)};

	for (int i = 0; i < SIGNALS; i++)
		sigaction(signals[i], &s, NULL);
	say_result(sigaction(SIGNAL_OWN, &s, NULL));
}

/* op_own: SLOT pid|tid|group|none [sig] [ioctl] */
static void op_own(const struct args *a)
{
	int fd = fd_of(a->v[0]), pid = getpid();
	struct f_owner_ex owner = {F_OWNER_TID, (pid_t)syscall(SYS_gettid)};

	if (has(a, "sig"))
		say_result(fcntl(fd, F_SETSIG, SIGNAL_OWN));
	if (has(a, "tid"))
		say_result(fcntl(fd, F_SETOWN_EX, &owner));
	else if (has(a, "ioctl"))
		say_result(ioctl(fd, FIOSETOWN, &pid));
	else
		say_result(fcntl(fd, F_SETOWN, has(a, "group") ? -getpgrp() : has(a, "none") ? 0 : pid));
	say("%s", fcntl(fd, F_GETOWN) == pid ? "self" : "other");
}

/* op_async: SLOT 0|1 */
static void op_async(const struct args *a)
{
	int fd = fd_of(a->v[0]), flags = fcntl(fd, F_GETFL);

	say_result(fcntl(fd, F_SETFL, number(a, 1, 1) ? flags | O_ASYNC : flags & ~O_ASYNC));
}

/* op_signals tells which have come since it was last asked. */
static void op_signals(const struct args *a)
{
	(void)a;
	if (w->bare)
		usleep(300);
	for (int i = 0; i < SIGNALS; i++) {
		say("%s %d", i == 0 ? "io" : i == 1 ? "urg" : "usr", __atomic_exchange_n(&w->signals[me][i], 0, __ATOMIC_SEQ_CST) > 0);
		w->band[me][i] = 0;
	}
}

/* op_interrupt: ACTOR.THREAD gets a signal. */
static void op_interrupt(const struct args *a)
{
	char *end;
	long actor = strtol(a->v[0], &end, 10), thread = *end == '.' ? strtol(end + 1, NULL, 10) : 0;

	if (actor < 0 || actor >= ACTORS || thread < 0 || thread >= THREADS || !w->pid[actor])
		return;
	say("%ld", syscall(SYS_tgkill, w->pid[actor], w->tid[actor][thread], SIGUSR1));
	usleep(300);
}

/* op_join waits until all before are done. */
static void op_join(const struct args *a)
{
	(void)a;
	for (struct step *s = w->step; s < self; s++)
		for (int turn = 0; __atomic_load_n(&s->state, __ATOMIC_SEQ_CST) != STATE_DONE; turn++)
			usleep(turn < 20 ? 50 : 500);
}

/* op_waits: STEPS-BACK. It says whether a step still waits. */
static void op_waits(const struct args *a)
{
	struct step *s = self - number(a, 0, 1);

	if (s < w->step)
		return;
	for (int turn = 0; turn < 20 && __atomic_load_n(&s->state, __ATOMIC_SEQ_CST) != STATE_DONE; turn++)
		usleep(100);
	say("%s", __atomic_load_n(&s->state, __ATOMIC_SEQ_CST) == STATE_DONE ? "done" : "waits");
}

/* op_sleep: MSEC */
static void op_sleep(const struct args *a)
{
	usleep((useconds_t)number(a, 0, 1) * 1000);
}

static const struct operation {
	const char *name;
	int least; /* arguments */
	void (*f)(const struct args *a);
} operations[] = {
	{"socket", 1, op_socket}, {"bind", 1, op_bind}, {"listen", 2, op_listen}, {"connect", 2, op_connect}, {"disconnect", 1, op_disconnect},
	{"accept", 2, op_accept}, {"close", 1, op_close}, {"shutdown", 2, op_shutdown}, {"linger", 3, op_linger}, {"set", 3, op_set},
	{"get", 2, op_get}, {"timeout", 3, op_timeout}, {"ask", 2, op_ask}, {"block", 2, op_block}, {"catch", 0, op_catch},
	{"own", 2, op_own}, {"async", 2, op_async}, {"signals", 0, op_signals}, {"interrupt", 1, op_interrupt}, {"join", 0, op_join},
	{"waits", 1, op_waits}, {"sleep", 1, op_sleep}, {"send", 2, op_send}, {"recv", 2, op_recv}, {"burst", 3, op_burst},
	{"pump", 4, op_pump}, {"drain", 4, op_drain}, {"echo", 3, op_echo}, {"ping", 4, op_ping}, {"fill", 1, op_fill}, {"empty", 1, op_empty},
	{"poll", 2, op_poll}, {"select", 1, op_select}, {"epoll", 1, op_epoll}, {"ctl", 3, op_ctl}, {"ewait", 2, op_ewait}, {"dup", 2, op_dup},
	{"fork", 1, op_fork}, {"exec", 0, op_exec}, {"guard", 0, op_guard}, {"sendfd", 2, op_sendfd}, {"recvfd", 1, op_recvfd}, {NULL, 0, NULL},
};

void carry_out(char *text)
{
	struct args a = {0};
	char *at = text, *name = strsep(&at, " "), *word;

	while (at && a.n < 16 && (word = strsep(&at, " ")) != NULL)
		if (*word)
			a.v[a.n++] = word;
	for (const struct operation *o = operations; o->name; o++)
		if (strcmp(o->name, name) == 0) {
			if (a.n >= o->least)
				o->f(&a);
			else
				say("BAD ARGUMENTS");
			return;
		}
	say("UNKNOWN OPERATION");
}
