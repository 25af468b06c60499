// Where sockets that asked listen, what for, and how many of each user and network namespace.

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

// What listening sockets of one port in one network namespace have asked for. A SYN-ACK does not say which of them it is for, so
// all of them have the same mode: the first one's. A socket that wants less of it goes without. If it were otherwise, the answer
// of one with the SMC option could have CLC be sent to another one, whose program does not know CLC.
enum mode { MODE_SMC = 1, MODE_TOKEN = 2 };

struct port {
	__u64 netns; // its cookie
	__u32 port;  // host order
	__u32 zero;
};

// The value has the mode in its upper 8 bits, and the number of sockets below. Each socket here is in listeners too.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct port);
	__type(value, __u64);
} modes SEC(".maps");

#define MODE_SHIFT 56
#define MODE_SOCKETS ((1ULL << MODE_SHIFT) - 1)

// account_of returns the number under which a user counts: one from 65,536 on counts with all those that have the same upper 16
// bits, as such are given to users in ranges of that size, for their user namespaces (subuid(5)).
#define USERS 65536
static __always_inline __u32 account_of(__u32 user) {
	return user < USERS ? user : USERS + (user >> 16);
}

// The sockets in listeners by account (account_of).
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * USERS);
	__type(key, __u32);
	__type(value, __u64);
} quotas SEC(".maps");

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
static __noinline int places_of(struct bpf_sock_ops *s, struct places *p) {
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
static __noinline int enter(struct endpoint *e, __u64 limit) {
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

static __noinline void leave(struct endpoint *e) {
	struct listening *l = bpf_map_lookup_elem(&listeners, e);
	if (l && __sync_fetch_and_add(&l->sockets, -1) == 1)
		bpf_map_delete_elem(&listeners, e);
}

static __always_inline __u64 *quota_of(__u32 user) {
	__u32 key = account_of(user);
	return bpf_map_lookup_elem(&quotas, &key);
}

static __always_inline void port_of(struct bpf_sock_ops *s, struct port *p) {
	__builtin_memset(p, 0, sizeof(*p));
	p->netns = bpf_get_netns_cookie(s);
	p->port = s->local_port;
}

// join counts a listening socket at its port, and returns the mode there: what it asked for, or less. It is 0, and the socket is not
// counted, if that would be more.
__noinline int join(struct bpf_sock_ops *s, __u64 asked) {
	__u64 first = asked << MODE_SHIFT | 1, *v;
	struct port p;
	port_of(s, &p);
	for (int i = 0; i < 64; i++) {
		__u64 n;
		v = bpf_map_lookup_elem(&modes, &p);
		if (!v) {
			long err = bpf_map_update_elem(&modes, &p, &first, BPF_NOEXIST);
			if (err == -EEXIST) // another one was there first
				continue;
			return err ? 0 : asked;
		}
		n = *v;
		if (!(n & MODE_SOCKETS)) // it is being removed
			continue;
		if ((n >> MODE_SHIFT) & ~asked)
			return 0;
		if (__sync_val_compare_and_swap(v, n, n + 1) == n)
			return n >> MODE_SHIFT;
	}
	return 0;
}

__noinline int part(struct bpf_sock_ops *s) {
	struct port p;
	__u64 *v;
	port_of(s, &p);
	v = bpf_map_lookup_elem(&modes, &p);
	if (v && (__sync_fetch_and_add(v, -1) & MODE_SOCKETS) == 1)
		bpf_map_delete_elem(&modes, &p);
	return 0;
}

// mode_of returns the mode of a port at which sockets listen. Those that began when an earlier version was attached asked for
// the SMC option.
__noinline int mode_of(struct bpf_sock_ops *s) {
	struct port p;
	__u64 *v;
	port_of(s, &p);
	v = bpf_map_lookup_elem(&modes, &p);
	return v ? *v >> MODE_SHIFT : MODE_SMC;
}

// limited says whether a network namespace has a quota, and makes its endpoint.
static __always_inline int limited(struct bpf_sock_ops *s, struct endpoint *e) {
	__builtin_memset(e, 0, sizeof(*e));
	e->netns = bpf_get_netns_cookie(s);
	e->whole = 1;
	return e->netns != bpf_get_netns_cookie(0);
}

// book counts a listening socket for its user, its network namespace and its endpoint, or for none of them.
__noinline int book(struct bpf_sock_ops *s, __u32 user) {
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

__noinline int unbook(struct bpf_sock_ops *s, __u32 user) {
	struct endpoint e;
	__u64 *n = quota_of(user);
	endpoint_of(s, &e, 0);
	leave(&e);
	if (limited(s, &e))
		leave(&e);
	if (user && n)
		__sync_fetch_and_add(n, -1);
	return 0;
}

