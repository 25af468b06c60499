package bench

import (
	"time"

	"github.com/gosmc/smc/internal/bench/program"
)

// rows is the table, in the order in which the rows run. A new row is one entry here; if it needs a
// new workload, that gets a file of its own. docs/performance.md explains each row.
var rows = []*Row{
	{
		Name: "pingpong-64", Title: "round trip of 64 bytes, half of them take less", Unit: "µs", lower: true,
		Transports: []string{transportTCP, transportUnix, transportSMCD},
		settings:   workSettings{Size: 64},
		work:       pingPong, value: microseconds,
		bounds: []bound{{transportSMCD, transportTCP, 1.0 / 30, 1.0 / 100}},
	},
	{
		Name: "pingpong-64-nospin", Title: "the same when neither side spins: every message wakes a sleeper", Unit: "µs", lower: true,
		Transports: []string{transportTCP, transportUnix, transportSMCD},
		settings:   workSettings{Size: 64, NoSpin: true},
		work:       pingPong, value: microseconds,
		bounds: []bound{{transportSMCD, transportTCP, 1.0, 0.5}},
	},
	{
		Name: "bulk-64k", Title: "one way, writes and reads of 64 KiB", Unit: "GB/s",
		Transports: []string{transportTCP, transportUnix, transportSMCD, transportLimit},
		settings:   workSettings{Size: 64 << 10, Reads: 64 << 10},
		work:       oneWay, value: gigabytes,
		bounds: []bound{
			{transportSMCD, transportTCP, 4, 10},
			{transportSMCD, transportUnix, 2.5, 0},
			{transportSMCD, transportLimit, 0, 0.85},
		},
	},
	{
		Name: "bulk-1m", Title: "one way, writes and reads of 1 MiB", Unit: "GB/s",
		Transports: []string{transportTCP, transportUnix, transportSMCD, transportLimit},
		settings:   workSettings{Size: 1 << 20, Reads: 1 << 20},
		work:       oneWay, value: gigabytes,
		bounds: []bound{
			{transportSMCD, transportTCP, 3, 0},
			{transportSMCD, transportLimit, 0, 0.8},
		},
	},
	{
		Name: "stream-100", Title: "one way, writes of 100 bytes back to back", Unit: "messages/s",
		Transports: []string{transportTCP, transportUnix, transportSMCD},
		settings:   workSettings{Size: 100, Reads: 64 << 10},
		work:       oneWay, value: func(r roundResult) float64 { return r.bytes / 100 },
		bounds: []bound{{transportSMCD, transportTCP, 20, 60}},
	},
	{
		Name: "connect", Title: "connections made, used for one byte there and back, and closed", Unit: "connections/s",
		Transports: []string{transportTCP, transportSMCD},
		// A port waits for a minute after a connection has ended, and there are some 28 000 for
		// all rounds together if the client binds them before it connects.
		settings: workSettings{Conns: 8, MaxOps: 2000},
		work:     connectClose, value: perSecond,
		bounds: []bound{{transportSMCD, transportTCP, 0.4, 0.5}},
	},
	{
		Name: "oneshot", Title: "connections made, used for 200 bytes there and 2 KB back, and closed", Unit: "connections/s",
		Transports: []string{transportTCP, transportSMC},
		settings:   workSettings{Conns: 8, Size: 200, Reads: 2000, MaxOps: 2000},
		work:       connectClose, value: perSecond,
		bounds: []bound{{transportSMC, transportTCP, 0.95, 1}},
	},
	{
		Name: "http-4", Title: "net/http GETs of a small body, 4 connections kept alive", Unit: "requests/s",
		Transports: []string{transportTCP, transportSMCD},
		settings:   workSettings{Conns: 4, Size: 128},
		work:       httpGets, value: perSecond,
		bounds: []bound{{transportSMCD, transportTCP, 0.95, 1.2}},
	},
	{
		Name: "http-8", Title: "net/http GETs of a small body, 8 connections kept alive", Unit: "requests/s",
		Transports: []string{transportTCP, transportSMCD},
		settings:   workSettings{Conns: 8, Size: 128},
		work:       httpGets, value: perSecond,
		bounds: []bound{{transportSMCD, transportTCP, 1.05, 1.2}},
	},
	{
		Name: "http", Title: "net/http GETs of a small body, 64 connections kept alive", Unit: "requests/s",
		Transports: []string{transportTCP, transportSMCD},
		settings:   workSettings{Conns: 64, Size: 128},
		work:       httpGets, value: perSecond,
		bounds: []bound{{transportSMCD, transportTCP, 1.3, 1.6}},
	},
	{
		Name: "cpu", Title: "CPU time of both processes for a gigabyte, in bulk-64k", Unit: "s/GB", lower: true,
		Transports: []string{transportTCP, transportUnix, transportSMCD, transportLimit},
		from:       "bulk-64k", value: cpuPerGigabyte,
		bounds: []bound{{transportSMCD, transportTCP, 0.5, 0.15}},
	},

	// RDMA, that is RoCEv2 in this library's own software. The workers are in two network namespaces
	// that a veth pair joins: everything that a packet meets between two hosts but the wire.
	{
		Name: "rdma-write-1500", Title: "one way, 64 KiB RDMA WRITEs, packets of 1024 bytes, veth MTU 1500", Unit: "GB/s",
		Transports: []string{transportTCP, transportUDP, transportRDMA},
		veth:       1500,
		settings:   workSettings{Size: 64 << 10, Reads: 1 << 20, Packet: 1024},
		workOver: map[string]*workload{transportTCP: oneWay, transportUDP: udpWrite,
			transportRDMA: rdmaWrite(0)},
		value: gigabytes,
		bounds: []bound{
			// TCP on a veth skips checksums and segmentation, which no packet on a wire can: it is
			// shown, and no bound.
			{transportRDMA, transportUDP, 0.65, 0.9},
		},
	},
	{
		Name: "rdma-write-9000", Title: "the same, packets of 4096 bytes, veth MTU 9000", Unit: "GB/s",
		Transports: []string{transportTCP, transportUDP, transportRDMA},
		veth:       9000,
		settings:   workSettings{Size: 64 << 10, Reads: 1 << 20, Packet: 4096},
		workOver: map[string]*workload{transportTCP: oneWay, transportUDP: udpWrite,
			transportRDMA: rdmaWrite(0)},
		value:  gigabytes,
		bounds: []bound{{transportRDMA, transportUDP, 0.6, 0.8}},
	},
	{
		Name: "rdma-pingpong-64", Title: "round trip of a 64-byte RDMA WRITE and a 44-byte SEND", Unit: "µs", lower: true,
		Transports: []string{transportUDP, transportRDMA},
		veth:       1500,
		settings:   workSettings{Size: 64, Packet: 1024},
		workOver:   map[string]*workload{transportUDP: udpEcho, transportRDMA: rdmaPingPong},
		value:      microseconds,
		bounds:     []bound{{transportRDMA, transportUDP, 1.5, 1.2}},
	},
	{
		Name: "rdma-loss-1pct", Title: "as rdma-write-1500, when both sides lose 1 % of what they receive", Unit: "GB/s",
		Transports: []string{transportLossless, transportRDMA},
		veth:       1500,
		settings:   workSettings{Size: 64 << 10, Packet: 1024},
		workOver:   map[string]*workload{transportLossless: rdmaWrite(0), transportRDMA: rdmaWrite(0.01)},
		value:      gigabytes,
		bounds:     []bound{{transportRDMA, transportLossless, 0.3, 0.6}},
	},
	{
		Name: "rdma-many", Title: "as rdma-write-1500, by 8, 64 and 1000 busy queue pairs together", Unit: "GB/s",
		Transports: manyTransports,
		veth:       1500,
		settings:   workSettings{Size: 64 << 10, Packet: 1024},
		workOver:   manyWork,
		value:      gigabytes,
		bounds:     []bound{{transportQP1000, transportQP8, 0.5, 0.8}},
	},
	{
		Name: "rdma-many-share", Title: "what the slowest queue pair got in rdma-many, of what each got on average", Unit: "of 1",
		Transports: manyTransports,
		from:       "rdma-many", value: leastOf,
		bounds: []bound{{transportQP1000, transportQP8, 0.25, 0.5}},
	},
	{
		Name: "rdma-many-208k", Title: "rdma-many with the socket buffers that distributions allow", Unit: "GB/s",
		Transports: manyTransports,
		veth:       1500,
		settings:   workSettings{Size: 64 << 10, Packet: 1024, Buffer: distributionBuffer},
		workOver:   manyWork,
		value:      gigabytes,
		bounds:     []bound{{transportQP1000, transportQP8, 0.5, 0.8}},
	},
	{
		Name: "rdma-many-208k-share", Title: "what the slowest queue pair got in rdma-many-208k", Unit: "of 1",
		Transports: manyTransports,
		from:       "rdma-many-208k", value: leastOf,
		bounds: []bound{{transportQP1000, transportQP8, 0.25, 0.5}},
	},

	// SMC-R, in the same two network namespaces. TCP on a veth pair skips steps that no packet on a
	// wire can skip.
	{
		Name: "smcr-bulk-1500", Title: "one way, writes of 64 KiB over SMC-R, veth MTU 1500", Unit: "GB/s",
		Transports: smcrTransports,
		veth:       1500,
		settings:   workSettings{Size: 64 << 10, Reads: 64 << 10},
		work:       oneWay, value: gigabytes,
		bounds: []bound{{transportSMCR, transportTCP, 0.5, 0.9}},
	},
	{
		Name: "smcr-bulk-9000", Title: "the same, veth MTU 9000", Unit: "GB/s",
		Transports: smcrTransports,
		veth:       9000,
		settings:   workSettings{Size: 64 << 10, Reads: 64 << 10},
		work:       oneWay, value: gigabytes,
		bounds: []bound{{transportSMCR, transportTCP, 0.7, 1.1}},
	},
	{
		Name: "smcr-pingpong-64", Title: "round trip of 64 bytes over SMC-R, half of them take less", Unit: "µs", lower: true,
		Transports: smcrTransports,
		veth:       1500,
		settings:   workSettings{Size: 64},
		work:       pingPong, value: microseconds,
		bounds: []bound{{transportSMCR, transportTCP, 1.0, 0.4}},
	},
	{
		Name: "smcr-stream-100", Title: "one way, writes of 100 bytes back to back over SMC-R", Unit: "messages/s",
		Transports: smcrTransports,
		veth:       1500,
		settings:   workSettings{Size: 100, Reads: 64 << 10},
		work:       oneWay, value: func(r roundResult) float64 { return r.bytes / 100 },
		bounds: []bound{{transportSMCR, transportTCP, 1.0, 3}},
	},
	{
		Name: "smcr-connect", Title: "SMC-R connections of a link group made, used for one byte there and back, and closed", Unit: "connections/s",
		Transports: smcrTransports,
		veth:       1500,
		settings:   workSettings{Conns: 8, MaxOps: 2000},
		work:       connectClose, value: perSecond,
		bounds: []bound{{transportSMCR, transportTCP, 0.2, 0.5}},
	},
	{
		Name: "smcr-http", Title: "net/http GETs of a small body over SMC-R, 64 connections kept alive", Unit: "requests/s",
		Transports: smcrTransports,
		veth:       1500,
		settings:   workSettings{Conns: 64, Size: 128},
		work:       httpGets, value: perSecond,
		bounds: []bound{{transportSMCR, transportTCP, 0.7, 1.2}},
	},
	{
		Name: "smcr-bulk-2links", Title: "one way, writes of 64 KiB by 8 connections over SMC-R, over one link and spread over two", Unit: "GB/s",
		Transports: []string{transportLink, transportLinks},
		veth:       1500, pairs: 2,
		settings: workSettings{Size: 64 << 10, Reads: 64 << 10, Conns: 8},
		workOver: map[string]*workload{transportLink: bulkOver(1),
			transportLinks: bulkOver(2)}, value: gigabytes,
		bounds: []bound{{transportLinks, transportLink, 0.9, 1.1}},
	},
	{
		Name: "smcr-failover", Title: "how long the slowest of 100 busy connections stands still when the interface of one of two links goes down", Unit: "s", lower: true,
		Transports: []string{transportLinks},
		veth:       1500, pairs: 2,
		settings: workSettings{Size: 16 << 10, Reads: 64 << 10, Conns: 100},
		work:     failover(cutInterface), value: slowest,
		bounds: []bound{{transportLinks, "", 2, 0.2}},
	},
	{
		Name: "smcr-failover-silent", Title: "the same when the packets of one link vanish and nobody is told", Unit: "s", lower: true,
		Transports: []string{transportLinks},
		veth:       1500, pairs: 2,
		settings: workSettings{Size: 16 << 10, Reads: 64 << 10, Conns: 100},
		work:     failover(cutPath), value: slowest,
		bounds: []bound{{transportLinks, "", 3, 1}},
	},

	// Two containers: what a program of one reaches in the other by a service address.
	{
		Name: "pod-pingpong", Title: "round trip of 64 bytes between two containers, half of them take less", Unit: "µs", lower: true,
		Transports: podTransports,
		pods:       true,
		settings:   workSettings{Size: 64},
		work:       pingPong, value: microseconds,
		bounds: []bound{{transportSMCD, transportTCP, 1.0 / 150, 0}},
	},
	{
		Name: "pod-bulk-64k", Title: "one way between two containers, writes and reads of 64 KiB", Unit: "GB/s",
		Transports: podTransports,
		pods:       true,
		settings:   workSettings{Size: 64 << 10, Reads: 64 << 10},
		work:       oneWay, value: gigabytes,
		bounds: []bound{{transportSMCD, transportTCP, 12, 0}},
	},
	{
		Name: "pod-connect", Title: "connections between two containers made, used for one byte there and back, and closed", Unit: "connections/s",
		Transports: podTransports,
		pods:       true,
		settings:   workSettings{Conns: 8, MaxOps: 2000},
		work:       connectClose, value: perSecond,
		bounds: []bound{{transportSMCD, transportTCP, 0.4, 0.6}},
	},
	{
		Name: "pod-http-8", Title: "net/http GETs of a small body between two containers, 8 connections kept alive", Unit: "requests/s",
		Transports: podTransports,
		pods:       true,
		settings:   workSettings{Conns: 8, Size: 128},
		work:       httpGets, value: perSecond,
		bounds: []bound{{transportSMCD, transportTCP, 1.4, 1.8}},
	},
}

