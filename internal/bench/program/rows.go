package program

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bare is the programs as they are, over TCP.
const Bare = "tcp"

// A Row is a row of gosmc bench in which programs work.
type Row struct {
	Name, Title, Unit string
	Lower             bool     // the lower value is the better one
	Transports        []string // in the order in which they are measured and shown
	Work              *Work
	Value             func(Result) float64 // of a round
	Bounds            []Bound
	CPUBounds         []Bound // of the processor time of an operation
	Pods              bool    // the programs are in two containers
	Fetches           bool    // programs are fetched and compiled: the row runs only if it is named
}

// A Bound compares two transports of a row, Subject to Against. Without Against it is the value itself.
type Bound struct {
	Subject, Against string
	Must, Aim        float64 // 0: none
}

// Rows returns the rows, in the order in which they run.
func Rows() []*Row {
	return append(append(podRows(), runRows()...), goRows()...)
}

// runRow is a row of operations in a second, bare and under 'gosmc run'.
func runRow(name, title, unit string, work *Work, must, aim float64) *Row {
	return &Row{
		Name: "run-" + name, Title: title, Unit: unit, Work: work, Value: perSecond,
		Transports: []string{Bare, Transport}, Bounds: []Bound{{Transport, Bare, must, aim}},
	}
}

func perSecond(r Result) float64 { return r.Rate }

func gigabytes(r Result) float64 { return r.Bytes / 1e9 }

func microseconds(r Result) float64 { return float64(r.P50) / float64(time.Microsecond) }

// in has a row measure several things, each bare and under 'gosmc run', with the same bounds for each.
func (r *Row) in(things ...string) *Row {
	b := r.Bounds[0]
	r.Transports, r.Bounds = nil, nil
	for _, thing := range things {
		bare, under := strings.TrimSpace(Bare+" "+thing), strings.TrimSpace(Transport+" "+thing)
		r.Transports = append(r.Transports, bare, under)
		r.Bounds = append(r.Bounds, Bound{under, bare, b.Must, b.Aim})
	}
	return r
}

// cpu bounds the processor time of an operation.
func (r *Row) cpu(must, aim float64) *Row {
	for _, b := range r.Bounds {
		r.CPUBounds = append(r.CPUBounds, Bound{b.Subject, b.Against, must, aim})
	}
	return r
}

// many bounds the processor time of an operation of so many clients that it has one: fewer wait for
// each answer.
func (r *Row) many(clients int) *Row {
	if clients < 8 {
		return r
	}
	return r.cpu(0.7, 0.3)
}

// of has a row measure something else than operations in a second.
func (r *Row) of(value func(Result) float64, lower bool) *Row {
	r.Value, r.Lower = value, lower
	return r
}

// pod is a row between two containers.
func (r *Row) pod(name string, must, aim float64) *Row {
	r.Name, r.Pods, r.CPUBounds = "pod-"+name, true, nil
	r.Title += ", between two containers"
	r.Bounds[0].Must, r.Bounds[0].Aim = must, aim
	return r
}

// redisRow is redis-benchmark with so many clients.
func redisRow(clients, rate int, must, aim float64) *Row {
	name, title := fmt.Sprintf("redis-%d", clients), fmt.Sprintf("redis-benchmark, %d clients, GET", clients)
	work := Redis(rate, "-c", strconv.Itoa(clients))
	return runRow(name, title, "requests/s", work, must, aim).in("get").many(clients)
}

// nginxRow is wrk with so many connections to nginx.
func nginxRow(clients int, must, aim float64) *Row {
	name, title := fmt.Sprintf("nginx-%d", clients), "wrk with %d connections to nginx, 200 bytes"
	work := NGINX(clients, 200)
	return runRow(name, fmt.Sprintf(title, clients), "requests/s", work, must, aim).many(clients)
}

func pgbenchRow(name, title string, clients int, must, aim float64) *Row {
	return runRow(name, title, "transactions/s", PGBench(clients), must, aim).many(clients)
}

func podRows() []*Row {
	connect := Talk{Mode: "connect", Args: Most(2000, 1), Short: true}.Work()
	moved := Talk{Mode: "connect", Args: Most(2000, 1)}.Work()
	const title, unit = "connections made, used for one byte there and back, and closed", "connections/s"
	return []*Row{
		runRow("iperf3", "iperf3, one stream", "GB/s", IPerf3, 0, 0).of(gigabytes, false).pod("iperf3", 6, 9),
		redisRow(1, 20_000, 0, 0).pod("redis-1", 3, 8), redisRow(50, 60_000, 0, 0).pod("redis-50", 4, 7),
		nginxRow(64, 0, 0).pod("nginx", 2, 4),
		pgbenchRow("pgbench", "pgbench -S, 8 clients", 8, 0, 0).pod("pgbench", 1.4, 2),
		runRow("connect", title+"; short ones stay TCP", unit, connect, 0, 0).pod("run-connect", 0.75, 0.95),
		runRow("moved", title+", all of them moved", unit, moved, 0, 0).pod("run-connect-moved", 0, 0),
	}
}

