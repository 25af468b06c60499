package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/control"
)

const (
	demoSize       = 1 << 30 // bytes
	demoHTTPTime   = 3 * time.Second
	demoHTTPConns  = 16
	demoHeadroom   = 256 << 20        // memory beyond the two copies of the file
	demoRunTimeout = 60 * time.Second // for either half; a machine on which it takes so long is stuck
)

// A demoReport is what demo --json prints.
type demoReport struct {
	Schema    int       `json:"schema"`
	Time      time.Time `json:"time"`
	Machine   machine   `json:"machine"`
	Size      int64     `json:"size"`   // of the file, in bytes
	SHA256    string    `json:"sha256"` // of the file, as it was made
	Runs      []demoRun `json:"runs"`   // SMC-D first, then TCP
	FileRatio float64   `json:"file_ratio"`
	HTTPRatio float64   `json:"http_ratio"` // of requests per second, SMC-D to TCP
	OK        bool      `json:"ok"`         // SMC-D was used and every byte was right
	Problems  []string  `json:"problems"`   // why not, in words
}

// A demoRun is the file and the HTTP requests over one transport.
type demoRun struct {
	Transport  string             `json:"transport"` // what was asked for: "smc-d" or "tcp"
	Mode       string             `json:"mode"`      // what it was: "SMC-D" or "TCP"
	Version    string             `json:"version"`
	EID        string             `json:"eid"`
	Peer       string             `json:"peer"` // address
	PeerHost   string             `json:"peer_host"`
	PeerOS     string             `json:"peer_os"`
	PeerPID    int                `json:"peer_pid"`
	ReasonCode control.ReasonCode `json:"reason_code"`
	Reason     string             `json:"reason"`
	Advice     string             `json:"advice"`
	File       demoFile           `json:"file"`
	HTTP       demoHTTP           `json:"http"`
}

type demoFile struct {
	Bytes      int64   `json:"bytes"`
	Seconds    float64 `json:"seconds"` // from the first write to the receiver's word that all has come
	Rate       float64 `json:"bytes_per_second"`
	CPUSeconds float64 `json:"cpu_seconds"` // of both processes
	SHA256     string  `json:"sha256"`      // of what the receiver has, computed afterwards
	Right      bool    `json:"right"`
}

type demoHTTP struct {
	Requests int64   `json:"requests"`
	Wrong    int64   `json:"wrong"` // answers that were not what was asked for
	Seconds  float64 `json:"seconds"`
	Rate     float64 `json:"requests_per_second"`
	P50      float64 `json:"p50_us"`
	P99      float64 `json:"p99_us"`
}

func newDemoCommand() *cobra.Command {
	size := byteSize(demoSize)
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "demo [flags]",
		Short: "Move a file and HTTP requests over SMC-D and over TCP, and compare",
		Long: `Start two processes on this machine, move a file of pseudo-random bytes from one to the
other, and ask for many small pages with net/http; first over SMC-D, then over plain TCP.

The time of the file is that of the transfer alone, from memory to memory: the file is made
before, and its SHA-256 is computed afterwards from what the receiver has. The demo succeeds only if the
connections used SMC-D and every byte was right.`,
		Example: `  gosmc demo
  gosmc demo --size 4GiB
  gosmc demo --json | jq .file_ratio`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if size < 1 || size > 1<<40 {
				return usagef("--size %v: want at least 1 byte and at most 1TiB", &size)
			}
			return runDemo(cmd, int64(size), demoHTTPTime, asJSON)
		},
	}
	cmd.Flags().Var(&size, "size", "of the file, such as 512MiB or 2GiB")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func runDemo(cmd *cobra.Command, size int64, httpTime time.Duration, asJSON bool) error {
	if free := availableMemory(); free > 0 && free < 2*size+demoHeadroom {
		return fmt.Errorf("the demo keeps the file in memory twice and needs %s, but %s are free: use a smaller --size",
			formatBytes(2*size+demoHeadroom), formatBytes(free))
	}
	p := newProgress(cmd.ErrOrStderr(), asJSON)
	defer p.done()
	r := demoReport{Schema: jsonSchema, Time: time.Now(), Machine: readMachine(), Size: size, Problems: []string{}}
	file, sum, err := makeDemoFile(cmd.Context(), size, p)
	if err != nil {
		return err
	}
	defer file.Close()
	r.SHA256 = sum
	for _, transport := range []string{transportSMCD, transportTCP} {
		run, err := runDemoTransport(cmd.Context(), transport, file, size, httpTime, p)
		if err != nil {
			return err
		}
		r.Runs = append(r.Runs, run)
	}
	p.done()
	r.judge()
	if asJSON {
		err = writeJSON(cmd.OutOrStdout(), r)
	} else {
		err = r.write(cmd.OutOrStdout())
	}
	if err == nil && !r.OK {
		err = errors.New(strings.Join(r.Problems, "; "))
	}
	return err
}

