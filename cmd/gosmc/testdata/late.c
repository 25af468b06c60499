/*
 * Connections that are not there when connect returns, as packets take their time on the loopback interface: while a client gives its offer up
 * a server may take it.
 *
 *	late setup PROGRAM ...   has another processor receive packets of a new network namespace, and becomes PROGRAM
 *	late CLIENTS EACH        makes connections without waiting, and checks that both ends of each are of one mind
 *
 * It says how many connections were made, how many of them were not there at once, and how many were moved.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x)                                                                                              \
	do {                                                                                                  \
		if (!(x)) {                                                                                   \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #x, strerror(errno));       \
			_exit(1);                                                                             \
		}                                                                                             \
	} while (0)

#define SERVERS 2
#define MOST 64

static struct sockaddr_in to = {.sin_family = AF_INET};

static struct counts {
	int made, late, moved;
} *counts; /* of all processes */

static void setup(char **program)
{
	struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING | IFF_LOOPBACK};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	CHECK(ioctl(fd, SIOCSIFFLAGS, &lo) == 0);
	CHECK(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("sysfs", "/sys", "sysfs", 0, NULL) == 0);
	fd = open("/sys/class/net/lo/queues/rx-0/rps_cpus", O_WRONLY | O_CLOEXEC);
	CHECK(fd >= 0 && write(fd, "3\n", 2) == 2);
	execvp(program[0], program);
	CHECK(!"execvp");
}

/* moved asks the kernel, which knows what we are not to. */
static int moved(int fd)
{
	int domain = 0;
	socklen_t len = sizeof(domain);

	CHECK(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0);
	return domain != AF_INET;
}

static void serve(int listener)
{
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		uint32_t v;

		CHECK(fd >= 0 && read(fd, &v, sizeof(v)) == sizeof(v) && write(fd, &v, sizeof(v)) == sizeof(v) && close(fd) == 0);
	}
}

static void dial(uint32_t number)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	uint32_t heard = 0;
	int error = -1;
	socklen_t len = sizeof(error);

	CHECK(fd >= 0);
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
		CHECK(errno == EINPROGRESS);
		if (!moved(fd))
			__atomic_fetch_add(&counts->late, 1, __ATOMIC_RELAXED);
		CHECK(poll(&p, 1, 30000) == 1);
	}
	CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0);
	errno = error;
	CHECK(error == 0 && fcntl(fd, F_SETFL, 0) == 0);
	CHECK(write(fd, &number, sizeof(number)) == sizeof(number));
	CHECK(read(fd, &heard, sizeof(heard)) == sizeof(heard) && heard == number);
	__atomic_fetch_add(&counts->made, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&counts->moved, moved(fd), __ATOMIC_RELAXED);
	CHECK(close(fd) == 0);
}

int main(int argc, char **argv)
{
	socklen_t len = sizeof(to);
	int listener, clients, each, status, bad = 0;
	pid_t servers[SERVERS];

	if (argc > 2 && strcmp(argv[1], "setup") == 0)
		setup(argv + 2);
	CHECK(argc == 3);
	clients = atoi(argv[1]);
	each = atoi(argv[2]);
	counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(clients <= MOST && counts != MAP_FAILED && listener >= 0 && bind(listener, (struct sockaddr *)&to, len) == 0);
	CHECK(listen(listener, 2 * MOST) == 0 && getsockname(listener, (struct sockaddr *)&to, &len) == 0);
	for (int i = 0; i < SERVERS; i++) {
		servers[i] = fork();
		if (servers[i] == 0) {
			alarm(60);
			serve(listener);
		}
	}
	for (int i = 0; i < clients; i++) {
		if (fork() == 0) {
			alarm(60);
			for (int j = 0; j < each; j++)
				dial((uint32_t)(i << 16 | j));
			_exit(0);
		}
	}
	for (int i = 0; i < clients; i++) {
		wait(&status); /* a server ends only if something is wrong */
		bad |= status;
	}
	for (int i = 0; i < SERVERS; i++)
		kill(servers[i], SIGKILL);
	while (wait(NULL) > 0)
		;
	printf("%d %d %d\n", counts->made, counts->late, counts->moved);
	return bad != 0;
}
