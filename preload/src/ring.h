/*
 * A ring is memory that carries one direction of a connection. docs/shared-memory.md, section 10,
 * has the layout, the states and the rules. ring.c has the memory, send.c and receive.c the two
 * sides. ends.c has the descriptors that take part, life.c the events that make them leave, calls.c
 * the repair of a call that is left by longjmp.
 */
#ifndef GOSMC_RING_H
#define GOSMC_RING_H

#include "preload.h"

#include <limits.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#define RING_MAGIC 0x32306d7267736f67ull
#define RING_PAGE 4096
#define RING_BYTES (1u << 20)
#define RING_BYTES_ANSWERS (16u << 10) /* of a direction of small answers: the processor's cache keeps it */
#define RING_BYTES_LOOP                                                                                      \
	(128u << 10) /* of an event loop that asks for room: it is to find no less than with TCP's least     \
			buffer */
#define RING_BYTES_LEAST 4096u
#define RING_BYTES_MOST (16u << 20)
#define RING_BYTES_GIFT                                                                                      \
	(256u << 10) /* of a ring that both sides have from the beginning, and take none in its place:       \
			gift.c */
#define RINGS 4096 /* of one process */
#define RINGS_FEW 128 /* that may stay, small as they are, though nothing goes through them */
#define RINGS_BYTES (512ull << 20) /* of data in all of them, unless the policy says otherwise */

/* The memory that the two programs share, before the data. */
struct ring_header {
	uint64_t magic;
	uint32_t size; /* of the data: a power of two */
	uint8_t pad0[52];
	uint64_t pub; /* PUB_ below: written by the writer, and by a reader that arms or leaves */
	uint32_t processor; /* one more than the writer's when it last wrote, with PROCESSOR_MORE; 0: not known */
	uint8_t pad1[4];
	/* added to the number of a byte it has its place; the writer changes it while the ring is empty */
	uint64_t base;
	uint8_t pad2[40];
	uint64_t tail; /* bytes that the reader has taken; written by the reader */
	uint8_t pad3[56];
	uint32_t wanted; /* the writer waits for room */
	uint8_t pad4[60];
	uint32_t attached; /* enum attached */
	uint8_t pad5[60];
	uint32_t shut; /* the reader has shut receiving down: that is no end with bytes unread */
	uint8_t pad6[60];
	uint32_t here; /* the reader has the memory, of a ring that it has from the beginning */
};
_Static_assert(offsetof(struct ring_header, pub) == 64, "pub");
_Static_assert(offsetof(struct ring_header, base) == 80, "base");
_Static_assert(offsetof(struct ring_header, tail) == 128, "tail");
_Static_assert(offsetof(struct ring_header, wanted) == 192, "wanted");
_Static_assert(offsetof(struct ring_header, attached) == 256, "attached");
_Static_assert(offsetof(struct ring_header, shut) == 320, "shut");
_Static_assert(offsetof(struct ring_header, here) == 384, "here");

#define PUB_BITS 40
#define PUB_HEAD ((1ull << PUB_BITS) - 1)	  /* bytes that the writer has put there */
#define PUB_ARMED (1ull << 40)			  /* the next publication comes with a token */
#define PUB_COUNT_SHIFT 41
#define PUB_COUNT (0xffffull << PUB_COUNT_SHIFT)  /* tokens that were sent, or are about to be */
#define PUB_WRITER_LEFT (1ull << 57)		  /* bytes behind the head are in-band */
#define PUB_READER_LEFT (1ull << 58)		  /* the same; nothing can be published any more */
#define PUB_LEFT (PUB_WRITER_LEFT | PUB_READER_LEFT)
#define PUB_WITHDRAWN (1ull << 59)		  /* the writer has not switched, and will not */
#define PUB_LOOK_SHIFT 60
#define PUB_LOOK                                                                                             \
	(15ull << PUB_LOOK_SHIFT) /* the reader looks, and takes up to 2^(n-1) bytes without a token */

