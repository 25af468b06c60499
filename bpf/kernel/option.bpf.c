// TCP option 254, the SMC option, on the SYN and SYN-ACK of sockets that asked for it: RFC 7609 p.92.
//
// Three programs, attached to the root of the control groups:
//
//	set    a socket asks by setsockopt(SOL_SMC, "SMCR"), before it connects or listens
//	get    ... and reads the outcome by getsockopt
//	smc    writes the option on SYN and SYN-ACK, and looks for it on the peer's
//
// They keep the state of a socket in its storage: a struct wish, whose layout is in internal/option. Sockets that have
// none are left alone: they get no callback, and no byte.
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

// Kinds of TCP options.
#define KIND_MD5 19
#define KIND_AO 29
#define KIND_MPTCP 30
#define KIND_FAST_OPEN 34

#define LAYOUT 1 // internal/option: Layout

// The number of the socket option, internal/option: Name. Tests have one of their own.
const volatile __u32 option_name = 0x534d4352;

#define FLAG_SYN 0x02
#define FLAG_ACK 0x10

// The most bytes that are seen of a foreign socket option: programs must set the length of a longer one to 0, which
// stands for "as it was", or kernels before Linux 6.5 refuse it. Linux kernel/bpf/cgroup.c.
#define MAX_FOREIGN 4096

enum state { NOT_ASKED, ASKED, LISTENING, SENT, BOTH, ALONE };                       // internal/option: State
enum reason { NO_REASON, PEER_SILENT, NO_ROOM, FAST_OPEN, NOT_SENT, TOO_MANY, CROSSED, SIGNED }; // and Reason

enum flags {
	OUR_WRITE = 1, // we turned the callback for options on, and nobody had before us
	OUR_STATE = 2, // we turned the one for states on
	COUNTED = 4,   // the listening socket is in listeners
	KEYED = 8,     // the socket has keys for MD5 or AO
};

struct wish {
	__u8 layout, state, reason, flags;
};

// A note is the state of a socket, as the programs know it. getsockopt returns its first half.
struct note {
	struct wish wish;
	__u32 user; // the user that asked, as the machine numbers users
};

// A listening socket hands a copy on to each connection that it makes. The memory of a note counts against its socket
// (net.core.optmem_max), so a user who makes many takes nothing from others.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct note);
} wishes SEC(".maps");

// An endpoint is where sockets listen: IPv4 as ::ffff:a.b.c.d, any address as zeros. With port 0 and whole 1 it is a
// network namespace.
struct endpoint {
	__u64 netns; // its cookie
	__u32 addr[4];
	__u32 port; // host order
	__u32 whole;
};

struct listening {
	__u64 sockets;  // that asked and listen there; 0 for an entry that is being removed
	__u64 answered; // not 0 after the first SYN-ACK with the option
};

// Where sockets that asked listen. A SYN-ACK is made for a request, which does not lead to its listening socket: that we
// are called says that some program wants to write options there, and this that it was us. The quotas below keep each
// user, and each network namespace, from filling it.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct endpoint);
	__type(value, struct listening);
} listeners SEC(".maps");

// How many sockets in listeners belong to one user but root, and to one network namespace but the first.
#define USER_QUOTA 1024
#define NETNS_QUOTA 16384

// The sockets in listeners by user. A number from 65,536 on counts with all those that have the same upper 16 bits: such
// are given to users in ranges of that size, for their user namespaces (subuid(5)).
#define USERS 65536
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * USERS);
	__type(key, __u32);
	__type(value, __u64);
} quotas SEC(".maps");

// Requests whose SYN wants an answer that did not fit on the SYN-ACK, by the cookie that the connection inherits. Without
// programs of others, which take 13 bytes or more of a SYN-ACK's options, there are none.
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

// The option: kind, length, and "SMCR" in EBCDIC.
struct smc_option {
	__u8 kind, len, magic[4];
} __attribute__((packed));

#define SMC_OPTION { 254, 6, { 0xe2, 0xd4, 0xc3, 0xd9 } }

// has_smc says whether the segment has the option: that at hand, or the SYN. As for Linux net/smc a longer one with
// the same magic counts, if its length is even. The kernel is asked for half of the magic: it looks no further where
// an experimental option, such as Fast Open's, is too short for the bytes that it is asked for.
static __always_inline int has_smc(struct bpf_sock_ops *s, __u64 where) {
	__u8 o[40] = { 254, 4, 0xe2, 0xd4 };
	long n = bpf_load_hdr_opt(s, o, sizeof(o), where);
	return n >= 6 && n % 2 == 0 && o[4] == 0xc3 && o[5] == 0xd9;
}

