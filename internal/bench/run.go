package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/gosmc/smc/internal/bench/program"
	"github.com/gosmc/smc/internal/child"
	"github.com/gosmc/smc/internal/measure"
)

// A roundResult is one transport's round of one benchmark.
type roundResult struct {
	rate    float64 // operations per second, at the side that counts
	bytes   float64 // payload bytes per second
	p50     time.Duration
	p99     time.Duration
	cpu     float64        // CPU seconds of both processes per second
	cpuEach float64        // CPU seconds of all processes for an operation, where programs of others work
	program program.Result // of a row of programs; zero in others
	mode    string         // of the connections, in words
	buffer  int            // receive buffer of a connection in bytes, where known
	lost    float64        // share of the packets, where known
	least   float64        // the smallest share of the work, relative to the average, where many share
	slowest float64        // seconds for which the slowest of many had nothing
	note    string         // about the site, in words
	problem string         // why there is no result; the rest is zero
}

// roundTable holds the rounds by benchmark and transport.
type roundTable map[string]map[string][]roundResult

// Run measures the chosen rows and judges the results. It calls show, which may be nil, now and
// then with its progress. The error is for an interruption; a failed measurement is a result with
// an error.
func Run(ctx context.Context, chosen []*Row, plan Plan,
	show func(format string, args ...any)) (*Report, error) {
	if show == nil {
		show = func(string, ...any) {}
	}
	r := &Report{Time: time.Now(), Machine: measure.ReadMachine(), Settings: newSettings(plan)}
	rounds, err := measureAll(ctx, chosen, plan, show)
	if err != nil {
		return nil, err
	}
	r.evaluate(chosen, rounds)
	return r, nil
}

// measureAll runs the rows that the chosen ones need. The error is for an
// interruption; a transport that cannot be measured is a result with a problem.
func measureAll(ctx context.Context, chosen []*Row, plan Plan,
	show func(format string, args ...any)) (roundTable, error) {
	rounds := make(roundTable)
	var needed []*Row
	for _, b := range chosen {
		if b.from != "" {
			b = findRow(b.from)
		}
		if !slices.Contains(needed, b) {
			needed = append(needed, b)
		}
	}
	var stage stage
	defer stage.close()
	for _, b := range needed {
		rounds[b.Name] = make(map[string][]roundResult)
		for round := range plan.Rounds {
			for _, name := range b.Transports {
				done := rounds[b.Name][name]
				if len(done) > 0 && done[len(done)-1].problem != "" {
					continue // it would only fail again
				}
				show("%s: round %d of %d, %s", b.Name, round+1, plan.Rounds, name)
				var r roundResult
				var err error
				if b.program != nil {
					r, err = stage.measureProgram(ctx, b, name, plan)
				} else {
					r, err = stage.measureRound(ctx, b, name, plan, limitRingSize(rounds[b.Name]))
				}
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
				if err != nil {
					r = roundResult{problem: err.Error()}
				}
				rounds[b.Name][name] = append(done, r)
			}
		}
	}
	return rounds, nil
}

// limitRingSize makes the ring of "limit" as large as the buffer that SMC-D used in this benchmark.
func limitRingSize(results map[string][]roundResult) int {
	for _, r := range results[transportSMCD] {
		if r.buffer > 0 {
			return r.buffer
		}
	}
	return ringDefault
}

// A stage finds sites for the rounds.
type stage struct {
	noNetns  error // why there can be no network namespaces
	hadNetns bool
	home     *program.Home // nil until a row needs it
	pods     *podSite      // nil until a row needs it
}

func (s *stage) close() {
	if s.home != nil {
		s.home.Close()
	}
	if s.pods != nil {
		s.pods.Close()
	}
}

// site makes the site of one round. The caller closes it.
func (s *stage) site(ctx context.Context, b *Row) (*site, error) {
	if b.pods {
		return s.podSite(ctx)
	}
	if b.veth == 0 {
		return siteHere(ctx), nil
	}
	if s.noNetns == nil {
		place, err := siteVeth(ctx, b.veth, max(b.pairs, 1))
		if err == nil {
			s.hadNetns = true
			return place, nil
		}
		if s.hadNetns || ctx.Err() != nil {
			return nil, err // the rounds of a benchmark are all of one kind
		}
		s.noNetns = err
	}
	if b.pairs > 1 {
		return nil, fmt.Errorf("needs network namespaces: %w", s.noNetns)
	}
	return siteLoopback(ctx, s.noNetns), nil
}

// measureProgram measures one round of a row of programs.
func (s *stage) measureProgram(
	ctx context.Context, b *Row, transport string, plan Plan,
) (roundResult, error) {
	if missing := b.program.Missing(); missing != "" {
		return roundResult{}, errors.New(missing)
	}
	if s.home == nil {
		home, err := program.NewHome()
		if err != nil {
			return roundResult{}, err
		}
		s.home = home
	}
	var place *program.Place
	var note string
	if b.pods {
		if err := s.needPods(ctx); err != nil {
			return roundResult{}, err
		}
		c, err := s.pods.containers(ctx)
		if err != nil {
			return roundResult{}, err
		}
		defer c.end()
		place, note = s.pods.place(c), s.pods.note()
	}
	r, err := s.home.Measure(ctx, b.program, place, transport, plan.Measure)
	return roundResult{
		rate: r.Rate, bytes: r.Bytes, p50: r.P50, p99: r.P99, cpu: r.CPU, cpuEach: r.CPUEach, mode: r.Mode,
		note: note, program: r,
	}, err
}

// needPods has it known whether there can be containers.
func (s *stage) needPods(ctx context.Context) (err error) {
	if s.pods == nil {
		s.pods, err = newPodSite(ctx)
	}
	return err
}

