package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/run/procs"
)

// TestLibraryTransfer has both sides send at once, in pieces of all sizes, and end that: hashes agree.
func TestLibraryTransfer(t *testing.T) {
	directions(t, func(t *testing.T, l *libraryTest) {
		p := l.connect(t)
		l.isMoved(t, p)
		const size = 20 << 20
		io.WriteString(p.in, "both 7 "+strconv.Itoa(size)+"\n")
		sent := sha256.New()
		go func() {
			r := rand.New(rand.NewPCG(1, 2))
			for left := size; left > 0; {
				b := make([]byte, min(left, 1+r.IntN(100000)))
				for i := range b {
					b[i] = byte(r.Uint32())
				}
				sent.Write(b)
				if _, err := p.conn.Write(b); err != nil {
					t.Error(err)
					return
				}
				left -= len(b)
			}
			if err := p.conn.CloseWrite(); err != nil {
				t.Error(err)
			}
		}()
		got := sha256.New()
		n, err := io.Copy(got, p.conn)
		if err != nil || n != size {
			t.Errorf("received %d bytes, %v; want %d", n, err, size)
		}
		fields := strings.Fields(p.hear(t))
		if fields[0] != strconv.Itoa(size) || fields[1] != hex.EncodeToString(sent.Sum(nil)) {
			t.Errorf("the peer has received %s bytes with hash %s, want %d with %x", fields[0], fields[1], size, sent.Sum(nil))
		}
		if want := hex.EncodeToString(got.Sum(nil)); fields[2] != want {
			t.Errorf("the peer has sent what has the hash %s, and what came has %s", fields[2], want)
		}
		if s := p.conn.State(); s.BytesRead != size || s.BytesWritten != size {
			t.Errorf("State counts %d and %d bytes, want %d", s.BytesRead, s.BytesWritten, size)
		}
	})
}

// TestLibraryEnds has the ends of a connection: by either side, in good order or with bytes that nobody has read, and by death.
func TestLibraryEnds(t *testing.T) {
	read := func(t *testing.T, p *libraryPeer) (string, error) {
		t.Helper()
		b, err := io.ReadAll(p.conn)
		return string(b), err
	}
	for name, run := range map[string]func(t *testing.T, l *libraryTest, p *libraryPeer){
		"peer closes": func(t *testing.T, _ *libraryTest, p *libraryPeer) {
			p.say(t, "send last")
			p.say(t, "close")
			if got, err := read(t, p); got != "last" || err != nil {
				t.Errorf("read %q, %v", got, err)
			}
			if _, err := p.conn.Write([]byte("x")); !errors.Is(err, unix.EPIPE) || !strings.Contains(err.Error(), "tcp 127.0.0.1:") {
				t.Errorf("Write after that: %v, want EPIPE of a TCP connection", err)
			}
		},
		"peer leaves unread": func(t *testing.T, _ *libraryTest, p *libraryPeer) {
			if _, err := p.conn.Write([]byte("unread")); err != nil {
				t.Fatal(err)
			}
			p.say(t, "close")
			if got, err := read(t, p); got != "" || !errors.Is(err, unix.ECONNRESET) || !strings.Contains(err.Error(), "tcp 127.0.0.1:") {
				t.Errorf("read %q, %v; want ECONNRESET of a TCP connection", got, err)
			}
		},
		"we close": func(t *testing.T, _ *libraryTest, p *libraryPeer) {
			p.conn.Write([]byte("last"))
			p.conn.Close()
			if got, then := p.say(t, "receive"), p.say(t, "receive"); got != "last" || then != "EOF" {
				t.Errorf("the peer has received %q, then %q", got, then)
			}
			if _, err := p.conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Read after Close: %v", err)
			}
		},
		"we leave unread": func(t *testing.T, _ *libraryTest, p *libraryPeer) {
			p.say(t, "send unread")
			p.conn.Close()
			if got := p.say(t, "receive"); got != "ConnectionResetError" {
				t.Errorf("the peer has received %q, want a reset", got)
			}
		},
		"peer resets": func(t *testing.T, _ *libraryTest, p *libraryPeer) {
			p.say(t, "reset")
			if got, err := read(t, p); got != "" || err != nil && !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("read %q, %v", got, err)
			}
		},
		"peer is killed": func(t *testing.T, _ *libraryTest, p *libraryPeer) {
			p.say(t, "send last")
			p.cmd.Process.Kill()
			if got, err := read(t, p); got != "last" || err != nil {
				t.Errorf("read %q, %v", got, err)
			}
		},
		"deadline": func(t *testing.T, _ *libraryTest, p *libraryPeer) {
			p.conn.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err := p.conn.Read(make([]byte, 1))
			if !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), "tcp 127.0.0.1:") {
				t.Errorf("Read: %v, want that its deadline is over", err)
			}
			large := make([]byte, 64<<20)
			p.conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			if n, err := p.conn.Write(large); !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 || n == 64<<20 {
				t.Errorf("Write = %d, %v; want that its deadline is over", n, err)
			}
			p.conn.SetDeadline(time.Now().Add(60 * time.Second))
			p.say(t, "send late")
			b := make([]byte, 10)
			if n, err := p.conn.Read(b); string(b[:n]) != "late" {
				t.Errorf("Read after that: %q, %v", b[:n], err)
			}
		},
		"copies": func(t *testing.T, _ *libraryTest, p *libraryPeer) {
			bufs := net.Buffers{[]byte("a"), []byte("b"), []byte("c")}
			if n, err := p.conn.WriteBuffers(&bufs); n != 3 || err != nil || len(bufs) != 0 {
				t.Errorf("WriteBuffers = %d, %v", n, err)
			}
			if got := p.say(t, "receive"); got != "abc" {
				t.Errorf("the peer has received %q", got)
			}
			if n, err := p.conn.ReadFrom(strings.NewReader("from")); n != 4 || err != nil {
				t.Errorf("ReadFrom = %d, %v", n, err)
			}
			if got := p.say(t, "receive"); got != "from" {
				t.Errorf("the peer has received %q", got)
			}
			p.say(t, "send to")
			p.say(t, "close")
			var b bytes.Buffer
			if n, err := p.conn.WriteTo(&b); n != 2 || err != nil || b.String() != "to" {
				t.Errorf("WriteTo = %d, %v, %q", n, err, b.String())
			}
			if _, err := p.conn.File(); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("File: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			directions(t, func(t *testing.T, l *libraryTest) {
				p := l.connect(t)
				run(t, l, p)
			})
		})
	}
}

