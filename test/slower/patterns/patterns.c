/*
 * Ways in which programs use connections: patterns NAME MILLISECONDS does one for some time, and prints how much it has done in a second: more is
 * better. "patterns" alone lists them, a line each: name, unit. Whether its connections leave TCP is for whoever starts it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                        \
	do {                                                                               \
		if (!(what)) {                                                             \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, strerror(errno)); \
			_exit(1);                                                          \
		}                                                                          \
	} while (0)

#define MOST (4 << 20)
#define CONNS 1000
#define THREADS 4
#define PATIENCE 20000 /* milliseconds that nothing may take */

/* A pattern, and its numbers. */
struct pattern {
	const char *name, *unit;
	double (*run)(const struct pattern *p);
	size_t request, answer; /* bytes; of a bulk transfer, request is what one call sends */
	bool (*receive)(int fd, char *b, size_t n);
	long (*send)(int fd, size_t n);
	int conns, active; /* of those */
	useconds_t pause;  /* between two */
};

static char bytes[MOST], room[MOST];
static double seconds; /* that a pattern takes */

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int server(struct sockaddr_in *a)
{
	socklen_t len = sizeof(*a);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	*a = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	CHECK(bind(l, (struct sockaddr *)a, len) == 0 && listen(l, 512) == 0 && getsockname(l, (struct sockaddr *)a, &len) == 0);
	return l;
}

static void at_once(int fd)
{
	int on = 1;

	CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
}

static int dial(const struct sockaddr_in *a)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(connect(fd, (const struct sockaddr *)a, sizeof(*a)) == 0);
	at_once(fd);
	return fd;
}

static int take(int l)
{
	int fd = accept(l, NULL, NULL);

	CHECK(fd >= 0);
	at_once(fd);
	return fd;
}

/* put sends n bytes. A process whose peer has gone ends. */
static void put(int fd, size_t n)
{
	for (size_t at = 0; at < n;) {
		ssize_t k = send(fd, bytes + at, n - at, MSG_NOSIGNAL);

		if (k <= 0)
			_exit(0);
		at += (size_t)k;
	}
}

/* get receives n bytes. False: there are no more. */
static bool get(int fd, char *b, size_t n)
{
	for (size_t at = 0; at < n;) {
		ssize_t k = recv(fd, b + at, n - at, 0);

		if (k <= 0)
			return false;
		at += (size_t)k;
	}
	return true;
}

/* sink receives until nothing more comes. */
static void sink(int fd, size_t part)
{
	while (recv(fd, room, part, 0) > 0)
		;
}

static void ended(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void stop(pid_t child)
{
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

/* Ways to receive an answer: each waits as some programs do. */

static bool ready_loop(int fd, char *b, size_t n, bool (*wait)(int fd))
{
	for (size_t at = 0; at < n;) {
		ssize_t k = wait(fd) ? recv(fd, b + at, n - at, MSG_DONTWAIT) : 0;

		if (k < 0 && errno == EAGAIN)
			continue;
		if (k <= 0)
			return false;
		at += (size_t)k;
	}
	return true;
}

static bool polled(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, PATIENCE) == 1;
}

static bool selected(int fd)
{
	struct timeval t = {PATIENCE / 1000, 0};
	fd_set f;

	FD_ZERO(&f);
	FD_SET(fd, &f);
	return select(fd + 1, &f, NULL, NULL, &t) == 1;
}

static bool epolled(int fd)
{
	static int epfd = -1;
	struct epoll_event ev = {.events = EPOLLIN};

	if (epfd < 0) {
		epfd = epoll_create1(0);
		CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev) == 0);
	}
	return epoll_wait(epfd, &ev, 1, PATIENCE) == 1;
}

static bool not_waited(int fd)
{
	(void)fd;
	return true;
}

static bool get_poll(int fd, char *b, size_t n) { return ready_loop(fd, b, n, polled); }
static bool get_select(int fd, char *b, size_t n) { return ready_loop(fd, b, n, selected); }
static bool get_epoll(int fd, char *b, size_t n) { return ready_loop(fd, b, n, epolled); }
static bool get_spin(int fd, char *b, size_t n) { return ready_loop(fd, b, n, not_waited); }

