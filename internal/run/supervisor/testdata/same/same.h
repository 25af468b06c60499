/* Declarations that the parts of the program share. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
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
#include <unistd.h>

#define CHECK(what)                                                                            \
	do {                                                                                   \
		if (!(what)) {                                                                 \
			fprintf(stderr, "%s:%d: %s (errno %s)\n", __FILE__, __LINE__, #what, strerror(errno)); \
			_exit(1);                                                              \
		}                                                                              \
	} while (0)

#define CONNECTIONS 4
#define SETS 3
#define MOST (40 << 10) /* bytes on their way in one direction: less than any buffer holds */
#define PORTS 300	/* descriptors from there on are ours to choose */
#define SHOWN (POLLIN | POLLOUT | POLLRDHUP | POLLPRI | POLLNVAL)

struct side {
	int fd;		/* -1: closed */
	long sent, got; /* bytes */
	bool ended;	/* it sends no more */
	bool reset;	/* the peer has closed with bytes unread, or has answered a send with a reset */
	bool copied;	/* it was dup'ed: a send after the end of the peer is another thing */
};

/* State that forked processes share: a step of one of them is done for all. */
struct world {
	uint64_t random;
	struct side sides[CONNECTIONS][2];
	int sets[SETS];
	bool edge[SETS][CONNECTIONS][2]; /* it is registered for edges, and bytes have come after it was empty */
	bool edges[SETS][CONNECTIONS][2];
	int step;
};

extern struct world *w;
extern int l; /* the listener that all connect to */
extern struct sockaddr_in where;
extern char bytes[1 << 17];

/* sides.c */
unsigned pick(unsigned n);
void say(const char *format, ...);
const char *error_of(long r);
long fill(int i, int k, long at, long n);
bool right(const char *b, int i, int k, long at, long n);
long waiting(int i, int k); /* to be read at side k */
void came(int i, int k);    /* bytes, or an end, at side k */
void make(int i);
void drain(int i, int k);
void give_up(int i, int k);
void anew(int i);

/* move.c */
void do_send(int i, int k);
void do_corked(int i, int k);
void do_receive(int i, int k);

/* ask.c */
void do_poll(void);
void do_select(int i, int k);
void do_ask(int i, int k);
void do_shutdown(int i, int k);

/* copy.c */
void do_copy(int i, int k);
void do_register(int i, int k);
void do_wait(int e);
void do_set(int e);

/* main.c */
void step(int most);