// TestLibraryAlone has the supervisor killed: connections go on, and new ones are TCP.
func TestLibraryAlone(t *testing.T) {
	t.Parallel()
	l := newLibraryTest(t, smc.Config{})
	p := l.connect(t)
	l.isMoved(t, p)
	socket := procs.Supervisor(p.cmd.Process.Pid)
	if err := unix.Kill(supervisorOf(t, socket), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.say(t, "send alone")
	b := make([]byte, 10)
	if n, err := p.conn.Read(b); err != nil || string(b[:n]) != "alone" {
		t.Errorf("read %q, %v", b[:n], err)
	}
	late := l.dial(t, p.talker, p.port)
	if s := late.conn.State(); s.Mode != smc.ModeTCP || s.Reason.Tag != "NO_LISTENER" && s.Reason.Tag != "STALE" { // it may be dying still
		t.Errorf("State = %+v, want TCP, as the supervisor is gone", s)
	}
	p.say(t, "send TCP")
	if n, err := late.conn.Read(b); err != nil || string(b[:n]) != "TCP" {
		t.Errorf("read %q, %v", b[:n], err)
	}
}

// TestLibraryDesk has programs of 'gosmc run' connect to this test. Its desk is not their
// supervisor: their supervisor may die. When the listener's socket is shared, and when it is
// closed, there is no pair any more.
func TestLibraryDesk(t *testing.T) {
	t.Parallel()
	l := newLibraryTest(t, smc.Config{})
	server := l.listen(t)
	peer := l.peer(t, l.role())
	p := l.accept(t, server, peer)
	l.isMoved(t, p)
	if s := p.conn.State(); s.PeerPID != peer.cmd.Process.Pid {
		t.Errorf("PeerPID = %d, want %d", s.PeerPID, peer.cmd.Process.Pid)
	}
	if err := unix.Kill(supervisorOf(t, procs.Supervisor(peer.cmd.Process.Pid)), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	again := l.accept(t, server, peer)
	if s := again.conn.State(); s.Mode != smc.ModeUnix {
		t.Errorf("without the client's supervisor State = %+v, want %v", s, smc.ModeUnix)
	}
	f, err := server.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	announced := func(port string) bool {
		links, err := filepath.Glob(filepath.Join(l.host.Dir(), "*", "run", "*."+port))
		return err != nil || len(links) > 0
	}
	if announced(p.port) {
		t.Error("a listener whose socket others have is announced")
	}
	shared := l.accept(t, server, peer)
	if s := shared.conn.State(); s.Mode != smc.ModeTCP {
		t.Errorf("from a socket that others have, State = %+v, want TCP", s)
	}
	peer.say(t, "send TCP")
	b := make([]byte, 10)
	if n, err := shared.conn.Read(b); err != nil || string(b[:n]) != "TCP" {
		t.Errorf("read %q, %v", b[:n], err)
	}
	f.Close()
	server.Close()
	next := l.listen(t)
	port := strconv.Itoa(next.Addr().(*net.TCPAddr).Port)
	if !announced(port) {
		t.Error("another listener is not announced")
	}
	if next.Close(); announced(port) {
		t.Error("a listener that is closed is announced")
	}
	if got := peer.say(t, "connect "+p.port); got != "ConnectionRefusedError" {
		t.Errorf("connecting to a listener that is closed: %s", got)
	}
	l.host.Close()
	left, _ := filepath.Glob(filepath.Join(l.host.Dir(), "*", "run", "*"))
	for _, name := range left {
		if base := filepath.Base(name); base != "resets" && base != "admission" && base != "bare" && !strings.HasPrefix(base, "libgosmc-") && !strings.HasPrefix(base, filepath.Base(procs.Supervisor(peer.cmd.Process.Pid))) { // which was killed
			t.Errorf("the desk has left %s", name)
		}
	}
}

// TestLibraryKilled has the program of package smc killed while its listener is still announced.
func TestLibraryKilled(t *testing.T) {
	t.Parallel()
	l := newLibraryTest(t, smc.Config{})
	server := exec.Command(os.Args[0], "listen", "--echo", "-v", "127.0.0.1:0")
	server.Env = l.environ
	out, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer server.Wait()
	defer server.Process.Kill()
	line, err := bufio.NewReader(out).ReadString('\n')
	i := strings.LastIndexByte(line, ':')
	if err != nil || i < 0 {
		t.Fatalf("gosmc listen says %q, %v", line, err)
	}
	port := strings.TrimSpace(line[i+1:])
	peer := l.peer(t, l.role())
	peer.say(t, "connect "+port)
	peer.say(t, "send hello")
	if got := peer.say(t, "receive"); got != "hello" {
		t.Errorf("echoed: %q", got)
	}
	if got := movedModes(t, l.environ, port); !slices.Equal(got, []string{modeUnix, modeUnix}) {
		t.Errorf("ss shows %v, want two ends of a pair", got)
	}
	peer.say(t, "send unread")
	server.Process.Kill()
	if got := peer.say(t, "receive"); got != "EOF" && got != "ConnectionResetError" && got != "unread" {
		t.Errorf("from a server that was killed: %q", got)
	}
	server.Wait()
	if got := peer.say(t, "connect "+port); got != "ConnectionRefusedError" {
		t.Errorf("connecting to a server that was killed: %s", got)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Skip(err) // somebody else has the port by now
	}
	defer tcp.Close()
	peer.say(t, "connect "+port)
	c, err := tcp.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	peer.say(t, "send TCP")
	b := make([]byte, 10)
	if n, err := c.Read(b); string(b[:n]) != "TCP" {
		t.Errorf("from who has the port then: %q, %v", b[:n], err)
	}
}

// TestLibraryPolicy has either side refuse a connection, with either side as the client: it is TCP,
// and says why.
func TestLibraryPolicy(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config smc.Config
		flags  []string // of gosmc run
		served string
		tag    string // of the reason at our end; empty: it is moved
		dials  bool
	}{
		{"nothing said", smc.Config{}, nil, "serve", "", true},
		{"IPv6", smc.Config{}, nil, "serve6", "", true},
		{"all addresses", smc.Config{}, nil, "serve-any", "", true},
		{"disabled here", smc.Config{Disabled: true}, nil, "serve", "DISABLED", true},
		{"connect here", smc.Config{Connect: smc.Filter{Addresses: []string{"!127.0.0.1"}}}, nil, "serve", "NOT_ALLOWED", true},
		{"another connect here", smc.Config{Connect: smc.Filter{Addresses: []string{"!127.0.0.2"}}}, nil, "serve", "", true},
		{"listen there", smc.Config{}, []string{"--listen-port", "none"}, "serve", "NO_LISTENER", true},
		{"listen address there", smc.Config{}, []string{"--listen-address", "!127.0.0.1"}, "serve-any", "NOT_ALLOWED", true},
		{"off there", smc.Config{}, []string{"--smc", "off"}, "serve", "NO_LISTENER", true},
		{"IPv6 listens here", smc.Config{}, nil, "serve6", "", false},
		{"all addresses listen here", smc.Config{}, nil, "serve-any", "", false},
		{"disabled here, listening", smc.Config{Disabled: true}, nil, "serve", "DISABLED", false},
		{"listen here", smc.Config{Listen: smc.Filter{Ports: []string{"none"}}}, nil, "serve", "NOT_ALLOWED", false},
		{"listen address here", smc.Config{Listen: smc.Filter{Addresses: []string{"!127.0.0.1"}}}, nil, "serve-any", "NOT_ALLOWED", false},
		{"connect there", smc.Config{}, []string{"--connect-address", "!127.0.0.1"}, "serve", "PEER_NO_SMC", false},
		{"off there, listening here", smc.Config{}, []string{"--smc", "off"}, "serve", "PEER_NO_SMC", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLibraryTest(t, tt.config)
			l.flags, l.served, l.dials = tt.flags, tt.served, tt.dials
			p := l.connect(t)
			if s := p.conn.State(); s.Reason.Tag != tt.tag || (s.Mode == smc.ModeUnix) != (tt.tag == "") {
				t.Errorf("State = %+v, want reason %q", s, tt.tag)
			}
			p.say(t, "send bytes")
			b := make([]byte, 10)
			if n, err := p.conn.Read(b); err != nil || string(b[:n]) != "bytes" {
				t.Errorf("read %q, %v", b[:n], err)
			}
		})
	}
}

