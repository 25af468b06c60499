/*
 * The library that 'gosmc run' puts into a program. It gives the descriptors of TCP connections
 * within this machine to one end of a Unix socket pair, and sees to it that they go on looking like
 * TCP. docs/run.md lists the wrapped functions, with the reasons; internal/run is the other side of
 * the messages.
 *
 * Rules of every file here: no memory from malloc, no thread, no signal handler, no descriptor that
 * stays open, no lock that a fork could leave held. If a step cannot be done, TCP stays as it is.
 */
#ifndef GOSMC_PRELOAD_H
#define GOSMC_PRELOAD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <termios.h>

#include "sys.h"

#define EXPORT __attribute__((visibility("default")))

/*
 * plausible says whether memory may be where a pointer of the program's points: none is in the first and in
 * the last page.
 */
static inline bool plausible(const void *p)
{
	return (uintptr_t)p + 4096 >= 2 * 4096;
}

/* An end of a TCP connection as both address families have it: IPv4 is mapped. */
struct address {
	uint8_t ip[16];
	uint16_t port; /* in host order */
};

/* The TCP socket that a descriptor pretends to be. */
struct identity {
	struct address local;
	struct address peer;
	bool ipv6;   /* the program sees AF_INET6 */
	bool server; /* it has accepted; only identity_of says so */
};

/* identity.c */
const char *get_hex(const char *p, uint8_t *b, size_t n);
#define IDENTITY_NAME 105 /* the length of a name */
bool identity_name(int fd, bool peer, struct sockaddr_un *sun);
bool identity_of(int fd, struct identity *id);
void identity_ring(int fd, char out[static 64]);
bool identity_bind(int fd, const struct identity *id, uint64_t unique);
bool identity_rename(int fd, const struct identity *id, uint64_t unique);
bool identity_family(int fd, const struct identity *id);
bool address_parse(const struct sockaddr *sa, socklen_t len, struct address *a);
socklen_t address_format(const struct address *a, bool ipv6, struct sockaddr_storage *out);
bool address_of(int fd, bool peer, struct address *a, bool *ipv6);
bool address_is_any(const struct address *a);
bool address_is_loopback(const struct address *a);
bool address_equal(const struct address *a, const struct address *b);

/* Messages to the supervisor: docs/shared-memory.md, section 9. */
enum kind {
	KIND_ANNOUNCE = 1,
	KIND_OFFER = 2,
	KIND_CONNECTED = 3,
	KIND_CANCEL = 4,
	KIND_CLAIM = 5,
	KIND_BOARD = 6,
	KIND_RETURN = 7,
	KIND_TAKEN = 8,
	KIND_RELAY = 9,
	KIND_REACH = 16,
	KIND_MEET = 17,
	KIND_CARRY = 18,
	KIND_CARRIED = 19,
};

enum status {
	STATUS_OK = 0,
	STATUS_NO = 1,	    /* stay with TCP */
	STATUS_CLAIMED = 2, /* Cancel came too late: the server has the other end */
	STATUS_LOST = 100,  /* there was no answer */
};

#define MESSAGE_VERSION 1
#define FLAG_IPV6 1u
#define FLAG_SPEAKS 4u /* of KIND_CARRIED: the client has said that it begins with CLC */
#define FLAG_RINGS 2u /* of KIND_REACH and KIND_MEET: the memory of rings may come with the end */

struct message {
	uint8_t kind;
	uint8_t version;
	uint16_t length;
	uint32_t flags;
	uint64_t netns;
	uint8_t local[16];
	uint8_t peer[16];
	uint16_t local_port;
	uint16_t peer_port;
	uint32_t reserved;
	uint64_t unique;
};
_Static_assert(sizeof(struct message) == 64, "struct message");

struct reply {
	uint8_t kind;
	uint8_t version;
	uint16_t length;
	uint32_t status;
	uint64_t reserved;
};
_Static_assert(sizeof(struct reply) == 16, "struct reply");

/* The first bytes of the board, a page of our supervisor. */
#define LETTERBOXES 16

struct board {
	/*
	 * offers that were asked about. While there are none, and the connection is not marked, accept need not
	 * ask
	 */
	uint32_t waiting;
	uint32_t pid;	  /* of the supervisor, in its namespace; the rest are its descriptors */
	uint32_t notes;
	uint32_t reserved;
	struct {
		uint32_t fd;
		uint32_t reserved;
		uint64_t cookie; /* of the socket */
	} boxes[LETTERBOXES];
};
_Static_assert(sizeof(struct board) == 16 + 16 * LETTERBOXES, "struct board");