/* get_edges reads until it would wait, as programs do that are told of edges. */
static bool get_edges(int fd, char *b, size_t n)
{
	static int epfd = -1;
	struct epoll_event ev = {.events = EPOLLIN | EPOLLET};

	if (epfd < 0) {
		epfd = epoll_create1(0);
		CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev) == 0);
	}
	for (size_t at = 0; at < n;) {
		ssize_t k = recv(fd, b + at, n - at, MSG_DONTWAIT);

		if (k < 0 && errno == EAGAIN)
			CHECK(epoll_wait(epfd, &ev, 1, PATIENCE) == 1);
		else if (k <= 0)
			return false;
		else
			at += (size_t)k;
	}
	return true;
}

static bool get_peek(int fd, char *b, size_t n) { return recv(fd, b, n, MSG_PEEK) > 0 && get(fd, b, n); }
static bool get_all(int fd, char *b, size_t n) { return recv(fd, b, n, MSG_WAITALL) == (ssize_t)n; }

static bool get_asking(int fd, char *b, size_t n)
{
	int there;

	return polled(fd) && ioctl(fd, FIONREAD, &there) == 0 && get(fd, b, n);
}

static bool get_bytes(int fd, char *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (read(fd, b + i, 1) != 1)
			return false;
	return true;
}

static bool get_parts(int fd, char *b, size_t n)
{
	struct iovec v[2] = {{b, n / 2}, {b + n / 2, n - n / 2}};
	ssize_t k = readv(fd, v, 2);

	return k > 0 && get(fd, b + k, n - (size_t)k);
}

static bool get_names(int fd, char *b, size_t n)
{
	struct sockaddr_in a;
	socklen_t len = sizeof(a);
	int error;

	getpeername(fd, (struct sockaddr *)&a, &len);
	getsockname(fd, (struct sockaddr *)&a, &len);
	len = sizeof(error);
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
	return get(fd, b, n);
}

static bool get_copy(int fd, char *b, size_t n)
{
	int copy = dup(fd);
	bool good = get(copy, b, n);

	close(copy);
	return good;
}

static bool get_limited(int fd, char *b, size_t n)
{
	struct timeval t = {PATIENCE / 1000, 0};

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	return get(fd, b, n);
}

static bool get_corked(int fd, char *b, size_t n)
{
	int on = 1, off = 0;

	setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof(off));
	return get(fd, b, n);
}

static bool get_toggled(int fd, char *b, size_t n)
{
	int on = 1, off = 0;

	ioctl(fd, FIONBIO, &on);
	ioctl(fd, FIONBIO, &off);
	return get(fd, b, n);
}

/* turns has requests and answers take turns. Only the time in which an answer is awaited counts. */
static double turns(const struct pattern *p)
{
	struct sockaddr_in a;
	int l = server(&a), fd;
	pid_t child = fork();
	double waited = 0, until;
	long n = 0;

	if (child == 0) {
		for (fd = take(l); get(fd, room, p->request);)
			put(fd, p->answer);
		_exit(0);
	}
	close(l);
	fd = dial(&a);
	for (until = now() + seconds; now() < until; n++) {
		double began = now();

		put(fd, p->request);
		CHECK(p->receive(fd, room, p->answer));
		waited += now() - began;
		if (p->pause)
			usleep(p->pause);
	}
	close(fd);
	ended(child);
	return (double)n / waited;
}

/* batch sends 50 requests, and then receives 50 answers. */
static double batch(const struct pattern *p)
{
	struct sockaddr_in a;
	int l = server(&a), fd;
	pid_t child = fork();
	double began, until;
	long n = 0;

	if (child == 0) {
		for (fd = take(l); get(fd, room, p->request);)
			put(fd, p->answer);
		_exit(0);
	}
	close(l);
	fd = dial(&a);
	for (began = now(), until = began + seconds; now() < until; n += 50) {
		for (int i = 0; i < (p->active ? 50 : 1); i++)
			put(fd, p->active ? p->request : 50 * p->request);
		CHECK(get(fd, room, 50 * p->answer));
	}
	began = now() - began;
	close(fd);
	ended(child);
	return (double)n / began;
}

/* Ways to send. */

static long put_plain(int fd, size_t n)
{
	put(fd, n);
	return (long)n;
}

