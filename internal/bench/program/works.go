package program

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/child"
	"github.com/gosmc/smc/preload"
)

// result makes a round's result of a client's operations.
func (a account) result(ops, seconds float64) (Result, error) {
	if ops <= 0 || seconds <= 0 {
		return Result{}, fmt.Errorf("nothing was done: %s", a.output)
	}
	return Result{
		Rate: ops / seconds, CPU: a.cpu / a.seconds, CPUEach: a.cpu / ops, Calls: float64(a.calls) / ops,
	}, nil
}

var errOutput = errors.New("output that was not expected")

// IPerf3 is one stream of iperf3, with the rest of the transport's name as more arguments.
var IPerf3 = &Work{
	needs: []string{"iperf3"}, packages: "iperf3",
	run: func(l *lab, what string) (r Result, err error) {
		port, err := freePort()
		if err != nil {
			return r, err
		}
		if err := l.serve(port, l.command("iperf3",
			"-s", "-B", l.place.listen(), "-p", strconv.Itoa(port))); err != nil {
			return r, err
		}
		args := []string{"-c", l.place.connect(), "-p", strconv.Itoa(port), "-J", "-t",
			strconv.Itoa(l.seconds())}
		a, err := l.client(port, l.command("iperf3", append(args, strings.Fields(what)...)...))
		if err != nil {
			return r, err
		}
		var out struct {
			End struct {
				Received struct{ Bytes, Seconds float64 } `json:"sum_received"`
			}
		}
		if err := json.Unmarshal([]byte(a.output), &out); err != nil {
			return r, err
		}
		r, err = a.result(out.End.Received.Bytes, out.End.Received.Seconds)
		r.Bytes = r.Rate
		return r, err
	},
}

// Redis is redis-benchmark with more arguments. The rest of the transport's name is the command,
// with or without the number of clients behind it, and perSecond is some number of operations that
// takes about a second.
func Redis(perSecond int, more ...string) *Work {
	return RedisOn("", perSecond, more...)
}

// RedisOn is [Redis] with both programs on one processor; "" is any.
func RedisOn(processor string, perSecond int, more ...string) *Work {
	return &Work{
		needs: []string{"redis-server", "redis-benchmark"}, packages: "redis-server redis-tools",
		run: func(l *lab, what string) (r Result, err error) {
			port, err := freePort()
			if err != nil {
				return r, err
			}
			p := strconv.Itoa(port)
			if err := l.serve(port, l.on(processor, "redis-server", "--port", p, "--bind", l.place.listen(),
				"--protected-mode", "no", "--save", "", "--dir", l.dir)); err != nil {
				return r, err
			}
			n := l.scale(perSecond)
			command, clients, _ := strings.Cut(what, " ")
			args := append([]string{"-h", l.place.connect(), "-p", p, "-c", cmp.Or(clients, "50"),
				"-n", strconv.Itoa(n), "-t", command, "--csv"}, more...)
			a, err := l.client(port, l.on(processor, "redis-benchmark", args...))
			if err != nil {
				return r, err
			}
			lines, err := csv.NewReader(strings.NewReader(a.output)).ReadAll()
			if err != nil || len(lines) != 2 || len(lines[1]) < 8 {
				return r, fmt.Errorf("redis-benchmark: %w: %s", errOutput, a.output)
			}
			rate, err := strconv.ParseFloat(lines[1][1], 64)
			if err != nil || rate <= 0 {
				return r, fmt.Errorf("redis-benchmark: %w: %s", errOutput, a.output)
			}
			if r, err = a.result(float64(n), float64(n)/rate); err != nil {
				return r, err
			}
			ms, _ := strconv.ParseFloat(lines[1][6], 64)
			r.P99 = time.Duration(ms * float64(time.Millisecond))
			return r, nil
		},
	}
}

