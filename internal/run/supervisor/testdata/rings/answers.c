/* Small files, of which a program answers with one after the other: a header by write, and the file by sendfile. */
#include "rings.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>

#define SMALL_RING 16384
#define MANY 16
#define HEAD 240
#define ANSWER (HEAD + 1000)

/* put_file sends so many bytes from a file, behind others that it has. */
static void put_file(int fd, struct stream *s, unsigned n)
{
	unsigned before = rnd(3) * 1000;
	off_t at = before;
	int file = memfd_create("file", MFD_CLOEXEC);

	fill(s, n);
	CHECK(file >= 0 && pwrite(file, buf, n, before) == (ssize_t)n);
	while (n) {
		off_t was = at;
		ssize_t r = sendfile(fd, file, &at, n);

		if (r < 0 && errno == EAGAIN) {
			CHECK(at == was);
			await(fd, POLLOUT);
			continue;
		}
		CHECK(r > 0 && at == was + r && (r == (ssize_t)n || (fcntl(fd, F_GETFL) & O_NONBLOCK)));
		s->at += (unsigned long)r;
		n -= (unsigned)r;
	}
	CHECK(sendfile(fd, file, &at, 100) == 0 && lseek(file, 0, SEEK_CUR) == 0);
	close(file);
}

/* all_of sends so many bytes in one call, which does not wait where nobody reads. */
static void all_of(int fd, struct stream *s, unsigned n)
{
	fill(s, n);
	alarm(60);
	CHECK(write(fd, buf, n) == (ssize_t)n);
	alarm(0);
	s->at += n;
}

static void answer(int fd, unsigned n)
{
	all_of(fd, &ab, 240);
	put_file(fd, &ab, n);
}

/* Files of all sizes between other bytes, in two processes. */
static void files(int flags)
{
	const unsigned long all = 3000000;
	int fd;
	pid_t child = both(&fd);

	CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | flags) == 0);
	while (child && ab.at < all) {
		switch (rnd(20)) {
		case 0:
			put(fd, &ab, 1 + rnd(20000), 20000);
			break;
		case 1:
			put_file(fd, &ab, 1 + rnd(20000));
			break;
		default:
			put(fd, &ab, 240, 1000);
			put_file(fd, &ab, 1 + rnd(4096));
		}
	}
	if (child) {
		CHECK(shutdown(fd, SHUT_WR) == 0);
		ended(fd);
	} else {
		while (ab.at < all - 10000)
			take(fd, &ab, 10000, 3000);
		for (;;) {
			ssize_t r = read(fd, buf, 5000);

			if (r < 0 && errno == EAGAIN) {
				await(fd, POLLIN);
				continue;
			}
			CHECK(r >= 0);
			if (r == 0)
				break;
			look(&ab, r);
			ab.at += (unsigned long)r;
		}
	}
	close(fd);
	done(child);
}

void test_files(void)
{
	files(0);
}

void test_files_nonblocking(void)
{
	files(O_NONBLOCK);
}