static long put_parts(int fd, size_t n)
{
	struct iovec v[64];
	ssize_t k;

	for (size_t i = 0; i < 64; i++)
		v[i] = (struct iovec){bytes, n / 64};
	k = writev(fd, v, 64);
	CHECK(k > 0);
	return k;
}

static int file(void)
{
	static int fd = -1;

	if (fd < 0) {
		fd = memfd_create("file", MFD_CLOEXEC);
		CHECK(write(fd, bytes, MOST) == MOST);
	}
	return fd;
}

static long put_file(int fd, size_t n)
{
	off_t at = 0;
	ssize_t k = sendfile(fd, file(), &at, n);

	CHECK(k > 0);
	return k;
}

static long put_spliced(int fd, size_t n)
{
	static int ends[2] = {-1, -1};
	loff_t at = 0;
	ssize_t k, sent = 0;

	if (ends[0] < 0)
		CHECK(pipe(ends) == 0);
	k = splice(file(), &at, ends[1], NULL, n, 0);
	CHECK(k > 0);
	while (sent < k) {
		ssize_t more = splice(ends[0], NULL, fd, NULL, (size_t)(k - sent), 0);

		CHECK(more > 0);
		sent += more;
	}
	return k;
}

static long put_more(int fd, size_t n)
{
	for (int i = 0; i < 15; i++)
		CHECK(send(fd, bytes, n / 16, MSG_MORE | MSG_NOSIGNAL) > 0);
	put(fd, n / 16);
	return (long)n;
}

static long put_ready(int fd, size_t n)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	ssize_t k = send(fd, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);

	if (k < 0)
		CHECK(errno == EAGAIN && poll(&p, 1, PATIENCE) == 1);
	return k < 0 ? 0 : k;
}

static long put_asking(int fd, size_t n)
{
	int queued;

	CHECK(ioctl(fd, TIOCOUTQ, &queued) == 0);
	put(fd, n);
	return (long)n;
}

/* bulk sends one way, to a reader that takes answer bytes at a time. */
static double bulk(const struct pattern *p)
{
	struct sockaddr_in a;
	int l = server(&a), fd;
	pid_t child = fork();
	double began, until, sent = 0;

	if (child == 0) {
		sink(take(l), p->answer);
		_exit(0);
	}
	close(l);
	fd = dial(&a);
	for (began = now(), until = began + seconds; now() < until;)
		sent += (double)p->send(fd, p->request);
	shutdown(fd, SHUT_WR);
	ended(child);
	close(fd);
	return sent / (now() - began) / 1e6;
}

/* A sender is a thread that sends until it is time to end. */
struct sender {
	int fd;
	size_t part;
	double until, sent;
};

static void *send_on(void *arg)
{
	struct sender *s = arg;

	while (now() < s->until) {
		put(s->fd, s->part);
		s->sent += (double)s->part;
	}
	return NULL;
}

static void *sink_on(void *arg)
{
	char *b = malloc(1 << 20);

	while (recv(*(int *)arg, b, 1 << 20, 0) > 0)
		;
	free(b);
	return NULL;
}

/* senders has several threads send over one connection, and several receive from it. */
static double senders(const struct pattern *p)
{
	struct sockaddr_in a;
	int l = server(&a), fd;
	pid_t child = fork();
	pthread_t threads[THREADS];
	struct sender all[THREADS];
	double began, sent = 0;

	if (child == 0) {
		fd = take(l);
		for (int i = 0; i < p->active; i++)
			CHECK(pthread_create(&threads[i], NULL, sink_on, &fd) == 0);
		for (int i = 0; i < p->active; i++)
			CHECK(pthread_join(threads[i], NULL) == 0);
		_exit(0);
	}
	close(l);
	fd = dial(&a);
	began = now();
	for (int i = 0; i < p->conns; i++) {
		all[i] = (struct sender){fd, p->request, began + seconds, 0};
		CHECK(pthread_create(&threads[i], NULL, send_on, &all[i]) == 0);
	}
	for (int i = 0; i < p->conns; i++) {
		CHECK(pthread_join(threads[i], NULL) == 0);
		sent += all[i].sent;
	}
	shutdown(fd, SHUT_WR);
	ended(child);
	close(fd);
	return sent / (now() - began) / 1e6;
}

