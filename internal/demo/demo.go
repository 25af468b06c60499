// Package demo does the work of gosmc demo: it moves a file and HTTP requests between two
// processes or two containers, over SMC-D, or between two hosts over SMC-R, and over TCP, and checks
// every byte. A [Report] prints itself for people.
package demo

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/child"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/measure"
)

// The defaults of [Options], and a fixed value.
const (
	Size     = 1 << 30         // of the file, in bytes
	HTTPTime = 3 * time.Second // of the HTTP requests over each transport
	Conns    = 16              // HTTP connections
)

const (
	headroom   = 256 << 20        // memory beyond the two copies of the file
	runTimeout = 60 * time.Second // for either half; a machine on which it takes so long is stuck
)

// Names of the two transports, and of the two processes.
const (
	transportSMCD = "smc-d"
	transportSMCR = "smc-r"
	transportTCP  = "tcp"
	roleServer    = "server"
	roleClient    = "client"
)

// A Report is the output of demo --json.
type Report struct {
	Schema    int             `json:"schema"` // the version of the command's output; Run leaves it zero
	Time      time.Time       `json:"time"`
	Machine   measure.Machine `json:"machine"`
	Size      int64           `json:"size"`              // of the file, in bytes
	SHA256    string          `json:"sha256"`            // of the file, as it was made
	Runs      []Outcome       `json:"runs"`              // SMC-D or SMC-R first, then TCP
	Network   string          `json:"network,omitempty"` // in words; empty: one host
	FileRatio float64         `json:"file_ratio"`
	HTTPRatio float64         `json:"http_ratio"` // of requests per second, SMC to TCP
	OK        bool            `json:"ok"`         // SMC was used and every byte was right
	Problems  []string        `json:"problems"`   // why not, in words
}

// An Outcome is the file and the HTTP requests over one transport.
type Outcome struct {
	Transport  string             `json:"transport"` // the requested one: "smc-d", "smc-r" or "tcp"
	Mode       string             `json:"mode"`      // the actual one: "SMC-D", "SMC-R" or "TCP"
	Version    string             `json:"version"`
	EID        string             `json:"eid"`
	Peer       string             `json:"peer"` // address
	PeerHost   string             `json:"peer_host"`
	PeerOS     string             `json:"peer_os"`
	PeerPID    int                `json:"peer_pid"`
	ReasonCode control.ReasonCode `json:"reason_code"`
	Reason     string             `json:"reason"`
	Advice     string             `json:"advice"`
	File       File               `json:"file"`
	HTTP       HTTP               `json:"http"`
}

// A File is how the file fared.
type File struct {
	Bytes      int64   `json:"bytes"`
	Seconds    float64 `json:"seconds"` // from the first write to the receiver's word that all has come
	Rate       float64 `json:"bytes_per_second"`
	CPUSeconds float64 `json:"cpu_seconds"` // of both processes
	SHA256     string  `json:"sha256"`      // of the receiver's bytes, computed afterwards
	Right      bool    `json:"right"`
}

// HTTP is how the requests fared.
type HTTP struct {
	Requests int64   `json:"requests"`
	Wrong    int64   `json:"wrong"` // answers with other content than the request asked for
	Seconds  float64 `json:"seconds"`
	Rate     float64 `json:"requests_per_second"`
	P50      float64 `json:"p50_us"`
	P99      float64 `json:"p99_us"`
}

// Options are the settings of a demo.
type Options struct {
	Size     int64                            // of the file, in bytes
	HTTPTime time.Duration                    // for each transport
	Setting  Setting                          // all but OneHost need root
	Show     func(format string, args ...any) // gets the progress now and then; nil: nobody does
}

// Memory is how many bytes of memory a demo needs for a file of that size.
func Memory(size int64) int64 { return 2*size + headroom }

// Run makes the file, moves it over SMC and over TCP, asks for pages over both, and judges. The
// error is for steps that could not be done at all, such as ErrNotRoot; [Report.OK] says whether it
// went well.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Show == nil {
		o.Show = func(string, ...any) {}
	}
	r := &Report{Time: time.Now(), Machine: measure.ReadMachine(), Size: o.Size, Problems: []string{}}
	where, err := o.Setting.prepare(ctx)
	if err != nil {
		return nil, err
	}
	defer where.close()
	r.Network = where.network()
	file, sum, err := makeFile(ctx, o.Size, o.Show)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r.SHA256 = sum
	for _, transport := range []string{o.Setting.transport(), transportTCP} {
		run, err := runTransport(ctx, transport, file, where, o)
		if err != nil {
			return nil, err
		}
		r.Runs = append(r.Runs, run)
	}
	r.judge()
	return r, nil
}

