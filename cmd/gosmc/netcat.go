package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/control"
)

// requireFlag is --require.
type requireFlag struct{ smc.Requirement }

var requirements = []struct {
	name string
	r    smc.Requirement
}{{"smc", smc.RequireSMC}, {"smc-d", smc.RequireSMCD}, {"smc-r", smc.RequireSMCR}}

func (f *requireFlag) String() string {
	for _, r := range requirements {
		if r.r == f.Requirement {
			return r.name
		}
	}
	return ""
}

func (f *requireFlag) Type() string { return "mode" }

func (f *requireFlag) Set(s string) error {
	for _, r := range requirements {
		if strings.EqualFold(r.name, s) {
			f.Requirement = r.r
			return nil
		}
	}
	return errors.New("want smc, smc-d or smc-r")
}

// met says whether a connection in this mode is good enough.
func (f *requireFlag) met(m smc.Mode) bool {
	switch f.Requirement {
	case smc.RequireSMC:
		return m == smc.ModeSMCD || m == smc.ModeSMCR
	case smc.RequireSMCD:
		return m == smc.ModeSMCD
	case smc.RequireSMCR:
		return m == smc.ModeSMCR
	}
	return true
}

// unmet is the error for a connection that is not good enough.
func (f *requireFlag) unmet(c connReport) error {
	why := c.Reason
	if why == "" {
		why = "it uses " + c.Mode.String()
	}
	why += codeInBrackets(c.ReasonCode)
	if c.Advice != "" {
		why += ". " + c.Advice
	}
	return &exitError{exitFellBack, fmt.Errorf("the connection with %s does not meet --require %s: %s", c.Peer, f, why)}
}

func codeInBrackets(c control.ReasonCode) string {
	if c == 0 {
		return ""
	}
	return " (" + c.String() + ")"
}

// netcatFlags are common to connect and listen.
type netcatFlags struct {
	smcr    smcrFlags
	require requireFlag
	json    bool
	verbose bool
}

func (f *netcatFlags) register(cmd *cobra.Command) {
	f.smcr.register(cmd)
	cmd.Flags().Var(&f.require, "require", "fail with exit status 3 unless the connection uses `mode`: smc, smc-d, smc-r")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON object for each connection on standard error, on a line")
	cmd.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "say on standard error what happens to each connection")
	cmd.RegisterFlagCompletionFunc("require", cobra.FixedCompletions([]cobra.Completion{"smc", "smc-d", "smc-r"}, cobra.ShellCompDirectiveNoFileComp))
}

// A connReport is the report of connect and listen about a connection that has ended.
type connReport struct {
	Schema     int                `json:"schema"`
	Event      string             `json:"event"` // "closed"
	Time       time.Time          `json:"time"`
	Verb       string             `json:"verb"` // "connect" or "listen"
	Mode       smc.Mode           `json:"mode"`
	Version    string             `json:"version"`
	EID        string             `json:"eid"`
	ReasonCode control.ReasonCode `json:"reason_code"`
	Reason     string             `json:"reason"` // why Mode is TCP, in words
	Advice     string             `json:"advice"` // the remedy for the reason
	Local      string             `json:"local"`
	Peer       string             `json:"peer"`
	PeerHost   string             `json:"peer_host"`
	PeerOS     string             `json:"peer_os"`
	BytesIn    int64              `json:"bytes_in"`
	BytesOut   int64              `json:"bytes_out"`
	Seconds    float64            `json:"seconds"`
	Error      string             `json:"error"`
}

// newConnReport describes c as it is now.
func newConnReport(verb string, c *smc.Conn) connReport {
	st := c.State()
	return connReport{
		Schema: jsonSchema, Event: "closed", Time: time.Now(), Verb: verb,
		Mode: st.Mode, Version: st.Version, EID: st.EID,
		ReasonCode: control.ReasonCode(st.Reason.Code), Reason: st.Reason.Text, Advice: st.Reason.Advice,
		Local: addrString(c.LocalAddr()), Peer: addrString(c.RemoteAddr()), PeerHost: st.PeerHost, PeerOS: st.PeerOS,
	}
}