/* supervisor.c */
int supervisor_open(const char *path);
int supervisor_open_own(void);
int64_t supervisor_clock(void);
void supervisor_asked(int64_t begin);
bool supervisor_slow(void);
size_t supervisors_dir(char dir[static 108]);
bool supervisor_send(int sock, struct message *m, int fd);
enum status supervisor_receive(int sock, enum kind kind, int *fd);
enum status supervisor_receive_two(int sock, enum kind kind, int *fd, int *second);
void supervisor_parts(int sock);
void message_fill(struct message *m, enum kind kind, const struct identity *id);
bool message_send(int sock, struct sockaddr_un *to, struct message *m, const int *fds, size_t n, int flags);
bool message_insist(int sock, struct message *m, const int *fds, size_t n);
const struct board *board_of_ours(void);
bool board_waiting(void);

/* hidden.c */
struct hidden {
	uint64_t cookies[2]; /* of the ends; 0: none */
};
uint64_t hidden_pair(int pair[2], struct hidden *before);
uint64_t hidden_socket(int *end, struct hidden *before);
uint64_t hidden_came(int (*come)(void *), void *from, int *end, struct hidden *before);
void hidden_end(const struct hidden *before);
void hidden_close(int fd);
void hidden_forking(void);
void hidden_forked(void);
void hidden_drop(void);

/* letters.c */
bool letter_possible(const char *path, const struct identity *id);
bool letter_send(
	const char *path, const struct identity *id, struct message *m, int end, int fd, int *maxseg);
void letter_unmark(int fd, int maxseg);
bool letter_withdraw(int fd);
bool letter_marked(int fd);
bool letter_near(const struct identity *id);
int letter_claim(const struct identity *id, int fd, bool *asks, int *tcp);

/* reach.c */
bool reach_ask(int fd);
void reach_withdraw(int fd);
bool reach_paired(int fd);
void reach_listen(int fd);
bool reach_possible(const struct address *to);
void reach_refused(const struct address *to);

/* hosts.c */
enum hosts_state {
	HOSTS_TCP, /* it is, or stays, what it is */
	HOSTS_CONNECTING, /* not connected yet */
	HOSTS_FRESH, /* connected just now, and nothing has gone over it */
	/* nothing has gone over it either, and it stays what it is; the server waits for CLC, or has */
	HOSTS_STALE,
};

void hosts_read(const char *v);
bool hosts_some(void);
bool hosts_peer(const struct address *remote, uint16_t port);
bool hosts_ask(int fd);
void hosts_withdraw(int fd);
bool hosts_both(int fd);
void hosts_stays(int fd);
enum hosts_state hosts_state(int fd);
void hosts_decline(int fd);
void hosts_hold(bool on);
bool hosts_held(void);

/* start.c: the settings of the environment, which are read once. */
struct settings {
	bool on;
	char socket[108]; /* of our supervisor */
	size_t dir;	  /* how much of it is the directory, with the last slash */
	/*
	 * how much is before the number of the user whose part of a shared run directory that is; 0: it is none
	 */
	size_t part;
	bool letters;	  /* the directory of supervisors is ours alone: its contents can be believed */
	bool rings;	  /* unless GOSMC_RUN_RINGS says no */
	uint64_t ring_after; /* bytes in-band before a ring joins: GOSMC_RING_AFTER */
	/*
	 * the same where many bytes are the only reason for one: GOSMC_RUN_RING_AFTER, without GOSMC_RING_AFTER
	 */
	uint64_t bulk_after;
	/* bytes of the rings of a process, at most; 0: no bound. GOSMC_MEMORY, GOSMC_RUN_MEMORY */
	uint64_t memory;
	/*
	 * short connections to a server, one after another, after which others stay TCP; 0: never.
	 * GOSMC_SHORT_AFTER, GOSMC_RUN_SHORT_AFTER
	 */
	uint32_t short_after;
	int queue;	     /* bytes that a socket may hold, as SO_SNDBUF has them */
	uid_t uid;	  /* of the program when it was started; it may be another one now */
};
extern struct settings settings;
uint64_t netns_of(int fd);

/* adopt.c */
void adopt_all(void);

/* policy.c */
void policy_read(void);
bool policy_listen(const struct address *local);
bool policy_connect(const struct address *server);
bool policy_machine(const struct address *server, bool by_default);
bool policy_disabled(const char *v);

/* resets.c */
void resets_open(void);
void reset_mark(int fd, bool on);

/* bare.c */
void bare_open(int fd, uint16_t port);
void bare_count(int listener, int fd, const struct address *peer);

