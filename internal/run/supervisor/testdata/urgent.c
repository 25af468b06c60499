/*
 * A program that prints all that it is told of a connection: of urgent data and of the data around it. Bare and with a connection that
 * is moved it has to say the same: urgent CASE.
 */
#include "moved.h"

#include <sys/epoll.h>
#include <sys/select.h>

static int c, s;
static int ep; /* has c, and is asked like poll */
static int most = 1 << 20; /* the highest number of waiting bytes that is printed */

#define ALL (POLLIN | POLLPRI | POLLOUT | POLLRDNORM | POLLRDBAND | POLLWRNORM | POLLWRBAND | POLLRDHUP)

/* settle gives TCP time to bring the bytes that were sent. */
static void settle(void)
{
	usleep(20000);
}

/* tell prints the state of the client's end. */
static void tell(const char *what)
{
	struct pollfd p = {.fd = c, .events = ALL};
	struct epoll_event e = {0};
	struct timeval none = {0};
	fd_set in, except;
	int n = -1, mark = -1, r;

	settle();
	CHECK(poll(&p, 1, 0) >= 0);
	r = epoll_wait(ep, &e, 1, 0);
	FD_ZERO(&in);
	FD_ZERO(&except);
	FD_SET(c, &in);
	FD_SET(c, &except);
	CHECK(select(c + 1, &in, NULL, &except, &none) >= 0);
	if ((e.events & EPOLLPRI) && !(p.revents & POLLIN)) /* docs/run.md has this as a difference */
		e.events &= ~(uint32_t)(EPOLLIN | EPOLLRDNORM);
	CHECK(ioctl(c, FIONREAD, &n) == 0 && ioctl(c, SIOCATMARK, &mark) == 0);
	printf("%s: poll %x epoll %d %x select %d %d waiting %d mark %d\n", what, p.revents, r, e.events, !!FD_ISSET(c, &in), !!FD_ISSET(c, &except), n < most ? n : most, mark);
}

static void get(size_t n, int flags)
{
	char b[100] = "", what[160];
	ssize_t r = recv(c, b, n, flags | MSG_DONTWAIT);

	snprintf(what, sizeof(what), "recv %zu %x -> %zd %s \"%s\"", n, (unsigned)flags, r, r < 0 ? strerrorname_np(errno) : "", b);
	tell(what);
}

static void put(const char *b, int flags)
{
	CHECK(send(s, b, strlen(b), flags) == (ssize_t)strlen(b));
	tell(b);
}

static void begin(void)
{
	struct epoll_event e = {.events = ALL};

	both_ends(&c, &s);
	CHECK(as_it_should(c));
	ep = epoll_create1(0);
	e.data.fd = c;
	CHECK(ep >= 0 && epoll_ctl(ep, EPOLL_CTL_ADD, c, &e) == 0);
}

static void end(void)
{
	close(c);
	close(s);
	close(ep);
}

/* rings has both directions on rings. */
static void rings(void)
{
	char b[64];

	for (int i = 0; i < 500; i++) {
		CHECK(send(s, b, 40, 0) == 40 && recv(c, b, sizeof(b), MSG_DONTWAIT) != 0);
	}
	settle();
	while (recv(c, b, sizeof(b), MSG_DONTWAIT) > 0)
		;
}

static void urgent(bool in_line, bool joined)
{
	int one = 1;

	begin();
	if (joined)
		rings();
	if (in_line)
		CHECK(setsockopt(c, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one)) == 0);
	tell("nothing");
	put("a", MSG_OOB);
	get(10, 0);
	get(10, MSG_OOB);
	get(10, MSG_OOB);
	get(10, 0);
	put("bc", 0);
	put("de", MSG_OOB);
	put("fg", 0);
	get(2, 0);
	get(10, MSG_PEEK);
	get(10, 0);
	get(10, 0);
	get(10, MSG_OOB);
	get(10, 0);
	put("hi", MSG_OOB);
	put("jk", 0);
	get(10, MSG_OOB | MSG_PEEK);
	get(10, MSG_OOB);
	get(10, 0);
	get(10, 0);
	put("lm", MSG_OOB);
	put("no", MSG_OOB);
	put("pq", 0);
	get(1, 0);
	get(10, 0);
	get(10, 0);
	get(10, MSG_OOB);
	get(10, 0);
	put("rs", MSG_OOB);
	shutdown(s, SHUT_WR);
	tell("end");
	get(10, 0);
	get(10, 0);
	get(10, 0);
	end();
}

/* offered has an urgent byte come behind the one with which a ring is offered, whichever that is. */
static void offered(void)
{
	most = 1; /* docs/run.md has that only the bytes before the ring may be counted */
	for (int k = 1; k < 30; k++) {
		begin();
		for (int i = 0; i < k; i++)
			CHECK(send(s, "x", 1, 0) == 1);
		put("u", MSG_OOB);
		get(99, 0);
		end();
	}
}

int main(int argc, char **argv)
{
	CHECK(argc > 1);
	if (strcmp(argv[1], "urgent") == 0)
		urgent(false, false);
	else if (strcmp(argv[1], "urgent-inline") == 0)
		urgent(true, false);
	else if (strcmp(argv[1], "urgent-joined") == 0)
		urgent(false, true);
	else if (strcmp(argv[1], "urgent-offered") == 0)
		offered();
	else
		CHECK(!"such a case");
	return 0;
}
