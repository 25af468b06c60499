package bpf

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/internal/smctest"
)

// changeSecret gives the kernel another secret.
func changeSecret(t testing.TB, p *place) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(p.pins, "secret"), nil)
	if err != nil {
		t.Error(err)
		return
	}
	defer m.Close()
	var key [16]byte
	if err := m.Lookup(uint32(0), &key); err != nil {
		t.Error(err)
	}
	key[0]++
	if err := m.Put(uint32(0), key); err != nil {
		t.Error(err)
	}
}

// TestPairingUpgrade exchanges the programs while connections are made. All of these are paired,
// and the tokens of living sockets stay.
func TestPairingUpgrade(t *testing.T) {
	p := newPlace(t)
	l := p.listenFor(t, "127.0.0.1:0", allOfIt)
	first := p.dialFor(t, l, l.Addr().String(), allOfIt)
	before, _ := tokensOf(t, first.client)
	stop := make(chan bool)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			o, err := AttachOption(p.group, p.pins)
			if err != nil {
				t.Error(err)
				return
			}
			if !o.Found {
				t.Error("the programs were not found")
			}
			o.Close()
		}
	})
	for range 200 {
		pr := p.dialFor(t, l, l.Addr().String(), allOfIt)
		pr.wantCauses(t, p, pairing.Paired, pairing.Paired)
	}
	close(stop)
	wg.Wait()
	p.attach(t)
	first.wantCauses(t, p, pairing.Paired, pairing.Paired)
	if after, _ := tokensOf(t, first.client); after != before {
		t.Errorf("tokens %x, before %x", after, before)
	}
	other, err := OpenPairing(p.pins) // as another process does
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	onSocket(t, first.server, func(fd uintptr) error {
		s, err := other.Read(int(fd))
		if s.Tokens != (pairing.Tokens{Mine: before.Theirs, Theirs: before.Mine}) {
			t.Errorf("the server's tokens are %x", s.Tokens)
		}
		return err
	})
}

// TestPairingAfterOlder attaches the programs where a version without pairing has pinned its own.
// Sockets that asked for the SMC option keep it, and new ones are paired.
func TestPairingAfterOlder(t *testing.T) {
	p := newPlace(t)
	l := p.listenFor(t, "127.0.0.1:0", onlySMC)
	for _, name := range pairingMaps {
		if err := os.Remove(filepath.Join(p.pins, name)); err != nil {
			t.Fatal(err)
		}
	}
	p.attach(t)
	if !p.option.Found {
		t.Error("all was made anew")
	}
	p.dialFor(t, l, l.Addr().String(), allOfIt).want(t, both, both)
	fresh := p.listenFor(t, "127.0.0.1:0", allOfIt)
	pr := p.dialFor(t, fresh, fresh.Addr().String(), allOfIt)
	pr.want(t, both, both)
	pr.wantCauses(t, p, pairing.Paired, pairing.Paired)
	l.Close()
	fresh.Close()
	checkQuotas(t, p)
}