/* tally.c */
void tally_listens(void);
void tally_lent(int fd, int n);
void tally_forking(void);
void tally_not_forked(void);
void tally_forked(void);

/* tables.c */
uint32_t coarse_ms(void);

/* admission.c */
bool admission_known(const struct address *server);
void admission_absent(const struct address *server);
bool admission_ask(const char *path, const struct address *server, uint64_t netns, bool far, uint32_t *entry);

/* unseen.c */
#define REGISTERED 8 /* registrations of one descriptor; more are lost with connect to no address */

/* A registration of a descriptor with epoll. */
struct registered {
	int epfd;
	struct epoll_event event;
};

void unseen_closed(int fd);
bool unseen_registration(int fd);
size_t unseen_all(int fd, struct registered *list, size_t most);

/* births.c */
bool birth_may_swap(int fd);
bool birth_place(int fd);
bool birth_told(int fd);
void birth_begins(int fd, bool begins);
bool birth_begun(int fd);
bool birth_registration(int fd, int *epfd, struct epoll_event *event);
void birth(int fd, bool tcp, uint32_t options);
void birth_registered(int fd, const struct registered *list, size_t n);
void birth_never(int fd);
void birth_listens(int fd, bool looks);
void birth_stays(int fd, bool stays);
bool birth_is_tcp(int fd);
void birth_hurries(int fd);
void birth_option(int fd, uint32_t options, bool on);
bool birth_on(int fd, uint32_t which, uint32_t *on);
void birth_on_is(int fd, uint32_t on);
uint32_t birth_options(int fd);
bool birth_accepts(int fd);
uint32_t births_generation(void);
pid_t births_process(void);
long births_clone(long n, const long a[6]);
uint64_t cookie_of(int fd);

/* look.c */
struct luck;
void look_before(int fd, struct luck *luck);
void look_accept(int fd);

/* ends.c, ring.c, shake.c */
void end_born(int fd, uint64_t cookie, bool waits);
void end_waits(int fd, bool waits);
void end_limited(int fd);
void end_connecting(int fd, bool has);
void end_pending(int fd);
bool end_settling(int fd);
void end_untaken(int fd);
bool end_declining(int fd);
void end_carried(int fd);
void end_admitted(int fd, uint32_t entry);
void end_gift(int fd, int memfd, bool server);
void end_drop(int fd);
void end_shared(int fd);
bool end_dup(int fd, int to);
bool end_leave(int fd);
void end_to_standard(int fd, int to);
bool end_joined(int fd);
bool end_foreign(void);
void end_replaced(int fd, uint64_t cookie, bool waits);
void hand_may_wait(bool may);
bool ends_leave_all(void);
int ends_top(void);
void ring_forking(void);
void ring_not_forked(void);
void ring_forked(void);

/* holders.c */
void holders_forking(void);
void holders_not_forked(void);
void holders_forked(void);
void shake_start(const char *v);

/* epoll.c */
#define EPOLL_SETS 1024 /* descriptors of epoll instances from there on are libc's */
long epoll_control(int epfd, int op, int fd, struct epoll_event *event);
void epoll_shared(int fd);
void epoll_closed(int fd);
void epoll_nudge(int fd);
void epoll_settle_all(void);
void epoll_plain_all(void);
void epoll_forget_all(void);
int epoll_next(int epfd);
void epoll_dup(int fd, int to);
bool epoll_has_all(int fd);

/* deferral.c */
int deferral_kept(int fd);
bool deferral_is_kept(int cpu);
void deferral_take(int fd);
void deferral_give(int fd);
bool deferral_set(int fd, const void *val, socklen_t len, long *result);

/* connect.c */
void connect_settle(int fd);
bool connect_announced(int fd, const struct address *server);
void signal_ready(int fd);

/* edges.c */
extern bool edges_used;
bool edges_are(uint32_t events);
void edges_registered(int epfd, int op, int fd, const struct epoll_event *event);
void edges_registered_as(int epfd, int fd, uint32_t events);
int edges_registration(int fd, struct epoll_event *event);
void edges_gone(int epfd, int fd);
void edges_nested(void);
void edges_signalled(int fd);
void end_low(int fd);
void edges_closed(int fd);
void edges_told(const struct epoll_event *events, int n);

/* busy.c */
void busy_registered(int epfd, int fd, const struct epoll_event *ev);

/* quiet.c */
void end_watched(int fd);
void quiet_over(int fd, bool told);
void quiet_over_all(void);
bool quiet_asked(const struct pollfd *p, nfds_t n);
int quiet_polled(struct pollfd *p, nfds_t n, int r);
uint32_t quiet_selects(int n, const fd_set *in);
int quiet_selected(uint32_t which, fd_set *in, int r);

