// The network namespaces in which processes ask: the agent learns of those that it does not serve, and writes the name under which
// it is reached there.

#define NAME_SIZE 60

// A service_name is an abstract Unix socket's, without the zero in front. Its socket option has the same layout.
struct service_name {
	__u32 length; // 1 to NAME_SIZE; 0 while the agent serves the namespace not yet
	char text[NAME_SIZE];
};

// By the cookie of a network namespace. Only the agent writes here.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct service_name);
} names SEC(".maps");

// A report says that a process asks in a namespace that has no name.
struct report {
	__u64 netns;   // its cookie
	__u32 process; // 0 where the kernel does not tell
	__u32 user;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} reports SEC(".maps");

// When a namespace was reported last, and a user: in ns since the machine has started. The oldest entries are forgotten, and then there
// is a report too many.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u64);
} reported SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} reporters SEC(".maps");

#define NAMESPACE_PERIOD 1000000000ULL // between two reports of one namespace, in ns
#define USER_PERIOD 1000000ULL         // between two reports of one user

// Some kernels do not tell the process: Linux before 6.10.
const volatile __u8 with_process = 1;

static __always_inline int is_recent(__u64 *last, __u64 now, __u64 period) {
	return last && now - *last < period;
}

// report_namespace tells the agent of the namespace of a socket, unless that is known, or was said a short time ago. A report
// that is lost, as the agent reads too slowly, is made again when the next process asks.
static __noinline int report_namespace(struct bpf_sockopt *c) {
	struct report r = { .netns = bpf_get_netns_cookie(c) };
	__u64 now;
	__u32 account;
	if (bpf_map_lookup_elem(&names, &r.netns))
		return 0;
	now = bpf_ktime_get_ns();
	if (is_recent(bpf_map_lookup_elem(&reported, &r.netns), now, NAMESPACE_PERIOD))
		return 0;
	r.user = bpf_get_current_uid_gid();
	account = account_of(r.user);
	if (is_recent(bpf_map_lookup_elem(&reporters, &account), now, USER_PERIOD))
		return 0;
	if (with_process)
		r.process = bpf_get_current_pid_tgid() >> 32;
	if (bpf_ringbuf_output(&reports, &r, sizeof(r), 0)) {
		count_pairing(REPORT_LOST);
		return 0;
	}
	count_pairing(REPORTED);
	bpf_map_update_elem(&reported, &r.netns, &now, BPF_ANY);
	bpf_map_update_elem(&reporters, &account, &now, BPF_ANY);
	return 0;
}
