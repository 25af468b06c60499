package host

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/paired"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/internal/smcd"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

// An addressKernel gives sockets pairing tokens that follow from their addresses: as good as those of
// the kernel where nobody translates addresses and nobody lies.
type addressKernel struct {
	agent string // path of the agent's socket
	none  atomic.Bool
	why   clc.Diagnosis // why no socket has tokens
}

func (k *addressKernel) Ask(syscall.RawConn, netip.AddrPort) bool { return !k.none.Load() }

func (k *addressKernel) Addresses(syscall.RawConn) []string { return []string{k.agent} }

func (k *addressKernel) Read(c syscall.RawConn, _ netip.AddrPort) (t paired.Tokens, why clc.Diagnosis) {
	if k.why != clc.DiagNone {
		return t, k.why
	}
	err := errors.New("no socket")
	c.Control(func(fd uintptr) { t.Mine, t.Theirs, err = k.Tokens(int(fd)) })
	if err != nil {
		return t, clc.DiagNoToken
	}
	return t, clc.DiagNone
}

// Tokens implements [introduce.Verifier].
func (*addressKernel) Tokens(fd int) (mine, theirs uint64, err error) {
	local, err := unix.Getsockname(fd)
	if err != nil {
		return 0, 0, err
	}
	remote, err := unix.Getpeername(fd)
	if err != nil {
		return 0, 0, err
	}
	token := func(a, b unix.Sockaddr) uint64 {
		x, y := a.(*unix.SockaddrInet4), b.(*unix.SockaddrInet4)
		ports := []byte{byte(x.Port), byte(x.Port >> 8), byte(y.Port), byte(y.Port >> 8)}
		sum := sha256.Sum256(append(append(ports, x.Addr[:]...), y.Addr[:]...))
		return binary.BigEndian.Uint64(sum[:])
	}
	return token(local, remote), token(remote, local), nil
}

// A testAgent introduces the hosts of one test.
type testAgent struct {
	kernel *addressKernel
	users  introduce.Users
	uid    atomic.Uint32 // of the processes that connect
	count  atomic.Uint32 // added to uid for each, so that each is another user

	mu       sync.Mutex
	server   *introduce.Server
	listener *net.UnixListener
	served   chan struct{}
}

func newTestAgent(t testing.TB) *testAgent {
	t.Helper()
	a := &testAgent{
		kernel: &addressKernel{agent: filepath.Join(t.TempDir(), "agent")},
		users:  introduce.Users{Mode: introduce.ModeAny},
	}
	a.start(t)
	t.Cleanup(a.stop)
	return a
}

func (a *testAgent) start(t testing.TB) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.server = introduce.NewServer(introduce.Config{
		Verifier: a.kernel, Users: a.users, BootID: [16]byte{1}, Overcommit: func() uint8 { return 0 },
		Identify: func(*net.UnixConn) (introduce.Identity, error) {
			return introduce.Identity{UID: a.uid.Load() + a.count.Add(1)}, nil
		},
	})
	var err error
	at := &net.UnixAddr{Net: "unixpacket", Name: a.kernel.agent}
	if a.listener, err = net.ListenUnix("unixpacket", at); err != nil {
		t.Fatal(err)
	}
	a.served = make(chan struct{})
	server, listener, served := a.server, a.listener, a.served
	go func() { server.Serve(listener, nil); close(served) }()
}

// stop ends the agent, as if it was killed.
func (a *testAgent) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listener.Close()
	<-a.served
	a.server.Close()
}

// newPairedHost returns a host with a run directory of its own, in which no other host finds it.
func newPairedHost(t testing.TB, a *testAgent) *Host {
	t.Helper()
	return newTestHost(t, Config{Dir: t.TempDir(), Pairing: a.kernel})
}

