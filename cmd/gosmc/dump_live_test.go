package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/roce"
)

// inLoopback runs f on a thread of its own in a new network namespace, with its loopback interface
// up.
func inLoopback(t *testing.T, f func()) {
	t.Helper()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- err
			return
		}
		err := linkUp("lo")
		if err == nil {
			f()
		}
		result <- err
	}()
	switch err := <-result; {
	case errors.Is(err, unix.EPERM):
		t.Skip("needs CAP_SYS_ADMIN for network namespaces")
	case err != nil:
		t.Fatal(err)
	}
}

func linkUp(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
}

// A noticingWriter closes its channel when it has got something.
type noticingWriter struct {
	mu    sync.Mutex
	b     bytes.Buffer
	first sync.Once
	got   chan struct{}
}

func (w *noticingWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first.Do(func() { close(w.got) })
	return w.b.Write(b)
}

// A live capture shows messages while it goes on, and ends well when it is interrupted: with the
// end of the output, and a line about losses.
func TestDumpLive(t *testing.T) {
	written := filepath.Join(t.TempDir(), "live.pcapng")
	stdout := &noticingWriter{got: make(chan struct{})}
	var stderr bytes.Buffer
	code := -1
	inLoopback(t, func() {
		conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), roce.Port)))
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		ctx, interrupt := context.WithTimeout(t.Context(), 30*time.Second)
		defer interrupt()
		go func() {
			// The capture begins some time after run does: until then datagrams go nowhere.
			p := roce.Packet{BTH: roce.BTH{Opcode: roce.Acknowledge, DestQPN: 0x12, PSN: 0x34, PKey: roce.DefaultPKey}, AETH: roce.AETH{Syndrome: roce.AckUnlimited}}
			datagram := append(p.Append(nil), 0, 0, 0, 0)
			flow := roce.NewFlow(conn.LocalAddr().(*net.UDPAddr).AddrPort(), conn.RemoteAddr().(*net.UDPAddr).AddrPort())
			flow.Seal(0, datagram)
			again := time.NewTicker(5 * time.Millisecond)
			defer again.Stop()
			for {
				select {
				case <-again.C:
					conn.Write(datagram) // nobody listens, which may be an error now and then
				case <-stdout.got:
					interrupt()
					return
				case <-ctx.Done():
					return
				}
			}
		}()
		code = run(ctx, []string{"dump", "-i", "lo", "--json", "-w", written}, strings.NewReader(""), stdout, &stderr)
	})
	if code != exitOK || !strings.Contains(stderr.String(), " messages shown, 0 packets dropped by the kernel\n") {
		t.Fatalf("gosmc dump -i lo = %d, %q, want 0 and a line about losses", code, stderr.String())
	}
	first, _, _ := strings.Cut(stdout.b.String(), "\n")
	var e dumpedEvent
	if err := json.Unmarshal([]byte(first), &e); err != nil || e.Name != "ACK" || !strings.HasPrefix(e.Dst, "127.0.0.1") {
		t.Errorf("the first message is %s, %v, want an ACK", first, err)
	}
	if got, want := len(readPackets(t, written)), strings.Count(stdout.b.String(), "\n"); got != want {
		t.Errorf("%d packets were written, want %d", got, want)
	}
}

// An interface that goes down and comes up again is told, and is no fault; one that is removed ends the capture.
func TestDumpInterfaceDown(t *testing.T) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skipf("needs iproute2: %v", err)
	}
	for _, tt := range []struct {
		then string // with the interface, when it is down
		code int
		want string
	}{
		{"link set wire up", exitOK, "packets dropped by the kernel"},
		{"link del wire", exitFailure, "gosmc: wire: packet 1: the interface is gone\n"},
	} {
		inside, _ := smctest.EnterNamespace(t)
		stderr := &noticingWriter{got: make(chan struct{})}
		ctx, interrupt := context.WithTimeout(t.Context(), 60*time.Second)
		defer interrupt()
		code := -1
		inside(func() {
			// The shell stays in the namespace, and does one thing for each line that it reads.
			shell := exec.Command("sh", "-c", "ip link add wire type veth peer name peer && ip link set wire up && echo && read x && ip link set wire down && read x && ip "+tt.then+" && echo")
			in, errIn := shell.StdinPipe()
			out, errOut := shell.StdoutPipe()
			if err := errors.Join(errIn, errOut, shell.Start()); err != nil {
				t.Error(err)
				return
			}
			defer shell.Wait()
			defer in.Close()
			done := bufio.NewReader(out)
			if _, err := done.ReadString('\n'); err != nil {
				t.Error("ip link add: ", err)
				return
			}
			go func() {
				io.WriteString(in, "\n")
				<-stderr.got // that it is down
				io.WriteString(in, "\n")
				if _, err := done.ReadString('\n'); err != nil || tt.code == exitOK {
					interrupt()
				}
			}()
			code = run(ctx, []string{"dump", "-i", "wire"}, strings.NewReader(""), io.Discard, stderr)
		})
		said := stderr.b.String()
		if code != tt.code || !strings.HasPrefix(said, "gosmc: wire: packet 1: the interface is down; waiting for it to come up\n") || !strings.Contains(said, tt.want) || strings.Contains(said, "offset") {
			t.Errorf("down, then ip %s: gosmc dump -i wire = %d, %q, want %d and %q", tt.then, code, said, tt.code, tt.want)
		}
	}
}

// Packets are not written to a terminal.
func TestDumpToTerminal(t *testing.T) {
	tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("needs pseudo terminals: %v", err)
	}
	defer tty.Close()
	var stderr bytes.Buffer
	if code := run(t.Context(), []string{"dump", "--type", "rst", "-w", "-", oneFile(t)}, strings.NewReader(""), tty, &stderr); code != exitUsage || !strings.Contains(stderr.String(), "not for a terminal: name a file, or pipe them") {
		t.Errorf("gosmc dump -w - on a terminal = %d, %q, want 2 and advice", code, stderr.String())
	}
}

// Reading a file stops when it is interrupted, and says so.
func TestDumpInterrupted(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	header, err := os.ReadFile(oneFile(t))
	if err != nil {
		t.Fatal(err)
	}
	old := os.Stdin
	os.Stdin = r
	defer func() { os.Stdin = old }()
	if _, err := w.Write(header[:4096]); err != nil { // and no more: the reader waits
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, interrupt)
	var stderr bytes.Buffer
	code := run(ctx, []string{"dump", "-"}, strings.NewReader(""), io.Discard, &stderr)
	if code != exitFailure || stderr.String() != "gosmc: interrupted\n" {
		t.Errorf("gosmc dump of a pipe, interrupted = %d, %q, want 1 and gosmc: interrupted", code, stderr.String())
	}
}
