package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/internal/smctest"
)

// tokenOption is a TCP option with a token, filled up to a multiple of 4 bytes.
func tokenOption(token uint64) []byte {
	o := append([]byte{254, pairing.OptionLen}, pairing.Magic...)
	return append(binary.NativeEndian.AppendUint64(o, token), 1, 1)
}

// TestForgedSYN has the root of a network namespace, which has the addresses of a victim's
// connection, send the victim's token from a raw socket to a server of its own. The kernel answers,
// and that server's socket has the victim's token as its peer's. But it has another one as its own,
// so it joins no end of the victim's connection.
func TestForgedSYN(t *testing.T) {
	p := newPlace(t)
	victim := newRoad(t, p) // from 192.0.2.1 to 192.0.2.2
	l := victim.server.listenFor(t, "192.0.2.2:7102", onlyToken)
	pr := victim.client.dialFor(t, l, "192.0.2.2:7102", onlyToken)
	pr.wantCauses(t, p, pairing.Paired, pairing.Paired)
	client, _ := tokensOf(t, pr.client)
	server, _ := tokensOf(t, pr.server)

	attacker := *p
	attacker.run, attacker.netns = smctest.EnterNamespace(t)
	own := &foreignHost{t: t, fd: attacker.tunnel(t, "192.0.2.2"), addr: netip.MustParseAddr("192.0.2.1")}
	own.port = pr.client.LocalAddr().(*net.TCPAddr).AddrPort().Port()
	trap := attacker.listenFor(t, "192.0.2.2:7102", onlyToken)
	forge := func(token uint64) (answer uint64, end *net.TCPConn) {
		t.Helper()
		packet := segmentFrom(netip.AddrPortFrom(own.addr, own.port), netip.MustParseAddrPort("192.0.2.2:7102"), 1000, 0, flagSYN, tokenOption(token))
		if _, err := unix.Write(own.fd, packet); err != nil {
			t.Fatal(err)
		}
		s, seq := own.receive()
		packet = segmentFrom(netip.AddrPortFrom(own.addr, own.port), netip.MustParseAddrPort("192.0.2.2:7102"), 1001, seq+1, flagACK, nil)
		if _, err := unix.Write(own.fd, packet); err != nil {
			t.Fatal(err)
		}
		end, err := trap.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { end.Close() })
		return s.token(), end
	}
	answer, end := forge(client.Mine)
	got, cause := tokensOf(t, end)
	if cause != pairing.Paired || got != (pairing.Tokens{Mine: answer, Theirs: client.Mine}) {
		t.Errorf("the attacker's server is %q, with %x; want the victim's token %x and the answer %x", cause, got, client.Mine, answer)
	}
	if answer == server.Mine {
		t.Error("the attacker has got the server's token")
	}
	for name, other := range map[string]syscall.Conn{"client": pr.client, "server": pr.server} {
		if err := p.join(t, other, end); !errors.Is(err, ErrNoPair) {
			t.Errorf("with the victim's %s: %v, want ErrNoPair", name, err)
		}
	}
	// The forger cannot invent tokens either: the kernel answers only those that it has made.
	for i, token := range []uint64{0, client.Mine ^ 1, client.Mine ^ 1<<15} {
		own.port++
		answer, end := forge(token)
		if _, cause := tokensOf(t, end); answer != 0 || cause == pairing.Paired {
			t.Errorf("invented token %d: answer %x, %q", i, answer, cause)
		}
	}
	pr.wantCauses(t, p, pairing.Paired, pairing.Paired)
}

// TestForgedAnswer has a foreign host answer a client's SYN with tokens of its own invention.
func TestForgedAnswer(t *testing.T) {
	p := newPlace(t)
	h := newForeignHost(t, p)
	for name, forge := range map[string]func(token uint64) uint64{
		"invented":     func(uint64) uint64 { return 0x1122334455660000 },
		"the client's": func(token uint64) uint64 { return token },
		"other bits":   func(token uint64) uint64 { return token ^ 1<<40 },
		"no token":     func(uint64) uint64 { return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			taken := 0
			for i := range uint64(2) { // a token has one right check, and a guess of it may be right
				tokens, cause := p.forgeAnswer(t, h, func(token uint64) uint64 {
					if answer := forge(token); answer != 0 {
						return answer ^ i
					}
					return 0
				})
				switch {
				case cause == pairing.Paired:
					taken++
				case tokens != (pairing.Tokens{}) || (cause == pairing.PeerSilent) != (name == "no token"):
					t.Errorf("tokens %x, %q", tokens, cause)
				}
			}
			if taken == 2 {
				t.Error("the client takes any answer")
			}
		})
	}
}