// podSite makes the site of one round in containers.
func (s *stage) podSite(ctx context.Context) (*site, error) {
	if err := s.needPods(ctx); err != nil {
		return nil, err
	}
	return s.pods.site(ctx)
}

// measureRound finds a site for a round and measures there.
func (s *stage) measureRound(ctx context.Context, b *Row, transport string, plan Plan,
	ringSize int) (roundResult, error) {
	place, err := s.site(ctx, b)
	if err != nil {
		return roundResult{}, err
	}
	defer place.close()
	r, err := measureRound(ctx, place, b, transport, plan, ringSize)
	r.note = place.note
	return r, err
}

// measureRound starts two workers, lets them warm up and work, and ends them.
func measureRound(ctx context.Context, place *site, b *Row, transport string, plan Plan,
	ringSize int) (roundResult, error) {
	var files []*os.File
	if transport == transportLimit {
		ring, err := newRingFile(ringSize)
		if err != nil {
			return roundResult{}, err
		}
		defer ring.Close()
		files = append(files, ring)
	}
	spec := workerSpec{Benchmark: b.Name, Transport: transport, Settings: b.settings}

	spec.Role, spec.Local = roleServer, place.server
	server, err := startWorker(place, spec, files)
	if err != nil {
		return roundResult{}, err
	}
	defer server.Stop()
	ready, err := server.hear(ctx, child.Patience)
	if err != nil {
		return roundResult{}, err
	}

	if place.service.IsValid() {
		addr, err := netip.ParseAddrPort(ready.Addr)
		if err != nil {
			return roundResult{}, fmt.Errorf("address of the server: %w", err)
		}
		ready.Addr = netip.AddrPortFrom(place.service, addr.Port()).String()
	}
	spec.Role, spec.Local, spec.Addr = roleClient, place.client, ready.Addr
	client, err := startWorker(place, spec, files)
	if err != nil {
		return roundResult{}, err
	}
	defer client.Stop()
	if _, err := client.hear(ctx, child.Patience); err != nil {
		return roundResult{}, err
	}

	// A worker speaks now only if it has a problem.
	workers := []*worker{server, client}
	if err := idle(ctx, plan.WarmUp, workers); err != nil {
		return roundResult{}, err
	}
	for _, w := range workers {
		if err := w.Send(workerCommand{Do: doBegin}); err != nil {
			return roundResult{}, err
		}
	}
	for _, w := range workers { // on a busy measure.Machine a worker that spins hears late
		if _, err := w.hear(ctx, child.Patience); err != nil {
			return roundResult{}, err
		}
	}
	if err := idle(ctx, plan.Measure, workers); err != nil {
		return roundResult{}, err
	}
	// Both are told before either is awaited, so that their intervals match.
	for _, w := range workers {
		if err := w.Send(workerCommand{Do: doEnd}); err != nil {
			return roundResult{}, err
		}
	}
	var reports [2]workerMessage
	for i, w := range workers {
		if reports[i], err = w.hear(ctx, child.Patience); err != nil {
			return roundResult{}, err
		}
	}
	return combine(b, transport, reports[0], reports[1])
}

// errIdle says that a measurement was too short for its operation.
var errIdle = errors.New("nothing was done")

// combine makes one result of the two workers' reports.
func combine(b *Row, transport string, server, client workerMessage) (roundResult, error) {
	counting := server
	if b.workload(transport).clientCounts {
		counting = client
	}
	seconds := counting.Seconds
	if seconds <= 0 || counting.Ops == 0 {
		return roundResult{}, fmt.Errorf("%w within %.2f s", errIdle, seconds)
	}
	r := roundResult{
		rate:   float64(counting.Ops) / seconds,
		bytes:  float64(counting.Bytes) / seconds,
		p50:    time.Duration(client.P50),
		p99:    time.Duration(client.P99),
		mode:   client.Mode,
		buffer: server.Buffer,
		least:  counting.Least,

		slowest: time.Duration(client.Slowest).Seconds(),
	}
	if packets := server.Packets + client.Packets; packets > 0 {
		r.lost = float64(max(server.Lost+client.Lost, 0)) / float64(packets)
	}
	for _, w := range []workerMessage{server, client} {
		if w.Seconds > 0 {
			r.cpu += w.CPUSeconds / w.Seconds // each in its own interval: they differ by microseconds
		}
	}
	return r, nil
}

// A worker is a child that measures.
type worker struct{ *child.Process }

func startWorker(place *site, spec workerSpec, files []*os.File) (*worker, error) {
	c, err := place.start(spec.Role, files...)
	if err != nil {
		return nil, err
	}
	if err := c.Send(spec); err != nil {
		c.Stop()
		return nil, err
	}
	return &worker{c}, nil
}

// hear takes one message; a problem of the worker becomes an error.
func (w *worker) hear(ctx context.Context, within time.Duration) (workerMessage, error) {
	var m workerMessage
	if err := w.Receive(ctx, within, &m); err != nil {
		return m, err
	}
	if m.Problem != "" {
		return m, fmt.Errorf("%s: %s", w.Name(), m.Problem)
	}
	return m, nil
}

// idle lets time pass, unless a worker has something to say, which can only be a problem.
func idle(ctx context.Context, d time.Duration, workers []*worker) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	var lines [2]<-chan []byte
	for i, w := range workers {
		lines[i] = w.Lines()
	}
	var early *worker
	var line []byte
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case line = <-lines[0]:
		early = workers[0]
	case line = <-lines[1]:
		early = workers[1]
	}
	if line == nil {
		return early.Failure(fmt.Errorf("no reason given"))
	}
	return early.problem(line)
}