/* urgent.c */
void urgent_polled(struct pollfd *p, nfds_t n);
int urgent_selected(int n, fd_set *in, const fd_set *except, int r);

/* options.c */
#define OPTIONS_ALL ~0u
#define OPTIONS_LATER (7u << 6) /* those that options_on returns */
void options_acknowledge(int fd, uint32_t which);
void owner_chosen(int fd);
void owner_copy(int from, int to, uint32_t which);
bool options_tell(int fd);
bool options_low(int fd);
long option_in(int fd, const void *val, socklen_t len, int *v);
void options_copy(int from, int to, uint32_t which);
uint32_t options_on(int fd, uint32_t which);
void options_later_on(int fd, uint32_t on);
void options_return(int from, int to);
void options_settle(int fd);
void options_settle_all(void);

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

/* guard.c */
bool guard_on(void);
bool guard_knows(int fd);
bool guard_end(int fd);
bool guard_may(int fd);
void guard_came(int fd);
void guard_copy(int fd, int to);
void guard_drop(int fd);
long guard_seccomp(const long a[6]);
long guard_prctl(const long a[6]);

/* next.c: the functions that we stand before; system calls until start.c has run. */
struct next {
	int (*accept)(int, struct sockaddr *, socklen_t *);
	int (*accept4)(int, struct sockaddr *, socklen_t *, int);
	int (*connect)(int, const struct sockaddr *, socklen_t);
	ssize_t (*read)(int, void *, size_t);
	ssize_t (*write)(int, const void *, size_t);
	ssize_t (*readv)(int, const struct iovec *, int);
	ssize_t (*writev)(int, const struct iovec *, int);
	ssize_t (*preadv2)(int, const struct iovec *, int, off_t, int);
	ssize_t (*pwritev2)(int, const struct iovec *, int, off_t, int);
	ssize_t (*recv)(int, void *, size_t, int);
	ssize_t (*send)(int, const void *, size_t, int);
	int (*close)(int);
	int (*epoll_wait)(int, struct epoll_event *, int, int); /* these and the next are null until then */
	int (*epoll_pwait)(int, struct epoll_event *, int, int, const sigset_t *);
	int (*epoll_pwait2)(int, struct epoll_event *, int, const struct timespec *, const sigset_t *);
	int (*poll)(struct pollfd *, nfds_t, int);
	int (*ppoll)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);
	int (*select)(int, fd_set *, fd_set *, fd_set *, struct timeval *);
	int (*pselect)(int, fd_set *, fd_set *, fd_set *, const struct timespec *, const sigset_t *);
	void (*closefrom)(int);
	ssize_t (*sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
	ssize_t (*sendmsg)(int, const struct msghdr *, int);
	int (*sendmmsg)(int, struct mmsghdr *, unsigned int, int);
	ssize_t (*recvfrom)(int, void *, size_t, int, struct sockaddr *, socklen_t *);
	ssize_t (*recvmsg)(int, struct msghdr *, int);
	int (*recvmmsg)(int, struct mmsghdr *, unsigned int, int, struct timespec *);
	int (*vdprintf)(int, const char *, va_list);			   /* these too are null until then */
	int (*vdprintf_chk)(int, int, const char *, va_list);
	FILE *(*fdopen)(int, const char *);
	int (*system)(const char *);
	FILE *(*popen)(const char *, const char *);
	int (*posix_spawn)(pid_t *, const char *, const posix_spawn_file_actions_t *,
		const posix_spawnattr_t *, char *const *, char *const *);
	int (*posix_spawnp)(pid_t *, const char *, const posix_spawn_file_actions_t *,
		const posix_spawnattr_t *, char *const *, char *const *);
	int (*posix_spawn_file_actions_adddup2)(posix_spawn_file_actions_t *, int, int);
	int (*execvpe)(const char *, char *const *, char *const *);
	pid_t (*fork)(void);	   /* null until then */
	pid_t (*_Fork)(void);
	pid_t (*forkpty)(int *, char *, const struct termios *, const struct winsize *);
	int (*clone)(int (*)(void *), void *, int, void *, ...);
	int (*daemon)(int, int);
	int (*fcntl)(int, int, ...);   /* null until then */
	int (*fcntl64)(int, int, ...); /* null until then */
	/* these are null, too, where libc has them in another library that is not there */
	int (*pthread_key_create)(unsigned *, void (*)(void *));
	int (*pthread_setspecific)(unsigned, const void *);
};
extern struct next next;
void next_resolve(void);
void *next_find(const char *name);

#endif