/* duplex has both ends send and receive at the same time. */
static double duplex(const struct pattern *p)
{
	struct sockaddr_in a;
	int l = server(&a), fd;
	double began = now();
	pid_t child = fork();
	struct sender s = {.part = p->request, .until = began + seconds};
	pthread_t reader;

	fd = child == 0 ? take(l) : dial(&a);
	close(l);
	s.fd = fd;
	CHECK(pthread_create(&reader, NULL, sink_on, &fd) == 0);
	send_on(&s);
	shutdown(fd, SHUT_WR);
	CHECK(pthread_join(reader, NULL) == 0);
	if (child == 0)
		_exit(0);
	ended(child);
	close(fd);
	return s.sent / (now() - began) / 1e6;
}

/* proxy has a third process between the two: it copies, or splices. */
static double proxy(const struct pattern *p)
{
	struct sockaddr_in front, back;
	int lf = server(&front), lb = server(&back), in, out, fd, ends[2];
	pid_t last = fork(), middle;
	double began, until, sent = 0;
	ssize_t k;

	if (last == 0) {
		sink(take(lb), sizeof(room));
		_exit(0);
	}
	middle = fork();
	if (middle == 0) {
		close(lb);
		in = take(lf);
		out = dial(&back);
		CHECK(pipe(ends) == 0 && fcntl(ends[0], F_SETPIPE_SZ, 1 << 20) > 0);
		while (!p->active && (k = recv(in, room, p->request, 0)) > 0)
			put(out, (size_t)k);
		while (p->active && (k = splice(in, NULL, ends[1], NULL, 1 << 20, SPLICE_F_MOVE)) > 0)
			for (ssize_t more; k > 0; k -= more)
				CHECK((more = splice(ends[0], NULL, out, NULL, (size_t)k, SPLICE_F_MOVE)) > 0);
		_exit(0);
	}
	close(lf);
	close(lb);
	fd = dial(&front);
	for (began = now(), until = began + seconds; now() < until; sent += (double)p->request)
		put(fd, p->request);
	shutdown(fd, SHUT_WR);
	ended(middle);
	ended(last);
	close(fd);
	return sent / (now() - began) / 1e6;
}

static void *answer_one(void *arg)
{
	int fd = *(int *)arg;
	char b[128];

	free(arg);
	if (get(fd, b, sizeof(b)))
		put(fd, sizeof(b));
	close(fd);
	return NULL;
}

enum handler { HANDLER_NONE, HANDLER_PROCESS, HANDLER_THREAD };

/* answers has each connection answered by its server, by a process or by a thread. */
static void answers(int l, const struct pattern *p)
{
	signal(SIGCHLD, SIG_IGN);
	for (;;) {
		int fd = take(l), *own;
		pthread_t thread;

		switch ((enum handler)p->active) {
		case HANDLER_PROCESS:
			if (fork() == 0) {
				if (get(fd, room, p->request))
					put(fd, p->answer);
				_exit(0);
			}
			close(fd);
			break;
		case HANDLER_THREAD:
			own = malloc(sizeof(*own));
			*own = fd;
			CHECK(pthread_create(&thread, NULL, answer_one, own) == 0 && pthread_detach(thread) == 0);
			break;
		case HANDLER_NONE:
			if (p->request && get(fd, room, p->request))
				put(fd, p->answer);
			close(fd);
		}
	}
}

/* brief makes a connection for each request. */
static double brief(const struct pattern *p)
{
	struct sockaddr_in a;
	int l = server(&a);
	pid_t child = fork();
	double began, until;
	long n = 0;

	if (child == 0)
		answers(l, p);
	close(l);
	for (began = now(), until = began + seconds; now() < until; n++) {
		int fd = dial(&a);

		if (p->request) {
			put(fd, p->request);
			CHECK(get(fd, room, p->answer));
		}
		close(fd);
	}
	began = now() - began;
	stop(child);
	return (double)n / began;
}

/* echo_some receives what is there, and sends it back. False: there is no more. */
static bool echo_some(int fd)
{
	ssize_t n = recv(fd, room, 65536, 0);

	if (n > 0)
		put(fd, (size_t)n);
	return n > 0;
}

