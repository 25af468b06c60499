// TCP option 254, the SMC option, on the SYN and SYN-ACK of sockets that asked for it: RFC 7609 p.92.
//
// Three programs, attached to the root of the control groups:
//
//	set    a socket asks by setsockopt(SOL_SMC, "SMCR"), before it connects or listens
//	get    ... and reads by getsockopt what has become of it
//	smc    writes the option on SYN and SYN-ACK, and looks for it on those of the peer
//
// What they know of a socket is in its storage: a struct wish, whose layout is in internal/option. Sockets that have
// none are left alone: they get no callback, and no byte.
//
// A client's option is written if its socket asked. A server's is written if the SYN had it and the
// listening socket asked, and not on a SYN cookie. Connections with TCP Fast Open, MD5, AO or
// multipath TCP go without: their options leave too little room, or have data go before any CLC.
// The server's answer is what was written, and not what should have been: written has the connections
// whose last SYN-ACK had the option.

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// Numbers of the socket interface, which the headers for user space have no room for here.
#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define SOL_SMC 286

#define SMC_OPTION_NAME 0x534d4352 // internal/option: Name
#define LAYOUT 1                   // internal/option: Layout

#define FLAG_SYN 0x02
#define FLAG_ACK 0x10

// What is seen of a foreign socket option at most: programs must set the length of a longer one to 0, which
// stands for "as it was", or kernels before Linux 6.5 refuse it. Linux kernel/bpf/cgroup.c.
#define MAX_FOREIGN 4096

enum state { NOT_ASKED, ASKED, LISTENING, SENT, BOTH, ALONE };               // internal/option: State
enum reason { NO_REASON, PEER_SILENT, NO_ROOM, FAST_OPEN, NOT_SENT, TOO_MANY, CROSSED }; // and Reason

enum flags {
	FOREIGN_WRITE = 1, // another program wants to write options on this socket: its flag stays
	FOREIGN_STATE = 2, // another program wants to know of its states
	COUNTED = 4,       // the listening socket is in listeners
};

struct wish {
	__u8 layout, state, reason, flags;
};

// A listening socket hands a copy on to each connection that it makes.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct wish);
} wishes SEC(".maps");

// An endpoint is where sockets listen: IPv4 as ::ffff:a.b.c.d, any address as zeros.
struct endpoint {
	__u64 netns; // its cookie
	__u32 addr[4];
	__u32 port; // host order
	__u32 zero;
};

// How many sockets that asked listen at an endpoint. A SYN-ACK is made for a request, which does not lead to its
// listening socket: that we are called says that some program wants to write options there, and this that
// it was us.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct endpoint);
	__type(value, __u64);
} listeners SEC(".maps");

// Requests whose SYN had the option, by their cookie, which the connection inherits: whether the last SYN-ACK had
// it too.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u8); // YES or NO
} written SEC(".maps");

enum { NO = 1, YES = 2 };

enum counter {
	SYN_SENT,        // with the option
	SYN_NO_ROOM,     // it asked, and there was none
	SYN_FAST_OPEN,   // it asked, and was one of Fast Open
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
// an experimental option is too short for what it is asked for, such as Fast Open's.
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
	return has_kind(s, 34, where) || bpf_load_hdr_opt(s, o, sizeof(o), where) > 0;
}

// excluded says whether the SYN has an option that does not go together with ours: MD5, AO, multipath TCP,
// Fast Open.
static __always_inline int excluded(struct bpf_sock_ops *s) {
	return has_kind(s, 19, BPF_LOAD_HDR_OPT_TCP_SYN) || has_kind(s, 29, BPF_LOAD_HDR_OPT_TCP_SYN) ||
	       has_kind(s, 30, BPF_LOAD_HDR_OPT_TCP_SYN) || has_fast_open(s, BPF_LOAD_HDR_OPT_TCP_SYN);
}

