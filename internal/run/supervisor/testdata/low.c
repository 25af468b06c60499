/*
 * A program whose receives are to wait for more than a byte, by SO_RCVLOWAT: low CASE. Bare and under us it has to say the same.
 */
#include "moved.h"

#include <sys/select.h>

#define LOW 10

static void low(int fd, int value)
{
	CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof(value)) == 0);
}

/* readable prints the results of poll and select, at once or within a time. */
static void readable(const char *what, int fd, int timeout)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	struct timeval none = {0};
	fd_set in;

	FD_ZERO(&in);
	FD_SET(fd, &in);
	CHECK(poll(&p, 1, timeout) >= 0 && select(fd + 1, &in, NULL, NULL, &none) >= 0);
	printf("%s: poll %x select %d\n", what, p.revents, !!FD_ISSET(fd, &in));
}

static void *writes(void *fd)
{
	CHECK(write(*(int *)fd, "abcd", 4) == 4);
	usleep(300000);
	CHECK(write(*(int *)fd, "efghijklmnop", 12) == 12);
	return NULL;
}

static void put(int fd, int n)
{
	static const char some[100];

	CHECK(write(fd, some, (size_t)n) == n);
	usleep(50000);
}

/* waits has a receive wait until there is enough. */
static void waits(int fd, int peer)
{
	char b[100];
	pthread_t t;

	CHECK(pthread_create(&t, NULL, writes, &peer) == 0);
	usleep(100000);
	printf("recv %zd\n", recv(fd, b, sizeof(b), 0));
	pthread_join(t, NULL);
	put(peer, 3);
	printf("recv at once %zd\n", recv(fd, b, sizeof(b), MSG_DONTWAIT));
	put(peer, 3);
	printf("recv of as much as there is %zd\n", recv(fd, b, 3, 0));
}

/* polls has poll wait until there is enough, or the end. */
static void polls(int fd, int peer)
{
	char b[100];

	readable("nothing", fd, 0);
	put(peer, 5);
	readable("some", fd, 100);
	put(peer, LOW);
	readable("more", fd, 100);
	printf("recv %zd\n", recv(fd, b, 10, 0));
	readable("some left", fd, 100);
	shutdown(peer, SHUT_WR);
	usleep(20000);
	readable("the end", fd, 100);
}

int main(int argc, char **argv)
{
	struct sockaddr_in a;
	int l = server(&a), late = 0, c, s;
	socklen_t len = sizeof(a);

	CHECK(argc > 1);
	if (strcmp(argv[1], "listener") == 0 || strcmp(argv[1], "listener-one") == 0) {
		close(l);
		l = socket(AF_INET, SOCK_STREAM, 0);
		low(l, strcmp(argv[1], "listener") ? 1 : LOW);
		a.sin_port = 0;
		CHECK(bind(l, (struct sockaddr *)&a, len) == 0 && listen(l, 5) == 0 && getsockname(l, (struct sockaddr *)&a, &len) == 0);
	}
	late = strcmp(argv[1], "after") == 0;
	c = socket(AF_INET, SOCK_STREAM, 0);
	if (strcmp(argv[1], "before") == 0)
		low(c, LOW);
	if (strcmp(argv[1], "accepted") == 0)
		low(l, LOW);
	CHECK(connect(c, (struct sockaddr *)&a, len) == 0);
	s = accept(l, NULL, NULL);
	if (late)
		low(c, LOW);
	if (strcmp(argv[1], "accepted") == 0) {
		CHECK(as_it_should(c) && as_it_should(s));
		for (int i = 0; i < 100; i++) { /* a ring is offered */
			char b[100];

			CHECK(write(c, b, 40) == 40 && recv(s, b, 40, 0) == 40);
		}
		waits(s, c);
	} else if (late) {
		CHECK(as_it_should(c) && as_it_should(s));
		waits(c, s);
	} else if (strcmp(argv[1], "listener-one") == 0) {
		CHECK(as_it_should(c) && as_it_should(s));
	} else if (strcmp(argv[1], "listener") == 0) {
		polls(s, c);
	} else {
		CHECK(strcmp(argv[1], "before") == 0);
		polls(c, s);
	}
	return 0;
}