static void epoll_server(int l, int conns)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.fd = l}, found[256];
	int epfd = epoll_create1(0);

	CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, l, &ev) == 0);
	while (conns > 0) {
		int n = epoll_wait(epfd, found, 256, -1);

		for (int i = 0; i < n; i++) {
			int fd = found[i].data.fd;

			if (fd == l) {
				ev.data.fd = take(l);
				CHECK(epoll_ctl(epfd, EPOLL_CTL_ADD, ev.data.fd, &ev) == 0);
			} else if (!echo_some(fd)) {
				close(fd);
				conns--;
			}
		}
	}
	_exit(0);
}

static void poll_server(int l, int conns)
{
	static struct pollfd all[CONNS + 1];
	nfds_t n = 1;

	all[0] = (struct pollfd){.fd = l, .events = POLLIN};
	while (conns > 0) {
		CHECK(poll(all, n, -1) > 0);
		if (all[0].revents)
			all[n++] = (struct pollfd){.fd = take(l), .events = POLLIN};
		for (nfds_t i = 1; i < n; i++) {
			if (!all[i].revents || all[i].fd < 0 || echo_some(all[i].fd))
				continue;
			close(all[i].fd);
			all[i].fd = -1;
			conns--;
		}
	}
	_exit(0);
}

/* crowd has an event loop answer many connections, of which the first are active: all of these send, and then all receive. */
static double crowd(const struct pattern *p, void (*serve)(int l, int conns))
{
	static int fds[CONNS];
	struct sockaddr_in a;
	int l = server(&a);
	pid_t child = fork();
	double began, until;
	long n = 0;

	if (child == 0)
		serve(l, p->conns);
	close(l);
	for (int i = 0; i < p->conns; i++)
		fds[i] = dial(&a);
	for (began = now(), until = began + seconds; now() < until; n += p->active) {
		for (int i = 0; i < p->active; i++)
			put(fds[i], p->request);
		for (int i = 0; i < p->active; i++)
			CHECK(get(fds[i], room, p->request));
	}
	began = now() - began;
	for (int i = 0; i < p->conns; i++)
		close(fds[i]);
	ended(child);
	return (double)n / began;
}

static double crowd_epoll(const struct pattern *p) { return crowd(p, epoll_server); }
static double crowd_poll(const struct pattern *p) { return crowd(p, poll_server); }

#define K 1024
#define M (1024 * K)
#define TURNS(name, request, answer, how) {name, "answers/s", turns, request, answer, how, NULL, 0, 0, 0}
#define PAUSED(name, request, answer, pause) {name, "answers/s", turns, request, answer, get, NULL, 0, 0, pause}
#define BULK(name, part, how, taken) {name, "MB/s", bulk, part, taken, NULL, how, 0, 0, 0}

