/*
 * A program that reads and writes a connection with io_uring, as it does with read and write before: uring CASE SEED. Its system calls are inline
 * ones, as those of liburing are, but where a case says otherwise.
 */
#include "program.h"

#include <linux/io_uring.h>

#define PIECE 40000
#define ALL 4000000

#if defined(__x86_64__)
static long call(long n, long a, long b, long c, long d, long e, long f)
{
	long ret;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;

	__asm__ volatile("syscall" : "=a"(ret) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return ret;
}
#else
static long call(long n, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}
#endif

struct queue {
	int fd;
	bool registered; /* the connection is descriptor 0 of it */
	unsigned *submitted, *done_head, *done_tail, *indices;
	struct io_uring_sqe *entries;
	struct io_uring_cqe *results;
	unsigned mask, done_mask;
};

/* make has a queue. seen: by syscall(2). */
static void make(struct queue *q, bool seen)
{
	struct io_uring_params p = {0};
	char *s, *c;

	q->registered = false;
	q->fd = (int)(seen ? syscall(SYS_io_uring_setup, 4, &p) : call(SYS_io_uring_setup, 4, (long)&p, 0, 0, 0, 0));
	CHECK(q->fd >= 0);
	s = mmap(NULL, p.sq_off.array + p.sq_entries * sizeof(unsigned), PROT_READ | PROT_WRITE, MAP_SHARED, q->fd, IORING_OFF_SQ_RING);
	c = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED, q->fd, IORING_OFF_CQ_RING);
	q->entries = mmap(NULL, p.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED, q->fd, IORING_OFF_SQES);
	CHECK(s != MAP_FAILED && c != MAP_FAILED && q->entries != MAP_FAILED);
	q->submitted = (unsigned *)(s + p.sq_off.tail);
	q->indices = (unsigned *)(s + p.sq_off.array);
	q->mask = *(unsigned *)(s + p.sq_off.ring_mask);
	q->done_head = (unsigned *)(c + p.cq_off.head);
	q->done_tail = (unsigned *)(c + p.cq_off.tail);
	q->done_mask = *(unsigned *)(c + p.cq_off.ring_mask);
	q->results = (struct io_uring_cqe *)(c + p.cq_off.cqes);
}

static void enroll(struct queue *q, int fd)
{
	CHECK(call(SYS_io_uring_register, q->fd, IORING_REGISTER_FILES, (long)&fd, 1, 0, 0) == 0);
	q->registered = true;
}

