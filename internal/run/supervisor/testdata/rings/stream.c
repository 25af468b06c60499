/* The stream that goes through a connection, and connections that have rings. */
#include "rings.h"

unsigned long seed = 1;
char buf[1 << 20];

unsigned rnd(unsigned n)
{
	return random_of(&seed, n);
}

static unsigned char byte_at(const struct stream *s, unsigned long i)
{
	i += s->at + s->dir * 77777;
	return (unsigned char)((i * 2654435761ul) >> 13 ^ i);
}

void fill(const struct stream *s, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		buf[i] = (char)byte_at(s, i);
}

void look(const struct stream *s, long n)
{
	for (long i = 0; i < n; i++)
		if ((unsigned char)buf[i] != byte_at(s, (unsigned long)i)) {
			fprintf(stderr, "pid %d: wrong byte at %lu of direction %lu\n", getpid(), s->at + (unsigned long)i, s->dir);
			_exit(1);
		}
}

/* put sends so many bytes, in parts of at most max. */
void put(int fd, struct stream *s, unsigned long n, unsigned max)
{
	while (n) {
		unsigned k = 1 + rnd(max < n ? max : (unsigned)n);
		unsigned cut = rnd(k + 1);
		struct iovec v[3] = {{buf, cut}, {buf + cut, 0}, {buf + cut, k - cut}};
		struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
		ssize_t r;

		fill(s, k);
		switch (rnd(4)) {
		case 0:
			r = write(fd, buf, k);
			break;
		case 1:
			r = send(fd, buf, k, MSG_NOSIGNAL);
			break;
		case 2:
			r = writev(fd, v, 3);
			break;
		default:
			r = sendmsg(fd, &m, 0);
		}
		if (r < 0 && errno == EAGAIN) {
			await(fd, POLLOUT);
			continue;
		}
		CHECK(r > 0 && (r == (ssize_t)k || (fcntl(fd, F_GETFL) & O_NONBLOCK)));
		s->at += (unsigned long)r;
		n -= (unsigned long)r;
	}
}

/* take receives so many bytes, in parts of at most max. */
void take(int fd, struct stream *s, unsigned long n, unsigned max)
{
	while (n) {
		unsigned k = 1 + rnd(max < n ? max : (unsigned)n);
		struct iovec v[2] = {{buf, k / 2}, {buf + k / 2, k - k / 2}};
		struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
		int flags = 0;
		ssize_t r;

		switch (rnd(6)) {
		case 0:
			r = read(fd, buf, k);
			break;
		case 1:
			r = readv(fd, v, 2);
			break;
		case 2:
			r = recvmsg(fd, &m, 0);
			break;
		case 3:
			flags = MSG_PEEK;
			r = recv(fd, buf, k, flags);
			break;
		case 4:
			if (!(fcntl(fd, F_GETFL) & O_NONBLOCK))
				flags = MSG_WAITALL;
			r = recv(fd, buf, k, flags);
			break;
		default:
			await(fd, POLLIN);
			r = recvfrom(fd, buf, k, 0, NULL, NULL);
		}
		if (r < 0 && errno == EAGAIN) {
			await(fd, POLLIN);
			continue;
		}
		CHECK(r > 0 && (flags != MSG_WAITALL || r == (ssize_t)k));
		look(s, r);
		if (flags == MSG_PEEK)
			continue;
		s->at += (unsigned long)r;
		n -= (unsigned long)r;
	}
}

void ended(int fd)
{
	ssize_t r;

	while ((r = read(fd, buf, 1)) < 0 && errno == EAGAIN)
		await(fd, POLLIN);
	CHECK(r == 0);
}

int on_rings(void)
{
	const char *v = getenv("RINGS");

	return v && atoi(v);
}

/* have looks behind the curtain. */
void have(int rings)
{
	int want = on_rings() ? rings : 0, has;

	if (!getenv("RINGS") || getenv("GOSMC_RUN_SHAKE"))
		return;
	has = mapped_rings();
	if (has != want) {
		fprintf(stderr, "pid %d: %d rings, want %d\n", getpid(), has, want);
		_exit(1);
	}
}

struct stream ab = {0, 0}, ba = {0, 1};	      /* as they are sent */
struct stream ab_in = {0, 0}, ba_in = {0, 1}; /* as they are received, where one process does both */

/* joined makes a connection whose first direction has its ring. */
void joined(int *a, int *b)
{
	both_ends(a, b);
	for (int i = 0; i < 4; i++) {
		put(*a, &ab, LARGE, LARGE);
		take(*b, &ab_in, LARGE, LARGE);
	}
	have(2);
}

/* In two processes, each of which makes its own end. */
int both(int *fd)
{
	struct sockaddr_in a;
	int l = server(&a);
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		*fd = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(connect(*fd, (struct sockaddr *)&a, sizeof(a)) == 0);
		seed ^= 0x5555;
	} else {
		*fd = accept(l, NULL, NULL);
		CHECK(*fd >= 0);
	}
	close(l);
	return child;
}

void done(pid_t child)
{
	int status;

	if (child == 0)
		_exit(0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}