func addrString(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

// print writes the report, in the form that the flags ask for.
func (r *connReport) print(w io.Writer, f *netcatFlags) {
	switch {
	case f.json:
		writeJSONLine(w, r)
	case f.verbose:
		line := fmt.Sprintf("%s -> %s  %s", orNA(r.Local), orNA(r.Peer), r.Mode)
		if r.Version != "" {
			line += " " + r.Version
		}
		if r.EID != "" {
			line += "  EID " + printable(r.EID)
		}
		if r.Reason != "" {
			line += "  because " + printable(r.Reason) + codeInBrackets(r.ReasonCode)
		}
		line += fmt.Sprintf("  in %s, out %s, %.3f s", formatBytes(r.BytesIn), formatBytes(r.BytesOut), r.Seconds)
		if r.Error != "" {
			line += "  " + printable(r.Error)
		}
		fmt.Fprintln(w, line)
	}
}

// An input hands standard input to one connection after the other. One goroutine reads it,
// so that a chunk that arrives after a connection has ended goes to the next one. That goroutine ends
// with standard input, or with the process.
type input struct {
	terminal bool
	chunks   chan []byte   // closed at the end of the input
	free     chan []byte   // buffers to use again
	ended    chan struct{} // closed with chunks: the end was seen
	err      error         // why the input ended, if not by EOF; valid once ended is closed
}

const (
	inputChunk   = 256 << 10 // bytes read at a time
	inputBuffers = 2         // one is read into while the other is written
)

func newInput(r io.Reader) *input {
	in := &input{
		terminal: isTerminal(r),
		chunks:   make(chan []byte),
		free:     make(chan []byte, inputBuffers),
		ended:    make(chan struct{}),
	}
	for range inputBuffers {
		in.free <- make([]byte, inputChunk)
	}
	go func() {
		defer close(in.chunks)
		defer close(in.ended)
		for {
			b := <-in.free
			n, err := r.Read(b)
			if n > 0 {
				in.chunks <- b[:n]
			} else {
				in.free <- b
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					in.err = err
				}
				return
			}
		}
	}()
	return in
}

// copyTo writes chunks to w until the input or w ends, or stop is closed. eof says that the input ended.
func (in *input) copyTo(w io.Writer, stop <-chan struct{}) (n int64, eof bool, err error) {
	for {
		select {
		case <-stop:
			return n, false, nil
		case b, ok := <-in.chunks:
			if !ok {
				return n, true, in.err
			}
			m, err := w.Write(b)
			n += int64(m)
			in.free <- b[:cap(b)]
			if err != nil {
				return n, false, err
			}
		}
	}
}

// transfer joins c with standard input and output, as netcat does: the end of the input is
// passed on with CloseWrite, and the connection is over when both directions have ended. At a
// terminal the peer's end is enough, because nobody would think of typing end-of-file. transfer closes c.
func transfer(ctx context.Context, c *smc.Conn, in *input, out io.Writer, r *connReport) error {
	defer c.Close()
	unhook := context.AfterFunc(ctx, func() { c.Close() })
	defer unhook()
	start := time.Now()

	stop := make(chan struct{})
	stopSending := sync.OnceFunc(func() { close(stop) })
	sent := make(chan error, 1)
	go func() {
		n, eof, err := in.copyTo(c, stop)
		r.BytesOut = n
		if eof && err == nil {
			err = c.CloseWrite()
		}
		sent <- err
	}()
	n, receiveErr := io.Copy(out, c)
	r.BytesIn = n
	if receiveErr != nil || in.terminal || ctx.Err() != nil {
		stopSending()
		c.Close() // a Write may wait for a peer that does not read
	}
	select {
	case sendErr := <-sent:
		if receiveErr == nil && !errors.Is(sendErr, net.ErrClosed) {
			receiveErr = sendErr
		}
	case <-ctx.Done():
		c.Close()
		stopSending()
		<-sent
	}
	r.Seconds = time.Since(start).Seconds()
	if err := ctx.Err(); err != nil {
		receiveErr = err
	}
	if receiveErr != nil {
		r.Error = receiveErr.Error()
	}
	return receiveErr
}

// checkAddr finds an address that cannot be meant before anything is opened.
func checkAddr(addr string) error {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return usagef("address %q: want HOST:PORT, with brackets around an IPv6 address", addr)
	}
	return nil
}