// forgeAnswer has a socket connect to the host, which answers its token with another, and returns
// the socket's tokens then.
func (p *place) forgeAnswer(t *testing.T, h *foreignHost, forge func(token uint64) uint64) (pairing.Tokens, pairing.Cause) {
	t.Helper()
	var fd int
	var err error
	p.run(func() { fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) })
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := pairing.Request(uintptr(fd)); err != nil {
		t.Fatal(err)
	}
	h.port++
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: h.addr.As4(), Port: int(h.port)})
	if !errors.Is(err, unix.EINPROGRESS) {
		t.Fatal(err)
	}
	s, seq := h.receive()
	if s.flags&flagSYN == 0 || s.token() == 0 {
		t.Fatalf("the SYN is %+v", s)
	}
	h.send(s.from, 5000, seq+1, flagSYN|flagACK, tokenOption(forge(s.token())))
	for {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	tokens, cause, err := pairing.TokensOf(uintptr(fd))
	if err != nil {
		t.Fatal(err)
	}
	return tokens, cause
}

// TestSelfConnectTokens has sockets that ask be connected to themselves: they have no tokens, and
// are no pair.
func TestSelfConnectTokens(t *testing.T) {
	p := newPlace(t)
	for i := range 100 {
		var fd int
		var err error
		p.run(func() { fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) })
		if err != nil {
			t.Fatal(err)
		}
		self := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 10_000 + i}
		if err := errors.Join(pairing.Request(uintptr(fd)), unix.Bind(fd, self), unix.Connect(fd, self)); err != nil {
			t.Fatal(err)
		}
		if tokens, cause, err := pairing.TokensOf(uintptr(fd)); err != nil || cause != pairing.Crossed || tokens != (pairing.Tokens{}) {
			t.Fatalf("tokens %x, %q, %v", tokens, cause, err)
		}
		var unpaired *UnpairedError
		if err := p.pairing(t).Join(fd, fd); !errors.As(err, &unpaired) {
			t.Fatalf("Join = %v", err)
		}
		unix.Close(fd)
	}
}

// tokenCrowd is a process of a user whose sockets ask for tokens and listen. It says how many had
// been too many.
func tokenCrowd(p *smctest.Parent) {
	count, err := strconv.Atoi(p.Args[0])
	p.Check(err)
	p.Check(syscall.Setgroups(nil))
	p.Check(syscall.Setresgid(4001, 4001, 4001))
	p.Check(syscall.Setresuid(4001, 4001, 4001))
	tooMany := 0
	for i := range count {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		p.Check(err)
		p.Check(pairing.Request(uintptr(fd)))
		p.Check(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 3, 0, 1}, Port: 10_000 + i}))
		p.Check(unix.Listen(fd, 1))
		switch _, cause, err := pairing.TokensOf(uintptr(fd)); {
		case err == nil && cause == pairing.Listening:
		case err == nil && cause == pairing.TooMany:
			tooMany++
		default:
			p.Check(fmt.Errorf("socket %d: %q, %w", i, cause, err))
		}
	}
	p.Say("refused %d", tooMany)
	p.Hear()
}

// TestTokenCrowd has a user listen on more sockets that ask for tokens than its quota allows.
// Others are paired, and nothing is left when the user's process ends.
func TestTokenCrowd(t *testing.T) {
	p := newPlace(t)
	var child *smctest.Process
	p.run(func() { child = smctest.Start(t, "tokencrowd", fmt.Sprint(userQuota+100)) })
	if got := child.Hear("refused"); got != "100" {
		t.Errorf("%s sockets were too many, want 100", got)
	}
	l := p.listenFor(t, "127.0.0.1:0", onlyToken)
	p.dialFor(t, l, l.Addr().String(), onlyToken).wantCauses(t, p, pairing.Paired, pairing.Paired)
	l.Close()
	child.Kill()
	checkQuotas(t, p)
}