// runRows has programs that know nothing of us, bare and under 'gosmc run'.
func runRows() []*Row {
	const (
		requests    = "requests/s"
		connections = "connections/s"
	)
	redis := runRow("redis", "redis-benchmark, 50 clients", requests, Redis(60_000), 1.15, 1.4)
	redis.in("set", "get").cpu(0.7, 0.3).Bounds[1] = Bound{"run get", "tcp get", 3.5, 6}
	return []*Row{
		runRow("iperf3", "iperf3, one stream, and the other way round", "GB/s", IPerf3, 3, 6).
			in("", "-R").of(gigabytes, false),
		redis, redisRow(1, 20_000, 3, 8), redisRow(8, 40_000, 2.5, 5),
		runRow("redis-one-cpu", "redis-benchmark, 50 clients, GET, both programs on one processor",
			requests, RedisOn("0", 40_000), 1, 1.5).in("get"),
		runRow("redis-1-one-cpu", "the same, 1 client",
			requests, RedisOn("0", 15_000, "-c", "1"), 1, 1.5).in("get"),
		redisCalls(),
		runRow("memcached-8", "memcslap, 8 clients, GET", requests, Memcached(8, 40_000), 2, 4).many(8),
		runRow("redis-pipeline", "redis-benchmark, 50 clients, 16 requests at a time in each connection",
			requests, Redis(400_000, "-P", "16"), 1.1, 1.3).in("set", "get").cpu(0.9, 0),
		runRow("nginx", "wrk with 64 connections to nginx with two workers, files of 1000 and 100 000 bytes",
			requests, NGINX(64, 0), 1.2, 1.7).in("1k", "100k").cpu(0.8, 0),
		pgbenchRow("pgbench", "pgbench -S, 8 clients", 8, 1.4, 2),
		pgbenchRow("pgbench-1", "the same, 1 client", 1, 1.5, 2),
		nginxRow(1, 2, 4), nginxRow(8, 2, 3), nginxRow(64, 2, 3),
		runRow("nginx-as-shipped", "wrk with 1, 8 and 64 connections to nginx as its packages configure it: a worker for "+
			"each processor, and the file is opened for each request; 200 bytes",
			requests, NGINXAsShipped(), 1.2, 1.7).in("1", "8", "64"),
		runRow("haproxy-8", "wrk with 8 connections to haproxy, which asks nginx, 200 bytes",
			requests, HAProxy(8), 1.5, 2.5).many(8),
		runRow("varnish-8", "wrk with 8 connections to varnish, which has asked nginx, 200 bytes",
			requests, Varnish(8), 1.5, 2.5).many(8),
		runRow("node-8", "wrk with 8 connections to a server in node, 200 bytes",
			requests, Node(8), 1.2, 1.5).many(8),
		runRow("pingpong", "round trip of 64 bytes, two programs on processors of their own", "µs",
			Talk{Mode: "pingpong", Args: Size(64), Pinned: true}.Work(), 0.85, 0.1).of(microseconds, true),
		runRow("pingpong-one-cpu", "the same, both on one processor", "µs",
			Talk{Mode: "pingpong", Args: Size(64), OneCPU: true}.Work(), 1, 0.5).of(microseconds, true),
		runRow("stream-100", "one way, writes of 100 bytes back to back", "messages/s",
			Talk{Mode: "stream", Args: Size(100)}.Work(), 2, 15),
		fanOutRow(),
		runRow("connect", "connections made, used for one byte there and back, and closed, all of them moved",
			connections, Talk{Mode: "connect", Args: Most(2000, 1)}.Work(), 0.6, 0.85),
		runRow("foreign", "the same with ten bytes, by a program without us to one under gosmc run",
			connections, Talk{Mode: "connect", Args: Most(1000, 10), Foreign: true}.Work(), 0.97, 0.99),
		runRow("oneshot-nginx",
			"ab without keep-alive, 8 at a time, to nginx, 2,000 bytes; short connections stay TCP",
			requests, OneShotNGINX(5000), 0.95, 1),
		runRow("oneshot-apache", "the same to apache2 with workers of another user",
			requests, OneShotApache(4000), 0.95, 1),
	}
}

func fanOutRow() *Row {
	title := "4 bytes to each of 1,000 connections, then the answers from all; the first three rounds alone"
	r := runRow("fanout", title, "messages/s", FanOut(1000), 2, 4).many(1000).in("", "first")
	r.Bounds[1].Must, r.Bounds[1].Aim = 1, 0
	return r
}

// redisCalls bounds the number of system calls itself.
func redisCalls() *Row {
	title := "system calls of redis-server and its supervisor for a GET of 1, 8 and 50 clients"
	r := runRow("redis-calls", title, "calls", Redis(40_000).Counted(), 0.1, 0.01).
		in("get 1", "get 8", "get 50").of(func(r Result) float64 { return r.Calls }, true)
	for i := range r.Bounds {
		r.Bounds[i].Against = ""
	}
	return r
}

// goRows has released programs in Go, compiled by 'go build' and by 'gosmc go build'.
func goRows() []*Row {
	row := func(name, title, unit string, work *Work) *Row {
		return &Row{
			Name: "go-" + name, Title: title, Unit: unit, Work: work, Value: perSecond, Fetches: true,
			Transports: []string{Bare, Compiled}, Bounds: []Bound{{Compiled, Bare, 1.3, 2}},
		}
	}
	return []*Row{
		row("nats", "nats-bench: messages of 128 bytes through nats-server to a subscriber", "messages/s",
			NATS(500_000)),
		row("etcd", "etcd's benchmark: reads of a key, 8 clients, each with a connection", "requests/s",
			ETCD(10_000)),
		row("grpc", "grpc's benchmark: one call at a time, a byte there and back", "calls/s", GRPC()),
		row("caddy", "hey with 50 connections to caddy, 200 bytes", "requests/s", Caddy(10_000)),
	}
}
