/* The declarations that the parts of the player share. main.c has the scripts, actor.c the order of their steps, the others the operations. */
#ifndef PLAYER_H
#define PLAYER_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
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
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                            \
	do {                                                                                   \
		if (!(what)) {                                                                 \
			fprintf(stderr, "%s:%d: %s (errno %s)\n", __FILE__, __LINE__, #what, strerrorname_np(errno)); \
			_exit(1);                                                              \
		}                                                                              \
	} while (0)

#define ACTORS 4  /* processes of a script */
#define THREADS 3 /* of each */
#define STEPS 400
#define SLOTS 24 /* names of descriptors in a process: s0 to s19, e0 to e3 */
#define CONNECTIONS 64
#define LISTENERS 8
#define SIGNALS 3
#define URGENT 8 /* positions of urgent bytes that are kept for a direction */
#define STUCK(msec) ((msec) * 2 / 3) /* of the milliseconds that a script may take: after which a loop of its own gives up */
#define PATH_FD 900 /* descriptors of the player are from there on, so that the script's are as low as in any program */

/* A descriptor as a script names it. */
struct slot {
	int fd;	  /* -1: none */
	int conn; /* index of the connection; -1: none */
	int side; /* 0: the client */
};

struct connection {
	uint32_t port; /* of the client */
	int64_t sent[2], got[2]; /* bytes, by side */
	int64_t urgent[2][URGENT];
	int urgents[2];
	bool accepted, moved[2]; /* it has an end, by side, that is no TCP socket */
};

enum state { STATE_NOT, STATE_STARTED, STATE_DONE };

struct step {
	char kind; /* ' ': the next step comes when this one is done; '~': when it is done or sleeps; '&': when it has started */
	int actor, thread;
	uint32_t state;
	int tid; /* while started */
	char text[200];
	char result[400];
};

/* The memory that all processes of a script share. It is the only way in which they talk, so the library has no part in it. */
struct world {
	uint32_t steps, ready, now, over;
	uint32_t wake[ACTORS][THREADS];
	int pid[ACTORS]; /* 0: there is none */
	int dead[ACTORS];
	int tid[ACTORS][THREADS];
	uint32_t signals[ACTORS][SIGNALS];
	int band[ACTORS][SIGNALS];
	struct slot slots[ACTORS][SLOTS];
	uint32_t ports[LISTENERS];
	bool six[LISTENERS];
	uint32_t connections;
	struct connection connection[CONNECTIONS];
	int passes[ACTORS][2]; /* a pair of Unix sockets: for descriptors sent to an actor */
	int bare; /* this is TCP, whose bytes are waited for */
	int stuck; /* milliseconds after which a loop gives up */
	struct step step[STEPS];
};

extern struct world *w;
extern __thread struct step *self; /* the step that this thread carries out */
extern __thread int me, my_thread;
extern const char *program;

/* main.c */
long futex(uint32_t *word, int op, uint32_t value, int msec);
uint64_t msec_now(void);

/* actor.c */
void act(int actor, int thread, unsigned from);
bool sleeps(int pid, int tid);
void settle(int fd);
long direct(long nr, long a, long b, long c, long d, long e);

/* ops.c */
struct args {
	int n;
	char *v[16];
};
void carry_out(char *text);
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void say_result(long r);
struct slot *slot_of(const char *name);
int fd_of(const char *name);
long number(const struct args *a, int i, long otherwise);
bool has(const struct args *a, const char *word);
int flags_of(const char *word);
void put(struct slot *s, int fd, int conn, int side);
void know(struct slot *s);
void say_events(unsigned events);
unsigned events_of(const char *word);

/* move.c */
char *buffer(void);
void bytes_make(void);
#define BUFFER (2u << 20)
void fill(const struct slot *s, char *b, long at, long n);
bool right(const struct slot *s, const char *b, long n, bool take);
long send_one(struct slot *s, const char *how, char *b, long n, int flags);
void op_send(const struct args *a);
void op_recv(const struct args *a);
void op_burst(const struct args *a);

/* loops.c */
bool await(int fd, short events, int msec);
void op_pump(const struct args *a);
void op_drain(const struct args *a);
void op_echo(const struct args *a);
void op_ping(const struct args *a);
void op_fill(const struct args *a);
void op_empty(const struct args *a);

/* waits.c */
void op_poll(const struct args *a);
void op_select(const struct args *a);
void op_epoll(const struct args *a);
void op_ctl(const struct args *a);
void op_ewait(const struct args *a);

/* copies.c */
void op_dup(const struct args *a);
void op_fork(const struct args *a);
void op_exec(const struct args *a);
void op_guard(const struct args *a);
void op_sendfd(const struct args *a);
void op_recvfd(const struct args *a);

#endif