// judge compares the two runs and decides whether the demo succeeded.
func (r *demoReport) judge() {
	for i := range r.Runs {
		run := &r.Runs[i]
		run.File.Right = run.File.Bytes == r.Size && run.File.SHA256 == r.SHA256
		if run.Transport == transportSMCD && run.Mode != smc.ModeSMCD.String() {
			problem := fmt.Sprintf("the connection uses %s, not SMC-D: %s%s", run.Mode, orNA(run.Reason), codeInBrackets(run.ReasonCode))
			if run.Advice != "" {
				problem += ". " + run.Advice
			}
			r.Problems = append(r.Problems, problem)
		}
		if !run.File.Right {
			r.Problems = append(r.Problems, fmt.Sprintf("over %s the file arrived with %d bytes and SHA-256 %s", run.Transport, run.File.Bytes, run.File.SHA256))
		}
		if run.HTTP.Wrong > 0 || run.HTTP.Requests == 0 {
			r.Problems = append(r.Problems, fmt.Sprintf("over %s %d of %d HTTP answers were wrong", run.Transport, run.HTTP.Wrong, run.HTTP.Requests))
		}
	}
	s, t := r.Runs[0], r.Runs[1]
	if t.File.Rate > 0 && t.HTTP.Rate > 0 {
		r.FileRatio, r.HTTPRatio = s.File.Rate/t.File.Rate, s.HTTP.Rate/t.HTTP.Rate
	}
	r.OK = len(r.Problems) == 0
}

