/*
 * A server, and a client whose connections are short or not. "serve": it says its port, and answers its clients. PORT KIND:COUNT...: it makes connections, one after
 * another, and prints a line for each kind, with a letter for each connection: m for one that was moved, t for TCP.
 *
 *	short	a request and its answer
 *	turns	100 of them
 *	polls	the same, where both ends wait in poll
 *	bulk	an answer of 1 MiB
 *	open	as short, and not closed: so it ends with the program
 *	fork	as short, and another process has it, which closes it first
 *	again	as short, with a connect that does not wait, and is called again to see how it went
 */
#include "program.h"

#define BULK (1 << 20)

static char bytes[BULK];

static void send_all(int fd, const char *p, size_t n)
{
	while (n) {
		ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);

		CHECK(sent > 0);
		p += sent;
		n -= (size_t)sent;
	}
}

/* wait_for waits for something to read, if reads do not wait. */
static void wait_for(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	if (fcntl(fd, F_GETFL) & O_NONBLOCK)
		CHECK(poll(&p, 1, -1) == 1);
}

static int serve(void)
{
	struct sockaddr_in a;
	int listener = server(&a), fd;
	char c;

	printf("%d\n", ntohs(a.sin_port));
	fflush(stdout);
	while ((fd = accept(listener, NULL, NULL)) >= 0) {
		for (; wait_for(fd), read(fd, &c, 1) == 1; send_all(fd, bytes, c == 'b' ? BULK : 1))
			if (c == 'p')
				CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
		close(fd);
	}
	return 1;
}

/* moved asks the kernel, which knows the kind of socket that we are not to know. */
static int moved(int fd)
{
	int domain = 0;
	socklen_t len = sizeof(domain);

	CHECK(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0);
	return domain != AF_INET;
}

static void ask(int fd, char what, size_t n)
{
	CHECK(write(fd, &what, 1) == 1);
	while (n) {
		ssize_t got;

		wait_for(fd);
		got = read(fd, bytes, n);
		CHECK(got > 0);
		n -= (size_t)got;
	}
}

/* connected_later connects as programs do that have other things to do meanwhile. */
static int connected_later(const struct sockaddr_in *to)
{
	struct pollfd p = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), .events = POLLOUT};

	CHECK(p.fd >= 0);
	if (connect(p.fd, (const struct sockaddr *)to, sizeof(*to)) != 0) {
		CHECK(errno == EINPROGRESS && poll(&p, 1, -1) == 1);
		CHECK(connect(p.fd, (const struct sockaddr *)to, sizeof(*to)) == 0 || errno == EISCONN);
	}
	return p.fd;
}

static void use(const struct sockaddr_in *to, const char *kind)
{
	int fd = strcmp(kind, "again") == 0 ? connected_later(to) : connected_to(to);

	putchar(moved(fd) ? 'm' : 't');
	if (strcmp(kind, "bulk") == 0)
		ask(fd, 'b', BULK);
	if (strcmp(kind, "polls") == 0)
		CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	for (int i = strcmp(kind, "turns") == 0 || strcmp(kind, "polls") == 0 ? 100 : 1; i; i--)
		ask(fd, *kind == 'p' ? 'p' : 't', 1);
	if (strcmp(kind, "fork") == 0) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (pid == 0) {
			close(fd);
			_exit(0);
		}
		CHECK(waitpid(pid, NULL, 0) == pid);
	}
	if (strcmp(kind, "open") != 0)
		CHECK(close(fd) == 0);
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	if (argc == 2 && strcmp(argv[1], "serve") == 0)
		return serve();
	CHECK(argc > 2);
	to.sin_port = htons((unsigned short)atoi(argv[1]));
	for (int i = 2; i < argc; i++) {
		char *kind = strdup(argv[i]), *count = strchr(kind, ':');

		CHECK(count);
		*count++ = 0;
		for (int n = atoi(count); n; n--)
			use(&to, kind);
		putchar('\n');
		free(kind);
	}
	return 0;
}
