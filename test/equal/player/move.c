/* The operations that send and receive. Each byte of a direction is known by its place, so that receivers tell wrong ones. */
#include "player.h"

char *buffer(void)
{
	static __thread char *b;

	if (!b) {
		b = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(b != MAP_FAILED);
	}
	return b;
}

#define PERIOD 64256 /* of the bytes: those at places that differ by less are told apart by those around them */

static char bytes[PERIOD + 4096];

/* bytes_make is called once, before there are scripts. */
void bytes_make(void)
{
	for (long i = 0; i < (long)sizeof(bytes); i++)
		bytes[i] = (char)((i * 7 + i % PERIOD / 251) & 0xff);
}

/* bytes_at returns some of the bytes of a direction from a place on: at most n. */
static const char *bytes_at(const struct slot *s, int from, long at, long *n)
{
	long i = (at + (s->conn * 2 + from) * 1009) % PERIOD;

	if (*n > (long)sizeof(bytes) - i)
		*n = (long)sizeof(bytes) - i;
	return bytes + i;
}

/* fill makes the bytes of the direction that a slot sends in. */
void fill(const struct slot *s, char *b, long at, long n)
{
	while (n > 0) {
		long part = n;
		const char *from = bytes_at(s, s->side, at, &part);

		memcpy(b, from, (size_t)part);
		b += part;
		at += part;
		n -= part;
	}
}

/* right_from says whether bytes are those that come next. Urgent bytes may be left out. *taken: how many places that is. */
static bool right_from(const struct slot *s, const char *b, long n, long *taken)
{
	struct connection *c = &w->connection[s->conn];
	int from = !s->side;
	long at = c->got[s->side], j = 0;

	while (j < n) {
		long part = n - j;
		const char *want = bytes_at(s, from, at, &part);
		bool urgent = false;

		if (memcmp(want, b + j, (size_t)part) == 0) {
			j += part;
			at += part;
			continue;
		}
		if (*want == b[j]) {
			j++;
			at++;
			continue;
		}
		for (int i = 0; i < URGENT && i < c->urgents[from]; i++)
			urgent |= c->urgent[from][i] == at;
		if (!urgent)
			return false;
		at++;
	}
	*taken = at - c->got[s->side];
	return true;
}

bool right(const struct slot *s, const char *b, long n, bool take)
{
	long taken;

	if (s->conn < 0)
		return true;
	if (!right_from(s, b, n, &taken))
		return false;
	if (take)
		w->connection[s->conn].got[s->side] += taken;
	return true;
}

/* high is how descriptors of files and pipes are made that live for one call, high up. */
static int high(int fd)
{
	int to = fcntl(fd, F_DUPFD_CLOEXEC, PATH_FD);

	CHECK(to >= 0);
	close(fd);
	return to;
}

static long send_file(int fd, const char *b, long n)
{
	int file = high(memfd_create("file", MFD_CLOEXEC)), error;
	off_t at = 0;
	long sent;

	CHECK(pwrite(file, b, (size_t)n, 0) == n);
	sent = sendfile(fd, file, &at, (size_t)n);
	error = errno;
	close(file);
	errno = error;
	return sent;
}

static long send_spliced(int fd, const char *b, long n)
{
	int p[2], error;
	long sent;

	n = n < 60000 ? n : 60000;
	CHECK(pipe(p) == 0);
	p[0] = high(p[0]);
	p[1] = high(p[1]);
	CHECK(write(p[1], b, (size_t)n) == n);
	sent = splice(p[0], NULL, fd, NULL, (size_t)n, 0);
	error = errno;
	close(p[0]);
	close(p[1]);
	errno = error;
	return sent;
}

/* send_one sends the next bytes in a direction, in some way. */
long send_one(struct slot *s, const char *how, char *b, long n, int flags)
{
	struct iovec v[3] = {{b, (size_t)n / 3}, {b + n / 3, 0}, {b + n / 3, (size_t)(n - n / 3)}};
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
	struct mmsghdr mm = {.msg_hdr = m};
	struct sockaddr_in to = {.sin_family = AF_INET};
	struct connection *c = s->conn >= 0 ? &w->connection[s->conn] : NULL;
	long at = c ? c->sent[s->side] : 0, r;

	if (c)
		fill(s, b, at, n);
	if (c && (flags & MSG_OOB) && n > 0) {
		c->urgent[s->side][c->urgents[s->side] % URGENT] = at + n - 1;
		c->urgents[s->side]++;
	}
	if (strcmp(how, "write") == 0)
		r = write(s->fd, b, (size_t)n);
	else if (strcmp(how, "sendto") == 0)
		r = sendto(s->fd, b, (size_t)n, flags, (struct sockaddr *)&to, sizeof(to));
	else if (strcmp(how, "sendmsg") == 0)
		r = sendmsg(s->fd, &m, flags);
	else if (strcmp(how, "writev") == 0)
		r = writev(s->fd, v, 3);
	else if (strcmp(how, "sendmmsg") == 0)
		r = sendmmsg(s->fd, &mm, 1, (unsigned)flags) == 1 ? (long)mm.msg_len : -1;
	else if (strcmp(how, "pwritev2") == 0)
		r = pwritev2(s->fd, v, 3, -1, 0);
	else if (strcmp(how, "sendfile") == 0)
		r = send_file(s->fd, b, n);
	else if (strcmp(how, "splice") == 0)
		r = send_spliced(s->fd, b, n);
	else if (strcmp(how, "dprintf") == 0)
		r = dprintf(s->fd, "%.*s", 0, b);
	else
		r = send(s->fd, b, (size_t)n, flags);
	if (c && r > 0)
		c->sent[s->side] += r;
	return r;
}

