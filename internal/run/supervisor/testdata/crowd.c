/*
 * A user without privileges, who has as many descriptors on their way in messages as there may be (ETOOMANYREFS), at a moment at which the library is to pass one on: crowd CASE. The
 * bytes of each connection arrive, as with TCP.
 */
#include "program.h"

#include <linux/capability.h>
#include <sys/resource.h>

#define MOST 64	  /* descriptors of this process, and on their way */
#define CROWD 200 /* that are on their way: one message may go beyond the limit */
#define MOMENT 300000 /* microseconds */

/* unprivileged gives up all that lets a process pass on as many as it likes. */
static void unprivileged(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct caps[2];
	struct rlimit most;

	CHECK(syscall(SYS_capget, &head, caps) == 0);
	caps[0].effective &= ~(1u << CAP_SYS_ADMIN | 1u << CAP_SYS_RESOURCE);
	CHECK(syscall(SYS_capset, &head, caps) == 0);
	CHECK(getrlimit(RLIMIT_NOFILE, &most) == 0);
	most.rlim_cur = MOST;
	CHECK(setrlimit(RLIMIT_NOFILE, &most) == 0);
}

/* crowd puts many descriptors on their way. They arrive nowhere before the second of the two is closed. */
static void crowd(int pair[2])
{
	static union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(CROWD * sizeof(int))];
	} control;
	char c = 0;
	struct iovec one = {&c, 1};
	struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control.buf, .msg_controllen = sizeof(control.buf)};
	struct cmsghdr *h;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	memset(&control, 0, sizeof(control));
	h = CMSG_FIRSTHDR(&m);
	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(CROWD * sizeof(int)); /* all are descriptor 0 */
	CHECK(sendmsg(pair[0], &m, 0) == 1);
}

static void *disperse(void *arg)
{
	const int *pair = arg;

	usleep(MOMENT);
	close(pair[0]);
	close(pair[1]);
	return NULL;
}

/* talk has both ends of a connection send and receive. */
static void talk(int c, int s)
{
	char b[4] = "";

	CHECK(write(c, "ask", 3) == 3 && read(s, b, 3) == 3 && memcmp(b, "ask", 3) == 0);
	CHECK(write(s, "say", 3) == 3 && read(c, b, 3) == 3 && memcmp(b, "say", 3) == 0);
}

/* A client is a thread that connects to a listener whose queue is full. */
struct client {
	struct sockaddr_in to;
	int fd;
};

static void *connects(void *arg)
{
	struct client *c = arg;

	CHECK(connect(c->fd, (struct sockaddr *)&c->to, sizeof(c->to)) == 0);
	return NULL;
}

/* begin has a client begin, and waits until the library has made its offer and TCP tries. */
static pthread_t begin(struct client *c)
{
	struct tcp_info info = {0};
	socklen_t len = sizeof(info);
	int least = 4096; /* a small window takes no letter: the supervisor is asked */
	pthread_t t;

	c->fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &least, sizeof(least)) == 0);
	CHECK(pthread_create(&t, NULL, connects, c) == 0);
	while (info.tcpi_state != TCP_SYN_SENT) {
		usleep(1000);
		CHECK(getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
	}
	return t;
}

/* full is a listener whose queue is full, and the connection that is in it. */
static int full(struct sockaddr_in *a, int *first)
{
	int l = server(a);

	CHECK(listen(l, 0) == 0);
	*first = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(system_call(SYS_connect, *first, (long)a, sizeof(*a), 0) == 0);
	return l;
}

/* connected: TCP has connected, and the socket cannot be shown to the supervisor, which was asked before. */
static void connected(void)
{
	struct client c;
	int first, pair[2], l = full(&c.to, &first), s;
	pthread_t t = begin(&c);

	crowd(pair);
	CHECK(close(accept(l, NULL, NULL)) == 0);
	s = accept(l, NULL, NULL);
	CHECK(s >= 0 && pthread_join(t, NULL) == 0);
	talk(c.fd, s);
}

/* handed: bytes are in a ring that the program is about to read by a stream. */
static void handed(void)
{
	char b[3000], got[sizeof(b)];
	int c, s, pair[2];
	pthread_t t;
	FILE *f;

	both_ends(&c, &s);
	for (int i = 0; i < 200; i++)
		talk(c, s);
	if (getenv("RINGS"))
		CHECK(mapped_rings() > 0);
	memset(b, 7, sizeof(b));
	CHECK(write(c, b, sizeof(b)) == sizeof(b));
	crowd(pair);
	CHECK(pthread_create(&t, NULL, disperse, pair) == 0);
	f = fdopen(s, "r+");
	CHECK(f && fread(got, 1, sizeof(got), f) == sizeof(got) && memcmp(b, got, sizeof(b)) == 0);
	CHECK(write(c, "on", 2) == 2 && fread(got, 1, 2, f) == 2);
}

/* bound makes two sockets with ports whose connections have a letterbox in common. */
static void bound(int fds[2])
{
	struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	for (int port = 20001, is = 0; is < 2; port += 2) {
		is = 0;
		for (int i = 0; i < 2; i++) {
			from.sin_port = htons(port + 32 * i);
			fds[i] = socket(AF_INET, SOCK_STREAM, 0);
			is += bind(fds[i], (struct sockaddr *)&from, sizeof(from)) == 0;
		}
		for (int i = 0; is < 2 && i < 2; i++)
			close(fds[i]);
	}
}

/*
 * returned: a server finds an end in the letterbox that is another connection's, and gives it to the supervisor. The program says when it is about to connect, and when it has
 * accepted.
 */
static void returned(void)
{
	struct sockaddr_in one, other;
	int pair[2], fds[2], l = server(&one), k = server(&other), s, s2;
	char line[16];
	pthread_t after;

	printf("ready\n");
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), stdin));
	bound(fds);
	CHECK(connect(fds[0], (struct sockaddr *)&one, sizeof(one)) == 0 && connect(fds[1], (struct sockaddr *)&other, sizeof(other)) == 0);
	crowd(pair);
	CHECK(pthread_create(&after, NULL, disperse, pair) == 0);
	s2 = accept(k, NULL, NULL);
	CHECK(s2 >= 0 && pthread_join(after, NULL) == 0);
	printf("accepted\n");
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), stdin));
	talk(fds[1], s2);
	s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	talk(fds[0], s);
}

int main(int argc, char **argv)
{
	CHECK(argc > 1);
	alarm(PATIENCE / 1000);
	unprivileged();
	if (strcmp(argv[1], "connected") == 0)
		connected();
	else if (strcmp(argv[1], "handed") == 0)
		handed();
	else
		returned();
	return 0;
}
