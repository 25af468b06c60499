/*
 * The other end of a peer that a test plays in Go: peer talk PORT SEED BYTES nonblocking|blocking, peer obey PORT, peer trust PORT, and
 * peer believe TIMES.
 */
#include "program.h"

#include <dirent.h>
#include <linux/sockios.h>
#include <stdbool.h>

#define MOST (256u << 10) /* of one call */

static int to_port(const char *port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)atoi(port))};
	int on = 1;
	int fd = connected_to(&a);

	CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
	return fd;
}

/* FNV-1a */
static uint64_t hash_on(uint64_t hash, const unsigned char *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		hash = (hash ^ b[i]) * 0x100000001b3ull;
	return hash;
}

/* A talker sends or receives, with random sizes, by all calls that there are. */
struct talker {
	int fd;
	unsigned long seed;
	uint64_t bytes, hash;
	unsigned char buf[MOST];
};

static struct talker sender, receiver;

/* size is mostly small, and now and then large. */
static unsigned size(struct talker *t)
{
	static const unsigned most[] = {1, 10, 300, 5000, 40000, MOST};

	return 1 + random_of(&t->seed, most[random_of(&t->seed, 6)]);
}

static void *sends(void *arg)
{
	struct talker *t = arg;
	uint64_t left = t->bytes;
	unsigned long bytes = t->seed ^ 0x5851f42d4c957f2dul;

	while (left) {
		unsigned n = size(t), at = 0;

		if (n > left)
			n = (unsigned)left;
		for (unsigned i = 0; i < n; i++)
			t->buf[i] = (unsigned char)random_of(&bytes, 256);
		t->hash = hash_on(t->hash, t->buf, n);
		while (at < n) {
			unsigned cut = random_of(&t->seed, n - at + 1);
			struct iovec v[2] = {{t->buf + at, cut}, {t->buf + at + cut, n - at - cut}};
			struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
			ssize_t r;

			switch (random_of(&t->seed, 4)) {
			case 0:
				r = write(t->fd, t->buf + at, n - at);
				break;
			case 1:
				r = writev(t->fd, v, 2);
				break;
			case 2:
				r = sendmsg(t->fd, &m, MSG_NOSIGNAL);
				break;
			default:
				r = send(t->fd, t->buf + at, n - at, MSG_NOSIGNAL);
			}
			if (r < 0 && errno == EAGAIN) {
				await(t->fd, POLLOUT);
				continue;
			}
			CHECK(r > 0 && r <= (ssize_t)(n - at));
			at += (unsigned)r;
		}
		left -= n;
		if (random_of(&t->seed, 50) == 0)
			sched_yield();
	}
	CHECK(shutdown(t->fd, SHUT_WR) == 0);
	return NULL;
}

static void *receives(void *arg)
{
	struct talker *t = arg;
	int through[2];

	CHECK(pipe(through) == 0);
	for (;;) {
		unsigned n = size(t);
		struct iovec v[2] = {{t->buf, n / 3}, {t->buf + n / 3, n - n / 3}};
		struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
		int flags = 0;
		ssize_t r;

		if (random_of(&t->seed, 1000) == 0) { /* leaves a ring if nothing is in it, and takes none any more */
			r = splice(t->fd, NULL, through[1], NULL, n < 4096 ? n : 4096, SPLICE_F_NONBLOCK);
			CHECK(r >= 0 || errno == EAGAIN || errno == EINVAL);
			if (r > 0) {
				CHECK(read(through[0], t->buf, (size_t)r) == r);
				t->hash = hash_on(t->hash, t->buf, (size_t)r);
				t->bytes += (uint64_t)r;
			}
		}
		switch (random_of(&t->seed, 6)) {
		case 0:
			r = read(t->fd, t->buf, n);
			break;
		case 1:
			r = readv(t->fd, v, 2);
			break;
		case 2:
			r = recvmsg(t->fd, &m, 0);
			break;
		case 3:
			flags = MSG_PEEK;
			r = recv(t->fd, t->buf, n, flags);
			break;
		case 4:
			r = recv(t->fd, t->buf, n, MSG_WAITALL);
			break;
		default:
			await(t->fd, POLLIN);
			r = recv(t->fd, t->buf, n, MSG_DONTWAIT);
		}
		if (r < 0 && errno == EAGAIN) {
			await(t->fd, POLLIN);
			continue;
		}
		CHECK(r >= 0 && r <= (ssize_t)n);
		if (r == 0)
			return NULL;
		if (flags == MSG_PEEK) {
			unsigned char first = t->buf[0];

			CHECK(recv(t->fd, t->buf, 1, 0) == 1 && t->buf[0] == first);
			r = 1;
		}
		t->hash = hash_on(t->hash, t->buf, (size_t)r);
		t->bytes += (uint64_t)r;
	}
}