#define PROCESSOR_MORE                                                                                       \
	0x80000000u /* the writer has TCP_CORK set, and a file to send behind the bytes that are there */

enum attached {
	ATTACHED_NOT = 0,
	ATTACHED_YES = 1,
	ATTACHED_TOO_LATE = 2, /* the writer waits no more */
	ATTACHED_NO_MORE = 3,  /* the reader has changed its mind */
	ATTACHED_SWITCHED = 4, /* the second mark is on its way */
	ATTACHED_IDLE = 5, /* the reader has left, or is about to, as nothing came for long */
};

enum ring_state {
	RING_WAITING = 1, /* all bytes are in-band; the reader has the ring, or will get it */
	RING_JOINED = 2,  /* bytes are in the ring, the socket carries tokens */
	RING_ENDED = 3,	  /* bytes are in-band, and the ring is forgotten */
	RING_BROKEN = 4,  /* the other side has broken the rules: the connection is reset */
};

/* Room for one descriptor that comes with a message. */
struct control {
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	};
};

#define HOLDERS 8

/*
 * The memory that the processes of one side share: fork has made them out of one process. The other
 * side cannot see it.
 */
struct ring_side {
	uint32_t lock; /* thread ID, and LOCK_AWAITED */
	uint32_t state;
	uint64_t cursor; /* the head, or the tail */
	uint64_t tail;	 /* of the writer: bytes that the reader had taken when it was last asked */
	uint64_t looked; /* when it was last used; of the writer: when it was last seen that the peer is there */
	uint64_t given;	 /* of the writer: the head, when the pages were last given back */
	uint32_t sndbuf; /* before the switch */
	uint32_t small;	 /* since the ring was full for the first time: as the kernel counts. 0: not yet */
	uint32_t drained; /* how often the ring was */
	uint32_t luck;	  /* of the reader that looks again before it arms */
	uint32_t idle;	 /* sends that have waited for the reader to attach */
	uint32_t drains; /* times that the writer could have waited until all bytes in-band are read: gift.c */
	uint32_t looks;	  /* times that a blocking reader could have looked */
	uint32_t pays;	  /* of it: how much it has paid lately */
	uint32_t futile;  /* times it has waited since it last paid */
	uint32_t edges;	  /* EDGE_ below */
	/*
	 * the writer has waited for room: from then on more than one token keeps its socket from being writable
	 */
	uint32_t pressed;
	uint32_t forks;	  /* processes that are being made, and are not among the holders yet */
	uint32_t crowd;	  /* there are others of which nothing is known */
	int32_t holders[HOLDERS]; /* processes that have the end; 0: a place that is free */

	/*
	 * The kernel writes the results of system calls here, and each step is one store. So
	 * receive_mend and send_mend, which find the side in the middle of a call that longjmp has
	 * left, know how far it went.
	 */
	uint32_t taken;	 /* tokens; modulo 65536, like their count. Above: how many are asked for */
	uint32_t reads;	 /* enum reads: the kernel's result is in the message below */
	uint8_t tokens[64];
	struct msghdr coming;
	struct control control;
	uint32_t sent;	 /* tokens, modulo 65536. Above: how many it will have been */
	uint32_t held;	 /* one more than a descriptor that is to be closed */
	uint64_t head;	 /* about to be published */
	struct mmsghdr token, mark;
	struct iovec token_at;
};

enum reads {
	READS_NOT = 0,
	READS_TAKE = 1,
	READS_PEEK = 2,
};

/* A ring as this process has it. Slots are used again, and never go away. */
struct ring {
	uint32_t used;	/* 1: it is whole; 2: it is about to be taken away */
	uint32_t users; /* calls that are in it */
	uint32_t refs;	/* descriptors */
	uint32_t size;
	uint32_t busy; /* bytes may be there of which the kernel does not know: busy.c */
	uint32_t member; /* it is looked at, or was */
	int32_t epfd;	 /* by that instance; one that polls has none */
	/* both sides have it from the beginning: no mark tells where it begins, and it is not made again */
	bool gift;
	struct ring **where; /* of the descriptor for which it was made; others may have it, too */
	struct ring_header *h;
	uint8_t *data;
	struct ring_side *side;
};