// TestOlderKernel takes functions of the kernel away. Without one that all of pairing needs there
// is none, with a reason, and TCP option 254 works. Without the process's number reports have none.
func TestOlderKernel(t *testing.T) {
	p := newPlace(t)
	defer func() { changeSpec = func(*ebpf.CollectionSpec) {} }()
	without := func(helpers ...asm.BuiltinFunc) {
		changeSpec = func(spec *ebpf.CollectionSpec) {
			for _, program := range spec.Programs {
				for i := range program.Instructions {
					for _, helper := range helpers {
						if ins := &program.Instructions[i]; ins.IsBuiltinCall() && ins.Constant == int64(helper) {
							ins.Constant = 4000 // a function that no kernel has
						}
					}
				}
			}
		}
		p.attach(t)
	}
	without(asm.FnGetPrandomU32)
	_, err := p.option.Pairing()
	if err == nil || !strings.Contains(err.Error(), "Linux") || !strings.Contains(err.Error(), "4000") {
		t.Errorf("Pairing: %v, want the kernel's name and its reason", err)
	}
	l := p.listen(t, "127.0.0.1:0", true)
	p.connect(t, l, l.Addr().String(), true).want(t, both, both)
	onSocket(t, l, func(fd uintptr) error {
		if _, _, err := pairing.TokensOf(fd); !errors.Is(err, pairing.ErrNoService) {
			t.Errorf("TokensOf = %v, want ErrNoService", err)
		}
		return nil
	})
	without(asm.FnGetCurrentPidTgid)
	reports, err := p.pairing(t).Reports()
	if err != nil {
		t.Fatal(err)
	}
	defer reports.Close()
	asked := p.listenFor(t, "127.0.0.1:0", onlyToken)
	p.dialFor(t, asked, asked.Addr().String(), onlyToken).wantCauses(t, p, pairing.Paired, pairing.Paired)
	if r, err := reports.Next(); err != nil || r.Process != 0 || r.Netns == 0 {
		t.Errorf("report %+v, %v; want one without process", r, err)
	}
}

// TestPartsLeftOut attaches the programs without TCP option 254, and without pairing.
func TestPartsLeftOut(t *testing.T) {
	p := newPlace(t)
	for _, parts := range []Parts{{NoOption: true}, {NoPairing: true}} {
		o, err := Attach(p.group, p.pins, parts)
		if err != nil {
			t.Fatal(err)
		}
		p.option.Close()
		p.option = o
		l := p.listenFor(t, "127.0.0.1:0", wish{option: !parts.NoOption, token: !parts.NoPairing})
		pr := p.dialFor(t, l, l.Addr().String(), wish{option: !parts.NoOption, token: !parts.NoPairing})
		if parts.NoOption {
			pr.wantCauses(t, p, pairing.Paired, pairing.Paired)
			continue
		}
		pr.want(t, both, both)
		if _, err := o.Pairing(); !errors.Is(err, errNoPairing) {
			t.Errorf("Pairing: %v", err)
		}
	}
}

// acceptor is a process that accepts connections on a listening socket that it was given as
// descriptor 3, tells their tokens, and keeps them.
func acceptor(p *smctest.Parent) {
	l, err := net.FileListener(os.NewFile(3, "listener"))
	p.Check(err)
	for {
		c, err := l.Accept()
		p.Check(err)
		raw, err := c.(*net.TCPConn).SyscallConn()
		p.Check(err)
		raw.Control(func(fd uintptr) {
			tokens, _, err := pairing.TokensOf(fd)
			p.Check(err)
			text, err := json.Marshal(tokens)
			p.Check(err)
			p.Say("tokens %s", text)
		})
		p.Hear()
		c.Close()
	}
}

// TestAcceptElsewhere has a process accept the connections of a socket that another one listens on:
// its tokens are the other half of the client's.
func TestAcceptElsewhere(t *testing.T) {
	p := newPlace(t)
	l := p.listenFor(t, "127.0.0.1:0", onlyToken)
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	child := smctest.StartWith(t, []*os.File{f}, "acceptor") // inherited by fork and exec
	l.Close()
	for range 20 {
		var fd int
		p.run(func() { fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) })
		if err != nil {
			t.Fatal(err)
		}
		to := l.Addr().(*net.TCPAddr).AddrPort()
		if err := errors.Join(pairing.Request(uintptr(fd)), unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})); err != nil {
			t.Fatal(err)
		}
		var theirs pairing.Tokens
		if err := json.Unmarshal([]byte(child.Hear("tokens")), &theirs); err != nil {
			t.Fatal(err)
		}
		if mine, cause, err := pairing.TokensOf(uintptr(fd)); err != nil || cause != pairing.Paired || !pairing.Match(mine, theirs) {
			t.Errorf("client %x (%q, %v), server %x", mine, cause, err, theirs)
		}
		child.Say("next")
		unix.Close(fd)
	}
	child.Kill()
}