/* talk prints how much it has received, and the hashes of the bytes that it has received and sent. */
static void talk(char **args)
{
	pthread_t thread;

	sender.fd = receiver.fd = to_port(args[0]);
	sender.seed = strtoul(args[1], NULL, 10);
	receiver.seed = sender.seed ^ 0xabcdef;
	sender.bytes = strtoull(args[2], NULL, 10);
	sender.hash = receiver.hash = 0xcbf29ce484222325ull;
	if (strcmp(args[3], "nonblocking") == 0)
		CHECK(fcntl(sender.fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(pthread_create(&thread, NULL, sends, &sender) == 0);
	receives(&receiver);
	CHECK(pthread_join(thread, NULL) == 0);
	close(sender.fd);
	CHECK(mapped_rings() == 0);
	printf("%lu %016lx %016lx\n", receiver.bytes, receiver.hash, sender.hash);
}

/* descriptors is how many this process has. */
static int descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void *drain(void *arg)
{
	static unsigned char buf[MOST];
	int fd = *(int *)arg;

	while (recv(fd, buf, sizeof(buf), 0) > 0)
		;
	return NULL;
}

static void *flood(void *arg)
{
	static unsigned char buf[MOST];
	int fd = *(int *)arg;

	while (send(fd, buf, sizeof(buf), MSG_NOSIGNAL) > 0)
		;
	return NULL;
}

/* wait_on has two threads wait on a connection until it ends. */
static void wait_on(int fd)
{
	pthread_t a, b;

	CHECK(pthread_create(&a, NULL, drain, &fd) == 0 && pthread_create(&b, NULL, flood, &fd) == 0);
	CHECK(pthread_join(a, NULL) == 0 && pthread_join(b, NULL) == 0);
}

/* echo sends so many bytes over a connection whose peer is honest, in parts, and wants them back. */
static void echo(int fd, unsigned n)
{
	static unsigned char out[MOST], in[MOST];
	static unsigned char next;

	CHECK(n <= MOST);
	for (unsigned i = 0; i < n; i++)
		out[i] = (unsigned char)(next += 7);
	for (unsigned at = 0; at < n;) {
		unsigned part = n - at < 20000 ? n - at : 20000;

		CHECK(send(fd, out + at, part, MSG_NOSIGNAL) == (ssize_t)part);
		CHECK(recv(fd, in + at, part, MSG_WAITALL) == (ssize_t)part);
		at += part;
	}
	CHECK(memcmp(in, out, n) == 0);
}

/* limit gives a connection a time limit for its calls, 0 for none. */
static void limit(int fd, unsigned msec)
{
	struct timeval t = {.tv_sec = msec / 1000, .tv_usec = msec % 1000 * 1000};

	CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)) == 0 && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t)) == 0);
}

#define LIMITED 20000 /* bytes that a call with a time limit wants */

struct order {
	uint32_t what, n;
};

struct answer {
	int32_t result, error;
};

/*
 * obey carries out the orders of its standard input, one call at a time, none of which may wait, with buffers that end where memory ends.
 * The first connection is to an honest peer. Its orders are in ringliar_test.go.
 */
