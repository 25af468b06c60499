// TCP option 254 on the SYN and SYN-ACK of sockets that asked for it: the SMC option, RFC 7609 p.92, and pairing tokens, token.h.
//
// Three programs, attached to the root of the control groups:
//
//	set    a socket asks by setsockopt(SOL_SMC, "SMCR" or "PAIR"), before it connects or listens
//	get    ... and reads the outcome by getsockopt
//	smc    writes the options on SYN and SYN-ACK, and looks for them on the peer's
//
// They keep the state of a socket in its storage: a struct wish, whose layout is in internal/option, and a struct pairing, whose
// layout is in internal/pairing. Sockets that have none are left alone: they get no callback, and no byte.
//
// One program writes both options, as both are on one SYN: the SYN of Linux leaves 20 bytes, and they take 6 and 14. A socket asks for
// either or both. What is said below of the option holds for the token too, if nothing else is said.
//
// The program writes a client's option if its socket asked. It writes a server's if the SYN had it and the listening
// socket asked, and not on a SYN cookie. Connections with TCP Fast Open, MD5, AO or multipath TCP go without: their
// options leave too little room, sign the others, or have data go before any CLC.
//
// A server's answer follows from the client's SYN alone, which the kernel saves (TCP_SAVE_SYN). The program derives it
// for each SYN-ACK, and again when the connection is established. So no table exists from which somebody could push
// the answer out. A SYN that is answered with a cookie is not saved, and its SYN-ACK has no option.

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// Numbers of the socket interface, which the headers for user space have no room for here.
#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define SOL_SMC 286
#define TCP_MD5SIG 14
#define TCP_SAVE_SYN 27
#define TCP_MD5SIG_EXT 32
#define TCP_AO_ADD_KEY 38
#define EEXIST 17 // asm-generic/errno-base.h
#define ENOENT 2

// Kinds of TCP options.
#define KIND_MD5 19
#define KIND_AO 29
#define KIND_MPTCP 30
#define KIND_FAST_OPEN 34

#define LAYOUT 1 // internal/option: Layout

// The numbers of the socket options, internal/option: Name, internal/pairing: Name and ServiceNameOption. Tests have others.
const volatile __u32 option_name = 0x534d4352;
const volatile __u32 pairing_name = 0x50414952;
const volatile __u32 service_option = 0x534d4e53;

// Which of the options the programs know. The verifier does not look at the part for one that is off, so it may call functions that the
// kernel does not have.
const volatile __u8 with_option = 1;
const volatile __u8 with_pairing = 1;

#define FLAG_SYN 0x02
#define FLAG_ACK 0x10

// The most bytes that are seen of a foreign socket option: programs must set the length of a longer one to 0, which
// stands for "as it was", or kernels before Linux 6.5 refuse it. Linux kernel/bpf/cgroup.c.
#define MAX_FOREIGN 4096

enum state { NOT_ASKED, ASKED, LISTENING, SENT, BOTH, ALONE };                       // internal/option: State
enum reason { NO_REASON, PEER_SILENT, NO_ROOM, FAST_OPEN, NOT_SENT, TOO_MANY, CROSSED, SIGNED, MIXED }; // and Reason

enum flags {
	OUR_WRITE = 1, // we turned the callback for options on, and nobody had before us
	OUR_STATE = 2, // we turned the one for states on
	COUNTED = 4,   // the listening socket is in listeners
	KEYED = 8,     // the socket has keys for MD5 or AO
	COUNTED_PORT = 16, // the listening socket is in modes
};

struct wish {
	__u8 layout, state, reason, flags;
};

// A note is the state of a socket, as the programs know it. getsockopt returns its first half.
struct note {
	struct wish wish;
	__u32 user; // the user that asked, as the machine numbers users
};

// Each socket that asked for anything has a note. A listening socket hands a copy on to each connection that it makes. The memory of a note counts against its socket
// (net.core.optmem_max), so a user who makes many takes nothing from others.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct note);
} wishes SEC(".maps");