// TestReusePort has sockets share a port. Those that ask for the same are all paired; one that asks
// for something else goes without, so that no connection of it has an answer of the others.
func TestReusePort(t *testing.T) {
	p := newPlace(t)
	share := func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }
	for _, tt := range []struct {
		first, second wish
		cause         pairing.Cause // of the second listening socket
	}{
		{onlyToken, onlyToken, pairing.Listening},
		{allOfIt, allOfIt, pairing.Listening},
		{onlyToken, allOfIt, pairing.Listening}, // it gets the token and no SMC option
		{onlySMC, onlyToken, pairing.Mixed},
		{allOfIt, onlyToken, pairing.Mixed},
		{onlySMC, allOfIt, pairing.Mixed}, // it gets the SMC option
		{onlyToken, onlySMC, pairing.NotAsked},
	} {
		t.Run(fmt.Sprintf("%v,%v", tt.first, tt.second), func(t *testing.T) {
			one := p.listenFor(t, "127.0.0.1:0", tt.first, share)
			two := p.listenFor(t, one.Addr().String(), tt.second, share)
			defer one.Close()
			defer two.Close()
			if _, cause := tokensOf(t, two); cause != tt.cause {
				t.Errorf("the second socket is %q, want %q", cause, tt.cause)
			}
			for range 50 {
				c, s := p.dialEither(t, one, two)
				cf, sf := fateOf(t, c), fateOf(t, s)
				if (cf == both) != (sf == both) {
					t.Errorf("SMC option: client %v, server %v", cf, sf)
				}
				ct, _ := tokensOf(t, c)
				st, _ := tokensOf(t, s)
				if ct != (pairing.Tokens{}) != (st != (pairing.Tokens{})) || ct.Mine != st.Theirs || ct.Theirs != st.Mine {
					t.Errorf("client %x, server %x", ct, st)
				}
				if tt.first.token && tt.cause == pairing.Listening && ct == (pairing.Tokens{}) {
					t.Error("not paired, though both sockets ask")
				}
				c.Close()
				s.Close()
			}
		})
	}
	checkQuotas(t, p)
}

// dialEither connects to a port that two sockets share, and returns both ends.
func (p *place) dialEither(t *testing.T, one, two *net.TCPListener) (client, server *net.TCPConn) {
	t.Helper()
	fds := make([]unix.PollFd, 2)
	for i, l := range []*net.TCPListener{one, two} {
		onSocket(t, l, func(fd uintptr) error {
			fds[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
			return nil
		})
	}
	var c net.Conn
	var err error
	p.run(func() {
		d := net.Dialer{Control: allOfIt.control()}
		d.SetMultipathTCP(false)
		c, err = d.Dial("tcp", one.Addr().String())
	})
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := unix.Poll(fds, -1); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	l := one
	if fds[0].Revents == 0 {
		l = two
	}
	s, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn), s
}

// TestReusedPorts connects from one port to one port again and again. Each connection has tokens of
// its own, and an end of one does not join an end of the next.
func TestReusedPorts(t *testing.T) {
	p := newPlace(t)
	l := p.listenFor(t, "127.0.0.1:0", onlyToken)
	seen := make(map[uint64]bool)
	var before *net.TCPConn
	for range 100 {
		pr := p.dialFor(t, l, l.Addr().String(), onlyToken, func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			if err := unix.Bind(int(fd), &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 9}); err != nil {
				t.Error(err)
			}
		})
		pr.wantCauses(t, p, pairing.Paired, pairing.Paired)
		tokens, _ := tokensOf(t, pr.client)
		if seen[tokens.Mine] || seen[tokens.Theirs] {
			t.Errorf("tokens %x, once more", tokens)
		}
		seen[tokens.Mine], seen[tokens.Theirs] = true, true
		if before != nil {
			if err := p.join(t, pr.client, before); !errors.Is(err, ErrNotAlive) {
				t.Errorf("with the server's end of the connection before: %v", err)
			}
			before.Close()
		}
		before = pr.server
		pr.client.SetLinger(0)
		pr.client.Close()
		pr.server.Read(make([]byte, 1)) // waits for the reset
	}
}

