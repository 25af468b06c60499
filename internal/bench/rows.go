package bench

import (
	"fmt"
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
		workOver:   map[string]*workload{transportTCP: oneWay, transportUDP: udpWrite, transportRDMA: rdmaWrite(0)},
		value:      gigabytes,
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
		workOver:   map[string]*workload{transportTCP: oneWay, transportUDP: udpWrite, transportRDMA: rdmaWrite(0)},
		value:      gigabytes,
		bounds:     []bound{{transportRDMA, transportUDP, 0.6, 0.8}},
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
		workOver: map[string]*workload{transportLink: bulkOver(1), transportLinks: bulkOver(2)}, value: gigabytes,
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

	// Programs that know nothing of us, bare and under 'gosmc run'.
	{
		Name: "run-iperf3", Title: "iperf3, one stream, and the other way round", Unit: "GB/s",
		Transports: []string{transportTCP, program.Transport, "tcp -R", "run -R"},
		program:    program.IPerf3, value: gigabytes, bounds: []bound{{program.Transport, transportTCP, 3, 6}, {"run -R", "tcp -R", 3, 6}},
	},
	{
		Name: "run-redis", Title: "redis-benchmark, 50 clients", Unit: "requests/s",
		Transports: redisTransports,
		program:    program.Redis(60_000), value: perSecond,
		bounds:    []bound{{"run set", "tcp set", 1.15, 1.4}, {"run get", "tcp get", 3.5, 6}},
		cpuBounds: []bound{{"run set", "tcp set", 0.7, 0.3}, {"run get", "tcp get", 0.7, 0.3}},
	},
	redisGets("1", 20_000, 3, 8),
	redisGets("8", 40_000, 2.5, 5),
	{
		Name: "run-redis-one-cpu", Title: "redis-benchmark, 50 clients, GET, both programs on one processor", Unit: "requests/s",
		Transports: []string{"tcp get", "run get"}, program: program.RedisOn("0", 40_000), value: perSecond,
		bounds: []bound{{"run get", "tcp get", 1, 1.5}},
	},
	{
		Name: "run-redis-1-one-cpu", Title: "the same, 1 client", Unit: "requests/s",
		Transports: []string{"tcp get", "run get"}, program: program.RedisOn("0", 15_000, "-c", "1"), value: perSecond,
		bounds: []bound{{"run get", "tcp get", 1, 1.5}},
	},
	{
		Name: "run-memcached-8", Title: "memcslap, 8 clients, GET", Unit: "requests/s",
		Transports: []string{transportTCP, program.Transport}, program: program.Memcached(8, 40_000), value: perSecond,
		bounds: []bound{{program.Transport, transportTCP, 2, 4}},
	},
	{
		Name: "run-redis-pipeline", Title: "the same, 16 requests at a time in each connection", Unit: "requests/s",
		Transports: redisTransports,
		program:    program.Redis(400_000, "-P", "16"), value: perSecond,
		bounds:    []bound{{"run set", "tcp set", 1.1, 1.3}, {"run get", "tcp get", 1.1, 1.3}},
		cpuBounds: []bound{{"run set", "tcp set", 0.9, 0}, {"run get", "tcp get", 0.9, 0}},
	},
	{
		Name: "run-nginx", Title: "wrk with 64 connections to nginx with two workers, files of 1000 and 100 000 bytes", Unit: "requests/s",
		Transports: []string{"tcp 1k", "run 1k", "tcp 100k", "run 100k"},
		program:    program.NGINX(64, 0), value: perSecond,
		bounds:    []bound{{"run 1k", "tcp 1k", 1.2, 1.7}, {"run 100k", "tcp 100k", 1.2, 1.7}},
		cpuBounds: []bound{{"run 1k", "tcp 1k", 0.8, 0}, {"run 100k", "tcp 100k", 0.8, 0}},
	},
	{
		Name: "run-pgbench", Title: "pgbench -S, 8 clients", Unit: "transactions/s",
		Transports: []string{transportTCP, program.Transport}, program: program.PGBench(8), value: perSecond,
		bounds: []bound{{program.Transport, transportTCP, 1.4, 2}},
	},
	{
		Name: "run-pgbench-1", Title: "the same, 1 client", Unit: "transactions/s",
		Transports: []string{transportTCP, program.Transport}, program: program.PGBench(1), value: perSecond,
		bounds: []bound{{program.Transport, transportTCP, 1.5, 2}},
	},
	nginxRow(1, 2, 4), nginxRow(8, 2, 3), nginxRow(64, 2, 3),
	{
		Name: "run-haproxy-8", Title: "wrk with 8 connections to haproxy, which asks nginx, 200 bytes", Unit: "requests/s",
		Transports: []string{transportTCP, program.Transport}, program: program.HAProxy(8), value: perSecond,
		bounds: []bound{{program.Transport, transportTCP, 1.5, 2.5}},
	},
	{
		Name: "run-node-8", Title: "wrk with 8 connections to a server in node, 200 bytes", Unit: "requests/s",
		Transports: []string{transportTCP, program.Transport}, program: program.Node(8), value: perSecond,
		bounds: []bound{{program.Transport, transportTCP, 1.2, 1.5}},
	},
	{
		Name: "run-pingpong", Title: "round trip of 64 bytes, two programs on processors of their own", Unit: "µs", lower: true,
		Transports: []string{transportTCP, program.Transport},
		program:    program.Talk{Mode: "pingpong", Args: program.Size(64), Pinned: true}.Work(), value: microseconds,
		bounds: []bound{{program.Transport, transportTCP, 0.85, 0.1}},
	},
	{
		Name: "run-pingpong-one-cpu", Title: "the same, both on one processor", Unit: "µs", lower: true,
		Transports: []string{transportTCP, program.Transport},
		program:    program.Talk{Mode: "pingpong", Args: program.Size(64), OneCPU: true}.Work(), value: microseconds,
		bounds: []bound{{program.Transport, transportTCP, 1.0, 0.5}},
	},
	{
		Name: "run-stream-100", Title: "one way, writes of 100 bytes back to back", Unit: "messages/s",
		Transports: []string{transportTCP, program.Transport},
		program:    program.Talk{Mode: "stream", Args: program.Size(100)}.Work(), value: perSecond,
		bounds: []bound{{program.Transport, transportTCP, 2, 15}},
	},
	{
		Name: "run-connect", Title: "connections made, used for one byte there and back, and closed, all of them moved", Unit: "connections/s",
		Transports: []string{transportTCP, program.Transport},
		program:    program.Talk{Mode: "connect", Args: program.Most(2000, 1)}.Work(), value: perSecond,
		bounds: []bound{{program.Transport, transportTCP, 0.6, 0.85}},
	},
	{
		Name: "run-foreign", Title: "the same with ten bytes, by a program without us to one under gosmc run", Unit: "connections/s",
		Transports: []string{transportTCP, program.Transport},
		program:    program.Talk{Mode: "connect", Args: program.Most(1000, 10), Foreign: true}.Work(), value: perSecond,
		bounds: []bound{{program.Transport, transportTCP, 0.97, 0.99}},
	},
}

