/*
 * Programs that send much, and know nothing of gosmc: rings CASE [SEED]. TCP does all of it, too. With the
 * environment variable RINGS set to 1 the connections must have gone over to rings, with 0 they must not.
 */
#ifndef RINGS_H
#define RINGS_H

#include "../program.h"

#define LARGE 32768

/* A stream is the bytes of one direction: every byte says where it belongs. */
struct stream {
	unsigned long at, dir;
};

extern unsigned long seed;
extern char buf[1 << 20];
extern char *self; /* the path of this program */
extern struct stream ab, ba;	   /* as they are sent */
extern struct stream ab_in, ba_in; /* as they are received, where one process does both */

/* stream.c */
unsigned rnd(unsigned n);
void fill(const struct stream *s, unsigned n);
void look(const struct stream *s, long n);
void put(int fd, struct stream *s, unsigned long n, unsigned max);
void take(int fd, struct stream *s, unsigned long n, unsigned max);
void ended(int fd);
int on_rings(void);
void have(int rings);
void joined(int *a, int *b);
int both(int *fd);
void done(pid_t child);

/* flow.c */
void one_way(unsigned long n, unsigned send, unsigned receive, int flags);
void phases(int flags);
void duplex(void);
void test_poll(void);
void test_signal(void);
void test_peek(void);
void test_parts(void);

/* answers.c */
void test_files(void);
void test_files_nonblocking(void);
void test_answers(void);
void test_corked(void);
void test_cork_said(void);
void test_asked(void);

/* reuse.c */
void test_reuse(void);

/* heirs.c */
void test_dup(void);
void test_standard(void);
void test_standard_zero(void);
void test_fork(void);
void test_exec(void);
void heir(const char *number);
ssize_t pass(int over, int fd);
int passed(int over);
void test_passed(void);
void passed_heir(const char *number);
void test_others(void);
void test_spawned(void);
void test_stream(void);
void test_daemon(void);
void test_fortified(void);

/* handed.c */
void handed_heir(const char *from, const char *n);
void test_handed_fork(void);
void test_handed_exec(void);
void test_handed_spawn(void);
void test_handed_passed(void);
void test_handed_stream(void);
void test_handed_splice(void);
void test_handed_ended(void);
void test_handed_kept(void);
void test_unshared(void);

/* adopted.c */
void adopted_heir(const char *number);
void adopted_strangers(void);
void test_adopted_exec(void);
void test_adopted_spawn(void);
void test_adopted_chain(void);
void test_adopted_passed(void);
void test_adopted_strangers(void);
void test_adopted_filtered(void);

/* gone.c */
void test_killed(void);
void test_gone(void);
void test_unread(void);
void test_after_close(void);
void test_told(void);
void test_copy_after(void);
void test_shut_elsewhere(void);

/* turns.c */
void test_turns(void);
void test_readers(void);
void test_threads(void);

/* nothing.c */
void test_nothing(void);
void test_no_messages(void);

/* waits.c */
void test_counted(void);
void test_peekers(void);
void test_limit(void);
void test_nowait(void);

/* limits.c */
void test_starved(void);
void test_small_files(void);
void test_reserved(void);
void test_scribble(void);
void test_flood(void);
void test_cork(void);

#endif