static __always_inline int has_kind(struct bpf_sock_ops *s, __u8 kind, __u64 where) {
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
static __always_inline int brought_data(struct bpf_sock_ops *s) {
	__u8 h[120];
	long n = bpf_getsockopt(s, IPPROTO_TCP, TCP_BPF_SYN_IP, h, sizeof(h));
	if (n < 40) // longer than h, by IPv6 extension headers
		return 1;
	if (h[0] >> 4 == 4)
		return (h[2] << 8 | h[3]) != n;
	return (h[4] << 8 | h[5]) + 40 != n;
}

enum demand { NOTHING, EXCLUDED, ANSWER };

// demand says which answer the client's SYN wants: the option, or none because the SYN has another one, or data, that does
// not go together with it. The kernel has the SYN at hand for the first SYN-ACK, and afterwards the saved one. It is
// the same SYN, so the answer that is written and the one that the server reads later cannot differ.
static __always_inline enum demand demand(struct bpf_sock_ops *s) {
	if (!has_smc(s, BPF_LOAD_HDR_OPT_TCP_SYN))
		return NOTHING;
	if (is_signed(s, BPF_LOAD_HDR_OPT_TCP_SYN) || has_kind(s, KIND_MPTCP, BPF_LOAD_HDR_OPT_TCP_SYN) ||
	    has_fast_open(s, BPF_LOAD_HDR_OPT_TCP_SYN) || brought_data(s))
		return EXCLUDED;
	return ANSWER;
}

static __always_inline struct note *note_of(struct bpf_sock_ops *s) {
	struct bpf_sock *sk = s->sk;
	if (!sk)
		return 0;
	return bpf_sk_storage_get(&wishes, sk, 0, 0);
}

// wish_of returns the wish of a socket that asked.
static __always_inline struct wish *wish_of(struct bpf_sock_ops *s) {
	struct note *n = note_of(s);
	return n && n->wish.state != NOT_ASKED ? &n->wish : 0;
}

static __always_inline void endpoint_of(struct bpf_sock_ops *s, struct endpoint *e, int any) {
	__builtin_memset(e, 0, sizeof(*e));
	e->netns = bpf_get_netns_cookie(s);
	e->port = s->local_port;
	if (any)
		return;
	if (s->family == AF_INET6) {
		e->addr[0] = s->local_ip6[0];
		e->addr[1] = s->local_ip6[1];
		e->addr[2] = s->local_ip6[2];
		e->addr[3] = s->local_ip6[3];
	} else if (s->local_ip4) {
		e->addr[2] = bpf_htonl(0xffff);
		e->addr[3] = s->local_ip4;
	}
}

// Where sockets that asked listen for the address of a request or connection: at this address, and at any.
struct places {
	struct listening *here, *any;
};

// places_of says whether there is one. The compiler may not see that an or of pointers would do, which the kernel refuses.
static __always_inline int places_of(struct bpf_sock_ops *s, struct places *p) {
	struct endpoint e;
	int found = 0;
	endpoint_of(s, &e, 0);
	p->here = bpf_map_lookup_elem(&listeners, &e);
	if (p->here)
		found = 1;
	asm volatile("" : "+r"(found));
	endpoint_of(s, &e, 1);
	p->any = bpf_map_lookup_elem(&listeners, &e);
	if (p->any)
		found = 1;
	return found;
}

// enter counts a socket at an endpoint, up to a limit. An entry without sockets is about to be removed: the next one is made
// when it is gone.
static __always_inline int enter(struct endpoint *e, __u64 limit) {
	struct listening first = { .sockets = 1 }, *l;
	for (int i = 0; i < 64; i++) {
		__u64 n;
		l = bpf_map_lookup_elem(&listeners, e);
		if (!l) {
			long err = bpf_map_update_elem(&listeners, e, &first, BPF_NOEXIST);
			if (err == -EEXIST) // another one was there first
				continue;
			return !err;
		}
		n = l->sockets;
		if (n >= limit)
			return 0;
		if (n && __sync_val_compare_and_swap(&l->sockets, n, n + 1) == n)
			return 1;
	}
	return 0;
}

static __always_inline void leave(struct endpoint *e) {
	struct listening *l = bpf_map_lookup_elem(&listeners, e);
	if (l && __sync_fetch_and_add(&l->sockets, -1) == 1)
		bpf_map_delete_elem(&listeners, e);
}

static __always_inline __u64 *quota_of(__u32 user) {
	__u32 key = user < USERS ? user : USERS + (user >> 16);
	return bpf_map_lookup_elem(&quotas, &key);
}

// limited says whether a network namespace has a quota, and makes its endpoint.
static __always_inline int limited(struct bpf_sock_ops *s, struct endpoint *e) {
	__builtin_memset(e, 0, sizeof(*e));
	e->netns = bpf_get_netns_cookie(s);
	e->whole = 1;
	return e->netns != bpf_get_netns_cookie(0);
}

// book counts a listening socket for its user, its network namespace and its endpoint, or for none of them.
static __always_inline int book(struct bpf_sock_ops *s, __u32 user) {
	struct endpoint e;
	__u64 *n = quota_of(user);
	if (user && n && __sync_fetch_and_add(n, 1) >= USER_QUOTA)
		goto full;
	if (limited(s, &e) && !enter(&e, NETNS_QUOTA))
		goto full;
	endpoint_of(s, &e, 0);
	if (enter(&e, (__u64)-1))
		return 1;
	if (limited(s, &e))
		leave(&e);
full:
	if (user && n)
		__sync_fetch_and_add(n, -1);
	return 0;
}

static __always_inline void unbook(struct bpf_sock_ops *s, __u32 user) {
	struct endpoint e;
	__u64 *n = quota_of(user);
	endpoint_of(s, &e, 0);
	leave(&e);
	if (limited(s, &e))
		leave(&e);
	if (user && n)
		__sync_fetch_and_add(n, -1);
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

static __always_inline void on_listen(struct bpf_sock_ops *s) {
	struct note *n = note_of(s);
	struct wish *w;
	if (!n || n->wish.state != ASKED)
		return;
	w = &n->wish;
	w->reason = NO_REASON;
	if (keep_syn(s)) {
		w->reason = NOT_SENT;
		return;
	}
	if (!book(s, n->user)) {
		w->reason = TOO_MANY;
		count(LISTENERS_FULL);
		return;
	}
	w->state = LISTENING;
	w->flags |= COUNTED;
	callbacks(s, w, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG);
}

// on_state waits for listening sockets to end.
static __always_inline void on_state(struct bpf_sock_ops *s) {
	struct note *n;
	if (s->args[0] != BPF_TCP_LISTEN)
		return;
	n = note_of(s);
	if (!n || !(n->wish.flags & COUNTED))
		return;
	n->wish.flags &= ~COUNTED;
	n->wish.state = ASKED; // the socket may listen again
	unbook(s, n->user);
}

static __always_inline void on_connect(struct bpf_sock_ops *s) {
	struct wish *w = wish_of(s);
	if (!w || w->state == LISTENING)
		return;
	w->state = ASKED; // a socket can connect again after it has failed to
	w->reason = NO_REASON;
	if (w->flags & KEYED) {
		w->reason = SIGNED;
		count(SYN_SIGNED);
		return;
	}
	callbacks(s, w, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

// crowd notes that an answer did not fit, for this request.
static __always_inline void crowd(struct bpf_sock_ops *s) {
	__u64 cookie = bpf_get_socket_cookie(s);
	__u8 yes = 1;
	bpf_map_update_elem(&crowded, &cookie, &yes, BPF_ANY);
	count(SYNACK_NO_ROOM);
}

static __always_inline int was_crowded(struct bpf_sock_ops *s) {
	__u64 cookie = bpf_get_socket_cookie(s);
	return bpf_map_lookup_elem(&crowded, &cookie) != 0;
}

// synack_wanted says whether the SYN-ACK for a request gets the option.
static __always_inline int synack_wanted(struct bpf_sock_ops *s, struct places *p, int counting) {
	enum demand d;
	if (s->is_fullsock) // both ends have connected to each other
		return 0;
	d = demand(s);
	if (d == NOTHING)
		return 0;
	if (!places_of(s, p))
		return 0;
	if (s->args[0] == BPF_WRITE_HDR_TCP_SYNACK_COOKIE) {
		if (counting)
			count(SYNACK_COOKIE);
		return 0;
	}
	if (d == EXCLUDED) {
		if (counting)
			count(SYNACK_EXCLUDED);
		return 0;
	}
	return !was_crowded(s);
}

static __always_inline void on_length(struct bpf_sock_ops *s) {
	struct wish *w;
	if (!(s->skb_tcp_flags & FLAG_SYN))
		return;
	if (s->skb_tcp_flags & FLAG_ACK) {
		struct places p;
		if (synack_wanted(s, &p, 1) && bpf_reserve_hdr_opt(s, sizeof(struct smc_option), 0))
			crowd(s);
		return;
	}
	w = wish_of(s);
	if (!w || (w->state != ASKED && w->state != SENT) || w->reason == SIGNED)
		return;
	if (bpf_reserve_hdr_opt(s, sizeof(struct smc_option), 0)) {
		w->reason = NO_ROOM;
		count(SYN_NO_ROOM);
	}
}

// store writes the option. That it is there already is as good: an agent for another control group above or below
// this one has the same programs.
static __always_inline int store(struct bpf_sock_ops *s) {
	struct smc_option o = SMC_OPTION;
	long err = bpf_store_hdr_opt(s, &o, sizeof(o), 0);
	return !err || err == -EEXIST;
}

// on_write writes the option. A client's state stays SENT when a SYN that is sent again has no option: the peer answers
// with it only to one that had it.
static __always_inline void on_write(struct bpf_sock_ops *s) {
	struct wish *w;
	if (!(s->skb_tcp_flags & FLAG_SYN))
		return;
	if (s->skb_tcp_flags & FLAG_ACK) {
		struct places p;
		if (!synack_wanted(s, &p, 0))
			return;
		if (!store(s)) {
			crowd(s);
			return;
		}
		if (p.here && !p.here->answered)
			p.here->answered = 1;
		if (p.any && !p.any->answered)
			p.any->answered = 1;
		count(SYNACK_SENT);
		return;
	}
	w = wish_of(s);
	if (!w || (w->state != ASKED && w->state != SENT) || w->reason == NO_ROOM)
		return;
	if (is_signed(s, 0)) { // the keys are older than the programs
		w->reason = SIGNED;
		count(SYN_SIGNED);
		return;
	}
	if (has_fast_open(s, 0) || sends_data(s)) {
		w->reason = FAST_OPEN;
		count(SYN_FAST_OPEN);
		return;
	}
	if (!store(s)) {
		w->reason = NO_ROOM;
		count(SYN_NO_ROOM);
		return;
	}
	w->state = SENT;
	w->reason = NO_REASON;
	count(SYN_SENT);
}

static __always_inline void alone(struct wish *w, __u8 reason) {
	w->state = ALONE;
	if (w->reason == NO_REASON)
		w->reason = reason;
}

static __always_inline void on_active(struct bpf_sock_ops *s) {
	struct wish *w = wish_of(s);
	if (!w || (w->state != ASKED && w->state != SENT))
		return;
	if (w->state == SENT && has_smc(s, 0)) {
		w->state = BOTH;
		w->reason = NO_REASON;
		count(CLIENT_BOTH);
	} else {
		alone(w, PEER_SILENT);
		count(CLIENT_ALONE);
	}
	quiet(s, w);
}

// answered says whether the SYN-ACK of a connection had the option, whose SYN demands it. Before the first answer of an
// endpoint it had not: a program of others has turned our callbacks off when the socket began to listen.
static __always_inline int answered(struct bpf_sock_ops *s) {
	__u64 cookie = bpf_get_socket_cookie(s);
	struct places p;
	if (!bpf_map_delete_elem(&crowded, &cookie))
		return 0;
	places_of(s, &p);
	return (p.here && p.here->answered) || (p.any && p.any->answered);
}

static __always_inline void on_passive(struct bpf_sock_ops *s) {
	struct wish *w = wish_of(s);
	enum demand d;
	if (!w)
		return;
	if (w->state != LISTENING) {
		if (w->state == ASKED || w->state == SENT)
			alone(w, CROSSED);
		quiet(s, w);
		return;
	}
	w->flags &= ~COUNTED; // that was the listening socket
	d = demand(s);
	if (d == ANSWER && answered(s)) {
		w->state = BOTH;
		count(SERVER_BOTH);
	} else {
		alone(w, d == NOTHING ? PEER_SILENT : NOT_SENT);
		count(SERVER_ALONE);
	}
	quiet(s, w);
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

// ours says whether a socket option is the one by which sockets ask.
static __always_inline int ours(struct bpf_sockopt *c) {
	return c->level == SOL_SMC && c->optname == option_name && c->sk && c->sk->protocol == IPPROTO_TCP &&
	       (c->sk->family == AF_INET || c->sk->family == AF_INET6);
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
	struct note *n;
	__u32 *value;
	if (c->level == IPPROTO_TCP)
		return of_tcp(c);
	if (!ours(c))
		return foreign(c);
	value = c->optval;
	if (value + 1 > (__u32 *)c->optval_end || c->sk->state != BPF_TCP_CLOSE)
		return 0;
	n = note_on(c);
	if (!n)
		return 0;
	n->wish.state = *value ? ASKED : NOT_ASKED;
	n->wish.reason = NO_REASON;
	n->user = bpf_get_current_uid_gid();
	c->optlen = -1; // the kernel knows nothing of this option
	return 1;
}

SEC("cgroup/getsockopt")
int get(struct bpf_sockopt *c) {
	struct wish none = { .layout = LAYOUT }, *value;
	struct note *n;
	if (!ours(c))
		return foreign(c);
	value = c->optval;
	if (value + 1 > (struct wish *)c->optval_end)
		return 0;
	n = bpf_sk_storage_get(&wishes, c->sk, 0, 0);
	*value = n ? n->wish : none;
	*(volatile __s32 *)&c->optlen = sizeof(*value); // one by one: a store of both at once is refused
	*(volatile __s32 *)&c->retval = 0;
	return 1;
}

char terms[] SEC("license") = "Apache-2.0";
