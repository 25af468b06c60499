// One UDP port for many processes: which of the sockets that share it a packet of RoCEv2 goes to.
//
// The maps outlive agents of many versions: a change of their layout takes the packets away from the processes that
// have a socket then.

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

// The sockets by the upper bits of their queue pairs' numbers: internal/agent, slots. The kernel takes a socket out when it
// is closed.
struct {
	__uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u64);
} sockets SEC(".maps");

// The entries that the agent wants to find again after it was restarted. No program uses these.
struct owner {
	__u64 cookie; // of the socket: an entry for another one is of the past
	__u32 user;
	__u32 process;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct owner);
} owners SEC(".maps");

struct secret {
	__u8 bytes[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct secret);
} secrets SEC(".maps");

// The destination queue pair of the base transport header, IBTA 9.2: three bytes, behind the 8 of UDP's header.
#define DEST_QP (8 + 5)

// The header of UDP and the shortest packet: a base transport header and an ICRC.
#define SHORTEST (8 + 12 + 4)

// steer passes a packet to the socket that its queue pair belongs to. A packet for a process that has ended goes to the
// first of the others, which hands on packets merged with it, and tells a peer that would go on for ever: internal/rdma,
// orphan.go. Data too short for a packet are dropped then, and the kernel answers "port unreachable": so peers learn that
// a process has ended (internal/host, smcr_gone.go).
SEC("sk_reuseport")
int steer(struct sk_reuseport_md *c) {
	__u8 upper;
	__u32 slot;
	if (bpf_skb_load_bytes(c, DEST_QP, &upper, sizeof(upper)))
		return SK_DROP;
	slot = upper;
	if (!bpf_sk_select_reuseport(c, &sockets, &slot, 0))
		return SK_PASS;
	if (c->len < SHORTEST)
		return SK_DROP;
	for (int i = 0; i < 256; i++) {
		slot = i;
		if (!bpf_sk_select_reuseport(c, &sockets, &slot, 0))
			return SK_PASS;
	}
	return SK_DROP;
}

char terms[] SEC("license") = "Apache-2.0";
