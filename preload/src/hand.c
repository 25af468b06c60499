/*
 * Handing over: bytes are in the ring of a descriptor that a program without rings is about to get.
 * A fresh pair takes the place of the descriptor. The supervisor gets the other end of that pair,
 * the old end, and the bytes of the ring, which it sends first. From then on it copies in both
 * directions. So the descriptor's next owner reads all bytes in their order, whatever program it
 * is.
 *
 * That is only right if nobody else has the old end: another process would not find the bytes that
 * the supervisor has read.
 */
#include "ring.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define NAMES 4		       /* that are tried: somebody else may have one */
#define WAIT_MOST 100	       /* milliseconds for one exec, while another process may close its copy */

struct handing {
	struct hidden before;
	int pair[2]; /* the descriptor's, and the supervisor's */
	int sock, own, rest;
	uint64_t unique; /* cookie of the first */
	uint64_t length; /* of the bytes that were in the ring */
	uint16_t tokens; /* that are in the old end still, or on their way */
};

/* An epoll that knows a descriptor. */
struct known {
	int epfd;
	struct epoll_event event;
};

static uint32_t waits_left; /* milliseconds */

/*
 * hand_may_wait is for before another program is executed: the process that has forked it may be about to
 * close the descriptor.
 */
void hand_may_wait(bool may)
{
	__atomic_store_n(&waits_left, may ? WAIT_MOST : 0, __ATOMIC_SEQ_CST);
}