static __always_inline struct wish *wish_of(struct bpf_sock_ops *s) {
	struct bpf_sock *sk = s->sk;
	if (!sk)
		return 0;
	return bpf_sk_storage_get(&wishes, sk, 0, 0);
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

// asked_there says whether a socket that asked listens where the request has come.
static __always_inline int asked_there(struct bpf_sock_ops *s) {
	struct endpoint e;
	endpoint_of(s, &e, 0);
	if (bpf_map_lookup_elem(&listeners, &e))
		return 1;
	endpoint_of(s, &e, 1);
	return bpf_map_lookup_elem(&listeners, &e) != 0;
}

// callbacks turns on what we need, and notes what others had turned on.
static __always_inline void callbacks(struct bpf_sock_ops *s, struct wish *w, int wanted) {
	int before = s->bpf_sock_ops_cb_flags;
	w->flags &= ~(FOREIGN_WRITE | FOREIGN_STATE);
	if (before & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)
		w->flags |= FOREIGN_WRITE;
	if (before & BPF_SOCK_OPS_STATE_CB_FLAG)
		w->flags |= FOREIGN_STATE;
	bpf_sock_ops_cb_flags_set(s, before | wanted);
}

// quiet turns it off again, since callbacks for each packet cost time.
static __always_inline void quiet(struct bpf_sock_ops *s, struct wish *w) {
	int now = s->bpf_sock_ops_cb_flags;
	if (!(w->flags & FOREIGN_WRITE))
		now &= ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	if (!(w->flags & FOREIGN_STATE))
		now &= ~BPF_SOCK_OPS_STATE_CB_FLAG;
	bpf_sock_ops_cb_flags_set(s, now);
}

static __always_inline void on_listen(struct bpf_sock_ops *s) {
	struct wish *w = wish_of(s);
	struct endpoint e;
	__u64 one = 1, *n;
	if (!w || w->state != ASKED)
		return;
	endpoint_of(s, &e, 0);
	n = bpf_map_lookup_elem(&listeners, &e);
	if (n) {
		__sync_fetch_and_add(n, 1);
	} else if (bpf_map_update_elem(&listeners, &e, &one, BPF_NOEXIST)) {
		n = bpf_map_lookup_elem(&listeners, &e); // another one was there first
		if (!n) {
			w->reason = TOO_MANY;
			count(LISTENERS_FULL);
			return;
		}
		__sync_fetch_and_add(n, 1);
	}
	w->state = LISTENING;
	w->flags |= COUNTED;
	callbacks(s, w, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG);
}

// on_state waits for listening sockets to end. One that begins at the same endpoint in the moment between the count
// and its removal goes without the option, which its clients take for plain TCP.
static __always_inline void on_state(struct bpf_sock_ops *s) {
	struct wish *w;
	struct endpoint e;
	__u64 *n;
	if (s->args[0] != BPF_TCP_LISTEN)
		return;
	w = wish_of(s);
	if (!w || !(w->flags & COUNTED))
		return;
	w->flags &= ~COUNTED;
	w->state = ASKED; // the socket may listen again
	endpoint_of(s, &e, 0);
	n = bpf_map_lookup_elem(&listeners, &e);
	if (n && __sync_fetch_and_add(n, -1) == 1)
		bpf_map_delete_elem(&listeners, &e);
}

static __always_inline void on_connect(struct bpf_sock_ops *s) {
	struct wish *w = wish_of(s);
	if (!w || w->state == NOT_ASKED || w->state == LISTENING)
		return;
	w->state = ASKED; // a socket can connect again after it has failed to
	w->reason = NO_REASON;
	callbacks(s, w, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

// was_written says what is known of the SYN-ACK for a request, or of a connection: YES, NO, or 0 for nothing.
static __always_inline __u8 was_written(struct bpf_sock_ops *s) {
	__u64 cookie = bpf_get_socket_cookie(s);
	__u8 *known = bpf_map_lookup_elem(&written, &cookie);
	return known ? *known : 0;
}

// note returns 0 if it is remembered.
static __always_inline long note(struct bpf_sock_ops *s, __u8 what) {
	__u64 cookie = bpf_get_socket_cookie(s);
	return bpf_map_update_elem(&written, &cookie, &what, BPF_ANY);
}

// synack_wanted says whether the SYN-ACK for a request gets the option. The SYN is not at hand when it is sent again, but
// then it is known what the first one had.
static __always_inline int synack_wanted(struct bpf_sock_ops *s, int counting) {
	if (s->is_fullsock) // both ends have connected to each other
		return 0;
	if (has_smc(s, BPF_LOAD_HDR_OPT_TCP_SYN)) {
		if (!asked_there(s))
			return 0;
		if (s->args[0] == BPF_WRITE_HDR_TCP_SYNACK_COOKIE) {
			if (counting)
				count(SYNACK_COOKIE);
			return 0;
		}
		if (excluded(s)) {
			if (counting) {
				note(s, NO);
				count(SYNACK_EXCLUDED);
			}
			return 0;
		}
		return 1;
	}
	return was_written(s) == YES;
}

static __always_inline void on_length(struct bpf_sock_ops *s) {
	struct wish *w;
	if (!(s->skb_tcp_flags & FLAG_SYN))
		return;
	if (s->skb_tcp_flags & FLAG_ACK) {
		if (synack_wanted(s, 1) && bpf_reserve_hdr_opt(s, sizeof(struct smc_option), 0)) {
			note(s, NO);
			count(SYNACK_NO_ROOM);
		}
		return;
	}
	w = wish_of(s);
	if (!w || (w->state != ASKED && w->state != SENT))
		return;
	if (bpf_reserve_hdr_opt(s, sizeof(struct smc_option), 0)) {
		w->state = ASKED;
		w->reason = NO_ROOM;
		count(SYN_NO_ROOM);
	}
}

// store writes the option. That it is there already is as good: an agent for another control group above or below
// this one has the same programs.
static __always_inline int store(struct bpf_sock_ops *s) {
	struct smc_option o = SMC_OPTION;
	long err = bpf_store_hdr_opt(s, &o, sizeof(o), 0);
	return !err || err == -17 /* EEXIST */;
}

static __always_inline void on_write(struct bpf_sock_ops *s) {
	struct wish *w;
	if (!(s->skb_tcp_flags & FLAG_SYN))
		return;
	if (s->skb_tcp_flags & FLAG_ACK) {
		if (!synack_wanted(s, 0) || note(s, YES)) // no option that we do not remember
			return;
		if (store(s))
			count(SYNACK_SENT);
		else
			note(s, NO);
		return;
	}
	w = wish_of(s);
	if (!w || (w->state != ASKED && w->state != SENT) || w->reason == NO_ROOM)
		return;
	if (has_fast_open(s, 0)) {
		w->state = ASKED;
		w->reason = FAST_OPEN;
		count(SYN_FAST_OPEN);
		return;
	}
	if (!store(s)) {
		w->state = ASKED;
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
		count(CLIENT_BOTH);
	} else {
		alone(w, PEER_SILENT);
		count(CLIENT_ALONE);
	}
	quiet(s, w);
}

static __always_inline void on_passive(struct bpf_sock_ops *s) {
	struct wish *w = wish_of(s);
	__u64 cookie;
	if (!w)
		return;
	if (w->state != LISTENING) {
		if (w->state == ASKED || w->state == SENT)
			alone(w, CROSSED);
		quiet(s, w);
		return;
	}
	w->flags &= ~COUNTED; // that was the listening socket
	cookie = bpf_get_socket_cookie(s);
	switch (was_written(s)) {
	case YES:
		w->state = BOTH;
		count(SERVER_BOTH);
		break;
	case NO:
		alone(w, NOT_SENT);
		count(SERVER_ALONE);
		break;
	default: // or its SYN was answered with a cookie
		alone(w, PEER_SILENT);
		count(SERVER_ALONE);
	}
	bpf_map_delete_elem(&written, &cookie);
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
	return c->level == SOL_SMC && c->optname == SMC_OPTION_NAME && c->sk && c->sk->protocol == IPPROTO_TCP &&
	       (c->sk->family == AF_INET || c->sk->family == AF_INET6);
}

// foreign leaves a socket option as it was.
static __always_inline int foreign(struct bpf_sockopt *c) {
	if (c->optlen > MAX_FOREIGN)
		c->optlen = 0;
	return 1;
}

// set returns 0, which the caller sees as EPERM, for a socket that has connected or listens.
SEC("cgroup/setsockopt")
int set(struct bpf_sockopt *c) {
	struct wish fresh = { .layout = LAYOUT }, *w;
	__u32 *value;
	if (!ours(c))
		return foreign(c);
	value = c->optval;
	if (value + 1 > (__u32 *)c->optval_end || c->sk->state != BPF_TCP_CLOSE)
		return 0;
	w = bpf_sk_storage_get(&wishes, c->sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
	if (!w)
		return 0;
	w->layout = LAYOUT;
	w->state = *value ? ASKED : NOT_ASKED;
	w->reason = NO_REASON;
	c->optlen = -1; // the kernel knows nothing of this option
	return 1;
}

SEC("cgroup/getsockopt")
int get(struct bpf_sockopt *c) {
	struct wish none = { .layout = LAYOUT }, *w, *value;
	if (!ours(c))
		return foreign(c);
	value = c->optval;
	if (value + 1 > (struct wish *)c->optval_end)
		return 0;
	w = bpf_sk_storage_get(&wishes, c->sk, 0, 0);
	*value = w ? *w : none;
	*(volatile __s32 *)&c->optlen = sizeof(*value); // one by one: a store of both at once is refused
	*(volatile __s32 *)&c->retval = 0;
	return 1;
}

char terms[] SEC("license") = "Apache-2.0";