// judge compares the two runs and decides whether the demo succeeded.
func (r *Report) judge() {
	for i := range r.Runs {
		run := &r.Runs[i]
		run.File.Right = run.File.Bytes == r.Size && run.File.SHA256 == r.SHA256
		if want := wantedMode(run.Transport); run.Mode != want {
			problem := fmt.Sprintf("the connection uses %s, not %s: %s%s", run.Mode, want,
				cmp.Or(run.Reason, "n/a"), inBrackets(run.ReasonCode))
			if run.Advice != "" {
				problem += ". " + run.Advice
			}
			r.Problems = append(r.Problems, problem)
		}
		if !run.File.Right {
			r.Problems = append(r.Problems, fmt.Sprintf("over %s the file arrived with %d bytes and SHA-256 %s", run.Transport, run.File.Bytes, run.File.SHA256))
		}
		if run.HTTP.Wrong > 0 || run.HTTP.Requests == 0 {
			r.Problems = append(r.Problems, fmt.Sprintf("over %s %d of %d HTTP answers were wrong",
				run.Transport, run.HTTP.Wrong, run.HTTP.Requests))
		}
	}
	s, t := r.Runs[0], r.Runs[1]
	if t.File.Rate > 0 && t.HTTP.Rate > 0 {
		r.FileRatio, r.HTTPRatio = s.File.Rate/t.File.Rate, s.HTTP.Rate/t.HTTP.Rate
	}
	r.OK = len(r.Problems) == 0
}

// wantedMode is the mode of the connections of a transport.
func wantedMode(transport string) string { return strings.ToUpper(transport) }

func inBrackets(c control.ReasonCode) string {
	if c == 0 {
		return ""
	}
	return " (" + c.String() + ")"
}

// makeFile makes a file in memory, the same for the same size, and returns it with its SHA-256.
func makeFile(ctx context.Context, size int64, show func(string, ...any)) (*os.File, string, error) {
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
			show("making a file of %d MiB: %d %%", size>>20, done*100/size)
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

// runTransport starts the two processes and lets them do their work over one transport.
func runTransport(ctx context.Context, transport string, file *os.File, p *place,
	o Options) (Outcome, error) {
	run := Outcome{Transport: transport}
	name := strings.ToUpper(transport)
	task := spec{Role: roleServer, Transport: transport, Size: o.Size}
	server, client, err := p.start(ctx, file)
	if err != nil {
		return run, err
	}
	defer server.Stop()
	defer client.Stop()
	if err := server.Send(p.task(task)); err != nil {
		return run, err
	}
	var ready, received, sent, asked message
	if err := hear(ctx, server, &ready); err != nil {
		return run, err
	}
	task.Role, task.FileAddr, task.HTTPAddr = roleClient, ready.FileAddr, ready.HTTPAddr
	task.HTTPSeconds = o.HTTPTime.Seconds()
	o.Show("%s: the file", name)
	if err := client.Send(p.task(task)); err != nil {
		return run, err
	}
	if err := hear(ctx, client, &sent); err != nil {
		return run, err
	}
	o.Show("%s: SHA-256 of what has arrived", name)
	if err := hear(ctx, server, &received); err != nil {
		return run, err
	}
	o.Show("%s: HTTP requests", name)
	if err := client.Send(spec{}); err != nil { // go on: the processors are free now
		return run, err
	}
	if err := hear(ctx, client, &asked); err != nil {
		return run, err
	}
	run = sent.Run
	run.Transport, run.PeerPID = transport, server.PID()
	run.File.Bytes, run.File.SHA256 = received.Run.File.Bytes, received.Run.File.SHA256
	run.File.CPUSeconds += received.Run.File.CPUSeconds
	run.HTTP = asked.Run.HTTP
	return run, nil
}

// hear takes the next message of a demo process.
func hear(ctx context.Context, c *child.Process, m *message) error {
	if err := c.Receive(ctx, runTimeout, m); err != nil {
		return err
	}
	if m.Problem != "" {
		return fmt.Errorf("%s: %s", c.Name(), m.Problem)
	}
	return nil
}