// PGBench is pgbench with so many clients, select only.
func PGBench(clients int) *Work {
	return &Work{
		needs: []string{"/usr/lib/postgresql/*/bin/initdb", "/usr/lib/postgresql/*/bin/postgres",
			"/usr/lib/postgresql/*/bin/pgbench"},
		packages: "postgresql",
		run:      func(l *lab, _ string) (Result, error) { return l.pgbench(clients) },
	}
}

func (l *lab) pgbench(clients int) (r Result, err error) {
	bin := filepath.Dir(pathOf("/usr/lib/postgresql/*/bin/pgbench"))
	port, err := freePort()
	if err != nil {
		return r, err
	}
	// The directory of data is made once for all rounds.
	data := filepath.Join(l.home.dir, "pg")
	_, statErr := os.Stat(data)
	if statErr != nil {
		if err := os.Mkdir(data, 0o700); err != nil {
			return r, err
		}
		if os.Geteuid() == 0 {
			if err := os.Chown(data, nobody, nobody); err != nil {
				return r, err
			}
		}
		if out, err := l.asNobody(l.bare(bin+"/initdb", "-D", data, "-A", "trust", "-U", "bench", "--no-sync", "--locale=C", "-E", "UTF8")).CombinedOutput(); err != nil {
			return r, fmt.Errorf("initdb: %w: %s", err, out)
		}
	}
	p := strconv.Itoa(port)
	hba := filepath.Join(l.dir, "hba")
	if err := os.WriteFile(hba, []byte("local all all trust\nhost all all 0.0.0.0/0 trust\n"),
		0o644); err != nil {
		return r, err
	}
	if err := l.serve(port, l.asNobody(l.command(bin+"/postgres", "-D", data, "-p", p, "-k", l.dir,
		"-c", "listen_addresses="+l.place.listen(), "-c", "hba_file="+hba, "-c", "fsync=off"))); err != nil {
		return r, err
	}
	access := []string{"-h", l.dir, "-p", p, "-U", "bench"} // a Unix socket
	if statErr != nil {
		if err := l.awaitPostgres(bin, access); err != nil {
			return r, err
		}
		if out, err := l.asNobody(l.bare(bin+"/pgbench", append(access, "-i", "-q", "-s", "2", "postgres")...)).CombinedOutput(); err != nil {
			return r, fmt.Errorf("pgbench -i: %w: %s", err, out)
		}
	} else if err := l.awaitPostgres(bin, access); err != nil {
		return r, err
	}
	access[1] = l.place.connect()
	a, err := l.client(port, l.asNobody(l.command(bin+"/pgbench", append(access, "-S", "-c", strconv.Itoa(clients), "-j", strconv.Itoa(min(clients, 2)), "-T", strconv.Itoa(l.seconds()), "-n", "postgres")...)))
	if err != nil {
		return r, err
	}
	done := regexp.MustCompile(`actually processed: (\d+)`).FindStringSubmatch(a.output)
	tps := regexp.MustCompile(`tps = ([0-9.]+) \(without`).FindStringSubmatch(a.output)
	if done == nil || tps == nil {
		return r, fmt.Errorf("pgbench: %w: %s", errOutput, a.output)
	}
	ops, _ := strconv.ParseFloat(done[1], 64)
	rate, _ := strconv.ParseFloat(tps[1], 64)
	if rate == 0 {
		rate = 1
	}
	return a.result(ops, ops/rate)
}

