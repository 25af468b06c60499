/*
 * A program that uses liburing: uring serve PORT, uring connect PORT. The server reads the first bytes of a connection with read, and the rest through
 * a queue, by which it echoes everything. The client writes, and says whether it reads the same.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <liburing.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECE 32768
#define ROUNDS 8	   /* that are answered one by one, by read and write */
#define MORE (64 * PIECE) /* and then all at once, through the queue */

#define CHECK(what)                                                                        \
	do {                                                                               \
		if (!(what)) {                                                             \
			fprintf(stderr, "%d: %s (%s)\n", __LINE__, #what, strerror(errno)); \
			exit(1);                                                           \
		}                                                                          \
	} while (0)

static unsigned char buf[PIECE], want[PIECE];

static void fill(unsigned char *b, size_t at, size_t n)
{
	for (size_t i = 0; i < n; i++)
		b[i] = (unsigned char)((at + i) * 7 + (at + i) / 251 + 1);
}

static void write_all(int fd, const unsigned char *b, size_t n)
{
	for (ssize_t w; n; b += w, n -= (size_t)w)
		CHECK((w = write(fd, b, n)) > 0);
}

/* read_all is false at the end. */
static bool read_all(int fd, unsigned char *b, size_t n)
{
	for (ssize_t r; n; b += r, n -= (size_t)r)
		if ((r = read(fd, b, n)) == 0)
			return false;
		else
			CHECK(r > 0);
	return true;
}

/* through has the queue send or receive. */
static int through(struct io_uring *queue, int fd, void *b, size_t n, int sends)
{
	struct io_uring_sqe *e = io_uring_get_sqe(queue);
	struct io_uring_cqe *done;
	int r;

	CHECK(e);
	if (sends)
		io_uring_prep_send(e, fd, b, n, 0);
	else
		io_uring_prep_recv(e, fd, b, n, 0);
	CHECK(io_uring_submit(queue) == 1 && io_uring_wait_cqe(queue, &done) == 0);
	r = done->res;
	io_uring_cqe_seen(queue, done);
	return r;
}

static void echo(struct io_uring *queue, int fd)
{
	int n;

	for (int i = 0; i < ROUNDS; i++) {
		if (!read_all(fd, buf, PIECE))
			return;
		write_all(fd, buf, PIECE);
	}
	while ((n = through(queue, fd, buf, PIECE, 0)) > 0)
		for (int at = 0, sent; at < n; at += sent)
			CHECK((sent = through(queue, fd, buf + at, (size_t)(n - at), 1)) > 0);
	CHECK(n == 0);
}

static void serve(int l)
{
	struct io_uring queue;

	CHECK(io_uring_queue_init(8, &queue, 0) == 0);
	for (;;) {
		int fd = accept(l, NULL, NULL);

		CHECK(fd >= 0);
		echo(&queue, fd);
		close(fd);
	}
}

static void compare(int fd, size_t at)
{
	CHECK(read_all(fd, buf, PIECE));
	fill(want, at, PIECE);
	CHECK(memcmp(buf, want, PIECE) == 0);
}

static void connects(int fd)
{
	size_t at = 0;
	pid_t child;

	for (int i = 0; i < ROUNDS; i++, at += PIECE) {
		fill(buf, at, PIECE);
		write_all(fd, buf, PIECE);
		compare(fd, at);
	}
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		for (size_t n = 0; n < MORE; n += PIECE) {
			fill(buf, at + n, PIECE);
			write_all(fd, buf, PIECE);
		}
		CHECK(shutdown(fd, SHUT_WR) == 0);
		exit(0);
	}
	for (size_t n = 0; n < MORE; n += PIECE)
		compare(fd, at + n);
	CHECK(read(fd, buf, 1) == 0);
	puts("the same");
}

int main(int argc, char **argv)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int one = 1, s = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(argc == 3 && s >= 0);
	a.sin_port = htons((unsigned short)atoi(argv[2]));
	if (strcmp(argv[1], "serve") == 0) {
		CHECK(setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 && bind(s, (struct sockaddr *)&a, sizeof(a)) == 0);
		CHECK(listen(s, 16) == 0);
		serve(s);
	}
	CHECK(connect(s, (struct sockaddr *)&a, sizeof(a)) == 0);
	connects(s);
	return 0;
}