func (r *demoReport) write(w io.Writer) error {
	s, t := r.Runs[0], r.Runs[1]
	about := table{columns: []column{{}, {}}}
	about.add("Mode", strings.TrimSpace(s.Mode+" "+s.Version))
	about.add("EID", orNA(s.EID))
	peer := fmt.Sprintf("%s, process %d", orNA(s.Peer), s.PeerPID)
	if s.PeerHost != "" {
		peer += ", host " + printable(s.PeerHost)
	}
	if s.PeerOS != "" {
		peer += " (" + printable(s.PeerOS) + ")"
	}
	about.add("Peer", peer)
	if s.Reason != "" {
		about.add("Reason", printable(s.Reason)+codeInBrackets(s.ReasonCode))
	}
	about.add("Machine", fmt.Sprintf("%s, %d CPUs, %s", orNA(r.Machine.CPU), r.Machine.CPUs, orNA(r.Machine.Kernel)))
	if err := about.write(w); err != nil {
		return err
	}
	fmt.Fprintln(w)

	right := func(ok bool) string {
		if ok {
			return "right"
		}
		return "WRONG"
	}
	times := func(a, b float64) string {
		if b == 0 {
			return "n/a"
		}
		return formatNumber(a/b) + " x"
	}
	gbps := func(f demoFile) string { return formatNumber(f.Rate/gigabyte) + " GB/s" }
	results := table{columns: []column{{}, {title: s.Mode, right: true}, {title: "plain TCP", right: true}, {title: "ratio", right: true}}}
	results.add("File of "+formatBytes(r.Size), gbps(s.File), gbps(t.File), times(s.File.Rate, t.File.Rate))
	results.add("  time", formatNumber(s.File.Seconds)+" s", formatNumber(t.File.Seconds)+" s", times(s.File.Seconds, t.File.Seconds))
	results.add("  CPU time, both sides", formatNumber(s.File.CPUSeconds)+" s", formatNumber(t.File.CPUSeconds)+" s", times(s.File.CPUSeconds, t.File.CPUSeconds))
	results.add("  SHA-256", right(s.File.Right), right(t.File.Right))
	results.add(fmt.Sprintf("HTTP, %d connections", demoHTTPConns), formatNumber(s.HTTP.Rate)+" requests/s", formatNumber(t.HTTP.Rate)+" requests/s", times(s.HTTP.Rate, t.HTTP.Rate))
	results.add("  half answered within", formatNumber(s.HTTP.P50)+" µs", formatNumber(t.HTTP.P50)+" µs", times(s.HTTP.P50, t.HTTP.P50))
	results.add("  99 % answered within", formatNumber(s.HTTP.P99)+" µs", formatNumber(t.HTTP.P99)+" µs", times(s.HTTP.P99, t.HTTP.P99))
	results.add("  answers", demoAnswers(s.HTTP), demoAnswers(t.HTTP))
	if err := results.write(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nThe time is that of the transfer; SHA-256 %s was computed afterwards.\n", r.SHA256)
	return err
}

func demoAnswers(h demoHTTP) string {
	if h.Wrong > 0 {
		return fmt.Sprintf("%d WRONG", h.Wrong)
	}
	return groupDigits(strconv.FormatInt(h.Requests, 10)) + " right"
}

// makeDemoFile makes a file in memory, the same for the same size, and returns it with its SHA-256.
func makeDemoFile(ctx context.Context, size int64, p *progress) (*os.File, string, error) {
	fd, err := unix.MemfdCreate("gosmc-demo", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, "", os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "demo file")
	random := rand.NewChaCha8([32]byte([]byte("gosmc demo: the same every time.")))
	sum := sha256.New()
	b := make([]byte, 1<<20)
	for done := int64(0); done < size; done += int64(len(b)) {
		if err := ctx.Err(); err != nil {
			file.Close()
			return nil, "", err
		}
		if done%(64<<20) == 0 {
			p.show("making a file of %s: %d %%", formatBytes(size), done*100/size)
		}
		b = b[:min(int64(len(b)), size-done)]
		random.Read(b) // never fails
		sum.Write(b)
		if _, err := file.Write(b); err != nil {
			file.Close()
			return nil, "", err
		}
	}
	return file, hex.EncodeToString(sum.Sum(nil)), nil
}

// runDemoTransport starts the two processes and lets them do their work over one transport.
func runDemoTransport(ctx context.Context, transport string, file *os.File, size int64, httpTime time.Duration, p *progress) (demoRun, error) {
	run := demoRun{Transport: transport}
	name := strings.ToUpper(transport)
	spec := demoSpec{Role: roleServer, Transport: transport, Size: size}
	server, err := startChild(ctx, roleServer, demoWorkerVerb)
	if err != nil {
		return run, err
	}
	defer server.stop()
	if err := server.send(spec); err != nil {
		return run, err
	}
	var ready, received, sent, asked demoMessage
	if err := hearDemo(ctx, server, &ready); err != nil {
		return run, err
	}
	spec.Role, spec.FileAddr, spec.HTTPAddr, spec.HTTPSeconds = roleClient, ready.FileAddr, ready.HTTPAddr, httpTime.Seconds()
	client, err := startChild(ctx, roleClient, demoWorkerVerb, file)
	if err != nil {
		return run, err
	}
	defer client.stop()
	p.show("%s: the file", name)
	if err := client.send(spec); err != nil {
		return run, err
	}
	if err := hearDemo(ctx, client, &sent); err != nil {
		return run, err
	}
	p.show("%s: SHA-256 of what has arrived", name)
	if err := hearDemo(ctx, server, &received); err != nil {
		return run, err
	}
	p.show("%s: HTTP requests", name)
	if err := client.send(demoSpec{}); err != nil { // go on: the processors are free now
		return run, err
	}
	if err := hearDemo(ctx, client, &asked); err != nil {
		return run, err
	}
	run = sent.Run
	run.Transport, run.PeerPID = transport, server.cmd.Process.Pid
	run.File.Bytes, run.File.SHA256 = received.Run.File.Bytes, received.Run.File.SHA256
	run.File.CPUSeconds += received.Run.File.CPUSeconds
	run.HTTP = asked.Run.HTTP
	return run, nil
}

// hearDemo takes the next message of a demo process.
func hearDemo(ctx context.Context, c *child, m *demoMessage) error {
	if err := c.receive(ctx, demoRunTimeout, m); err != nil {
		return err
	}
	if m.Problem != "" {
		return fmt.Errorf("%s: %s", c.name, m.Problem)
	}
	return nil
}

// availableMemory is how much memory can be used without swapping, in bytes; 0 if not known.
func availableMemory() int64 {
	available := int64(math.MaxInt64)
	for line := range strings.Lines(readText("/proc/meminfo")) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "MemAvailable:" {
			if kib, err := strconv.ParseInt(fields[1], 10, 54); err == nil {
				available = kib << 10
			}
		}
	}
	limit, err := strconv.ParseInt(readLine("/sys/fs/cgroup/memory.max"), 10, 64)
	if err == nil {
		if used, err := strconv.ParseInt(readLine("/sys/fs/cgroup/memory.current"), 10, 64); err == nil {
			available = min(available, max(limit-used, 1))
		}
	}
	if available == math.MaxInt64 {
		return 0
	}
	return available
}
