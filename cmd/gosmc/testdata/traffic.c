/*
 * A program that knows nothing of gosmc and has many connections at once, both ways of each full of bytes that say where they belong:
 *
 *	traffic serve          prints its port
 *	traffic connect PORT   keeps so many connections, closes them at random and makes others, until it is refused
 *
 * It then prints what GOSMC_RUN is, "idle" whenever no connection is left, and ends with its standard input: with 0, or with 3 if a byte
 * was wrong.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENTS 6
#define MOST 200
#define PIECE 60000

struct conn {
	uint64_t id; /* the first 8 bytes that the client sends */
	uint64_t in, out;
	uint64_t life; /* bytes after which the client closes */
	int client;
};

static struct conn conns[MOST];
static struct pollfd polls[2 + MOST]; /* standard input, the listener, and one for each connection */
static int count;
static unsigned char buf[PIECE];
static uint64_t seed;

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t rnd(uint64_t n)
{
	return mix(seed++) % n;
}

/* byte_at is byte i of a direction: 8 of them at a time are made of one number. */
static unsigned char byte_at(const struct conn *c, int from_client, uint64_t i)
{
	static uint64_t word, of[3];

	if (from_client && i < 8)
		return (unsigned char)(c->id >> 8 * i);
	if (of[0] != c->id || of[1] != i / 8 || of[2] != (uint64_t)from_client) {
		of[0] = c->id;
		of[1] = i / 8;
		of[2] = (uint64_t)from_client;
		word = mix(c->id ^ mix(2 * (i / 8) + (uint64_t)from_client));
	}
	return (unsigned char)(word >> 8 * (i % 8));
}

static void wrong(const struct conn *c, uint64_t at)
{
	fprintf(stderr, "pid %d: wrong byte at %llu of what the %s sent\n", getpid(), (unsigned long long)at, c->client ? "server" : "client");
	_exit(3);
}

static void add(int fd, int client)
{
	struct conn *c = &conns[count];

	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	*c = (struct conn){.client = client, .id = client ? mix(seed++) : 0, .life = 1000 + rnd(3000000)};
	polls[2 + count++] = (struct pollfd){.fd = fd, .events = client ? POLLIN | POLLOUT : POLLIN};
}

static void drop(int i)
{
	close(polls[2 + i].fd);
	count--;
	conns[i] = conns[count];
	polls[2 + i] = polls[2 + count];
	if (count == 0) {
		puts("idle");
		fflush(stdout);
	}
}

static int ended(ssize_t n)
{
	return n == 0 || (n < 0 && errno != EAGAIN);
}

/* serve does what can be done. False: it has ended. */
static int serve(struct conn *c, struct pollfd *p)
{
	ssize_t n;

	if (p->revents & (POLLIN | POLLHUP | POLLERR)) {
		n = recv(p->fd, buf, 1 + rnd(PIECE), 0);
		if (ended(n))
			return 0;
		for (ssize_t i = 0; i < n; i++) {
			uint64_t at = c->in + (uint64_t)i;

			if (!c->client && at < 8)
				c->id |= (uint64_t)buf[i] << 8 * at;
			else if (buf[i] != byte_at(c, !c->client, at))
				wrong(c, at);
		}
		c->in += n > 0 ? (uint64_t)n : 0;
	}
	if (c->client || c->in >= 8)
		p->events |= POLLOUT;
	if (p->revents & POLLOUT) {
		size_t k = 1 + rnd(rnd(4) ? 300 : PIECE);

		for (size_t i = 0; i < k; i++)
			buf[i] = byte_at(c, c->client, c->out + i);
		n = send(p->fd, buf, k, MSG_NOSIGNAL);
		if (n < 0 && errno != EAGAIN)
			return 0;
		c->out += n > 0 ? (uint64_t)n : 0;
	}
	return !c->client || c->in < c->life;
}

int main(int argc, char **argv)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	int client = argc == 3, refused = 0;
	const char *run = getenv("GOSMC_RUN");

	if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		return 1;
	polls[0] = (struct pollfd){.fd = 0, .events = POLLIN};
	polls[1] = (struct pollfd){.fd = -1, .events = POLLIN};
	if (client) {
		a.sin_port = htons((uint16_t)atoi(argv[2]));
	} else {
		polls[1].fd = socket(AF_INET, SOCK_STREAM, 0);
		if (bind(polls[1].fd, (struct sockaddr *)&a, len) != 0 || listen(polls[1].fd, 64) != 0 ||
		    getsockname(polls[1].fd, (struct sockaddr *)&a, &len) != 0)
			return 1;
	}
	printf("%d %s\n", ntohs(a.sin_port), run ? run : "");
	fflush(stdout);
	for (;;) {
		while (client && !refused && count < CLIENTS) {
			int fd = socket(AF_INET, SOCK_STREAM, 0);

			if (connect(fd, (struct sockaddr *)&a, sizeof(a)) != 0) {
				refused = 1;
				close(fd);
				if (count == 0) {
					puts("idle");
					fflush(stdout);
				}
				break;
			}
			add(fd, 1);
		}
		if (poll(polls, (nfds_t)(2 + count), -1) < 0)
			continue;
		for (int i = count - 1; i >= 0; i--)
			if (polls[2 + i].revents && !serve(&conns[i], &polls[2 + i]))
				drop(i);
		if (polls[1].revents && count < MOST) {
			int fd = accept(polls[1].fd, NULL, NULL);

			if (fd >= 0)
				add(fd, 0);
		}
		if (polls[0].revents)
			return 0;
	}
}