// awaitPostgres waits until it takes connections: it listens before.
func (l *lab) awaitPostgres(bin string, access []string) error {
	out, err := []byte(nil), errors.New("not tried")
	for range 200 {
		if out, err = l.asNobody(l.bare(bin+"/psql", append(access, "-c", "select 1", "postgres")...)).CombinedOutput(); err == nil || l.ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("psql: %w: %s", err, out)
}

// A Talk is a workload of our own program, which knows nothing of us: preload/bench/talk.c.
type Talk struct {
	Mode    string   // as talk.c has it
	Args    []string // after the seconds: [Size] or [Most]
	Pinned  bool     // to processors: to two of them, or
	OneCPU  bool     // to the same
	Foreign bool     // the client is bare in every round
	All     bool     // the server serves all connections at a time
	Short   bool     // connections that are short stay TCP, as they do by default
}

// Work is the work of a row.
func (w Talk) Work() *Work { return &Work{run: w.run, short: w.Short} }

func (w Talk) run(l *lab, _ string) (r Result, err error) {
	talk := filepath.Join(l.home.dir, "talk")
	if _, err := os.Stat(talk); err != nil {
		if preload.Talk() == nil {
			return r, errors.New("there is no program for this architecture")
		}
		if err := child.WriteProgram(talk, preload.Talk()); err != nil {
			return r, err
		}
	}
	server, client, err := w.processors()
	if err != nil {
		return r, err
	}
	serve := "serve"
	if w.All {
		serve = "serve-all"
	}
	cmd := l.command(talk, serve, l.place.listen(), strconv.Itoa(server))
	out, in, err := os.Pipe()
	if err != nil {
		return r, err
	}
	defer out.Close()
	cmd.Stdout = in
	_, err = l.start(cmd)
	in.Close()
	if err != nil {
		return r, err
	}
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return r, fmt.Errorf("talk: %w", err)
	}
	start := l.command
	if w.Foreign {
		start = l.bare
	}
	args := append([]string{
		w.Mode, l.place.connect(), strings.TrimSpace(port), strconv.Itoa(client),
		strconv.FormatFloat(l.span.Seconds(), 'f', 3, 64),
	}, w.Args...)
	if w.Short {
		if _, err := l.measure(start(talk, args...)); err != nil { // learns that these are short
			return r, err
		}
	}
	a, err := l.measure(start(talk, args...))
	if err != nil {
		return r, err
	}
	var ops, seconds float64
	var p50, moved int64
	if n, err := fmt.Sscan(a.output, &ops, &seconds, &p50, &moved); err != nil || n != 4 {
		return r, fmt.Errorf("talk: %w: %s", errOutput, a.output)
	}
	if (moved > 0) != (l.under && !w.Foreign) {
		return r, fmt.Errorf("%d connections were moved", moved)
	}
	if r, err = a.result(ops, seconds); err != nil {
		return r, err
	}
	r.P50 = time.Duration(p50)
	return r, nil
}

// processors chooses those that the two run on; -1 is any.
func (w Talk) processors() (server, client int, err error) {
	if !w.Pinned && !w.OneCPU {
		return -1, -1, nil
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, 0, os.NewSyscallError("sched_getaffinity", err)
	}
	var usable []int
	for cpu := 0; len(usable) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			usable = append(usable, cpu)
		}
	}
	last := usable[len(usable)-1]
	if w.OneCPU {
		return last, last, nil
	}
	if len(usable) < 2 {
		return 0, 0, errors.New("there is but one processor")
	}
	return usable[len(usable)-2], last, nil
}

// Size is the argument of a [Talk] for messages of so many bytes.
func Size(bytes int) []string { return []string{strconv.Itoa(bytes)} }

// Most is the arguments of a [Talk] for so many connections at most, each with so many round trips: a port
// waits for a minute after a connection has ended, and there are some 28 000 for all rounds.
func Most(connections, trips int) []string {
	return []string{strconv.Itoa(connections), strconv.Itoa(trips)}
}

// FanOut is a [Talk] of a client that sends a message on each of so many connections, and waits for all
// answers. Where a transport has "first" behind it, only the first rounds count, in which nothing is
// warm.
func FanOut(connections int) *Work {
	const first, endless = 3, math.MaxInt32
	return &Work{run: func(l *lab, what string) (Result, error) {
		rounds := endless
		if what == "first" {
			rounds = first
		}
		return Talk{Mode: "fanout", Args: Most(connections, rounds), All: true}.run(l, "")
	}}
}