// pairUp makes a connection between two hosts, and returns both ends.
func pairUp(t testing.TB, client *Host, l *Listener) (c, s conn.Conn) {
	t.Helper()
	done := make(chan conn.Conn, 1)
	go func() {
		s, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		done <- s
	}()
	c, err := client.Dial(boundedContext(t), "tcp", l.Addr().String(), DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s = <-done
	if s == nil {
		t.FailNow()
	}
	t.Cleanup(func() { s.Close() })
	return c, s
}

// exchange moves bytes in both directions.
func exchange(t testing.TB, c, s conn.Conn) {
	t.Helper()
	for _, way := range [][2]conn.Conn{{c, s}, {s, c}} {
		sent := make([]byte, 100_000)
		smctest.Pattern(sent, 7)
		go way[0].Write(sent)
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(way[1], got); err != nil {
			t.Fatal(err)
		}
		if err := smctest.CheckPattern(got, 7); err != nil {
			t.Fatal(err)
		}
	}
}

func listenPaired(t testing.TB, h *Host) *Listener {
	t.Helper()
	l, err := h.Listen(context.Background(), "tcp4", "127.0.0.1:0", ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func wantMode(t testing.TB, what string, c, s conn.Conn, mode conn.Mode) {
	t.Helper()
	if c.Mode() != mode || s.Mode() != mode {
		t.Errorf("%s: client %v %v, server %v %v; want %v", what, c.Mode(), c.Reason(), s.Mode(), s.Reason(), mode)
	}
}

// TestPaired has hosts that the agent introduces. The second connection needs no agent, and each
// direction of dialling has an introduction of its own.
func TestPaired(t *testing.T) {
	smctest.CheckLeaks(t)
	a := newTestAgent(t)
	x, y := newPairedHost(t, a), newPairedHost(t, a)
	ly := listenPaired(t, y)
	for range 3 {
		c, s := pairUp(t, x, ly)
		wantMode(t, "connection", c, s, conn.ModeSMCD)
		exchange(t, c, s)
	}
	if n := a.server.Status().Introduced; n != 1 {
		t.Errorf("%d introductions for three connections, want 1", n)
	}
	c, s := pairUp(t, y, listenPaired(t, x))
	wantMode(t, "the other way", c, s, conn.ModeSMCD)
	exchange(t, c, s)
	c, s = pairUp(t, x, listenPaired(t, x))
	wantMode(t, "a host with itself", c, s, conn.ModeSMCD)
}

// TestPairedAgentEnds ends the agent: connections go on, hosts that know each other need none, others
// use TCP. When it is back they leave TCP again.
func TestPairedAgentEnds(t *testing.T) {
	smctest.CheckLeaks(t)
	a := newTestAgent(t)
	x, y, z := newPairedHost(t, a), newPairedHost(t, a), newPairedHost(t, a)
	l := listenPaired(t, y)
	c, s := pairUp(t, x, l)
	a.stop()
	exchange(t, c, s)
	c, s = pairUp(t, x, l)
	wantMode(t, "hosts that know each other", c, s, conn.ModeSMCD)
	exchange(t, c, s)
	c, s = pairUp(t, z, l)
	wantMode(t, "without an agent", c, s, conn.ModeTCP)
	if got := c.Reason().Code; got != clc.DiagNoAgent {
		t.Errorf("reason %v, want %v", got, clc.DiagNoAgent)
	}
	exchange(t, c, s)
	a.start(t)
	smctest.Eventually(t, 20*time.Second, "SMC-D with the next agent", func() bool {
		c, s := pairUp(t, z, l)
		exchange(t, c, s)
		return c.Mode() == conn.ModeSMCD && s.Mode() == conn.ModeSMCD
	})
}

// TestPairedUsers has a policy refuse another user.
func TestPairedUsers(t *testing.T) {
	smctest.CheckLeaks(t)
	a := newTestAgent(t)
	a.stop()
	os.Remove(a.kernel.agent)
	a.users = introduce.Users{}
	a.start(t)
	x, y := newPairedHost(t, a), newPairedHost(t, a)
	c, s := pairUp(t, x, listenPaired(t, y))
	wantMode(t, "another user", c, s, conn.ModeTCP)
	if c.Reason().Code != clc.DiagOtherUser || s.Reason().Code != clc.DiagOtherUser {
		t.Errorf("reasons %v and %v, want %v", c.Reason(), s.Reason(), clc.DiagOtherUser)
	}
	exchange(t, c, s)
}

// TestPairedReasons has sockets without tokens.
func TestPairedReasons(t *testing.T) {
	smctest.CheckLeaks(t)
	for _, why := range []clc.Diagnosis{clc.DiagNoToken, clc.DiagOtherKernel, clc.DiagFastOpen} {
		a := newTestAgent(t)
		a.kernel.why = why
		c, s := pairUp(t, newPairedHost(t, a), listenPaired(t, newPairedHost(t, a)))
		wantMode(t, why.String(), c, s, conn.ModeTCP)
		if c.Reason().Code != why || s.Reason().Code != why {
			t.Errorf("reasons %v and %v, want %v", c.Reason(), s.Reason(), why)
		}
	}
}

// TestPairedPolicy has a server whose policy leaves one of its addresses out. Its refusal reaches the
// client.
func TestPairedPolicy(t *testing.T) {
	smctest.CheckLeaks(t)
	a := newTestAgent(t)
	x := newPairedHost(t, a)
	y := newTestHost(t, Config{
		Dir: t.TempDir(), Pairing: a.kernel, Listen: config.Filter{Addresses: []string{"!127.0.0.2"}},
	})
	l, err := y.Listen(context.Background(), "tcp4", "0.0.0.0:0", ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	gidOf(t, y)
	for _, tt := range []struct {
		host string
		mode conn.Mode
		why  clc.Diagnosis
	}{{"127.0.0.2", conn.ModeTCP, clc.DiagRefused}, {"127.0.0.1", conn.ModeSMCD, clc.DiagNone}} {
		at := netip.AddrPortFrom(netip.MustParseAddr(tt.host), l.addr.Port())
		c, err := x.Dial(boundedContext(t), "tcp", at.String(), DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		wantMode(t, tt.host, c, s, tt.mode)
		if c.Reason().Code != tt.why {
			t.Errorf("%s: reason %v, want %v", tt.host, c.Reason(), tt.why)
		}
		exchange(t, c, s)
		c.Close()
		s.Close()
	}
}

// TestPairedOneEnd has clients whose server, and servers whose client, asks for tokens and says
// nothing more. The bytes of both are those of the application.
func TestPairedOneEnd(t *testing.T) {
	smctest.CheckLeaks(t)
	a := newTestAgent(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		s, err := l.Accept()
		if err == nil {
			io.Copy(s, s)
			s.Close()
		}
	}()
	x := newPairedHost(t, a)
	c, err := x.Dial(boundedContext(t), "tcp", l.Addr().String(), DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if c.Mode() != conn.ModeTCP || c.Reason().Code != clc.DiagNotAccepted {
		t.Errorf("a silent server: %v %v", c.Mode(), c.Reason())
	}
	if err := echo(c); err != nil {
		t.Error(err)
	}
	c.Close()
	server := listenPaired(t, x)
	for _, speaks := range []bool{true, false} {
		c, err := net.Dial("tcp", server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if speaks {
			c.Write([]byte("word"))
		}
		s, err := server.Accept()
		if err != nil {
			t.Fatal(err)
		}
		why := s.Reason().Code
		if s.Mode() != conn.ModeTCP || why != clc.DiagPeerNoSMC && why != clc.DiagNotAccepted {
			t.Errorf("a silent client: %v %v", s.Mode(), s.Reason())
		}
		if !speaks {
			c.Write([]byte("word"))
		}
		var b [4]byte
		if _, err := io.ReadFull(s, b[:]); err != nil || string(b[:]) != "word" {
			t.Errorf("the server reads %q, %v", b, err)
		}
		s.Close()
		c.Close()
	}
}

// TestPairedMany makes connections at once between several hosts, while the agent comes and goes. Each
// has its own bytes.
func TestPairedMany(t *testing.T) {
	smctest.CheckLeaks(t)
	a := newTestAgent(t)
	y := newPairedHost(t, a)
	l := listenPaired(t, y)
	go func() {
		for {
			s, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(s, s)
				s.Close()
			}()
		}
	}()
	var wg sync.WaitGroup
	for range 4 {
		x := newPairedHost(t, a)
		for range 4 {
			wg.Go(func() {
				for range 10 {
					c, err := x.Dial(context.Background(), "tcp", l.Addr().String(), DialOptions{})
					if err != nil {
						t.Error(err)
						return
					}
					if err := echo(c); err != nil {
						t.Error(err)
					}
					c.Close()
				}
			})
		}
	}
	a.stop()
	a.start(t)
	wg.Wait()
}

// TestNoDirectory has hosts whose run directory cannot be used. With an agent they do without.
func TestNoDirectory(t *testing.T) {
	smctest.CheckLeaks(t)
	a := newTestAgent(t)
	h := func() *Host { return newTestHost(t, Config{Dir: os.DevNull + "/none", Pairing: a.kernel}) }
	c, s := pairUp(t, h(), listenPaired(t, h()))
	wantMode(t, "without a directory", c, s, conn.ModeSMCD)
	exchange(t, c, s)
}

// TestPairedNoRDMA has hosts that are configured for SMC-R with each other. With a peer on this kernel they use none,
// and no byte of CLC reaches a program.
func TestPairedNoRDMA(t *testing.T) {
	smctest.CheckLeaks(t)
	a := newTestAgent(t)
	h := func() *Host {
		return newTestHost(t, Config{
			Dir: t.TempDir(), Pairing: a.kernel, UEIDs: []string{"TEST.EID1"}, SMCRPeers: []string{"127.0.0.0/8"},
		})
	}
	x, y := h(), h()
	l := listenPaired(t, y)
	a.stop()
	c, s := pairUp(t, x, l)
	wantMode(t, "without an agent", c, s, conn.ModeTCP)
	if c.Reason().Code != clc.DiagNoAgent {
		t.Errorf("reason %v, want %v", c.Reason(), clc.DiagNoAgent)
	}
	exchange(t, c, s)
	a.start(t)
	smctest.Eventually(t, 20*time.Second, "SMC-D with the next agent", func() bool {
		c, s := pairUp(t, x, l)
		exchange(t, c, s)
		return c.Mode() == conn.ModeSMCD
	})
}

// TestIntroducedNoRendezvous has an introduced process send a message of the rendezvous, which believes that its
// user is known: the peering ends.
func TestIntroducedNoRendezvous(t *testing.T) {
	smctest.CheckLeaks(t)
	a := newTestAgent(t)
	c, s := pairUp(t, newPairedHost(t, a), listenPaired(t, newPairedHost(t, a)))
	wantMode(t, "before", c, s, conn.ModeSMCD)
	peer := c.Association().(smcd.Peering).Peer
	m := rendezvous.Message{Kind: rendezvous.Expect, ID: 1, Dest: netip.MustParseAddrPort("127.0.0.1:1")}
	if err := peer.Send(m.Append(nil)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-peer.Done():
	case <-time.After(20 * time.Second):
		t.Error("the message is taken")
	}
}

// TestIntroducedUsers has the policy of users hold for programs that an agent introduces, too.
func TestIntroducedUsers(t *testing.T) {
	for list, want := range map[string]introduce.Users{
		"":       {Mode: introduce.ModeAny},
		"same":   {Mode: introduce.ModeList},
		"7,9":    {Mode: introduce.ModeList, Users: []uint32{7, 9}},
		"any,!7": {Mode: introduce.ModeAny, Excepted: []uint32{7}},
	} {
		c := Config{Dir: t.TempDir(), Users: strings.FieldsFunc(list, func(r rune) bool { return r == ',' })}
		if err := c.settle(); err != nil {
			t.Fatal(err)
		}
		if got := c.introducedUsers(); !reflect.DeepEqual(got, want) {
			t.Errorf("users %q: %+v, want %+v", list, got, want)
		}
	}
}
