package main

import (
	"bytes"
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

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/control"
)

const demoWorkerVerb = "demo-worker"

// demoSpec is what a demo process hears: first who it is; then, for the client, an empty
// one when it may begin with HTTP; at last the end of its input.
type demoSpec struct {
	Role        string  `json:"role,omitempty"`
	Transport   string  `json:"transport,omitempty"`
	Size        int64   `json:"size,omitempty"`
	FileAddr    string  `json:"file_addr,omitempty"`
	HTTPAddr    string  `json:"http_addr,omitempty"`
	HTTPSeconds float64 `json:"http_seconds,omitempty"`
}

// demoMessage is what it says: the server its addresses and then what it received, the
// client what it sent and then what it asked; Problem at any time.
type demoMessage struct {
	FileAddr string  `json:"file_addr,omitempty"`
	HTTPAddr string  `json:"http_addr,omitempty"`
	Run      demoRun `json:"run"`
	Problem  string  `json:"problem,omitempty"`
}

// demoChunk is what is given to one Write or Read, as a program that copies files would.
const demoChunk = 1 << 20

func newDemoWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    demoWorkerVerb,
		Hidden: true,
		Args:   usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			parent := newParentLink(cmd.InOrStdin(), cmd.OutOrStdout())
			var spec demoSpec
			if err := parent.receive(&spec); err != nil {
				return errNotFromHere
			}
			w, err := newDemoWorker(spec, parent)
			if err == nil {
				defer w.close()
				switch spec.Role {
				case roleServer:
					err = w.serve()
				case roleClient:
					err = w.ask()
				default:
					err = fmt.Errorf("no role %q", spec.Role)
				}
			}
			if err != nil {
				return parent.send(demoMessage{Problem: err.Error()})
			}
			return nil
		},
	}
}

// A demoWorker is one of the two processes.
type demoWorker struct {
	spec   demoSpec
	parent *parentLink
	listen func() (net.Listener, error)
	dial   func(ctx context.Context, addr string) (net.Conn, error)
	close  func()
}

// newDemoWorker uses what an application would use: package net, or package smc in its place.
func newDemoWorker(spec demoSpec, parent *parentLink) (*demoWorker, error) {
	const anyPort = "127.0.0.1:0"
	w := &demoWorker{spec: spec, parent: parent, close: func() {}}
	switch spec.Transport {
	case transportTCP:
		w.listen = func() (net.Listener, error) { return net.Listen("tcp", anyPort) }
		w.dial = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	case transportSMCD:
		h, err := smc.NewHost(nil)
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
		return nil, fmt.Errorf("no transport %q", spec.Transport)
	}
	return w, nil
}

// serve is the server process: it receives the file and answers HTTP until its input ends.
func (w *demoWorker) serve() error {
	files, err := w.listen()
	if err != nil {
		return err
	}
	defer files.Close()
	pages, err := w.listen()
	if err != nil {
		return err
	}
	server := http.Server{Handler: http.HandlerFunc(demoPage)}
	defer server.Close()
	go server.Serve(pages) // ends with Close
	memory, err := demoMemory(-1, w.spec.Size)
	if err != nil {
		return err
	}
	if err := w.parent.send(demoMessage{FileAddr: files.Addr().String(), HTTPAddr: pages.Addr().String()}); err != nil {
		return err
	}
	received, err := receiveFile(files, memory)
	if err != nil {
		return err
	}
	if err := w.parent.send(demoMessage{Run: demoRun{File: received}}); err != nil {
		return err
	}
	var end demoSpec
	if err := w.parent.receive(&end); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// receiveFile takes one connection and reads it into memory; then it hashes what is there.
func receiveFile(l net.Listener, memory []byte) (demoFile, error) {
	c, err := l.Accept()
	if err != nil {
		return demoFile{}, err
	}
	defer c.Close()
	cpu := cpuTime()
	n := 0
	for n < len(memory) {
		m, err := c.Read(memory[n:min(n+demoChunk, len(memory))])
		n += m
		if err != nil {
			return demoFile{}, fmt.Errorf("file ended after %d bytes: %w", n, err)
		}
	}
	if _, err := c.Write([]byte{1}); err != nil { // all is here
		return demoFile{}, err
	}
	f := demoFile{Bytes: int64(n), CPUSeconds: (cpuTime() - cpu).Seconds()}
	// Nothing may follow the file.
	if m, err := c.Read(make([]byte, 1)); m != 0 || !errors.Is(err, io.EOF) {
		f.Bytes += int64(m)
	}
	sum := sha256.Sum256(memory)
	f.SHA256 = hex.EncodeToString(sum[:])
	return f, nil
}

// ask is the client process: it sends the file, and when it is told to, asks for pages.
func (w *demoWorker) ask() error {
	const fileDescriptor = 3 // the first of exec.Cmd.ExtraFiles
	memory, err := demoMemory(fileDescriptor, w.spec.Size)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), demoRunTimeout)
	defer cancel()
	run, err := w.sendFile(ctx, memory)
	if err != nil {
		return err
	}
	if err := w.parent.send(demoMessage{Run: run}); err != nil {
		return err
	}
	var goOn demoSpec
	if err := w.parent.receive(&goOn); err != nil {
		return err
	}
	pages, err := w.askPages(ctx)
	if err != nil {
		return err
	}
	if err := w.parent.send(demoMessage{Run: demoRun{HTTP: pages}}); err != nil {
		return err
	}
	if err := w.parent.receive(&goOn); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// sendFile writes memory to a new connection and waits until the receiver has it.