// TestLibraryDialer has settings of a dial by which it is decided whether there can be a pair.
func TestLibraryDialer(t *testing.T) {
	free := func(t *testing.T) *net.TCPAddr { // a port that was free just now
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().(*net.TCPAddr)
	}
	for _, tt := range []struct {
		name   string
		host   string // to which it goes
		change func(d *smc.Dialer)
		tag    string // of the reason; empty: it is moved
		fails  bool
	}{
		{"a name", "localhost", func(*smc.Dialer) {}, "", false},
		{"no host", "", func(*smc.Dialer) {}, "", false},
		{"a local address", "127.0.0.1", func(d *smc.Dialer) { d.LocalAddr = free(t) }, "", false},
		{"a local port", "127.0.0.1", func(d *smc.Dialer) { d.LocalAddr = &net.TCPAddr{Port: free(t).Port} }, "", false},
		{"no local port", "127.0.0.1", func(d *smc.Dialer) { d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)} }, "NETWORK", false},
		{"SMC required", "127.0.0.1", func(d *smc.Dialer) { d.Require = smc.RequireSMC }, "NO_LISTENER", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLibraryTest(t, smc.Config{})
			p := l.peer(t, "serve")
			port := p.hear(t)
			d := smc.Dialer{Host: l.host, Timeout: 20 * time.Second}
			tt.change(&d)
			c, err := d.Dial("tcp", net.JoinHostPort(tt.host, port))
			for range 20 { // somebody else may have the port by now
				if !errors.Is(err, unix.EADDRINUSE) {
					break
				}
				tt.change(&d)
				c, err = d.Dial("tcp", net.JoinHostPort(tt.host, port))
			}
			if tt.fails {
				var fb *smc.FallbackError
				if !errors.As(err, &fb) || fb.Reason.Tag != tt.tag {
					t.Errorf("Dial: %v, want reason %s", err, tt.tag)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if s := c.State(); s.Reason.Tag != tt.tag || (s.Mode == smc.ModeUnix) != (tt.tag == "") {
				t.Errorf("State = %+v, want reason %q", s, tt.tag)
			}
			local := c.LocalAddr().(*net.TCPAddr)
			if got, want := p.say(t, "accept"), local.IP.String()+" "+strconv.Itoa(local.Port)+" "+port; got != want {
				t.Errorf("the server sees %q, want %q", got, want)
			}
		})
	}
}