static const struct pattern all[] = {
	TURNS("turns-1", 1, 1, get),
	TURNS("turns-100", 100, 100, get),
	TURNS("turns-4k", 4 * K, 4 * K, get),
	TURNS("turns-64k", 64 * K, 64 * K, get),
	TURNS("turns-1m", M, M, get),
	TURNS("turns-100-64k", 100, 64 * K, get),
	TURNS("turns-100-1m", 100, M, get),
	TURNS("turns-1m-100", M, 100, get),
	TURNS("turns-poll", 100, 100, get_poll),
	TURNS("turns-poll-64k", 100, 64 * K, get_poll),
	TURNS("turns-select", 100, 100, get_select),
	TURNS("turns-epoll", 100, 100, get_epoll),
	TURNS("turns-edges", 100, 100, get_edges),
	TURNS("turns-edges-64k", 100, 64 * K, get_edges),
	TURNS("turns-spin", 100, 100, get_spin),
	TURNS("turns-peek", 100, 100, get_peek),
	TURNS("turns-peek-64k", 100, 64 * K, get_peek),
	TURNS("turns-fionread", 100, 100, get_asking),
	TURNS("turns-waitall-64k", 100, 64 * K, get_all),
	TURNS("turns-bytes", 100, 100, get_bytes),
	TURNS("turns-bytes-8k", 100, 8 * K, get_bytes),
	TURNS("turns-readv", 100, 100, get_parts),
	TURNS("turns-names", 100, 100, get_names),
	TURNS("turns-dup", 100, 100, get_copy),
	TURNS("turns-rcvtimeo", 100, 100, get_limited),
	TURNS("turns-cork", 100, 100, get_corked),
	TURNS("turns-fionbio", 100, 100, get_toggled),
	PAUSED("turns-pause-50us", 100, 100, 50),
	PAUSED("turns-pause-1ms", 100, 100, 1000),
	PAUSED("turns-pause-20ms", 100, 100, 20000),
	PAUSED("turns-64k-pause-1ms", 100, 64 * K, 1000),
	{"batch-one-send", "answers/s", batch, 100, 100, NULL, NULL, 0, 0, 0},
	{"batch-50-sends", "answers/s", batch, 100, 100, NULL, NULL, 0, 1, 0},
	BULK("bulk-100", 100, put_plain, M),
	BULK("bulk-1400", 1400, put_plain, M),
	BULK("bulk-16k", 16 * K, put_plain, M),
	BULK("bulk-64k", 64 * K, put_plain, M),
	BULK("bulk-1m", M, put_plain, M),
	BULK("bulk-4m", 4 * M, put_plain, M),
	BULK("bulk-small-reads", 64 * K, put_plain, 4 * K),
	BULK("bulk-writev", 64 * K, put_parts, M),
	BULK("bulk-sendfile", 64 * K, put_file, M),
	BULK("bulk-sendfile-1m", M, put_file, M),
	BULK("bulk-splice", 64 * K, put_spliced, M),
	BULK("bulk-more", 64 * K, put_more, M),
	BULK("bulk-nonblock", 64 * K, put_ready, M),
	BULK("bulk-nonblock-1m", M, put_ready, M),
	BULK("bulk-siocoutq", 64 * K, put_asking, M),
	{"duplex-1k", "MB/s", duplex, K, 0, NULL, NULL, 0, 0, 0},
	{"duplex-64k", "MB/s", duplex, 64 * K, 0, NULL, NULL, 0, 0, 0},
	{"threads-send-1k", "MB/s", senders, K, 0, NULL, NULL, THREADS, 1, 0},
	{"threads-send-64k", "MB/s", senders, 64 * K, 0, NULL, NULL, THREADS, 1, 0},
	{"threads-receive", "MB/s", senders, 64 * K, 0, NULL, NULL, 1, THREADS, 0},
	{"proxy-copy", "MB/s", proxy, 64 * K, 0, NULL, NULL, 0, 0, 0},
	{"proxy-splice", "MB/s", proxy, 64 * K, 0, NULL, NULL, 0, 1, 0},
	{"brief-0", "connections/s", brief, 0, 0, NULL, NULL, 0, HANDLER_NONE, 0},
	{"brief-128", "connections/s", brief, 128, 128, NULL, NULL, 0, HANDLER_NONE, 0},
	{"brief-100k", "connections/s", brief, 100 * K, 100 * K, NULL, NULL, 0, HANDLER_NONE, 0},
	{"brief-fork", "connections/s", brief, 128, 128, NULL, NULL, 0, HANDLER_PROCESS, 0},
	{"brief-thread", "connections/s", brief, 128, 128, NULL, NULL, 0, HANDLER_THREAD, 0},
	{"crowd-10", "answers/s", crowd_epoll, 100, 0, NULL, NULL, 10, 10, 0},
	{"crowd-100", "answers/s", crowd_epoll, 100, 0, NULL, NULL, 100, 100, 0},
	{"crowd-1000", "answers/s", crowd_epoll, 100, 0, NULL, NULL, CONNS, CONNS, 0},
	{"crowd-1000-one-active", "answers/s", crowd_epoll, 100, 0, NULL, NULL, CONNS, 1, 0},
	{"crowd-100-4k", "answers/s", crowd_epoll, 4 * K, 0, NULL, NULL, 100, 100, 0},
	{"crowd-20-64k", "answers/s", crowd_epoll, 64 * K, 0, NULL, NULL, 20, 20, 0},
	{"crowd-poll-100", "answers/s", crowd_poll, 100, 0, NULL, NULL, 100, 100, 0},
	{"crowd-poll-1000-one-active", "answers/s", crowd_poll, 100, 0, NULL, NULL, CONNS, 1, 0},
};

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (argc == 1)
			printf("%s %s\n", all[i].name, all[i].unit);
		if (argc != 3 || strcmp(all[i].name, argv[1]) != 0)
			continue;
		seconds = atof(argv[2]) / 1000;
		printf("%f\n", all[i].run(&all[i]));
		return 0;
	}
	return argc == 1 ? 0 : 2;
}