/* asked has one process ask and the other answer, until it sends more than the small ring takes while the first one reads. */
static void asked(unsigned long plan, int flags)
{
	unsigned ordinary = 70 + random_of(&plan, 60), sizes[20], all;
	int fd, on = 1;
	pid_t child = both(&fd);

	CHECK(fcntl(fd, F_SETFL, flags) == 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
	for (unsigned i = 0; i < ordinary + 40; i++) {
		unsigned n = i < ordinary ? 1 : 1 + random_of(&plan, 20);

		all = 0;
		for (unsigned k = 0; k < n; k++) {
			sizes[k] = 1 + random_of(&plan, i < ordinary || random_of(&plan, 4) ? 4096 : 30000);
			all += 240 + sizes[k];
		}
		if (child) {
			take(fd, &ba, 1, 1);
			for (unsigned k = 0; k < n; k++) {
				put(fd, &ab, 240, 2400);
				put_file(fd, &ab, sizes[k]);
			}
		} else {
			put(fd, &ba, 1, 1);
			take(fd, &ab, all, 8192);
		}
	}
	close(fd);
	done(child);
	ab.at = ba.at = 0;
}

void test_asked(void)
{
	for (unsigned long i = 0; i < 12; i++)
		asked(seed * 1000 + i, i % 4 ? O_NONBLOCK : 0);
}

/* ring is the largest of this process, NULL if it has none. */
static char *ring(unsigned long *bytes)
{
	FILE *f = fopen("/proc/self/maps", "r");
	unsigned long from, to, at = 0;
	char line[512];

	*bytes = 4096;
	while (fgets(line, sizeof(line), f))
		if (strstr(line, "gosmc-ring") && sscanf(line, "%lx-%lx", &from, &to) == 2 && to - from > *bytes) {
			*bytes = to - from;
			at = from;
		}
	fclose(f);
	return (char *)at;
}

/* size has the rings of this process be so large, or not there. */
static void size(unsigned long want)
{
	unsigned long most;

	ring(&most);
	if (getenv("RINGS") && most - 4096 != (on_rings() ? want : 0)) {
		fprintf(stderr, "rings of %lu bytes, want %lu\n", most - 4096, want);
		_exit(1);
	}
}

/* no_loops has neither end be one of a loop with poll, which has rings for both directions. */
static void no_loops(int a, int b)
{
	struct timeval none = {0};
	fd_set set;

	FD_ZERO(&set);
	FD_SET(a, &set);
	FD_SET(b, &set);
	CHECK(select((a > b ? a : b) + 1, &set, NULL, NULL, &none) == 0);
}

static void nonblocking(int *a, int *b)
{
	int on = 1;

	both_ends(a, b);
	no_loops(*a, *b);
	CHECK(setsockopt(*a, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
	CHECK(fcntl(*a, F_SETFL, O_NONBLOCK) == 0 && fcntl(*b, F_SETFL, O_NONBLOCK) == 0); /* as programs that wait for each other have large ones */
}

static void exchange(int a, int b)
{
	for (unsigned i = 0; i < 300; i++) {
		answer(a, 1 + i * 37 % 4096);
		take(b, &ab_in, ab.at - ab_in.at, 8192);
		all_of(b, &ba, 50);
		take(a, &ba_in, 50, 50);
	}
}

/* answers makes a connection that has a ring for them. */
static void answers(int *a, int *b)
{
	nonblocking(a, b);
	exchange(*a, *b);
	size(SMALL_RING);
}

/* sendfile returns the kernel's error for a file that it cannot send. */
static void refused(int fd, int file)
{
	off_t at = -1;
	int ends[2];

	CHECK(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
	CHECK(sendfile(fd, file, &at, 100) == -1 && errno == EINVAL && at == -1);
	at = 0;
	CHECK(sendfile(fd, ends[0], &at, 1) == -1 && errno == ESPIPE);
	CHECK(sendfile(fd, ends[1], &at, 1) == -1 && errno == EBADF);
	CHECK(sendfile(fd, -1, &at, 1) == -1 && errno == EBADF);
	CHECK(sendfile(fd, file, &at, 0) == 0);
	close(ends[0]);
	close(ends[1]);
}

static void more(int a, int b, unsigned n)
{
	all_of(a, &ab, n);
	take(b, &ab_in, n, 8192);
}

/* outgrow sends an answer that is larger than the ring, and ends the connection. */
static void outgrow(int a, int b)
{
	for (int i = 0; i < 4; i++)
		more(a, b, LARGE);
	size(1 << 20);
	close(a);
	ended(b);
	close(b);
}

/* A direction of small answers has a small ring, which it leaves for good where that would make somebody wait. */
void test_answers(void)
{
	struct pollfd p = {.events = POLLOUT};
	int a, b, file;

	answers(&a, &b);
	alarm(60);
	for (int i = 0; i < 5; i++)
		answer(a, 4000);
	alarm(0);
	take(b, &ab_in, ab.at - ab_in.at, 8192);
	size(0);
	exchange(a, b);
	size(0);
	outgrow(a, b);

	/* An answer that is larger than the ring. */
	answers(&a, &b);
	outgrow(a, b);

	/* A program that asks whether there is room is told of as much as TCP has. */
	answers(&a, &b);
	more(a, b, 13000);
	more(a, b, 13000);
	CHECK(fcntl(a, F_SETFL, 0) == 0);
	all_of(a, &ab, 13000);
	p.fd = a;
	CHECK(poll(&p, 1, 0) == 1 && p.revents == POLLOUT);
	all_of(a, &ab, 9000);
	take(b, &ab_in, 22000, 22000);
	answer(a, 100);
	take(b, &ab_in, ab.at - ab_in.at, 8192);
	size(0);
	file = memfd_create("file", MFD_CLOEXEC);
	refused(a, file);
	close(file);
	answer(a, 100);
	take(b, &ab_in, ab.at - ab_in.at, 8192);

	/* The same, asked before. */
	close(a);
	close(b);
	nonblocking(&a, &b);
	p.fd = a;
	CHECK(poll(&p, 1, 0) == 1);
	exchange(a, b);
	size(0);

	/* The bytes that a killed process has sent stay sent. */
	answers(&a, &b);
	if (fork() == 0) {
		close(b);
		all_of(a, &ab, 240);
		_exit(kill(getpid(), SIGKILL));
	}
	close(a);
	CHECK(wait(NULL) > 0);
	take(b, &ab_in, 240, 240);
	ended(b);
	close(b);
}

/* one_processor has this process run on one processor, and its peer on the same. */
static void one_processor(void)
{
	cpu_set_t all, one;
	int n = 0;

	CHECK(sched_getaffinity(0, sizeof(all), &all) == 0);
	while (!CPU_ISSET(n, &all))
		n++;
	CPU_ZERO(&one);
	CPU_SET(n, &one);
	CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
}

/* said has the ring say whether a file is to follow the bytes that were written. */
static void said(int more)
{
	unsigned long bytes;
	char *at = ring(&bytes);
	uint32_t processor;

	if (!on_rings() || !getenv("RINGS"))
		return;
	CHECK(at);
	memcpy(&processor, at + 72, sizeof(processor));
	CHECK((processor >> 31) == (unsigned)more && (processor & 0x7fffffff));
}

/* all_answers is a file with so many answers, one behind the other. */
static int all_answers(unsigned n)
{
	int file = memfd_create("answers", MFD_CLOEXEC);

	CHECK(n * ANSWER <= sizeof(buf));
	fill(&ab, n * ANSWER);
	CHECK(file >= 0 && write(file, buf, n * ANSWER) == n * ANSWER);
	return file;
}

/* corked_answer sends the next answer under TCP_CORK, and lets the process that the first part wakes run before the second. */
static void corked_answer(int fd, struct stream *s, int file)
{
	int on = 1, off = 0;
	off_t at = (off_t)s->at + HEAD;

	CHECK(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)) == 0);
	CHECK(write(fd, buf + s->at, HEAD) == HEAD);
	sched_yield();
	CHECK(sendfile(fd, file, &at, ANSWER - HEAD) == ANSWER - HEAD);
	CHECK(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof(off)) == 0);
	s->at += ANSWER;
}

/* pieces takes an answer on each of many connections, and returns in how many pieces they came. */
static unsigned pieces(const int *fds, struct stream *s, unsigned many)
{
	struct pollfd p[MANY];
	unsigned left = many, n = 0;

	for (unsigned i = 0; i < many; i++)
		p[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
	while (left) {
		CHECK(poll(p, many, PATIENCE) > 0);
		for (unsigned i = 0; i < many; i++) {
			ssize_t r;

			if (!(p[i].revents & POLLIN))
				continue;
			r = read(fds[i], buf, ANSWER - s[i].at % ANSWER);
			CHECK(r > 0);
			look(&s[i], r);
			s[i].at += (unsigned long)r;
			if (s[i].at % ANSWER == 0) {
				p[i].fd = -1;
				left--;
			}
			n++;
		}
	}
	return n;
}

/* whole_answers reports whether answers to many connections come in one piece each. */
static int whole_answers(void)
{
	const unsigned rounds = 200, first = 100;
	static struct stream from[MANY];
	struct sockaddr_in a;
	int fds[MANY], l = server(&a), on = 1, file = all_answers(rounds);
	unsigned n = 0;
	char request;
	pid_t child;
	int status;

	CHECK(listen(l, MANY) == 0);
	child = fork();
	CHECK(child >= 0);
	/* Where it pays to wait for 50 us is a matter of the machine: the reader waits for longer here. */
	CHECK(child || prctl(PR_SET_TIMERSLACK, 1000000ul) == 0);
	for (unsigned i = 0; i < MANY; i++) {
		fds[i] = child ? accept(l, NULL, NULL) : connected_to(&a);
		CHECK(fds[i] >= 0 && fcntl(fds[i], F_SETFL, O_NONBLOCK) == 0 && setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
		from[i] = ab;
	}
	for (unsigned round = 0; round < rounds; round++) {
		for (unsigned i = 0; i < MANY; i++) {
			if (child) {
				await(fds[i], POLLIN);
				CHECK(read(fds[i], &request, 1) == 1);
				corked_answer(fds[i], &from[i], file);
			} else {
				CHECK(write(fds[i], "", 1) == 1);
			}
		}
		if (!child) {
			unsigned came = pieces(fds, from, MANY);

			n += round >= first ? came : 0;
		}
	}
	if (!child)
		_exit(n > (rounds - first) * MANY * 3 / 2 ? 2 : 0);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) != 1);
	for (unsigned i = 0; i < MANY; i++)
		close(fds[i]);
	close(file);
	close(l);
	return status == 0;
}

/*
 * Answers that are sent under TCP_CORK come in one piece each, also where their first parts wake the reader in place of the writer. The reader has to
 * find that it pays to wait, which may take a while on a busy machine.
 */
void test_corked(void)
{
	one_processor();
	for (int try = 0; try < 30; try++)
		if (whole_answers())
			return;
	CHECK(!"whole answers");
}

/* A send under TCP_CORK says in the ring that a file is to follow, until it has. */
void test_cork_said(void)
{
	int fd, on = 1, off = 0, file = all_answers(100);
	pid_t child = both(&fd);

	CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
	for (unsigned i = 0; i < 100; i++) {
		if (child) {
			char request;

			await(fd, POLLIN);
			CHECK(read(fd, &request, 1) == 1);
			corked_answer(fd, &ab, file);
		} else {
			CHECK(write(fd, "", 1) == 1);
			take(fd, &ab, ANSWER, ANSWER);
		}
	}
	size(SMALL_RING);
	if (child) {
		int cork = 0;
		socklen_t len = sizeof(cork);

		CHECK(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)) == 0);
		all_of(fd, &ab, 240);
		said(1);
		put_file(fd, &ab, 1000);
		said(0);
		CHECK(getsockopt(fd, IPPROTO_TCP, TCP_CORK, &cork, &len) == 0 && cork == 1);
		CHECK(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof(off)) == 0);
		all_of(fd, &ab, 240);
		said(0);
	} else {
		take(fd, &ab, 240 + 1000 + 240, 2000);
	}
	close(fd);
	done(child);
}