// TestDisconnect ends connections of sockets without closing these (AF_UNSPEC), and has the sockets
// connect and listen again: they have new tokens, or none.
func TestDisconnect(t *testing.T) {
	p := newPlace(t)
	l := p.listenFor(t, "127.0.0.1:0", allOfIt)
	pr := p.dialFor(t, l, l.Addr().String(), allOfIt)
	before, _ := tokensOf(t, pr.client)
	to := l.Addr().(*net.TCPAddr).AddrPort()
	server := &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	var fd int
	onSocket(t, pr.client, func(own uintptr) (err error) {
		fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0)
		return errors.Join(err, unix.SetNonblock(fd, false))
	})
	defer unix.Close(fd)
	disconnect := func() {
		t.Helper()
		family := [16]byte{} // AF_UNSPEC
		if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(pointer(&family[0])), 16); errno != 0 {
			t.Fatal(errno)
		}
		if _, err := p.pairing(t).Read(fd); !errors.Is(err, ErrNotAlive) {
			t.Errorf("disconnected: Read = %v", err)
		}
	}
	disconnect()
	if err := unix.Connect(fd, server); err != nil {
		t.Fatal(err)
	}
	if s, err := p.pairing(t).Read(fd); err != nil || s.Tokens.Mine == before.Mine || s.Tokens.Theirs == before.Theirs {
		t.Errorf("connected again: %x, %v; before %x", s.Tokens, err, before)
	}
	disconnect()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 11}), unix.Listen(fd, 5)); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "listener")
	again, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for _, w := range []wish{allOfIt, nothing} {
		c := p.dialFor(t, again.(*net.TCPListener), "127.0.0.1:11", w)
		if w == allOfIt {
			c.wantCauses(t, p, pairing.Paired, pairing.Paired)
			c.want(t, both, both)
		} else {
			c.wantCauses(t, p, pairing.NotAsked, pairing.PeerSilent)
			c.want(t, notAsked, silent)
		}
	}
}

// TestPassedListener passes a listening socket to a process by SCM_RIGHTS, and that process's
// socket back.
func TestPassedListener(t *testing.T) {
	p := newPlace(t)
	l := p.listenFor(t, "127.0.0.1:0", onlyToken)
	pr := p.dialFor(t, l, l.Addr().String(), onlyToken)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	pass := func(c syscall.Conn) int {
		onSocket(t, c, func(fd uintptr) error {
			return unix.Sendmsg(fds[0], []byte{0}, unix.UnixRights(int(fd)), nil, 0)
		})
		oob := make([]byte, unix.CmsgSpace(4))
		_, n, _, _, err := unix.Recvmsg(fds[1], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		messages, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil {
			t.Fatal(err)
		}
		got, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			t.Fatal(err)
		}
		return got[0]
	}
	client, server := pass(pr.client), pass(pr.server)
	if err := p.pairing(t).Join(client, server); err != nil {
		t.Errorf("passed sockets: %v", err)
	}
	copied := pass(pr.client)
	if err := p.pairing(t).Join(client, copied); !errors.Is(err, ErrSameSocket) {
		t.Errorf("two descriptors of one socket: %v", err)
	}
	for _, fd := range []int{client, server, copied} {
		unix.Close(fd)
	}
	listener := pass(l)
	f := os.NewFile(uintptr(listener), "listener")
	passed, err := net.FileListener(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer passed.Close()
	l.Close()
	p.dialFor(t, passed.(*net.TCPListener), passed.Addr().String(), onlyToken).wantCauses(t, p, pairing.Paired, pairing.Paired)
}