// asker is a process that asks in its network namespace each time it is told to, and says its
// number and the agent's name.
func asker(p *smctest.Parent) {
	for {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		p.Check(err)
		p.Check(pairing.Request(uintptr(fd)))
		name, err := pairing.ServiceName(uintptr(fd))
		if err != nil && !errors.Is(err, pairing.ErrNoName) {
			p.Check(err)
		}
		p.Say("name %q", name)
		unix.Close(fd)
		p.Hear()
	}
}

// netnsOf returns the cookie of a namespace.
func netnsOf(t testing.TB, run func(func())) (cookie uint64) {
	t.Helper()
	var err error
	run(func() {
		var fd int
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
			cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
			unix.Close(fd)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return cookie
}

// TestNamespaceReports has processes ask in namespaces that the agent does not serve. It is told of
// each, with the process, and when it has named its socket there the processes read the name, and
// it is told no more.
func TestNamespaceReports(t *testing.T) {
	p := newPlace(t)
	reader := p.pairing(t)
	reports, err := reader.Reports()
	if err != nil {
		t.Fatal(err)
	}
	type guest struct {
		child  *smctest.Process
		cookie uint64
	}
	var guests []guest
	for range 3 {
		run, _ := smctest.EnterNamespace(t)
		var c *smctest.Process
		run(func() { c = smctest.Start(t, "asker") })
		guests = append(guests, guest{c, netnsOf(t, run)})
		if got := c.Hear("name"); got != `""` {
			t.Errorf("a name %s before there is an agent", got)
		}
		r, err := reports.Next()
		for err == nil && r.Netns != guests[len(guests)-1].cookie { // one before has asked for more than a second
			r, err = reports.Next()
		}
		if want := (Report{guests[len(guests)-1].cookie, uint32(c.PID()), 0}); err != nil || r != want {
			t.Errorf("report %+v, %v; want %+v", r, err, want)
		}
	}
	for i, g := range guests {
		name := strings.Repeat(fmt.Sprint(i), pairing.MaxName-i)
		if err := reader.SetName(g.cookie, name); err != nil {
			t.Fatal(err)
		}
		g.child.Say("again")
		if got, want := g.child.Hear("name"), strconv.Quote(name); got != want {
			t.Errorf("name %s, want %s", got, want)
		}
	}
	before, err := reader.Counters()
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		guests[0].child.Say("again")
		guests[0].child.Hear("name")
	}
	if after, err := reader.Counters(); err != nil || after.Reports != before.Reports {
		t.Errorf("%d reports of a namespace that is served, %v", after.Reports-before.Reports, err)
	}
	if list, err := reader.Names(); err != nil || len(list) != len(guests) {
		t.Errorf("names of %v, %v", list, err)
	}
	if err := errors.Join(reader.RemoveName(guests[0].cookie), reader.RemoveName(guests[0].cookie)); err != nil {
		t.Error(err)
	}
	guests[0].child.Say("again")
	if got := guests[0].child.Hear("name"); got != `""` {
		t.Errorf("name %s after it was removed", got)
	}
	for _, name := range []string{"", strings.Repeat("x", pairing.MaxName+1)} {
		if err := reader.SetName(1, name); err == nil {
			t.Errorf("SetName(%q) = nil", name)
		}
	}
	for _, g := range guests {
		g.child.Kill()
	}
	if err := reports.Close(); err != nil {
		t.Error(err)
	}
	if _, err := reports.Next(); err == nil {
		t.Error("a report after Close")
	}
}

// TestReportsAreFew asks very often in one namespace, while the agent reads nothing. There is at
// most one report for each second that it takes.
func TestReportsAreFew(t *testing.T) {
	p := newPlace(t)
	start := monotonic(t)
	p.run(func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		for range 20_000 {
			if err := pairing.Request(uintptr(fd)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	c, err := p.pairing(t).Counters()
	if most := uint64(monotonic(t)-start)/1e9 + 1; err != nil || c.Reports < 1 || c.Reports > most {
		t.Errorf("%d reports, %v; want 1 to %d", c.Reports, err, most)
	}
}

// monotonic returns the time since the machine has started, in ns.
func monotonic(t testing.TB) int64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano()
}
