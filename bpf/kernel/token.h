// Pairing tokens: numbers on the SYN and the SYN-ACK by which the two ends of a connection within this kernel are known.
//
// The client's token is unpredictable. The server's is a keyed hash of the client's, of the addresses, the network namespace and the
// sequence number of the SYN-ACK: so the server derives it again when the connection is established, and nobody else gets the same
// one for the same client's token. Both end with a check of 16 bits, which only the key of this kernel can make: programs
// of another kernel, which also has an agent, have another key, and neither end takes the other for one of this kernel.
// The check spares requests to the agent; the proof is the comparison of two live sockets.
//
// The option, RFC 6994:
//
//	offset  size  field
//	     0     1  kind     254
//	     1     1  length   14
//	     2     4  ExID     "PAIR"
//	     6     8  token    in the byte order of the machine: no other machine reads it

struct token_option {
	__u8 kind, len, magic[4];
	__u64 token;
} __attribute__((packed));

// The states and causes of a socket, internal/pairing: state and Cause.
enum pairing_state { P_NOT_ASKED, P_ASKED, P_LISTENING, P_SENT, P_PAIRED, P_ALONE };
enum pairing_cause {
	P_NO_CAUSE,
	P_PEER_SILENT,   // the peer's SYN or SYN-ACK had no token
	P_NO_ROOM,       // our SYN had no room for it
	P_FAST_OPEN,     // our SYN was one of Fast Open
	P_NOT_SENT,      // our SYN-ACK had none: no room, or the SYN had data or an option that excludes it
	P_TOO_MANY,      // too many sockets of the user, or of the network namespace, listen
	P_CROSSED,       // both ends have connected to each other
	P_SIGNED,        // MD5 or AO signs our SYN
	P_MIXED,         // other sockets that listen on the port have asked for something else
	P_SENT_AGAIN,    // our SYN was sent again, then without the token
	P_COOKIE,        // the SYN was answered with a cookie
	P_OTHER_KERNEL,  // the peer's token was made by another kernel
};

#define PAIRING_LAYOUT 1 // internal/pairing: layout

// A pairing is what a socket that asked knows. getsockopt returns it.
struct pairing {
	__u8 layout, state, cause, reserved;
	__u32 zero;
	__u64 mine, theirs; // not 0 in the state P_PAIRED; mine is not 0 in P_SENT
};

// A listening socket hands a copy on to each connection that it makes.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct pairing);
} pairs SEC(".maps");

// The key of the hashes, which the agent chooses when the map is new.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct key);
} secret SEC(".maps");

static __always_inline const struct key *secret_key(void) {
	__u32 zero = 0;
	return bpf_map_lookup_elem(&secret, &zero);
}

// The first word of each hash says its purpose.
enum purpose { NEW_TOKEN = 1, TOKEN_CHECK, ANSWER_TOKEN, ANSWER_CHECK };

#define CHECK 0xffffULL // the bits of a token that are its check

// The functions that are not static are verified once, and not for each state in which they are called.

// with_check puts a check in the lower bits of a token. request is 0 for a client's token, and the client's token for a server's. It returns 0
// if there is no key.
__noinline __u64 with_check(__u64 token, __u64 request) {
	const struct key *key = secret_key();
	struct sip h;
	if (!key)
		return 0;
	sip_begin(&h, key);
	sip_add(&h, request ? ANSWER_CHECK : TOKEN_CHECK);
	sip_add(&h, token & ~CHECK);
	sip_add(&h, request);
	return (token & ~CHECK) | (sip_end(&h) & CHECK);
}

// genuine says whether this kernel has made a token.
static __always_inline int genuine(__u64 token, __u64 request) {
	return token && with_check(token, request) == token;
}

// new_token makes a token for a client. The kernel's random numbers for programs are not unpredictable for those that see
// many of them; the hash of one is.
__noinline __u64 new_token(struct bpf_sock_ops *s) {
	const struct key *key = secret_key();
	struct sip h;
	if (!key)
		return 0;
	sip_begin(&h, key);
	sip_add(&h, NEW_TOKEN);
	sip_add(&h, bpf_get_socket_cookie(s));
	sip_add(&h, bpf_ktime_get_ns());
	sip_add(&h, (__u64)bpf_get_prandom_u32() << 32 | bpf_get_prandom_u32());
	return with_check(sip_end(&h), 0);
}

// FIELD reads a field of a context by itself: the kernel refuses a load of two at once, which the compiler would make.
#define FIELD(f) (*(volatile __u32 *)&(f))

static __always_inline void sip_address(struct sip *h, __u32 a, __u32 b, __u32 c, __u32 d) {
	sip_add(h, (__u64)a << 32 | b);
	sip_add(h, (__u64)c << 32 | d);
}

// answer_token makes the token of a server for a client's. sequence is that of the SYN-ACK.
__noinline __u64 answer_token(struct bpf_sock_ops *s, __u64 token, __u32 sequence) {
	const struct key *key = secret_key();
	struct sip h;
	if (!key)
		return 0;
	sip_begin(&h, key);
	sip_add(&h, ANSWER_TOKEN);
	sip_add(&h, token);
	sip_add(&h, sequence);
	sip_add(&h, bpf_get_netns_cookie(s));
	sip_add(&h, (__u64)FIELD(s->local_port) << 32 | FIELD(s->remote_port));
	if (s->family == AF_INET6) { // also an IPv4 connection of such a socket, whose request is one of AF_INET
		sip_address(&h, FIELD(s->local_ip6[0]), FIELD(s->local_ip6[1]), FIELD(s->local_ip6[2]), FIELD(s->local_ip6[3]));
		sip_address(&h, FIELD(s->remote_ip6[0]), FIELD(s->remote_ip6[1]), FIELD(s->remote_ip6[2]), FIELD(s->remote_ip6[3]));
	} else {
		sip_address(&h, 0, 0, bpf_htonl(0xffff), FIELD(s->local_ip4));
		sip_address(&h, 0, 0, bpf_htonl(0xffff), FIELD(s->remote_ip4));
	}
	return with_check(sip_end(&h), token);
}

// load_token returns the token of the segment at hand, or of the SYN; 0 if there is none. The kernel is asked for half of the
// magic, as in has_smc.
__noinline __u64 load_token(struct bpf_sock_ops *s, __u64 where) {
	__u8 o[40] = { 254, 4, 'P', 'A' };
	__u64 token = 0;
	if (bpf_load_hdr_opt(s, o, sizeof(o), where) == sizeof(struct token_option) && o[4] == 'I' && o[5] == 'R')
		__builtin_memcpy(&token, o + 6, sizeof(token));
	return token;
}

static __always_inline long store_token(struct bpf_sock_ops *s, __u64 token) {
	struct token_option o = { 254, sizeof(o), { 'P', 'A', 'I', 'R' }, token };
	return bpf_store_hdr_opt(s, &o, sizeof(o), 0);
}