// The rows of programs follow.
func init() {
	for _, r := range program.Rows() {
		rows = append(rows, &Row{
			Name: r.Name, Title: r.Title, Unit: r.Unit, Transports: r.Transports, lower: r.Lower,
			bounds: boundsOf(r.Bounds), cpuBounds: boundsOf(r.CPUBounds),
			pods: r.Pods, fetches: r.Fetches,
			program: r.Work, value: func(round roundResult) float64 { return r.Value(round.program) },
		})
	}
}

func boundsOf(list []program.Bound) (bounds []bound) {
	for _, b := range list {
		bounds = append(bounds, bound{b.Subject, b.Against, b.Must, b.Aim})
	}
	return bounds
}

var (
	podTransports  = []string{transportTCP, transportSMCD}
	smcrTransports = []string{transportTCP, transportSMCR}
	manyTransports = []string{transportQP8, transportQP64, transportQP1000}
	manyWork       = map[string]*workload{transportQP8: rdmaMany(8), transportQP64: rdmaMany(64),
		transportQP1000: rdmaMany(1000)}
)

// The possible numbers of a row.

func perSecond(r roundResult) float64 { return r.rate }

func microseconds(r roundResult) float64 { return float64(r.p50) / float64(time.Microsecond) }

func slowest(r roundResult) float64 { return r.slowest }

const gigabyte = 1e9

func leastOf(r roundResult) float64 { return r.least }

func gigabytes(r roundResult) float64 { return r.bytes / gigabyte }

func cpuPerGigabyte(r roundResult) float64 {
	if r.bytes == 0 {
		return 0
	}
	return r.cpu / gigabytes(r)
}