/* glance.c: how looking has paid lately to a thread. */
struct luck {
	int32_t left;	 /* while it is above 0 all waits look */
	uint32_t waits;	 /* since the last look */
	uint32_t seldom; /* waits between looks otherwise; 0: none has looked */
};

/*
 * Turns of one call, in a row, in which the other side makes it look again for nothing. A peer that
 * keeps to the rules does that once or twice, and no more often than there are tokens behind a full
 * ring. A peer that goes on makes the call last as long as it likes, also a call that is not to
 * wait.
 */
#define VAIN 1000

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static inline uint64_t precise_now(void)
{
	struct timespec t = {0};

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ring.c */
struct ring *ring_make(int end, uint32_t size, bool asked, int *memfd);
struct ring *ring_take(int memfd);
unsigned ring_next(unsigned slot);
struct ring **ring_where(unsigned slot);
bool ring_many(void);
bool ring_room(void);
bool ring_pair(int memfd, struct ring *pair[2]);
bool ring_try(struct ring *r);
extern uint64_t ring_memory;
void ring_ref(struct ring *r);
void ring_unref(struct ring *r);
#define ring_enter(where, out) ring_enter_from(where, out, (uintptr_t)__builtin_frame_address(0))
#define ring_exit(r) ring_exit_from(r, (uintptr_t)__builtin_frame_address(0))
bool ring_enter_from(struct ring *const *where, struct ring **out, uintptr_t frame);
void ring_exit_from(struct ring *r, uintptr_t frame);
void ring_left(struct ring *r);
bool ring_lock(struct ring *r);
bool ring_locked(const struct ring *r);
void ring_unlock(struct ring *r);
void ring_broken(struct ring *r, int fd);
bool ring_alone(const struct ring *r);
uint32_t ring_thread(void);
extern const uint8_t *ring_guard;
uint64_t ring_now(void);

static inline uint64_t pub_load(const struct ring *r)
{
	return __atomic_load_n(&r->h->pub, __ATOMIC_SEQ_CST);
}

/*
 * ring_place is where the data have byte n. Both sides can change the base, so it is read once for each
 * copy.
 */
static inline size_t ring_place(const struct ring *r, uint64_t n)
{
	return (size_t)((n + __atomic_load_n(&r->h->base, __ATOMIC_RELAXED)) & (r->size - 1));
}

static inline bool pub_swap(struct ring *r, uint64_t *have, uint64_t want)
{
	return __atomic_compare_exchange_n(&r->h->pub, have, want, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static inline uint16_t pub_count(uint64_t pub)
{
	return (uint16_t)((pub & PUB_COUNT) >> PUB_COUNT_SHIFT);
}

static inline uint64_t pub_counted(uint64_t pub) /* with one token more */
{
	return (pub & ~PUB_COUNT) | ((pub + (1ull << PUB_COUNT_SHIFT)) & PUB_COUNT);
}

/* outstanding is how many tokens were counted that the reader has not taken. */
static inline uint16_t outstanding(const struct ring *r, uint64_t pub)
{
	return (uint16_t)(pub_count(pub) - r->side->taken);
}

/* used is how many bytes the reader has not taken. */
static inline size_t used(const struct ring *r, uint64_t pub)
{
	return (size_t)((pub - r->side->cursor) & PUB_HEAD);
}

/* A span is the bytes of a program that a call has not seen to yet. */
struct span {
	const struct iovec *iov;
	size_t count;
	size_t skip; /* of the first */
	size_t left;
};

#define SPAN_PARTS 64

static inline bool span_init(struct span *s, const struct iovec *iov, size_t count)
{
	*s = (struct span){iov, count, 0, 0};
	if (count > IOV_MAX || (count && !plausible(iov)))
		return false;
	for (size_t i = 0; i < count; i++) {
		if (iov[i].iov_len > (size_t)SSIZE_MAX - s->left)
			return false;
		s->left += iov[i].iov_len;
	}
	return true;
}

static inline void span_skip(struct span *s, size_t n)
{
	s->left -= n;
	s->skip += n;
	while (s->count && s->skip >= s->iov->iov_len) {
		s->skip -= s->iov->iov_len;
		s->iov++;
		s->count--;
	}
}

/*
 * span_parts fills in the parts that are left, as far as there is room for them. It leaves out
 * empty parts: for these alone the kernel would report the end of the stream.
 */
static inline size_t span_parts(const struct span *s, struct iovec *parts)
{
	size_t n = 0, skip = s->skip;

	for (size_t i = 0; i < s->count && n < SPAN_PARTS; i++, skip = 0)
		if (s->iov[i].iov_len > skip)
			parts[n++] = (struct iovec){(char *)s->iov[i].iov_base + skip, s->iov[i].iov_len - skip};
	return n;
}

/*
 * copy_bytes is memcpy, in pieces. From some 2,048 bytes on many a glibc copies with "rep movsb", which on
 * AMD's Zen 3 takes up to ten times as long as vector instructions do from memory that another processor has
 * just written.
 */
#define COPY_PIECE 1024

static inline void copy_bytes(char *to, const char *from, size_t n)
{
	while (n) {
		size_t piece = n < COPY_PIECE ? n : COPY_PIECE;

		__asm__("" : "+r"(piece)); /* a compiler that knows the bound writes "rep movsq" here */
		memcpy(to, from, piece);
		to += piece;
		from += piece;
		n -= piece;
	}
}

/* span_copy copies at most n bytes between a program and a piece of memory. */
static inline void span_copy(const struct span *from, void *memory, size_t n, bool into_memory)
{
	struct span s = *from;
	char *m = memory;

	while (n) {
		char *p = (char *)s.iov->iov_base + s.skip;
		size_t part = s.iov->iov_len - s.skip;

		if (part > n)
			part = n;
		if (part && into_memory)
			copy_bytes(m, p, part);
		else if (part)
			copy_bytes(p, m, part);
		m += part;
		n -= part;
		span_skip(&s, part);
	}
}

/* A look of a call that waits for many descriptors. */
struct glance {
	uint64_t begin, now;
	uint64_t signals;
	uintptr_t frame; /* of its stack */
	unsigned turns;
	bool traces; /* a handler of a signal that runs leaves a trace */
	bool off;    /* signals are */
};

/* glance.c */
void glance_begin(struct glance *g, uint64_t now);
bool glance_on(struct glance *g);
bool glance_over(struct glance *g, bool came);
bool luck_tries(struct luck *luck, uint32_t seldom);
void luck_paid(struct luck *luck, bool paid, uint32_t seldom);
void luck_again(struct luck *luck);

/* Descriptors that are ends of pairs, as far as this process knows: ends.c */
#define ENDS 65536
#define NEVER_OUT 1u
#define NEVER_IN 2u
#define GONE_SHUT 4u  /* this process has shut sending down */
#define GONE_RESET 8u /* TCP would have been reset by the peer */
#define GONE_LATER                                                                                           \
	32u /* the same, and the program is to be told: the call that the kernel has told had bytes to       \
	       return */
#define GONE_QUIET 64u /* this process has shut receiving down, and the kernel does not know: quiet.c */
#define ASKED_ROOM 16u /* this process has asked whether it can write */
#define LIMITED 128u /* receives have a time limit, or may have one */
#define URGENT 256u /* the peer has sent urgent data, as far as was seen */
#define GONE_LOST 512u /* a send was lost, as the peer had closed, and SO_ERROR is to say so */
_Static_assert((NEVER_OUT ^ NEVER_IN ^ GONE_SHUT ^ GONE_RESET ^ ASKED_ROOM ^ GONE_LATER ^ GONE_QUIET ^
		       LIMITED ^ URGENT ^ GONE_LOST) == 1023u,
	"each has a bit of its own");

struct end {
	uint64_t cookie; /* 0: none of ours */
	uint32_t generation;
	uint32_t never;
	/* gates: calls that are in the middle of it, also of the descriptor that had the number before */
	uint32_t sending, receiving;
	uint32_t streak;	     /* sends since the last receive */
	uint64_t sent;		     /* bytes, before there was a ring */
	uint64_t seen;		     /* when the descriptor was last found to be this */
	struct ring *out, *in;
	struct ring *gift_out, *gift_in; /* rings that there are, and that nobody uses yet */
	uint32_t cork; /* enum cork */
	uint32_t turns; /* sends that came after a receive */
	uint32_t turned; /* enum turned */
	uint32_t answers; /* small files sent, up to ANSWERS; ANSWERS_NO: the ring for them was too small */
	uint32_t waits;	 /* receives wait for something, as far as was seen */
	uint32_t connecting; /* the thread whose connect has this descriptor: it is a TCP socket still */
	uint32_t edges;	 /* EDGES_ below */
	uint32_t watched; /* an epoll instance has it */
	uint32_t on;	 /* options that the end has on, and the kernel's socket not yet: options.c */
	/*
	 * the serial of the only instance that has had it, or LOOP_POLLS and the only thread that has polled
	 * it. 0: none; LOOP_OTHERS: several, or select
	 */
	uint32_t loop;
	uint32_t held;	    /* one more than the place of its record: holders.c. 0: none */
	uint64_t asked;	    /* when the kernel was last asked about a process that has it, too */
	uint32_t admission; /* where it is to be noted whether it was short: admission.c. 0: nowhere, or it is */
	uint32_t copied; /* this process may have other descriptors with the same tally */
	struct tally *tally; /* where its bytes are counted; NULL: nowhere */
};

#define TALLY_HOLDERS 3

/* The bytes of an end: tally.c. The supervisor reads them. */
struct tally {
	uint64_t key; /* cookie of the end's socket; 0: the slot is free */
	uint64_t in_band[2]; /* received and sent */
	uint64_t ring[2]; /* the same; written with the lock of the side */
	int32_t lent; /* descriptors of the end that programs may have which count nothing */
	/* processes that are being made, and are not among the holders yet; TALLY_CROWD: some never will be */
	uint32_t forks;
	uint32_t namespace; /* of the process IDs below; 0: they say nothing */
	int32_t holders[TALLY_HOLDERS]; /* processes that have the end; 0: a place that is free */
};

#define LOOP_POLLS 0x80000000u /* above all serials; below: a thread ID */
#define LOOP_OTHERS ~0u

/* Of a ring. */
#define EDGE_ALWAYS 1u /* each read that leaves bytes arms it */
#define EDGE_DUE 2u    /* the next one does: it was full when the program was told */

/* Of a descriptor: edges.c */
#define EDGES_TOLD                                                                                           \
	1u /* registered for edges: epoll_wait of this process arms its ring when it tells of an event */
#define EDGES_ALWAYS                                                                                         \
	2u /* others, which we do not see, are told, too: each read that leaves bytes arms the ring */

/* Whether a direction is to have a ring because its programs take turns, and wait for each other. */
enum turned {
	TURNED_NOT = 0,
	TURNED_YES = 1,
	TURNED_TRIED = 2,
	TURNED_LOOP = 3, /* yes, and an event loop waits */
};

/*
 * TCP_CORK as a program sets it with every answer. While nobody else can ask for it, only this table has
 * it.
 */
enum cork {
	CORK_KERNEL = 0, /* the socket's priority has it: options.c */
	CORK_OFF = 1,
	CORK_ON = 2,
	CORK_FILE = 3, /* on, and the file that it was set for was sent */
};

struct end *end_at(int fd);
void end_adopt(int fd);
int end_of(struct ring *const *where, bool *out);
bool ends_tally(const struct tally *a);
void ends_tallies(void (*each)(struct tally *a));
bool end_is(int fd, const struct end *e);
bool end_still(int fd, struct end *e);
bool end_own(const struct end *e);
bool end_alone(const struct end *e);
uint32_t end_held(int fd);
void ends_candidates(void (*what)(struct end *e));

/* holders.c */
void holders_forget(struct end *e);
void holders_share(struct end *e);
void holders_leave(struct end *e);
bool holders_alone(struct end *e);

#define GATE_CLOSED 0x80000000u
#define gate_enter(gate) gate_enter_from(gate, (uintptr_t)__builtin_frame_address(0))
#define gate_exit(gate) gate_exit_from(gate, (uintptr_t)__builtin_frame_address(0))
bool gate_enter_from(uint32_t *gate, uintptr_t frame);
void gate_exit_from(uint32_t *gate, uintptr_t frame);
bool gate_close(uint32_t *gate);
void gate_open(uint32_t *gate);
void end_forget(struct ring **where, struct ring *r);
bool end_leaves(const struct end *e, int fd, struct ring **where, void (*leaves)(struct ring *r, int fd));
bool would_wait(int fd, int flags);

#define ANSWERS 64 /* small files, after which a small ring is tried */
#define STREAK 16 /* sends without a receive, after which a ring is worth it */
#define NOT_OURS (-2) /* the descriptor is something else by now */

/* tally.c */
void tally_born(struct end *e, bool from);
void tally_copied(struct end *from, struct end *to);
void tally_over(struct end *e);
void tally_moved(struct end *e, uint64_t was);

/* tally_in_band counts the result of a call that has moved bytes in-band; e may be NULL. */
static inline void tally_in_band(const struct end *e, bool out, long n)
{
	struct tally *a = e && n > 0 ? __atomic_load_n(&e->tally, __ATOMIC_RELAXED) : NULL;

	if (a)
		__atomic_fetch_add(&a->in_band[out], (uint64_t)n, __ATOMIC_RELAXED);
}

/* tally_urgent counts the result of a receive of urgent data, which the kernel does alone. */
static inline void tally_urgent(const struct end *e, int flags, long n)
{
	if ((flags & (MSG_OOB | MSG_PEEK)) == MSG_OOB)
		tally_in_band(e, false, n);
}

/*
 * tally_ring counts bytes with the lock of a side: so nobody else counts those of the same direction
 * meanwhile.
 */
static inline void tally_ring(const struct end *e, bool out, size_t n)
{
	struct tally *a = __atomic_load_n(&e->tally, __ATOMIC_RELAXED);

	if (a && n)
		__atomic_store_n(&a->ring[out], __atomic_load_n(&a->ring[out], __ATOMIC_RELAXED) + n,
			__ATOMIC_RELAXED);
}

/* admission.c */
void admission_grown(struct end *e);
void admission_ended(struct end *e);
void admission_over(void);

/* adopt.c */
void adopt_mark(int fd);
void adopt_sent(struct msghdr *m);

/* options.c: the GONE_ state of a connection, for all processes that have the end */
uint32_t options_gone(int fd);
bool options_later(int fd);
void options_keep_gone(int fd, uint32_t gone);
void options_copy_kept(int from, int to);

/* life.c */
void end_in_band(int fd);

/* hand.c */
#define HAND_MOST                                                                                            \
	(64u << 20) /* bytes in a ring, and in a socket in front of it: the supervisor takes no more */
bool hand_over(struct end *e, int fd);

/* uring.c */
bool uring_seen(void);
void uring_settle(void);
long uring_begins(void);
void uring_registers(unsigned op, const void *arg, unsigned n);

/* switch.c */
bool worth(const struct end *e, size_t n);
bool offer(struct end *e, int fd, const struct span *s);
bool join(struct ring *r, int fd, const struct span *s);
void joined(struct ring *r);

/* gift.c */
bool gift_offer(struct end *e, int fd, size_t n);
bool gift_join(struct ring *r, int fd);
void gift_drop(struct end *e);
bool gift_here(struct end *e);
bool gift_offered(struct end *e);
struct ring *gift_take(struct end *e);
long gift_receive(struct ring *r, int fd, struct iovec *parts, size_t n, bool peek, bool *switched);
void let_go(struct ring *r);
#define UNREAD_UNKNOWN (1u << 31)
uint32_t unread(int fd); /* send.c */
uint32_t sndbuf(int fd);

/* inband.c */
struct msghdr with_control(struct iovec *parts, size_t n, struct control *c);
int came(const struct msghdr *m);
bool is_mark(const struct msghdr *m);
size_t peek_on(int fd, struct span *s, size_t behind);
ssize_t receive_in_band(struct end *e, int fd, struct span *s, int flags, int *out, bool *marked);
ssize_t receive_whole(struct end *e, int fd, struct span *s, int flags, int *out, bool *marked);

/* send.c, receive.c */
ssize_t end_send(struct end *e, int fd, const struct iovec *iov, size_t count, int flags);
ssize_t end_receive(struct end *e, int fd, const struct iovec *iov, size_t count, int flags, int *out);
ssize_t end_read(struct end *e, int fd, const struct iovec *iov, size_t count, int flags);
ssize_t receive_all(struct end *e, int fd, struct span s, int flags, int *out);
bool leave_out(struct end *e, int fd);
bool leave_in(struct end *e, int fd);
void receive_shut(struct end *e, bool both);
bool receive_hand(struct ring *r, int fd, int rest, uint16_t *tokens, uint64_t *length);
bool send_waiting(struct end *e, size_t *n);
bool send_has_room(const struct end *e);
bool send_unread(const struct end *e);
void send_asked(struct end *e, int fd);
void send_tells_room(int fd);
void send_answers(struct end *e);
void receive_tidy(struct end *e, int fd);
void receive_mend(struct ring *r, int fd);
void receive_arm(struct ring *r, int fd);
void receive_no_more(struct ring *r);
void send_mend(struct ring *r, int fd);

bool receive_idle(struct ring *r, int fd, bool many);
bool send_idle(struct end *e, struct ring *r, int fd);

/* Which handlers of signals end a call that waits. */
enum ending {
	ENDING_NOT,  /* nobody asks */
	ENDING_SOME, /* without SA_RESTART: a receive */
	ENDING_ALL,  /* poll, and calls like it */
};

/* idle.c */
#define IDLE_NSEC 1000000000ull /* after which a ring gives its memory back */
#define IDLE_MSEC 1000
#define IDLE_BYTES (64u << 10) /* that have gone through it, at least */
extern uint32_t idle_due;
void idle_tick(uint64_t now);
void idle_sweep(void);
bool idle_again(enum ending ending);
bool idle_msec(int *timeout);
bool idle_spec(const struct timespec **timeout, struct timespec *rest);
bool idle_wait(const struct end *e, struct ring *r, int fd, ssize_t *result);

/*
 * idle_look is for the beginning of calls, which are in no ring and have passed no gate. False: a handler
 * has run that ends the call.
 */
#define idle_look(ending)                                                                                    \
	(__builtin_expect(__atomic_load_n(&idle_due, __ATOMIC_RELAXED) == 0, 1) || idle_again(ending))

/* nowhere.c */
ssize_t receive_unwanted(struct end *e, int fd, size_t wanted, int flags, int *out);
ssize_t receive_none(struct end *e, int fd, int flags);
ssize_t receive_error(int fd);

/* waiting.c */
bool receive_waiting(struct end *e, int fd, size_t *n);

/* urgent.c */
void urgent_seen(struct end *e);
bool urgent_at_mark(int fd);
size_t urgent_before_mark(struct end *e, int fd, size_t all);

/* struct sigaction as the kernel has it: the rest depends on the processor. */
struct kernel_action {
	uintptr_t handler;
	unsigned long flags;
	unsigned long rest[4];
};

/* calls.c */
extern __thread uint32_t calls_depth __attribute__((tls_model("initial-exec")));
void call_in_ring(struct ring *r, int fd, bool out, uintptr_t frame);
void call_in_gate(uint32_t *gate, uintptr_t frame);
void call_over(const struct ring *r, const uint32_t *gate, uintptr_t frame);
bool call_has(const uint32_t *gate);
void calls_bury(uintptr_t frame);
#define thread_lock(lock) thread_lock_from(lock, (uintptr_t)__builtin_frame_address(0))
bool thread_lock_from(uint64_t *lock, uintptr_t frame);
void thread_unlock(uint64_t *lock);
void calls_start(void);

/* calls_tidy is for the beginning of calls. */
#define calls_tidy() \
	(__builtin_expect(calls_depth != 0, 0) ? calls_bury((uintptr_t)__builtin_frame_address(0)) : (void)0)

/* look.c */
enum looked {
	LOOKED_NOT,	/* or nothing came */
	LOOKED_PAID,	/* it is there, and signals are off until it is read */
	LOOKED_SIGNAL,	/* its handler has run, and a system call would say EINTR */
};

enum looked look_ring(struct ring *r, size_t want, uint64_t *signals, enum ending ending);
uint64_t signals_off(void);
bool signals_on(uint64_t old, enum ending ending);

/* gone.c */
ssize_t send_refused(struct end *e, int fd, size_t left, int flags);
bool end_over(int fd);
void end_error(int fd, int error);
void end_later(struct end *e);
bool end_tell(struct end *e, int fd);
bool end_lost(struct end *e);
void end_reset(struct end *e, int fd);
uint32_t end_gone(const struct end *e, int fd);
void end_shut(int fd);
bool end_hung_up(int fd);
bool end_refuses(int fd);

/* busy.c */
#define BUSY_SLEEP (-1000000)
void busy_drained(const struct end *e, struct ring *r, int fd);
bool busy_cool(struct ring *r);
bool busy_loop(const struct end *e, int fd);
bool busy_shown(int fd);
bool busy_polled(int fd, bool looks, bool *there);
bool busy_beneath(int fd);
bool busy_bytes(int fd);
void busy_again(int fd, uint32_t events);
uint32_t busy_writable(int fd, uint32_t wanted);
bool busy_due(int epfd, uint32_t serial);
bool busy_instance(int epfd, uint32_t serial);
void busy_control(struct end *e, uint32_t serial, int epfd, int op, int fd, const struct epoll_event *ev);
int busy_wait(int epfd, uint32_t serial, bool sole, struct epoll_event *events, int max, bool waits,
	const sigset_t *mask);
void busy_closed(int epfd);
void busy_dropped(int fd, struct ring *r);
void busy_inherited(int from, int epfd, uint32_t serial, const struct epoll_event *ev);
int busy_more(int epfd, uint32_t serial, bool sole, struct epoll_event *events, int n, int max);

/* polls.c */
#define POLLS_SLEEP (-1000000)
int polls_wait(struct pollfd *p, nfds_t n, bool waits, const sigset_t *mask);

/* epoll.c */
bool epoll_instance(int fd, uint32_t *serial);
bool epoll_sole(int epfd);
bool epoll_forked(int epfd);
int epoll_registered(const struct end *e, int fd, struct epoll_event *ev, uint32_t *serial);

/* edges.c */
void edges_attached(const struct end *e, struct ring *r);
void edges_dup(int fd, int to);

/* quiet.c */
bool quiet_has(const struct end *e);
bool quiet_shut(struct end *e, int fd);

/* resets.c */
bool reset_came(struct end *e, int fd);
bool reset_waits(const struct end *e, int fd);

/* tables.c */
#define TABLE_PAGE 4096
#define FNV1A_BASIS 0xcbf29ce484222325ull

void *table_map(const char *name, size_t size, uint64_t magic);
bool table_readable(const void *part);
bool table_writable(const void *part);
bool table_there(bool *been, const void *part);
uint64_t fnv1a(uint64_t hash, const void *data, size_t n);

/* shake.c: the debug switch */
bool shake(unsigned one_in);
size_t shake_cut(size_t n);
bool shaking(void);

#endif
