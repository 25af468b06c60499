/*
 * A program that registers a socket with epoll before it connects, by system calls of its own, and one that connects to nothing: unseen CASE. Bare and with
 * connections that are moved it has to print the same events of epoll.
 */
#include "moved.h"

#include <sys/epoll.h>

static int seen_control(int ep, int op, int fd, struct epoll_event *e)
{
	return epoll_ctl(ep, op, fd, e);
}

static int unseen_control(int ep, int op, int fd, struct epoll_event *e)
{
	return (int)system_call(SYS_epoll_ctl, ep, op, fd, (long)e);
}

static int unseen_create(int flags)
{
	return (int)system_call(SYS_epoll_create1, flags, 0, 0, 0);
}

/* tell prints the events that an instance has within a time, and their data. */
static void tell(const char *what, int ep, int timeout)
{
	struct epoll_event e[8];
	int n = epoll_wait(ep, e, 8, timeout);

	printf("%s: %d", what, n);
	for (int i = 0; i < n; i++)
		printf(" %x of %llx", e[i].events, (unsigned long long)e[i].data.u64);
	printf("\n");
}

static int domain_of(int fd)
{
	int domain = 0;
	socklen_t len = sizeof(domain);

	CHECK(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0);
	return domain;
}

/* before registers a socket, connects it, and prints the events of a byte that comes. */
static void before(int (*create)(int), int (*control)(int, int, int, struct epoll_event *), int late, int domain)
{
	struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = 0x1234567890abcdef};
	struct sockaddr_in a;
	int l = server(&a), ep = late ? -1 : create(0), c = socket(AF_INET, SOCK_STREAM, 0), s;

	if (late)
		ep = create(0);
	CHECK(ep >= 0 && control(ep, EPOLL_CTL_ADD, c, &e) == 0);
	CHECK(connect(c, (struct sockaddr *)&a, sizeof(a)) == 0);
	s = accept(l, NULL, NULL);
	CHECK(s >= 0 && domain_of(c) == (moved() ? domain : AF_INET));
	usleep(200000);
	tell("nothing", ep, 0);
	CHECK(write(s, "x", 1) == 1);
	tell("a byte", ep, 2000);
	close(c);
	close(s);
	close(l);
	close(ep);
}

static void many(int (*control)(int, int, int, struct epoll_event *), int domain)
{
	int low = socket(AF_INET, SOCK_STREAM, 0), files[300];

	for (int i = 0; i < 300; i++)
		files[i] = open("/dev/null", O_RDONLY);
	before(control == seen_control ? epoll_create1 : unseen_create, control, 1, domain);
	for (int i = 0; i < 300; i++)
		close(files[i]);
	close(low);
}

/* ended prints the events of a socket that was connected to nothing. */
static void ended(const char *what, int c, int ep, int other)
{
	int error = -1;
	socklen_t len = sizeof(error);
	struct pollfd p = {.fd = c, .events = POLLIN | POLLOUT | POLLRDHUP};
	struct sockaddr_in a;
	socklen_t size = sizeof(a);

	tell(what, ep, 100);
	tell("of the other instance", other, 100);
	CHECK(poll(&p, 1, 0) >= 0 && getsockname(c, (struct sockaddr *)&a, &size) == 0);
	printf("poll %x port %d\n", p.revents, a.sin_port != 0);
	CHECK(getsockopt(c, SOL_SOCKET, SO_ERROR, &error, &len) == 0);
	printf("error %d, type %d\n", error, domain_of(c) == AF_INET);
	tell("again", ep, 0);
}

/* nowhere registers a connection, with one instance or two, connects it to nothing, and then again. */
static void nowhere(int accepted, uint32_t events, int (*control)(int, int, int, struct epoll_event *), int two)
{
	struct epoll_event e = {.events = events, .data.u64 = 77}, more = {.events = EPOLLIN, .data.u64 = 88};
	struct sockaddr nothing = {.sa_family = AF_UNSPEC};
	struct sockaddr_in a;
	int l = server(&a), c = connected_to(&a), s = accept(l, NULL, NULL), ep = epoll_create1(0), other = epoll_create1(0);
	int peer = accepted ? c : s, fd = accepted ? s : c;

	CHECK(s >= 0 && as_it_should(c) && as_it_should(s));
	CHECK(control(ep, EPOLL_CTL_ADD, fd, &e) == 0);
	CHECK(!two || control(other, EPOLL_CTL_ADD, fd, &more) == 0);
	tell("before", ep, 0);
	CHECK(connect(fd, &nothing, sizeof(nothing)) == 0);
	ended("after", fd, ep, other);
	CHECK(connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0);
	close(peer);
	peer = accept(l, NULL, NULL);
	CHECK(peer >= 0 && (two || (as_it_should(fd) && as_it_should(peer))));
	usleep(100000);
	tell("connected", ep, 0);
	CHECK(write(peer, "x", 1) == 1);
	usleep(20000);
	tell("a byte", ep, 1000);
	tell("of the other instance", other, 0);
	CHECK(control(ep, EPOLL_CTL_DEL, fd, NULL) == 0);
	tell("forgotten", ep, 0);
	close(fd);
	close(peer);
	close(l);
	close(ep);
	close(other);
}

int main(int argc, char **argv)
{
	CHECK(argc > 1);
	if (strcmp(argv[1], "seen") == 0)
		before(epoll_create1, seen_control, 0, AF_UNIX);
	else if (strcmp(argv[1], "unseen") == 0)
		before(unseen_create, unseen_control, 0, AF_INET);
	else if (strcmp(argv[1], "unseen-late") == 0)
		before(unseen_create, unseen_control, 1, AF_INET);
	else if (strcmp(argv[1], "unseen-partly") == 0)
		before(epoll_create1, unseen_control, 0, AF_INET);
	else if (strcmp(argv[1], "many") == 0)
		many(seen_control, AF_UNIX);
	else if (strcmp(argv[1], "many-unseen") == 0)
		many(unseen_control, AF_INET);
	else if (strcmp(argv[1], "reused") == 0) {
		for (int i = 0; i < 3; i++) {
			before(epoll_create1, seen_control, i % 2, AF_UNIX);
			many(unseen_control, AF_INET);
			before(unseen_create, unseen_control, i % 2, AF_INET);
		}
	} else if (strcmp(argv[1], "nowhere") == 0)
		nowhere(0, EPOLLIN | EPOLLOUT | EPOLLRDHUP, seen_control, 0);
	else if (strcmp(argv[1], "nowhere-accepted") == 0)
		nowhere(1, EPOLLIN | EPOLLRDHUP, seen_control, 0);
	else if (strcmp(argv[1], "nowhere-edge") == 0)
		nowhere(0, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, seen_control, 0);
	else if (strcmp(argv[1], "nowhere-two") == 0)
		nowhere(0, EPOLLIN | EPOLLOUT, seen_control, 1);
	else if (strcmp(argv[1], "nowhere-unseen") == 0)
		nowhere(0, EPOLLIN | EPOLLOUT, unseen_control, 0);
	else
		CHECK(!"such a case");
	return 0;
}