/* op_send: SLOT N [HOW] [FLAGS] */
void op_send(const struct args *a)
{
	struct slot *s = slot_of(a->v[0]);
	long n = number(a, 1, 1);
	long r = send_one(s, a->n > 2 ? a->v[2] : "send", buffer(), n < (long)BUFFER ? n : (long)BUFFER, a->n > 3 ? flags_of(a->v[3]) : 0);

	say_result(r);
	settle(s->fd);
}

/* op_burst: SLOT TIMES N [HOW] [FLAGS]. Many small sends, as of a connection that is worth a ring. */
void op_burst(const struct args *a)
{
	struct slot *s = slot_of(a->v[0]);
	long times = number(a, 1, 16), n = number(a, 2, 1), sum = 0, r = 0;

	for (long i = 0; i < times && r >= 0; i++) {
		r = send_one(s, a->n > 3 ? a->v[3] : "send", buffer(), n, a->n > 4 ? flags_of(a->v[4]) : 0);
		if (r > 0)
			sum += r;
	}
	say("%ld", sum);
	if (r < 0)
		say_result(r);
	settle(s->fd);
}

/* recv_spliced takes the bytes that are there, up to n. How much comes at a time is the kernel's to choose: a pipe has so many places. */
static long recv_spliced(const struct slot *s, char *b, long n)
{
	int p[2], error;
	long r, sum = 0;

	n = n < 60000 ? n : 60000;
	CHECK(pipe(p) == 0);
	p[0] = high(p[0]);
	p[1] = high(p[1]);
	do {
		r = splice(s->fd, NULL, p[1], NULL, (size_t)(n - sum), SPLICE_F_NONBLOCK);
		error = errno;
		if (r < 0 && error == EINVAL) { /* bytes in a ring that cannot be handed over have to be read */
			r = recv(s->fd, b + sum, (size_t)(n - sum), MSG_DONTWAIT);
			error = errno;
			sum += r > 0 ? r : 0;
		} else if (r < 0 && error == EAGAIN && s->conn >= 0 && w->connection[s->conn].got[s->side] + sum < w->connection[s->conn].sent[!s->side]) {
			r = await(s->fd, POLLIN, 1000); /* the bytes in a ring are handed over, which takes its time */
		} else if (r > 0) {
			CHECK(read(p[0], b + sum, (size_t)r) == r);
			sum += r;
		}
	} while (r > 0 && sum < n);
	close(p[0]);
	close(p[1]);
	errno = error;
	return sum ? sum : r;
}

#define LATER 8 /* milliseconds in which the rest of a send comes */

/* op_recv: SLOT N [HOW] [FLAGS] */
void op_recv(const struct args *a)
{
	struct slot *s = slot_of(a->v[0]);
	const char *how = a->n > 2 ? a->v[2] : "recv";
	int flags = a->n > 3 ? flags_of(a->v[3]) : 0, error;
	char *b = buffer(), control[100];
	long n = number(a, 1, 1), r;
	struct iovec v[3] = {{b, (size_t)n / 2}, {b + n / 2, 0}, {b + n / 2, (size_t)(n - n / 2)}};
	struct sockaddr_storage from;
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 3, .msg_control = control, .msg_controllen = sizeof(control), .msg_name = &from, .msg_namelen = sizeof(from)};
	struct mmsghdr mm = {.msg_hdr = m};
	socklen_t len = sizeof(from);

	if (n > (long)BUFFER)
		return;
	if (strcmp(how, "read") == 0) {
		r = read(s->fd, b, (size_t)n);
	} else if (strcmp(how, "readv") == 0) {
		r = readv(s->fd, v, 3);
	} else if (strcmp(how, "preadv2") == 0) {
		r = preadv2(s->fd, v, 3, -1, flags & MSG_DONTWAIT ? RWF_NOWAIT : 0);
	} else if (strcmp(how, "recvmsg") == 0) {
		r = recvmsg(s->fd, &m, flags);
	} else if (strcmp(how, "recvmmsg") == 0) {
		r = recvmmsg(s->fd, &mm, 1, (unsigned)flags, NULL) == 1 ? (long)mm.msg_len : -1;
		m = mm.msg_hdr;
	} else if (strcmp(how, "recvfrom") == 0) {
		r = recvfrom(s->fd, b, (size_t)n, flags, (struct sockaddr *)&from, &len);
	} else if (strcmp(how, "splice") == 0) {
		r = recv_spliced(s, b, n);
	} else {
		r = recv(s->fd, b, (size_t)n, flags);
	}
	error = errno;
	while (self->kind == '~' && r > 0 && r < n && flags == 0) { /* model.go: a receive that waits may be woken by the first part of a send */
		long more = await(s->fd, POLLIN, LATER) ? recv(s->fd, b + r, (size_t)(n - r), MSG_DONTWAIT) : 0;

		if (more <= 0)
			break;
		r += more;
	}
	errno = error;
	say_result(r);
	if (r >= 0 && strstr(how, "msg"))
		say("flags 0x%x name %u control %zu", m.msg_flags & ~MSG_CMSG_CLOEXEC, m.msg_namelen, m.msg_controllen);
	if (r >= 0 && strcmp(how, "recvfrom") == 0)
		say("name %u", len);
	if (r > 0 && r <= n && !(flags & (MSG_OOB | MSG_TRUNC | MSG_ERRQUEUE)))
		say("%s", right(s, b, r, !(flags & MSG_PEEK)) ? "right" : "WRONG BYTES");
	else if (r > 0 && (flags & MSG_TRUNC) && !(flags & (MSG_PEEK | MSG_OOB | MSG_ERRQUEUE)) && s->conn >= 0)
		w->connection[s->conn].got[s->side] += r; /* thrown away */
	else if (r > 0 && (flags & MSG_OOB))
		say("byte %d", b[0]);
	errno = error;
}
