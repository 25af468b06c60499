/* The sides of the connections: the bytes sent and read, and how sides are made and given up. */
#include "same.h"

struct world *w;
int l;
struct sockaddr_in where;
char bytes[1 << 17];

unsigned pick(unsigned n)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return (unsigned)(w->random >> 33) % n;
}

void say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("%d ", w->step);
	vprintf(format, args);
	putchar('\n');
	va_end(args);
}

const char *error_of(long r)
{
	return r < 0 ? strerrorname_np(errno) : "";
}

/* Bytes of a direction are known by their place in it. */
static char byte_at(int i, int k, long at)
{
	return (char)((at * 7 + at / 251 + i * 31 + k * 101) & 0xff);
}

long fill(int i, int k, long at, long n)
{
	for (long j = 0; j < n; j++)
		bytes[j] = byte_at(i, k, at + j);
	return n;
}

bool right(const char *b, int i, int k, long at, long n)
{
	for (long j = 0; j < n; j++)
		if (b[j] != byte_at(i, k, at + j))
			return false;
	return true;
}

long waiting(int i, int k) /* to be read at side k */
{
	return w->sides[i][!k].sent - w->sides[i][k].got;
}

/* settle has TCP deliver the bytes that were sent to a side. */
static void settle(int i, int k)
{
	struct side *s = &w->sides[i][k];
	int n = 0;

	if (!getenv("BARE") || s->fd < 0)
		return;
	for (int turn = 0; turn < 5000; turn++) {
		struct pollfd p = {.fd = s->fd, .events = POLLRDHUP};

		CHECK(ioctl(s->fd, FIONREAD, &n) == 0);
		if (poll(&p, 1, 0) >= 0 && (s->reset || n == waiting(i, k)) && (!w->sides[i][!k].ended || (p.revents & POLLRDHUP)) &&
		    (!s->reset || (p.revents & POLLHUP)))
			return;
		usleep(1000);
	}
	fprintf(stderr, "step %d: side %d.%d has %d bytes, not %ld\n", w->step, i, k, n, waiting(i, k));
	_exit(1);
}

void came(int i, int k) /* bytes, or an end, at side k */
{
	for (int e = 0; e < SETS; e++)
		if (w->edges[e][i][k])
			w->edge[e][i][k] = true;
	settle(i, k);
}

/* make gives a place a new connection. */
void make(int i)
{
	int c = socket(AF_INET, SOCK_STREAM | (pick(2) ? SOCK_NONBLOCK : 0), 0);
	int r = connect(c, (struct sockaddr *)&where, sizeof(where));
	int s, on = 1;

	if (r < 0 && errno == EINPROGRESS) {
		struct pollfd p = {.fd = c, .events = POLLOUT};

		CHECK(poll(&p, 1, 5000) == 1);
	} else {
		CHECK(r == 0);
	}
	s = accept4(l, NULL, NULL, SOCK_NONBLOCK);
	CHECK(s >= 0 && fcntl(c, F_SETFL, O_NONBLOCK) == 0);
	for (int k = 0; k < 2; k++) {
		CHECK(setsockopt(k ? s : c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0); /* or the peer's answer is waited for */
		w->sides[i][k] = (struct side){.fd = k ? s : c};
		for (int e = 0; e < SETS; e++)
			w->edge[e][i][k] = w->edges[e][i][k] = false;
	}
	say("make %d", i);
}

void drain(int i, int k)
{
	struct side *s = &w->sides[i][k];
	long n;

	while (waiting(i, k) > 0 && (n = read(s->fd, bytes, sizeof(bytes))) > 0)
		s->got += n;
}

void give_up(int i, int k)
{
	struct side *s = &w->sides[i][k];
	struct side *peer = &w->sides[i][!k];

	if (s->fd < 0)
		return;
	if (s->ended) /* a reset after an end is another thing */
		drain(i, k);
	if (peer->fd >= 0 && waiting(i, k) > 0)
		peer->reset = true;
	close(s->fd);
	s->fd = -1;
	s->ended = true;
	for (int e = 0; e < SETS; e++)
		w->edge[e][i][k] = w->edges[e][i][k] = false;
	came(i, !k);
}

void anew(int i)
{
	give_up(i, 0);
	give_up(i, 1);
	make(i);
}