// nginxRow is the row of wrk with so many connections to nginx.
func nginxRow(clients int, must, aim float64) *Row {
	return &Row{
		Name: fmt.Sprintf("run-nginx-%d", clients), Title: fmt.Sprintf("wrk with %d connections to nginx, 200 bytes", clients), Unit: "requests/s",
		Transports: []string{transportTCP, program.Transport}, program: program.NGINX(clients, 200), value: perSecond,
		bounds: []bound{{program.Transport, transportTCP, must, aim}},
	}
}

// redisGets is the row of redis-benchmark with so many clients.
func redisGets(clients string, rate int, must, aim float64) *Row {
	return &Row{
		Name: "run-redis-" + clients, Title: "redis-benchmark, " + clients + " clients, GET", Unit: "requests/s",
		Transports: redisTransports[2:], program: program.Redis(rate, "-c", clients), value: perSecond,
		bounds: []bound{{"run get", "tcp get", must, aim}},
	}
}

var (
	redisTransports = []string{"tcp set", "run set", "tcp get", "run get"}
	podTransports   = []string{transportTCP, transportSMCD}
	smcrTransports  = []string{transportTCP, transportSMCR}
	manyTransports  = []string{transportQP8, transportQP64, transportQP1000}
	manyWork        = map[string]*workload{transportQP8: rdmaMany(8), transportQP64: rdmaMany(64), transportQP1000: rdmaMany(1000)}
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