// Requests whose SYN wants an answer that did not fit on the SYN-ACK, by the cookie that the connection inherits: enum mode of what
// is missing. Without programs of others, which take of a SYN-ACK's options, there are none.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u8);
} crowded SEC(".maps");

enum counter {
	SYN_SENT,        // with the option
	SYN_NO_ROOM,     // it asked, and there was none
	SYN_FAST_OPEN,   // it asked, and was one of Fast Open
	SYN_SIGNED,      // it asked, and MD5 or AO signs it
	SYNACK_SENT,     // with the option
	SYNACK_COOKIE,   // the SYN had the option, and was answered with a cookie
	SYNACK_NO_ROOM,  // the SYN had the option
	SYNACK_EXCLUDED, // the SYN had the option, and another one that excludes it
	CLIENT_BOTH,     // connections of clients that have it on both
	CLIENT_ALONE,
	SERVER_BOTH,
	SERVER_ALONE,
	LISTENERS_FULL,
	COUNTERS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(__u32 which) {
	__u64 *n = bpf_map_lookup_elem(&counters, &which);
	if (n)
		(*n)++;
}

enum pairing_counter {
	TOKEN_SENT,      // SYNs with a token
	TOKEN_ANSWERED,  // SYN-ACKs with a token
	CLIENT_PAIRED,   // connections of clients that asked
	CLIENT_UNPAIRED,
	SERVER_PAIRED,
	SERVER_UNPAIRED,
	REPORTED,        // namespaces that were told to the agent
	REPORT_LOST,
	PAIRING_COUNTERS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PAIRING_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} pair_counters SEC(".maps");

static __always_inline void count_pairing(__u32 which) {
	__u64 *n = bpf_map_lookup_elem(&pair_counters, &which);
	if (n)
		(*n)++;
}

#include "listeners.h"
#include "siphash.h"
#include "token.h"
#include "namespace.h"

// The option: kind, length, and "SMCR" in EBCDIC.
struct smc_option {
	__u8 kind, len, magic[4];
} __attribute__((packed));

#define SMC_OPTION { 254, 6, { 0xe2, 0xd4, 0xc3, 0xd9 } }

// has_smc says whether the segment has the option: that at hand, or the SYN. As for Linux net/smc a longer one with
// the same magic counts, if its length is even. The kernel is asked for half of the magic: it looks no further where
// an experimental option, such as Fast Open's, is too short for the bytes that it is asked for.
__noinline int has_smc(struct bpf_sock_ops *s, __u64 where) {
	__u8 o[40] = { 254, 4, 0xe2, 0xd4 };
	long n = bpf_load_hdr_opt(s, o, sizeof(o), where);
	return n >= 6 && n % 2 == 0 && o[4] == 0xc3 && o[5] == 0xd9;
}

__noinline int has_kind(struct bpf_sock_ops *s, __u8 kind, __u64 where) {
	__u8 o[40] = { kind };
	return bpf_load_hdr_opt(s, o, sizeof(o), where) > 0;
}

// has_fast_open says whether the segment has the option of Fast Open, in one of its two forms: RFC 7413 §4.1.1.
static __always_inline int has_fast_open(struct bpf_sock_ops *s, __u64 where) {
	__u8 o[40] = { 254, 4, 0xf9, 0x89 };
	return has_kind(s, KIND_FAST_OPEN, where) || bpf_load_hdr_opt(s, o, sizeof(o), where) > 0;
}

static __always_inline int is_signed(struct bpf_sock_ops *s, __u64 where) {
	return has_kind(s, KIND_MD5, where) || has_kind(s, KIND_AO, where);
}

// A SYN of Fast Open has data without its option where no cookies are required (net.ipv4.tcp_fastopen, 0x4 and 0x200).

// sends_data says whether the segment that is being written has data.
static __always_inline int sends_data(struct bpf_sock_ops *s) {
	__u8 *tcp = s->skb_data;
	return tcp + 20 <= (__u8 *)s->skb_data_end && s->skb_len > (tcp[12] >> 4) * 4;
}

// brought_data says whether the client's SYN had data: its IP header tells, as the kernel keeps no more of it.
__noinline int brought_data(struct bpf_sock_ops *s) {
	__u8 h[120];
	long n = bpf_getsockopt(s, IPPROTO_TCP, TCP_BPF_SYN_IP, h, sizeof(h));
	if (n < 40) // longer than h, by IPv6 extension headers
		return 1;
	if (h[0] >> 4 == 4)
		return (h[2] << 8 | h[3]) != n;
	return (h[4] << 8 | h[5]) + 40 != n;
}

// saved says whether the kernel has the SYN of a connection: it has not if it has answered it with a cookie.
__noinline int is_saved(struct bpf_sock_ops *s) {
	__u8 tcp[20];
	return bpf_getsockopt(s, IPPROTO_TCP, TCP_BPF_SYN, tcp, sizeof(tcp)) != -ENOENT;
}

// A demand is what the client's SYN wants.
struct demand {
	__u8 mode;     // enum mode: the options that it has
	__u8 excluded; // it has another one, or data, that does not go together with them
	__u8 foreign;  // it has a token of another kernel
	__u64 token;   // with MODE_TOKEN
};

// read_demand reads which answer the SYN wants, and returns its mode. The kernel has the SYN at hand for the first SYN-ACK, and afterwards
// the saved one. It is the same SYN, so the answer that is written and the one that the server reads later cannot differ.
static __noinline int read_demand(struct bpf_sock_ops *s, struct demand *d) {
	__builtin_memset(d, 0, sizeof(*d));
	if (with_option && has_smc(s, BPF_LOAD_HDR_OPT_TCP_SYN))
		d->mode |= MODE_SMC;
	if (with_pairing) {
		d->token = load_token(s, BPF_LOAD_HDR_OPT_TCP_SYN);
		if (genuine(d->token, 0))
			d->mode |= MODE_TOKEN;
		else if (d->token)
			d->foreign = 1;
	}
	if (d->mode && (is_signed(s, BPF_LOAD_HDR_OPT_TCP_SYN) || has_kind(s, KIND_MPTCP, BPF_LOAD_HDR_OPT_TCP_SYN) ||
			has_fast_open(s, BPF_LOAD_HDR_OPT_TCP_SYN) || brought_data(s)))
		d->excluded = 1;
	return d->mode;
}

static __always_inline struct note *note_of(struct bpf_sock_ops *s) {
	struct bpf_sock *sk = s->sk;
	if (!sk)
		return 0;
	return bpf_sk_storage_get(&wishes, sk, 0, 0);
}

// An asking is a socket that asked: its note, its wish for the SMC option, and its wish for a token. Either wish is 0 if there is none.
struct asking {
	struct note *note;
	struct wish *smc;
	struct pairing *token;
};

// asking_of says whether a socket asked for anything.
static __always_inline int asking_of(struct bpf_sock_ops *s, struct asking *a) {
	struct bpf_sock *sk = s->sk;
	a->smc = 0;
	a->token = 0;
	a->note = note_of(s);
	if (!a->note)
		return 0;
	if (a->note->wish.state != NOT_ASKED)
		a->smc = &a->note->wish;
	if (with_pairing && sk) {
		struct pairing *p = bpf_sk_storage_get(&pairs, sk, 0, 0);
		if (p && p->state != P_NOT_ASKED)
			a->token = p;
	}
	return a->smc || a->token;
}

// callbacks turns on the callbacks that we need, and notes those that nobody had turned on before.
static __always_inline void callbacks(struct bpf_sock_ops *s, struct wish *w, int wanted) {
	int before = s->bpf_sock_ops_cb_flags, ours = wanted & ~before;
	w->flags &= ~(OUR_WRITE | OUR_STATE);
	if (ours & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)
		w->flags |= OUR_WRITE;
	if (ours & BPF_SOCK_OPS_STATE_CB_FLAG)
		w->flags |= OUR_STATE;
	bpf_sock_ops_cb_flags_set(s, before | wanted);
}

// quiet turns it off again, since callbacks for each packet cost time.
static __always_inline void quiet(struct bpf_sock_ops *s, struct wish *w) {
	int now = s->bpf_sock_ops_cb_flags;
	if (w->flags & OUR_WRITE)
		now &= ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	if (w->flags & OUR_STATE)
		now &= ~BPF_SOCK_OPS_STATE_CB_FLAG;
	bpf_sock_ops_cb_flags_set(s, now);
}

// keep_syn has the kernel save the SYNs of a socket that listens. It returns 0 if it does.
static __always_inline long keep_syn(struct bpf_sock_ops *s) {
	int value = 0, one = 1;
	if (!bpf_getsockopt(s, IPPROTO_TCP, TCP_SAVE_SYN, &value, sizeof(value)) && value)
		return 0; // the program wants them itself, perhaps with more of their headers
	return bpf_setsockopt(s, IPPROTO_TCP, TCP_SAVE_SYN, &one, sizeof(one));
}

// refuse has a listening socket go without what it asked for.
static __always_inline void refuse(struct asking *a, int mode, __u8 reason, __u8 cause) {
	if (a->smc && mode & MODE_SMC)
		a->smc->reason = reason;
	if (a->token && mode & MODE_TOKEN)
		a->token->cause = cause;
}

// ask_again has a socket ask that was connected, or listened, before.
static __always_inline void ask_again(struct asking *a) {
	if (a->smc) {
		a->smc->state = ASKED;
		a->smc->reason = NO_REASON;
	}
	if (a->token) {
		a->token->state = P_ASKED;
		a->token->cause = P_NO_CAUSE;
		a->token->mine = a->token->theirs = 0;
	}
}

__noinline int on_listen(struct bpf_sock_ops *s) {
	struct asking a;
	int asked = 0, mode;
	if (!asking_of(s, &a))
		return 0;
	ask_again(&a);
	if (a.smc)
		asked |= MODE_SMC;
	if (a.token)
		asked |= MODE_TOKEN;
	if (keep_syn(s)) {
		refuse(&a, asked, NOT_SENT, P_NOT_SENT);
		return 0;
	}
	mode = join(s, asked);
	refuse(&a, asked & ~mode, MIXED, P_MIXED);
	if (!mode)
		return 0;
	if (!book(s, a.note->user)) {
		part(s);
		refuse(&a, mode, TOO_MANY, P_TOO_MANY);
		count(LISTENERS_FULL);
		return 0;
	}
	if (a.smc && mode & MODE_SMC)
		a.smc->state = LISTENING;
	if (a.token && mode & MODE_TOKEN)
		a.token->state = P_LISTENING;
	a.note->wish.flags |= COUNTED | COUNTED_PORT;
	callbacks(s, &a.note->wish, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG);
	return 0;
}

// on_state waits for listening sockets to end.
__noinline int on_state(struct bpf_sock_ops *s) {
	struct asking a;
	__u8 flags;
	if (s->args[0] != BPF_TCP_LISTEN || !asking_of(s, &a))
		return 0;
	flags = a.note->wish.flags;
	a.note->wish.flags &= ~(COUNTED | COUNTED_PORT);
	if (!(flags & COUNTED))
		return 0;
	ask_again(&a); // the socket may listen again
	unbook(s, a.note->user);
	if (flags & COUNTED_PORT)
		part(s);
	return 0;
}

// on_connect makes a socket ask, again if it was connected before.
__noinline int on_connect(struct bpf_sock_ops *s) {
	struct asking a;
	if (!asking_of(s, &a))
		return 0;
	ask_again(&a);
	if (a.note->wish.flags & KEYED) {
		refuse(&a, MODE_SMC | MODE_TOKEN, SIGNED, P_SIGNED);
		if (a.smc)
			count(SYN_SIGNED);
		return 0;
	}
	callbacks(s, &a.note->wish, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	return 0;
}

// crowd notes that answers did not fit, for this request.
__noinline int crowd(struct bpf_sock_ops *s, __u8 missing) {
	__u64 cookie = bpf_get_socket_cookie(s);
	__u8 *before = bpf_map_lookup_elem(&crowded, &cookie);
	if (before)
		missing |= *before;
	bpf_map_update_elem(&crowded, &cookie, &missing, BPF_ANY);
	if (missing & MODE_SMC)
		count(SYNACK_NO_ROOM);
	return 0;
}

__noinline int crowded_out(struct bpf_sock_ops *s) {
	__u64 cookie = bpf_get_socket_cookie(s);
	__u8 *missing = bpf_map_lookup_elem(&crowded, &cookie);
	return missing ? *missing : 0;
}

// synack_mode returns which options the SYN-ACK for a request gets.
static __always_inline int synack_mode(struct bpf_sock_ops *s, struct places *p, struct demand *d, int counting) {
	int smc;
	if (s->is_fullsock) // both ends have connected to each other
		return 0;
	if (!read_demand(s, d))
		return 0;
	if (!places_of(s, p))
		return 0;
	smc = d->mode & MODE_SMC;
	if (s->args[0] == BPF_WRITE_HDR_TCP_SYNACK_COOKIE) {
		if (counting && smc)
			count(SYNACK_COOKIE);
		return 0;
	}
	if (d->excluded) {
		if (counting && smc)
			count(SYNACK_EXCLUDED);
		return 0;
	}
	return d->mode & mode_of(s) & ~crowded_out(s);
}

static __always_inline int may_send_smc(struct wish *w) {
	return w && (w->state == ASKED || w->state == SENT) && w->reason != SIGNED;
}

// may_send_token is true for the first SYN only. A firewall may drop segments with options that it does not know, and a SYN that is sent again
// has one less.
static __always_inline int may_send_token(struct pairing *p) {
	return p && p->state == P_ASKED && p->cause == P_NO_CAUSE;
}

__noinline int on_length(struct bpf_sock_ops *s) {
	struct asking a;
	if (!(s->skb_tcp_flags & FLAG_SYN))
		return 0;
	if (s->skb_tcp_flags & FLAG_ACK) {
		struct places p;
		struct demand d;
		int mode = synack_mode(s, &p, &d, 1), missing = 0;
		if (mode & MODE_SMC && bpf_reserve_hdr_opt(s, sizeof(struct smc_option), 0))
			missing |= MODE_SMC;
		if (mode & MODE_TOKEN && bpf_reserve_hdr_opt(s, sizeof(struct token_option), 0))
			missing |= MODE_TOKEN;
		if (missing)
			crowd(s, missing);
		return 0;
	}
	if (!asking_of(s, &a))
		return 0;
	if (may_send_smc(a.smc) && bpf_reserve_hdr_opt(s, sizeof(struct smc_option), 0)) {
		a.smc->reason = NO_ROOM;
		count(SYN_NO_ROOM);
	}
	if (may_send_token(a.token)) {
		if (bpf_reserve_hdr_opt(s, sizeof(struct token_option), 0))
			a.token->cause = P_NO_ROOM;
	} else if (a.token && a.token->state == P_SENT) {
		a.token->cause = P_SENT_AGAIN;
	}
	return 0;
}

// store writes the option. That it is there already is as good: an agent for another control group above or below
// this one has the same programs.
static __always_inline int store(struct bpf_sock_ops *s) {
	struct smc_option o = SMC_OPTION;
	long err = bpf_store_hdr_opt(s, &o, sizeof(o), 0);
	return !err || err == -EEXIST;
}

// sequence_of returns the sequence number of the segment that is being written.
static __always_inline __u32 sequence_of(struct bpf_sock_ops *s) {
	__u8 *tcp = s->skb_data;
	if (tcp + 20 > (__u8 *)s->skb_data_end)
		return 0;
	return (__u32)tcp[4] << 24 | tcp[5] << 16 | tcp[6] << 8 | tcp[7];
}

__noinline int write_synack(struct bpf_sock_ops *s) {
	struct places p;
	struct demand d;
	int mode = synack_mode(s, &p, &d, 0), missing = 0;
	if (!mode)
		return 0;
	if (mode & MODE_SMC) {
		if (store(s))
			count(SYNACK_SENT);
		else
			missing |= MODE_SMC;
	}
	if (mode & MODE_TOKEN) {
		if (!store_token(s, answer_token(s, d.token, sequence_of(s))))
			count_pairing(TOKEN_ANSWERED);
		else
			missing |= MODE_TOKEN;
	}
	if (missing)
		crowd(s, missing);
	if (mode == missing)
		return 0;
	if (p.here && !p.here->answered)
		p.here->answered = 1;
	if (p.any && !p.any->answered)
		p.any->answered = 1;
	return 0;
}

static __always_inline void write_smc(struct bpf_sock_ops *s, struct wish *w) {
	if (!store(s)) {
		w->reason = NO_ROOM;
		count(SYN_NO_ROOM);
		return;
	}
	w->state = SENT;
	w->reason = NO_REASON;
	count(SYN_SENT);
}

static __always_inline void write_token(struct bpf_sock_ops *s, struct pairing *p) {
	__u64 token = new_token(s);
	if (!token || store_token(s, token)) {
		p->cause = P_NO_ROOM;
		return;
	}
	p->mine = token;
	p->state = P_SENT;
	count_pairing(TOKEN_SENT);
}

// on_write writes the options. A client's state stays SENT when a SYN that is sent again has no option: the peer answers
// with it only to one that had it.
__noinline int on_write(struct bpf_sock_ops *s) {
	struct asking a;
	int mode = 0;
	if (!(s->skb_tcp_flags & FLAG_SYN))
		return 0;
	if (s->skb_tcp_flags & FLAG_ACK) {
		write_synack(s);
		return 0;
	}
	if (!asking_of(s, &a))
		return 0;
	if (may_send_smc(a.smc) && a.smc->reason != NO_ROOM)
		mode |= MODE_SMC;
	if (may_send_token(a.token))
		mode |= MODE_TOKEN;
	if (!mode)
		return 0;
	if (is_signed(s, 0)) { // the keys are older than the programs
		refuse(&a, mode, SIGNED, P_SIGNED);
		if (mode & MODE_SMC)
			count(SYN_SIGNED);
		return 0;
	}
	if (has_fast_open(s, 0) || sends_data(s)) {
		refuse(&a, mode, FAST_OPEN, P_FAST_OPEN);
		if (mode & MODE_SMC)
			count(SYN_FAST_OPEN);
		return 0;
	}
	if (a.smc && mode & MODE_SMC)
		write_smc(s, a.smc);
	if (a.token && mode & MODE_TOKEN)
		write_token(s, a.token);
	return 0;
}

static __always_inline void alone(struct wish *w, __u8 reason) {
	w->state = ALONE;
	if (w->reason == NO_REASON)
		w->reason = reason;
}

static __always_inline void unpaired(struct pairing *p, __u8 cause) {
	p->state = P_ALONE;
	p->mine = p->theirs = 0;
	if (p->cause == P_NO_CAUSE)
		p->cause = cause;
}

static __always_inline void paired(struct pairing *p, __u64 mine, __u64 theirs) {
	p->mine = mine;
	p->theirs = theirs;
	p->cause = P_NO_CAUSE;
	p->state = P_PAIRED;
}

static __always_inline void client_smc(struct bpf_sock_ops *s, struct wish *w) {
	if (w->state != ASKED && w->state != SENT)
		return;
	if (w->state == SENT && has_smc(s, 0)) {
		w->state = BOTH;
		w->reason = NO_REASON;
		count(CLIENT_BOTH);
	} else {
		alone(w, PEER_SILENT);
		count(CLIENT_ALONE);
	}
}

// client_token also takes an answer to the first SYN after the second one was sent: the server answers the first, which it has saved.
static __always_inline void client_token(struct bpf_sock_ops *s, struct pairing *p) {
	__u64 theirs = p->state == P_SENT ? load_token(s, 0) : 0;
	if (theirs && genuine(theirs, p->mine)) {
		paired(p, p->mine, theirs);
		count_pairing(CLIENT_PAIRED);
		return;
	}
	if (theirs)
		p->cause = P_OTHER_KERNEL;
	unpaired(p, P_PEER_SILENT);
	count_pairing(CLIENT_UNPAIRED);
}

__noinline int on_active(struct bpf_sock_ops *s) {
	struct asking a;
	if (!asking_of(s, &a))
		return 0;
	if (a.smc)
		client_smc(s, a.smc);
	if (a.token)
		client_token(s, a.token);
	quiet(s, &a.note->wish);
	return 0;
}

// answered returns which options the SYN-ACK of a connection had, whose SYN demands them. Before the first answer of an
// endpoint it had none: a program of others has turned our callbacks off when the socket began to listen.
static __always_inline int answered(struct bpf_sock_ops *s) {
	__u64 cookie = bpf_get_socket_cookie(s);
	int missing = crowded_out(s);
	struct places p;
	if (missing)
		bpf_map_delete_elem(&crowded, &cookie);
	places_of(s, &p);
	if (!(p.here && p.here->answered) && !(p.any && p.any->answered))
		return 0;
	return mode_of(s) & ~missing;
}

static __always_inline void server_smc(struct wish *w, struct demand *d, int answer) {
	if (w->state == LISTENING && d->mode & answer & MODE_SMC) {
		w->state = BOTH;
		count(SERVER_BOTH);
		return;
	}
	if (w->state != LISTENING) {
		alone(w, CROSSED);
		return;
	}
	alone(w, d->mode & MODE_SMC ? NOT_SENT : PEER_SILENT);
	count(SERVER_ALONE);
}

static __always_inline void server_token(struct bpf_sock_ops *s, struct pairing *p, struct demand *d, int answer) {
	if (p->state == P_LISTENING && d->mode & answer & MODE_TOKEN) {
		paired(p, answer_token(s, d->token, s->snd_una - 1), d->token);
		count_pairing(SERVER_PAIRED);
		return;
	}
	if (p->state != P_LISTENING) {
		unpaired(p, P_CROSSED);
		return;
	}
	if (d->mode & MODE_TOKEN)
		unpaired(p, P_NOT_SENT);
	else if (d->foreign)
		unpaired(p, P_OTHER_KERNEL);
	else
		unpaired(p, is_saved(s) ? P_PEER_SILENT : P_COOKIE);
	count_pairing(SERVER_UNPAIRED);
}

__noinline int on_passive(struct bpf_sock_ops *s) {
	struct asking a;
	struct demand d;
	int answer = 0;
	if (!asking_of(s, &a))
		return 0;
	a.note->wish.flags &= ~(COUNTED | COUNTED_PORT); // that was the listening socket
	if (read_demand(s, &d) && !d.excluded)
		answer = answered(s);
	if (a.smc)
		server_smc(a.smc, &d, answer);
	if (a.token)
		server_token(s, a.token, &d, answer);
	quiet(s, &a.note->wish);
	return 0;
}

SEC("sockops")
int smc(struct bpf_sock_ops *s) {
	switch (s->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		on_connect(s);
		break;
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		on_listen(s);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		on_state(s);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		on_length(s);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		on_write(s);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		on_active(s);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		on_passive(s);
		break;
	}
	return 1;
}

// An option_kind is one of the socket options that are ours.
enum option_kind { FOREIGN, SMC, TOKEN, SERVICE_NAME };

static __always_inline enum option_kind kind_of(struct bpf_sockopt *c) {
	if (c->level != SOL_SMC || !c->sk || c->sk->protocol != IPPROTO_TCP || (c->sk->family != AF_INET && c->sk->family != AF_INET6))
		return FOREIGN;
	if (with_option && c->optname == option_name)
		return SMC;
	if (with_pairing && c->optname == pairing_name)
		return TOKEN;
	if (with_pairing && c->optname == service_option)
		return SERVICE_NAME;
	return FOREIGN;
}

// foreign leaves a socket option as it was.
static __always_inline int foreign(struct bpf_sockopt *c) {
	if (c->optlen > MAX_FOREIGN)
		c->optlen = 0;
	return 1;
}

static __always_inline struct note *note_on(struct bpf_sockopt *c) {
	struct note fresh = { .wish = { .layout = LAYOUT } };
	return bpf_sk_storage_get(&wishes, c->sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
}

// of_tcp looks at an option of TCP that matters to us: keys for MD5 and AO, and an end of saved SYNs on a socket that
// listens. The kernel goes on to save them then, which the program sees only if it asks for one.
static __always_inline int of_tcp(struct bpf_sockopt *c) {
	struct note *n;
	__u32 *value = c->optval;
	if (!c->sk || c->sk->protocol != IPPROTO_TCP)
		return foreign(c);
	switch (c->optname) {
	case TCP_MD5SIG:
	case TCP_MD5SIG_EXT:
	case TCP_AO_ADD_KEY:
		n = note_on(c);
		if (n)
			n->wish.flags |= KEYED;
		break;
	case TCP_SAVE_SYN:
		n = bpf_sk_storage_get(&wishes, c->sk, 0, 0);
		if (n && n->wish.state == LISTENING && value + 1 <= (__u32 *)c->optval_end && !*value) {
			c->optlen = -1;
			return 1;
		}
	}
	return foreign(c);
}

// set returns 0, which the caller sees as EPERM, for a socket that has connected or listens.
SEC("cgroup/setsockopt")
int set(struct bpf_sockopt *c) {
	enum option_kind kind;
	struct note *n;
	__u32 *value;
	if (c->level == IPPROTO_TCP)
		return of_tcp(c);
	kind = kind_of(c);
	if (kind != SMC && kind != TOKEN)
		return foreign(c);
	value = c->optval;
	if (value + 1 > (__u32 *)c->optval_end || c->sk->state != BPF_TCP_CLOSE)
		return 0;
	n = note_on(c);
	if (!n)
		return 0;
	if (kind == TOKEN) {
		struct pairing fresh = { .layout = PAIRING_LAYOUT }, *p;
		p = bpf_sk_storage_get(&pairs, c->sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
		if (!p)
			return 0;
		p->state = *value ? P_ASKED : P_NOT_ASKED;
		p->cause = P_NO_CAUSE;
		p->mine = p->theirs = 0;
		if (*value)
			report_namespace(c);
	} else {
		n->wish.state = *value ? ASKED : NOT_ASKED;
		n->wish.reason = NO_REASON;
	}
	n->user = bpf_get_current_uid_gid();
	c->optlen = -1; // the kernel knows nothing of this option
	return 1;
}

// answer_option is the end of an answer to getsockopt.
static __always_inline int answer_option(struct bpf_sockopt *c, __s32 size) {
	*(volatile __s32 *)&c->optlen = size; // one by one: a store of both at once is refused
	*(volatile __s32 *)&c->retval = 0;
	return 1;
}

static __always_inline int get_pairing(struct bpf_sockopt *c) {
	struct pairing none = { .layout = PAIRING_LAYOUT }, *value = c->optval, *p;
	if (value + 1 > (struct pairing *)c->optval_end)
		return 0;
	p = bpf_sk_storage_get(&pairs, c->sk, 0, 0);
	*value = p ? *p : none;
	return answer_option(c, sizeof(*value));
}

static __always_inline int get_service_name(struct bpf_sockopt *c) {
	struct service_name none = {}, *value = c->optval, *name;
	__u64 netns;
	if (value + 1 > (struct service_name *)c->optval_end)
		return 0;
	netns = bpf_get_netns_cookie(c);
	name = bpf_map_lookup_elem(&names, &netns);
	if (!name)
		report_namespace(c);
	*value = name ? *name : none;
	return answer_option(c, sizeof(*value));
}

SEC("cgroup/getsockopt")
int get(struct bpf_sockopt *c) {
	struct wish none = { .layout = LAYOUT }, *value;
	struct note *n;
	switch (kind_of(c)) {
	case SMC:
		break;
	case TOKEN:
		return get_pairing(c);
	case SERVICE_NAME:
		return get_service_name(c);
	default:
		return foreign(c);
	}
	value = c->optval;
	if (value + 1 > (struct wish *)c->optval_end)
		return 0;
	n = bpf_sk_storage_get(&wishes, c->sk, 0, 0);
	*value = n ? n->wish : none;
	return answer_option(c, sizeof(*value));
}

char terms[] SEC("license") = "Apache-2.0";
