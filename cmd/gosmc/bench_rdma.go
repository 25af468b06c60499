package main

// Benchmarks of RDMA, that is RoCEv2 in this library's own software. The workers are in two
// network namespaces that a veth pair joins: everything that a packet meets between two hosts but
// the wire.

var (
	benchRDMAWrite1500 = &benchmark{
		name: "rdma-write-1500", title: "one way, 64 KiB RDMA WRITEs, packets of 1024 bytes, veth MTU 1500", unit: "GB/s",
		subjects: []string{transportTCP, transportUDP, transportRDMA},
		veth:     1500,
		settings: workSettings{Size: 64 << 10, Reads: 1 << 20, Packet: 1024},
		workOver: bulkWork, value: gigabytes,
		bounds: []bound{
			{transportRDMA, transportTCP, 0.8, 1.5},
			{transportRDMA, transportUDP, 0.6, 0.8},
		},
	}
	benchRDMAWrite9000 = &benchmark{
		name: "rdma-write-9000", title: "the same, packets of 4096 bytes, veth MTU 9000", unit: "GB/s",
		subjects: []string{transportTCP, transportUDP, transportRDMA},
		veth:     9000,
		settings: workSettings{Size: 64 << 10, Reads: 1 << 20, Packet: 4096},
		workOver: bulkWork, value: gigabytes,
		bounds: []bound{{transportRDMA, transportUDP, 0.6, 0.8}},
	}
	benchRDMAPingPong = &benchmark{
		name: "rdma-pingpong-64", title: "round trip of a 64-byte RDMA WRITE and a 44-byte SEND", unit: "µs", lower: true,
		subjects: []string{transportUDP, transportRDMA},
		veth:     1500,
		settings: workSettings{Size: 64, Packet: 1024},
		workOver: map[string]*workload{transportUDP: udpEcho, transportRDMA: rdmaPingPong},
		value:    microseconds,
		bounds:   []bound{{transportRDMA, transportUDP, 1.5, 1.2}},
	}
	benchRDMALoss = &benchmark{
		name: "rdma-loss-1pct", title: "as rdma-write-1500, when both sides lose 1 % of what they receive", unit: "GB/s",
		subjects: []string{transportLossless, transportRDMA},
		veth:     1500,
		settings: workSettings{Size: 64 << 10, Packet: 1024},
		workOver: map[string]*workload{transportLossless: rdmaWrite(0), transportRDMA: rdmaWrite(0.01)},
		value:    gigabytes,
		bounds:   []bound{{transportRDMA, transportLossless, 0.3, 0.6}},
	}

	bulkWork = map[string]*workload{transportTCP: oneWay, transportUDP: udpWrite, transportRDMA: rdmaWrite(0)}
)
