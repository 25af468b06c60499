package demo

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/child"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/measure"
	"github.com/gosmc/smc/internal/pod"
)

// WorkerVerb is the hidden verb of the command that runs a process of the demo, see [Work].
const WorkerVerb = "demo-worker"

// spec is a message to a demo process: first its role; then, for the client, an empty one when it
// may begin with HTTP; at last the end of its input.
type spec struct {
	Role        string  `json:"role,omitempty"`
	Transport   string  `json:"transport,omitempty"`
	Size        int64   `json:"size,omitempty"`
	Listen      string  `json:"listen,omitempty"` // address of the server; empty: 127.0.0.1
	FileAddr    string  `json:"file_addr,omitempty"`
	HTTPAddr    string  `json:"http_addr,omitempty"`
	HTTPSeconds float64 `json:"http_seconds,omitempty"`
	Root        string  `json:"root,omitempty"` // of a container
	User        int     `json:"user,omitempty"` // that a container becomes; 0: it is none
}

// message is a message from a demo process: from the server its addresses and then the received
// data, from the client the sent data and then its requests; Problem at any time.
type message struct {
	FileAddr string  `json:"file_addr,omitempty"`
	HTTPAddr string  `json:"http_addr,omitempty"`
	Run      Outcome `json:"run"`
	Problem  string  `json:"problem,omitempty"`
}

// chunk is the size of one Write or Read, as a program that copies files would.
const chunk = 1 << 20

// Work does the work of the hidden verb [WorkerVerb]: one of the two processes. in and out are its
// standard input and output.
func Work(in io.Reader, out io.Writer) error {
	parent := child.NewParent(in, out)
	var task spec
	if err := parent.Receive(&task); err != nil {
		return child.ErrNotFromHere
	}
	if err := work(task, parent); err != nil {
		return parent.Send(message{Problem: err.Error()})
	}
	return nil
}

func work(task spec, parent *child.Parent) error {
	if task.User != 0 {
		if err := pod.Enter(task.Root, task.User); err != nil {
			return err
		}
	}
	w, err := newWorker(task, parent)
	if err != nil {
		return err
	}
	defer w.close()
	switch task.Role {
	case roleServer:
		return w.serve()
	case roleClient:
		return w.ask()
	default:
		return fmt.Errorf("no role %q", task.Role)
	}
}

// A worker is one of the two processes.
type worker struct {
	spec   spec
	parent *child.Parent
	listen func() (net.Listener, error)
	dial   func(ctx context.Context, addr string) (net.Conn, error)
	close  func()
}

// newWorker uses the package that an application would use: net, or smc in its place.
func newWorker(task spec, parent *child.Parent) (*worker, error) {
	anyPort := net.JoinHostPort(cmp.Or(task.Listen, "127.0.0.1"), "0")
	w := &worker{spec: task, parent: parent, close: func() {}}
	switch task.Transport {
	case transportTCP:
		w.listen = func() (net.Listener, error) { return net.Listen("tcp", anyPort) }
		w.dial = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	case transportSMCD, transportSMCR:
		var config smc.Config
		if task.Transport == transportSMCR {
			config.UEIDs, config.SMCRPeers = []string{"GOSMC.DEMO"}, []string{serverPrefix.Masked().String()}
		}
		h, err := smc.NewHost(&config)
		if err != nil {
			return nil, fmt.Errorf("SMC cannot be used here: %w", err)
		}
		w.listen = func() (net.Listener, error) {
			return (&smc.ListenConfig{Host: h}).Listen(context.Background(), "tcp", anyPort)
		}
		w.dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return (&smc.Dialer{Host: h}).DialContext(ctx, "tcp", addr)
		}
		w.close = func() { h.Close() }
	default:
		return nil, fmt.Errorf("no transport %q", task.Transport)
	}
	return w, nil
}