/* move has the queue send or receive. */
static ssize_t move(struct queue *q, int op, int fd, void *b, size_t n)
{
	unsigned at = *q->submitted;
	struct io_uring_sqe *e = &q->entries[at & q->mask];
	ssize_t r;

	memset(e, 0, sizeof(*e));
	e->opcode = (unsigned char)op;
	e->fd = q->registered ? 0 : fd;
	e->flags = q->registered ? IOSQE_FIXED_FILE : 0;
	e->addr = (uintptr_t)b;
	e->len = (unsigned)n;
	q->indices[at & q->mask] = at & q->mask;
	__atomic_store_n(q->submitted, at + 1, __ATOMIC_RELEASE);
	CHECK(call(SYS_io_uring_enter, q->fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1);
	CHECK(__atomic_load_n(q->done_tail, __ATOMIC_ACQUIRE) != *q->done_head);
	r = q->results[*q->done_head & q->done_mask].res;
	__atomic_store_n(q->done_head, *q->done_head + 1, __ATOMIC_RELEASE);
	return r;
}

static unsigned char byte_at(size_t n)
{
	return (unsigned char)(n * 7 + n / 251 + 1);
}

static void fill(unsigned char *b, size_t at, size_t n)
{
	for (size_t i = 0; i < n; i++)
		b[i] = byte_at(at + i);
}

static void look(const unsigned char *b, size_t at, ssize_t n)
{
	CHECK(n > 0);
	for (size_t i = 0; i < (size_t)n; i++)
		if (b[i] != byte_at(at + i)) {
			fprintf(stderr, "byte %zu is %d, want %d\n", at + i, b[i], byte_at(at + i));
			_exit(1);
		}
}

static unsigned char out[PIECE], in[PIECE];

/* peer sends all, and takes all back. */
static void *peer(void *arg)
{
	int fd = *(int *)arg;
	static unsigned char b[PIECE];
	size_t at = 0;

	for (; at < ALL; at += PIECE) {
		fill(b, at, PIECE);
		for (size_t sent = 0; sent < PIECE;) {
			ssize_t n = send(fd, b + sent, PIECE - sent, MSG_NOSIGNAL);

			CHECK(n > 0);
			sent += (size_t)n;
		}
	}
	for (at = 0; at < ALL;) {
		ssize_t n = recv(fd, b, PIECE, 0);

		look(b, at, n);
		at += (size_t)n;
	}
	return NULL;
}

/* The peer is a process of its own, so that nothing here is about it. */
static pid_t connection(int *fd)
{
	struct sockaddr_in a;
	int l = server(&a);
	pid_t child = fork();

	if (child == 0) {
		int s;

		close(l);
		l = -1;
		s = connected_to(&a);
		peer(&s);
		_exit(0);
	}
	*fd = accept(l, NULL, NULL);
	CHECK(child > 0 && *fd >= 0);
	close(l);
	return child;
}

/* by_hand is how much goes by read and write before the queue has it. */
static void both_ways(int fd, struct queue *q, size_t by_hand, bool seen)
{
	size_t at = 0;
	ssize_t n;

	while (at < by_hand) {
		n = read(fd, in, PIECE);
		look(in, at, n);
		at += (size_t)n;
	}
	if (q->fd < 0) {
		/* Bytes are in the ring, if there is one. */
		if (getenv("RINGS"))
			CHECK(mapped_rings() > 0);
		make(q, seen);
	}
	if (q->registered)
		enroll(q, fd);
	while (at < ALL) {
		n = move(q, IORING_OP_RECV, fd, in, PIECE);
		look(in, at, n);
		at += (size_t)n;
	}
	for (at = 0; at < ALL; at += (size_t)n) {
		size_t piece = ALL - at < PIECE ? ALL - at : PIECE;

		fill(out, at, piece);
		n = at < by_hand ? write(fd, out, piece) : move(q, IORING_OP_SEND, fd, out, piece);
		CHECK(n > 0);
	}
}

/* given connects a socket that the queue has been given before, by a call that the library sees. */
static void given(struct queue *q, const char *how)
{
	struct io_uring_files_update update = {0};
	struct sockaddr_in a;
	int l = server(&a), fd, none = -1, status;
	pid_t child = fork();
	ssize_t n;

	CHECK(child >= 0);
	if (child == 0) {
		int s = accept(l, NULL, NULL);

		CHECK(s >= 0);
		while ((n = read(s, in, PIECE)) > 0)
			for (ssize_t at = 0, w; at < n; at += w)
				CHECK((w = write(s, in + at, (size_t)(n - at))) > 0);
		_exit(0);
	}
	close(l);
	make(q, true);
	fd = socket(AF_INET, SOCK_STREAM, 0); /* nobody else has it */
	q->registered = true;
	if (strcmp(how, "given-later") == 0) {
		update.fds = (uintptr_t)&fd;
		CHECK(syscall(SYS_io_uring_register, q->fd, IORING_REGISTER_FILES, &none, 1) == 0 && syscall(SYS_io_uring_register, q->fd, IORING_REGISTER_FILES_UPDATE, &update, 1) == 1);
	} else {
		CHECK(syscall(SYS_io_uring_register, q->fd, IORING_REGISTER_FILES, &fd, 1) == 0);
	}
	CHECK(connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0);
	fill(out, 0, PIECE);
	for (size_t at = 0; at < PIECE; at += (size_t)n)
		CHECK((n = move(q, IORING_OP_SEND, fd, out + at, PIECE - at)) > 0);
	for (size_t at = 0; at < PIECE; at += (size_t)n) {
		n = move(q, IORING_OP_RECV, fd, in, PIECE - at);
		look(in, at, n);
	}
	CHECK(shutdown(fd, SHUT_RDWR) == 0 && waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";
	struct queue q = {.fd = -1};
	pid_t child;
	int fd, status;

	if (strncmp(name, "given", 5) == 0) {
		given(&q, name);
		return 0;
	}
	if (strcmp(name, "before") == 0 || strcmp(name, "registered") == 0 || strcmp(name, "forked") == 0)
		make(&q, false);
	if (strcmp(name, "forked") == 0 && (child = fork()) != 0) {
		/* The child of a process that has a queue has it, too. */
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		return 0;
	}
	child = connection(&fd);
	q.registered = strcmp(name, "registered") == 0;
	both_ways(fd, &q, ALL / 4, true);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}