// TestLibraryRelay dials a listener that was inherited by a program without our library: its supervisor joins the end to TCP.
func TestLibraryRelay(t *testing.T) {
	t.Parallel()
	l := newLibraryTest(t, smc.Config{})
	const heir = `
import os, socket, sys
l = socket.create_server(("127.0.0.1", 0))
os.set_inheritable(l.fileno(), True)
print(l.getsockname()[1], flush=True)
code = "import socket; l = socket.socket(fileno=%d); c, _ = l.accept(); c.sendall(b'220 hello'); print(len(c.recv(100, socket.MSG_WAITALL)), flush=True); c.close()" % l.fileno()
environ = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "GOSMC_RUN")}
os.execve(sys.executable, [sys.executable, "-c", code], environ)
`
	p := startTalker(t, runCommand(t, l.environ, "python3", "-c", heir))
	d := smc.Dialer{Host: l.host, Timeout: 20 * time.Second}
	c, err := d.Dial("tcp", "127.0.0.1:"+p.hear(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(60 * time.Second))
	b := make([]byte, 100)
	if n, err := c.Read(b); err != nil || string(b[:n]) != "220 hello" {
		t.Errorf("read %q, %v", b[:n], err)
	}
	if _, err := c.Write(b); err != nil {
		t.Error(err)
	}
	if got := p.hear(t); got != "100" {
		t.Errorf("the server has received %s bytes, want 100", got)
	}
	if n, err := c.Read(b); n != 0 || err != io.EOF {
		t.Errorf("Read after the server has closed = %d, %v", n, err)
	}
}