// serve is the server process: it receives the file and answers HTTP until its input ends.
func (w *worker) serve() error {
	files, err := w.listen()
	if err != nil {
		return err
	}
	defer files.Close()
	pages, err := w.listen()
	if err != nil {
		return err
	}
	server := http.Server{Handler: http.HandlerFunc(page)}
	defer server.Close()
	go server.Serve(pages) // ends with Close
	memory, err := mapMemory(-1, w.spec.Size)
	if err != nil {
		return err
	}
	if err := w.parent.Send(message{FileAddr: files.Addr().String(), HTTPAddr: pages.Addr().String()}); err != nil {
		return err
	}
	received, err := receiveFile(files, memory)
	if err != nil {
		return err
	}
	if err := w.parent.Send(message{Run: Outcome{File: received}}); err != nil {
		return err
	}
	var end spec
	if err := w.parent.Receive(&end); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// receiveFile takes one connection and reads it into memory; then it hashes the bytes there.
func receiveFile(l net.Listener, memory []byte) (File, error) {
	c, err := l.Accept()
	if err != nil {
		return File{}, err
	}
	defer c.Close()
	cpu := measure.CPUTime()
	n := 0
	for n < len(memory) {
		m, err := c.Read(memory[n:min(n+chunk, len(memory))])
		n += m
		if err != nil {
			return File{}, fmt.Errorf("file ended after %d bytes: %w", n, err)
		}
	}
	if _, err := c.Write([]byte{1}); err != nil { // all is here
		return File{}, err
	}
	f := File{Bytes: int64(n), CPUSeconds: (measure.CPUTime() - cpu).Seconds()}
	// Nothing may follow the file.
	if m, err := c.Read(make([]byte, 1)); m != 0 || !errors.Is(err, io.EOF) {
		f.Bytes += int64(m)
	}
	sum := sha256.Sum256(memory)
	f.SHA256 = hex.EncodeToString(sum[:])
	return f, nil
}

// ask is the client process: it sends the file, and when it is told to, asks for pages.
func (w *worker) ask() error {
	const fileDescriptor = 3 // the first of exec.Cmd.ExtraFiles
	memory, err := mapMemory(fileDescriptor, w.spec.Size)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	run, err := w.sendFile(ctx, memory)
	if err != nil {
		return err
	}
	if err := w.parent.Send(message{Run: run}); err != nil {
		return err
	}
	var goOn spec
	if err := w.parent.Receive(&goOn); err != nil {
		return err
	}
	pages, err := w.askPages(ctx)
	if err != nil {
		return err
	}
	if err := w.parent.Send(message{Run: Outcome{HTTP: pages}}); err != nil {
		return err
	}
	if err := w.parent.Receive(&goOn); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// sendFile writes memory to a new connection and waits until the receiver has it.
func (w *worker) sendFile(ctx context.Context, memory []byte) (Outcome, error) {
	c, err := w.dial(ctx, w.spec.FileAddr)
	if err != nil {
		return Outcome{}, err
	}
	defer c.Close()
	run := Outcome{Peer: c.RemoteAddr().String(), Mode: smc.ModeTCP.String()}
	if conn, ok := c.(*smc.Conn); ok {
		st := conn.State()
		run.Mode, run.Version, run.EID, run.PeerHost, run.PeerOS = st.Mode.String(), st.Version, st.EID, st.PeerHost, st.PeerOS
		run.ReasonCode, run.Reason, run.Advice = control.ReasonCode(st.Reason.Code), st.Reason.Text, st.Reason.Advice
	}
	cpu, start := measure.CPUTime(), time.Now()
	for rest := memory; len(rest) > 0; {
		n, err := c.Write(rest[:min(chunk, len(rest))])
		if err != nil {
			return run, err
		}
		rest = rest[n:]
	}
	var word [1]byte
	if _, err := io.ReadFull(c, word[:]); err != nil {
		return run, fmt.Errorf("the receiver did not confirm the file: %w", err)
	}
	run.File.Seconds = time.Since(start).Seconds()
	run.File.CPUSeconds = (measure.CPUTime() - cpu).Seconds()
	if run.File.Seconds > 0 {
		run.File.Rate = float64(len(memory)) / run.File.Seconds
	}
	return run, nil
}

// askPages asks for pages on several connections for some seconds, and checks every answer.
func (w *worker) askPages(ctx context.Context) (HTTP, error) {
	transport := &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return w.dial(ctx, w.spec.HTTPAddr) },
		MaxIdleConnsPerHost: Conns,
		MaxConnsPerHost:     Conns,
		DisableCompression:  true,
	}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport}
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		total    measure.Histogram
		next     atomic.Int64
		wrong    atomic.Int64
		errs     = make([]error, Conns)
		start    = time.Now()
		deadline = start.Add(time.Duration(w.spec.HTTPSeconds * float64(time.Second)))
	)
	for i := range errs {
		wg.Go(func() {
			var latency measure.Histogram
			for asked := time.Now(); asked.Before(deadline); {
				ok, err := askPage(ctx, &client, next.Add(1))
				if err != nil {
					errs[i] = err
					return
				}
				if !ok {
					wrong.Add(1)
				}
				now := time.Now()
				latency.Record(now.Sub(asked))
				asked = now
			}
			mu.Lock()
			defer mu.Unlock()
			total.Add(&latency)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return HTTP{}, err
	}
	r := HTTP{
		Requests: int64(total.Count()), Wrong: wrong.Load(), Seconds: time.Since(start).Seconds(),
		P50: float64(total.Quantile(0.50)) / float64(time.Microsecond),
		P99: float64(total.Quantile(0.99)) / float64(time.Microsecond),
	}
	r.Rate = float64(r.Requests) / r.Seconds
	return r, nil
}

// askPage asks for one page; ok says that the answer was the right one.
func askPage(ctx context.Context, client *http.Client, number int64) (ok bool, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://demo.invalid/page/"+strconv.FormatInt(number, 10), nil)
	if err != nil {
		return false, err
	}
	r, err := client.Do(q)
	if err != nil {
		return false, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return false, err
	}
	return r.StatusCode == http.StatusOK && bytes.Equal(body, pageBody(number)), nil
}

// page answers /page/N.
func page(w http.ResponseWriter, r *http.Request) {
	number, err := strconv.ParseInt(strings.TrimPrefix(r.URL.Path, "/page/"), 10, 64)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	body := pageBody(number)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Write(body)
}

// pageBody is page number of the demo: some 500 bytes that no other page has.
func pageBody(number int64) []byte {
	line := "page " + strconv.FormatInt(number, 10) + " of the demo\n"
	return bytes.Repeat([]byte(line), 500/len(line)+1)
}

// mapMemory maps size bytes of a file, or of memory of our own if fd is negative. The pages are
// there when it returns, so that making them is not measured. The mapping stays until the process ends.
func mapMemory(fd int, size int64) ([]byte, error) {
	flags := unix.MAP_SHARED | unix.MAP_POPULATE
	if fd < 0 {
		flags |= unix.MAP_ANONYMOUS
	}
	protection := unix.PROT_READ
	if fd < 0 {
		protection |= unix.PROT_WRITE
	}
	m, err := unix.Mmap(fd, 0, int(size), protection, flags)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return m, nil
}