/* alone says whether no other process has the descriptor. It waits for that, if it may. */
static bool alone(const struct ring *r)
{
	struct timespec pause = {.tv_nsec = 1000000};
	uint32_t left;

	while (!ring_alone(r)) {
		left = __atomic_load_n(&waits_left, __ATOMIC_SEQ_CST);
		if (left == 0)
			return false;
		__atomic_compare_exchange_n(&waits_left, &left, left - 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
		SYS(nanosleep, &pause, NULL);
	}
	return true;
}

static void finish(struct handing *h)
{
	if (h->pair[1] >= 0) {
		hidden_close(h->pair[1]);
		hidden_close(h->pair[0]);
		hidden_end(&h->before);
	}
	if (h->sock >= 0)
		SYS(close, h->sock);
	if (h->own >= 0)
		SYS(close, h->own);
	if (h->rest >= 0)
		SYS(close, h->rest);
}

/* alike gives the new end the name and the options of the old one. */
static bool alike(const struct handing *h, int fd)
{
	struct identity id;
	int priority = 0;
	socklen_t len = sizeof(priority);
	long status = SYS(fcntl, fd, F_GETFL);
	bool named = false;

	if (status < 0 || !identity_of(fd, &id))
		return false;
	for (uint64_t i = 0; i < NAMES && !named; i++)
		named = identity_rename(h->pair[0], &id, h->unique + (i << 48));
	options_copy(fd, h->pair[0], OPTIONS_ALL);
	options_copy_kept(fd, h->pair[0]);
	if (SYS(getsockopt, fd, SOL_SOCKET, SO_PRIORITY, &priority, &len) == 0 && priority)
		SYS(setsockopt, h->pair[0], SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
	return named && SYS(fcntl, h->pair[0], F_SETFL, status) == 0;
}

/* ready gets all that it takes, before anything has happened. */
static bool ready(struct handing *h, int fd)
{
	struct rlimit64 most = {0};
	struct message m;

	/* To make a file larger than the program may is a signal to it. */
	if (SYS(prlimit64, 0, RLIMIT_FSIZE, NULL, &most) != 0 || most.rlim_cur < HAND_MOST)
		return false;
	h->sock = supervisor_open(settings.socket);
	if (h->sock < 0)
		return false;
	h->unique = hidden_pair(h->pair, &h->before);
	if (h->unique == 0) {
		h->pair[0] = h->pair[1] = -1;
		return false;
	}
	h->rest = (int)SYS(memfd_create, "gosmc-rest", MFD_CLOEXEC);
	h->own = (int)SYS(fcntl, fd, F_DUPFD_CLOEXEC, 0);
	message_fill(&m, KIND_RELAY, NULL);
	return h->rest >= 0 && h->own >= 0 && alike(h, fd) && supervisor_send(h->sock, &m, -1) &&
	       supervisor_receive(h->sock, KIND_RELAY, NULL) == STATUS_OK;
}

static const char *number(const char *p, const char *end, unsigned base, uint64_t *v)
{
	static const char digits[] = "0123456789abcdef";
	const char *d;

	while (p < end && *p == ' ')
		p++;
	for (*v = 0; p < end && *p && (d = strchr(digits, *p)) && (unsigned)(d - digits) < base; p++)
		*v = *v * base + (uint64_t)(d - digits);
	return p;
}

static const char *after(const char *p, const char *end, const char *word)
{
	size_t n = strlen(word);
	const char *at = p ? memmem(p, (size_t)(end - p), word, n) : NULL;

	return at ? at + n : NULL;
}

/*
 * registered reads a line that the kernel has about an epoll: "tfd: <descriptor> events: <hex> data: <hex>
 * ...".
 */
static bool registered(const char *line, const char *end, int fd, struct epoll_event *event)
{
	uint64_t is, events, data;
	const char *p = after(line, end, "tfd:");

	if (!p)
		return false;
	p = after(number(p, end, 10, &is), end, "events:");
	if (!p || is != (uint64_t)fd)
		return false;
	p = after(number(p, end, 16, &events), end, "data:");
	if (!p)
		return false;
	number(p, end, 16, &data);
	*event = (struct epoll_event){.events = (uint32_t)events, .data.u64 = data};
	return true;
}

/* knows says how an epoll knows a descriptor. */
static bool knows(int epfd, int fd, struct epoll_event *event)
{
	char path[] = "/proc/self/fdinfo/0000000000", text[512];
	char *p = path + sizeof(path) - 1, *start;
	size_t have = 0;
	bool found = false;
	long n, info;

	for (int v = epfd; v || p == path + sizeof(path) - 1; v /= 10)
		*--p = (char)('0' + v % 10);
	start = path + sizeof("/proc/self/fdinfo/") - 1;
	memmove(start, p, (size_t)(path + sizeof(path) - p));
	info = SYS(openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
	if (info < 0)
		return false;
	while (!found && (n = SYS(read, info, text + have, sizeof(text) - have)) > 0) {
		char *line = text, *end;

		have += (size_t)n;
		while (!found && (end = memchr(line, '\n', (size_t)(text + have - line)))) {
			found = registered(line, end, fd, event);
			line = end + 1;
		}
		have = (size_t)(text + have - line);
		memmove(text, line, have);
		if (have == sizeof(text))
			have = 0;
	}
	SYS(close, info);
	return found;
}

#define KNOWN 8 /* epolls that know one descriptor, at most */

/* place puts the new end in the place of a descriptor, also where epolls made here know that. */
static void place(const struct handing *h, int fd)
{
	struct known list[KNOWN];
	size_t n = 0;
	long r, flags = SYS(fcntl, fd, F_GETFD);
	long status = SYS(fcntl, fd, F_GETFL);

	for (int epfd = -1; n < KNOWN && (epfd = epoll_next(epfd)) >= 0;) {
		if (!knows(epfd, fd, &list[n].event))
			continue;
		list[n].epfd = epfd;
		SYS(epoll_ctl, epfd, EPOLL_CTL_DEL, fd, NULL);
		n++;
	}
	do
		r = SYS(dup3, h->pair[0], fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0);
	while (r == -EBUSY || r == -EINTR);
	while (n-- > 0)
		SYS(epoll_ctl, list[n].epfd, EPOLL_CTL_ADD, fd, &list[n].event);
	end_replaced(fd, h->unique, !(status & O_NONBLOCK));
}

/* place_all puts the new end in the place of all descriptors of this process that are the old one. */
static void place_all(const struct handing *h, uint64_t old)
{
	for (int fd = 0; fd < ends_top(); fd++) {
		struct end *e = end_at(fd);

		if (e && __atomic_load_n(&e->cookie, __ATOMIC_ACQUIRE) == old && cookie_of(fd) == old)
			place(h, fd);
	}
}

static bool send_relay(const struct handing *h)
{
	const int fds[3] = {h->own, h->pair[1], h->rest};
	struct message m;

	message_fill(&m, KIND_RELAY, NULL);
	m.netns = h->tokens;
	m.unique = h->length;
	return message_insist(h->sock, &m, fds, 3) && supervisor_receive(h->sock, KIND_RELAY, NULL) == STATUS_OK;
}

/*
 * hand_over has a descriptor be one that everybody can read from, though bytes are in its ring. False: it
 * stays as it is. The caller has taken care that no ring comes anew.
 */
bool hand_over(struct end *e, int fd)
{
	struct handing h = {.pair = {-1, -1}, .sock = -1, .own = -1, .rest = -1};
	uint64_t old = __atomic_load_n(&e->cookie, __ATOMIC_ACQUIRE);
	uint64_t signals;
	struct ring *r;
	bool taken = false, done = false;

	if (end_foreign() || !settings.on)
		return false;
	signals = signals_off(); /* a handler that left by longjmp would leave bytes nowhere */
	if (!ring_enter(&e->in, &r)) {
		signals_on(signals, ENDING_NOT);
		return true; /* it has ended meanwhile */
	}
	if (alone(r) && end_is(fd, e) && ready(&h, fd) && ring_lock(r)) {
		taken = receive_hand(r, h.own, h.rest, &h.tokens, &h.length);
		done = r->side->state == RING_ENDED;
		ring_unlock(r);
	}
	if (done)
		end_forget(&e->in, r);
	ring_exit(r);
	if (taken) {
		place_all(&h, old);
		/* if not, the bytes that were read are nowhere, and the connection ends with the pair */
		done = send_relay(&h);
	}
	finish(&h);
	signals_on(signals, ENDING_NOT);
	return done;
}