func (w *demoWorker) sendFile(ctx context.Context, memory []byte) (demoRun, error) {
	c, err := w.dial(ctx, w.spec.FileAddr)
	if err != nil {
		return demoRun{}, err
	}
	defer c.Close()
	run := demoRun{Peer: c.RemoteAddr().String(), Mode: smc.ModeTCP.String()}
	if conn, ok := c.(*smc.Conn); ok {
		st := conn.State()
		run.Mode, run.Version, run.EID, run.PeerHost, run.PeerOS = st.Mode.String(), st.Version, st.EID, st.PeerHost, st.PeerOS
		run.ReasonCode, run.Reason, run.Advice = control.ReasonCode(st.Reason.Code), st.Reason.Text, st.Reason.Advice
	}
	cpu, start := cpuTime(), time.Now()
	for rest := memory; len(rest) > 0; {
		n, err := c.Write(rest[:min(demoChunk, len(rest))])
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
	run.File.CPUSeconds = (cpuTime() - cpu).Seconds()
	if run.File.Seconds > 0 {
		run.File.Rate = float64(len(memory)) / run.File.Seconds
	}
	return run, nil
}

// askPages asks for pages on several connections for some seconds, and checks every answer.
func (w *demoWorker) askPages(ctx context.Context) (demoHTTP, error) {
	transport := &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return w.dial(ctx, w.spec.HTTPAddr) },
		MaxIdleConnsPerHost: demoHTTPConns,
		MaxConnsPerHost:     demoHTTPConns,
		DisableCompression:  true,
	}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport}
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		total    histogram
		next     atomic.Int64
		wrong    atomic.Int64
		errs     = make([]error, demoHTTPConns)
		start    = time.Now()
		deadline = start.Add(time.Duration(w.spec.HTTPSeconds * float64(time.Second)))
	)
	for i := range errs {
		wg.Go(func() {
			var latency histogram
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
				latency.record(now.Sub(asked))
				asked = now
			}
			mu.Lock()
			defer mu.Unlock()
			total.add(&latency)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return demoHTTP{}, err
	}
	r := demoHTTP{
		Requests: int64(total.total), Wrong: wrong.Load(), Seconds: time.Since(start).Seconds(),
		P50: float64(total.quantile(0.50)) / float64(time.Microsecond),
		P99: float64(total.quantile(0.99)) / float64(time.Microsecond),
	}
	r.Rate = float64(r.Requests) / r.Seconds
	return r, nil
}

// askPage asks for one page; ok says that the answer was the right one.
func askPage(ctx context.Context, client *http.Client, number int64) (ok bool, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://demo.invalid/page/"+strconv.FormatInt(number, 10), nil)
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

// demoPage answers /page/N.
func demoPage(w http.ResponseWriter, r *http.Request) {
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

// demoMemory maps size bytes of a file, or of memory of our own if fd is negative. The pages are
// there when it returns, so that making them is not measured. The mapping stays until the process ends.
func demoMemory(fd int, size int64) ([]byte, error) {
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