static void obey(char **args)
{
	long page = sysconf(_SC_PAGESIZE);
	unsigned char *end = mmap(NULL, MOST + (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int honest = to_port(args[0]), fd = -1, had = descriptors();
	struct order o;

	CHECK(end != MAP_FAILED && mprotect(end + MOST, (size_t)page, PROT_NONE) == 0);
	end += MOST;
	while (read(0, &o, sizeof(o)) == sizeof(o)) {
		struct answer a = {0, 0};
		struct iovec v[2] = {{end - o.n, o.n / 2}, {end - o.n + o.n / 2, o.n - o.n / 2}};
		struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
		ssize_t r = 0;
		int left = 0;

		CHECK(o.n <= MOST);
		errno = 0;
		switch (o.what) {
		case 'c':
			CHECK(fd < 0);
			fd = to_port(args[0]);
			break;
		case 'x':
			CHECK(close(fd) == 0);
			fd = -1;
			CHECK(descriptors() == had);
			break;
		case 's':
			r = send(fd, end - o.n, o.n, MSG_DONTWAIT | MSG_NOSIGNAL);
			break;
		case 'S':
			r = sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
			break;
		case 'r':
			r = recv(fd, end - o.n, o.n, MSG_DONTWAIT);
			break;
		case 'R':
			r = recvmsg(fd, &m, MSG_DONTWAIT);
			break;
		case 'p':
			r = recv(fd, end - o.n, o.n, MSG_DONTWAIT | MSG_PEEK);
			break;
		case 'P': /* many times: a change meanwhile is seldom seen */
			for (int i = 0; i < 20000 && r >= 0 && (i == 0 || r == (ssize_t)o.n); i++)
				r = recv(fd, end - o.n, o.n, MSG_DONTWAIT | MSG_PEEK);
			break;
		case 'a':
			r = recv(fd, end - o.n, o.n, MSG_DONTWAIT | MSG_WAITALL);
			break;
		case 't':
			r = recv(fd, end - o.n, o.n, MSG_DONTWAIT | MSG_TRUNC);
			break;
		case 'i':
			r = ioctl(fd, FIONREAD, &left) == 0 && ioctl(fd, SIOCOUTQ, &left) == 0 ? 0 : -1;
			break;
		case 'd': { /* a copy; the direction goes on */
			int copy = dup(fd);

			CHECK(copy >= 0 && close(copy) == 0);
			break;
		}
		case 'l': /* with the time limit of the socket, of n ms */
		case 'L':
			limit(fd, o.n);
			r = o.what == 'l' ? recv(fd, end - LIMITED, LIMITED, 0) : send(fd, end - LIMITED, LIMITED, MSG_NOSIGNAL);
			limit(fd, 0);
			o.n = LIMITED;
			break;
		case 'f': /* in-band from now on, or an error */
			r = dprintf(fd, "%u", o.n) < 0 ? -1 : 0;
			break;
		case 'h':
			r = shutdown(fd, SHUT_WR);
			break;
		case 'w':
			wait_on(fd);
			break;
		case 'e':
			echo(honest, o.n);
			break;
		default:
			CHECK(!"an order");
		}
		a = (struct answer){(int32_t)r, r < 0 ? errno : 0};
		if (o.what != 'i' && o.what != 't' && o.what != 'f')
			CHECK(r >= -1 && r <= (ssize_t)o.n);
		CHECK(write(1, &a, sizeof(a)) == sizeof(a));
	}
	close(honest);
}

/* port_of is the port that the kernel reports, 0 if a descriptor is no TCP socket. */
static int port_of(int fd, bool peer)
{
	struct sockaddr_in a = {0};
	socklen_t len = sizeof(a);

	if (syscall(peer ? SYS_getpeername : SYS_getsockname, fd, &a, &len) != 0 || a.sin_family != AF_INET)
		return 0;
	return ntohs(a.sin_port);
}

/* stranger says whether another program of this machine has dialled our port before us, as tests do that dial where nobody listens. */
static bool stranger(int a, int b)
{
	int mine = port_of(a, false), its = port_of(b, true);

	return mine != 0 && its != 0 && mine != its;
}

/*
 * believe has connections to itself under a supervisor that lies. They carry bytes, or end; nothing waits, and no descriptor is left, whatever the
 * supervisor has handed over.
 */
static void believe(int times)
{
	int had = descriptors();

	for (int i = 0; i < times; i++) {
		char in[10] = {0}, out[10] = "0123456789";
		int a, b;
		bool fine;
		ssize_t r;

		both_ends(&a, &b);
		if (stranger(a, b)) {
			CHECK(close(a) == 0 && close(b) == 0);
			i--;
			continue;
		}
		r = send(a, out, 10, MSG_NOSIGNAL);
		CHECK(r == 10 || (r < 0 && (errno == EPIPE || errno == ECONNRESET)));
		await(b, POLLIN);
		r = recv(b, in, 10, MSG_WAITALL);
		fine = (r == 10 && memcmp(in, out, 10) == 0) || r == 0 || (r < 0 && errno == ECONNRESET);
		if (!fine)
			fprintf(stderr, "%zd bytes, %.10s, of port %d to %d\n", r, in, port_of(b, true), port_of(b, false));
		CHECK(fine);
		CHECK(close(a) == 0 && close(b) == 0);
		CHECK(descriptors() == had);
	}
}

/* trust reads once each time that poll says that it can, and has no EAGAIN for that. */
static void trust(char **argv)
{
	static unsigned char buf[8192];
	unsigned long bytes = 0;
	int fd = to_port(argv[0]);

	CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	for (;;) {
		ssize_t r;

		await(fd, POLLIN);
		r = read(fd, buf, sizeof(buf));
		if (r < 0) {
			fprintf(stderr, "poll said that there was something to read, and read after %lu bytes: %s\n", bytes, strerror(errno));
			exit(1);
		}
		if (r == 0)
			break;
		bytes += (unsigned long)r;
	}
	printf("%lu\n", bytes);
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	if (argc == 6 && strcmp(argv[1], "talk") == 0)
		talk(argv + 2);
	else if (argc == 3 && strcmp(argv[1], "obey") == 0)
		obey(argv + 2);
	else if (argc == 3 && strcmp(argv[1], "trust") == 0)
		trust(argv + 2);
	else if (argc == 3 && strcmp(argv[1], "believe") == 0)
		believe(atoi(argv[2]));
	else
		return 2;
	return 0;
}
