package bpf

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/option"
	"github.com/gosmc/smc/internal/pairing"
)

// A wish is what a socket asks for.
type wish struct{ option, token bool }

var (
	nothing   = wish{}
	onlySMC   = wish{option: true}
	onlyToken = wish{token: true}
	allOfIt   = wish{option: true, token: true}
)

func (w wish) ask(fd uintptr) error {
	var errs []error
	if w.token {
		errs = append(errs, pairing.Request(fd))
	}
	if w.option {
		errs = append(errs, option.Ask(fd))
	}
	return errors.Join(errs...)
}

// control returns the Control function of a socket that asks, after it was given to others.
func (w wish) control(also ...func(fd uintptr)) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		cerr := c.Control(func(fd uintptr) {
			for _, f := range also {
				if f != nil {
					f(fd)
				}
			}
			err = w.ask(fd)
		})
		return errors.Join(err, cerr)
	}
}

func (p *place) listenFor(t testing.TB, addr string, w wish, also ...func(fd uintptr)) *net.TCPListener {
	t.Helper()
	var l net.Listener
	var err error
	p.run(func() {
		lc := net.ListenConfig{Control: w.control(also...)}
		lc.SetMultipathTCP(false)
		l, err = lc.Listen(context.Background(), "tcp", addr)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

// dialFor makes a connection, and has a byte go each way.
func (p *place) dialFor(t testing.TB, l *net.TCPListener, to string, w wish, also ...func(fd uintptr)) pair {
	t.Helper()
	return p.connect(t, l, to, false, append(also, func(fd uintptr) {
		if err := w.ask(fd); err != nil {
			t.Error(err)
		}
	})...)
}

// tokensOf returns the tokens of a connection and their cause, as its process reads them.
func tokensOf(t testing.TB, c syscall.Conn) (tokens pairing.Tokens, cause pairing.Cause) {
	t.Helper()
	onSocket(t, c, func(fd uintptr) (err error) {
		tokens, cause, err = pairing.TokensOf(fd)
		return err
	})
	return tokens, cause
}

// onSocket calls f with the descriptor of a socket.
func onSocket(t testing.TB, c syscall.Conn, f func(fd uintptr) error) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		if cerr := raw.Control(func(fd uintptr) { err = f(fd) }); cerr != nil {
			err = cerr
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// pairing returns what reads pairs at a place.
func (p *place) pairing(t testing.TB) *Pairing {
	t.Helper()
	reader, err := p.option.Pairing()
	if err != nil {
		t.Fatal(err)
	}
	return reader
}

// join reads two sockets as the agent does.
func (p *place) join(t testing.TB, a, b syscall.Conn) (err error) {
	t.Helper()
	onSocket(t, a, func(one uintptr) error {
		onSocket(t, b, func(two uintptr) error {
			err = p.pairing(t).Join(int(one), int(two))
			return nil
		})
		return nil
	})
	return err
}

// wantCauses checks that the kernel pairs the two ends, or neither of them, for these causes.
func (pr pair) wantCauses(t testing.TB, p *place, client, server pairing.Cause) {
	t.Helper()
	ct, cc := tokensOf(t, pr.client)
	st, sc := tokensOf(t, pr.server)
	if cc != client || sc != server {
		t.Errorf("the client is %q, the server %q; want %q and %q", cc, sc, client, server)
	}
	joined := p.join(t, pr.client, pr.server)
	if both := client == pairing.Paired && server == pairing.Paired; both != pairing.Match(ct, st) || both != (joined == nil) {
		t.Errorf("client %x, server %x: joined: %v", ct, st, joined)
	}
	if client != pairing.Paired && ct != (pairing.Tokens{}) || server != pairing.Paired && st != (pairing.Tokens{}) {
		t.Errorf("client %x, server %x: tokens without a pair", ct, st)
	}
}

// token returns the token of a segment; 0 for none.
func (s segment) token() uint64 {
	i := bytes.Index(s.options, []byte("\xfe\x0ePAIR"))
	if i < 0 || len(s.options) < i+pairing.OptionLen {
		return 0
	}
	return binary.NativeEndian.Uint64(s.options[i+6:])
}

// TestTokensOnWire looks at the segments of connections whose ends ask for tokens, the SMC option,
// both or nothing. Each is on the SYN if the client asked, on the SYN-ACK if both did, and nowhere
// else.
func TestTokensOnWire(t *testing.T) {
	p := newPlace(t)
	for _, network := range []struct{ name, listen, dial string }{
		{"IPv4", "127.0.0.1:0", "127.0.0.1"},
		{"IPv6", "[::1]:0", "::1"},
		{"IPv4 to IPv6", "[::]:0", "127.0.0.1"},
	} {
		for _, client := range []wish{nothing, onlySMC, onlyToken, allOfIt} {
			for _, server := range []wish{nothing, onlySMC, onlyToken, allOfIt} {
				t.Run(fmt.Sprintf("%s/%v,%v", network.name, client, server), func(t *testing.T) {
					l := p.listenFor(t, network.listen, server)
					wire := p.tap(t)
					pr := p.dialFor(t, l, net.JoinHostPort(network.dial, fmt.Sprint(l.Addr().(*net.TCPAddr).Port)), client)
					list := wire.segments(ports(pr))
					checkWire(t, list, client.option, client.option && server.option)
					var mine, theirs uint64
					for i, s := range list {
						switch s.flags & (flagSYN | flagACK) {
						case flagSYN:
							mine = s.token()
						case flagSYN | flagACK:
							theirs = s.token()
						default:
							if s.token() != 0 {
								t.Errorf("segment %d has a token: %x", i, s.options)
							}
						}
					}
					if client.token != (mine != 0) || (client.token && server.token) != (theirs != 0) {
						t.Errorf("the tokens are %x and %x, in %x", mine, theirs, list)
					}
					causes := map[[2]bool][2]pairing.Cause{
						{true, true}: {pairing.Paired, pairing.Paired}, {true, false}: {pairing.PeerSilent, pairing.NotAsked},
						{false, true}: {pairing.NotAsked, pairing.PeerSilent}, {false, false}: {pairing.NotAsked, pairing.NotAsked},
					}[[2]bool{client.token, server.token}]
					pr.wantCauses(t, p, causes[0], causes[1])
					fates := map[[2]bool][2]fate{
						{true, true}: {both, both}, {true, false}: {silent, notAsked}, {false, true}: {notAsked, silent}, {false, false}: {notAsked, notAsked},
					}[[2]bool{client.option, server.option}]
					pr.want(t, fates[0], fates[1])
					if got, _ := tokensOf(t, pr.client); client.token && server.token && got != (pairing.Tokens{Mine: mine, Theirs: theirs}) {
						t.Errorf("tokens %x, want %x and %x", got, mine, theirs)
					}
				})
			}
		}
	}
	c, err := p.pairing(t).Counters()
	if c.Reports == 0 {
		t.Error("the agent was not told of the network namespace")
	}
	c.Reports = 0 // one for each second that the test takes
	want := PairingCounters{SYNSent: 24, SYNACKSent: 12, ClientPaired: 12, ClientUnpaired: 12, ServerPaired: 12, ServerUnpaired: 12}
	if err != nil || c != want {
		t.Errorf("counters %+v, %v; want %+v", c, err, want)
	}
}

// TestThousandPairs makes 1,000 connections at a time. Each is a pair, and no two ends of different
// ones are.
func TestThousandPairs(t *testing.T) {
	p := newPlace(t)
	l := p.listenFor(t, "127.0.0.1:0", onlyToken)
	p.thousandPairs(t, l, l.Addr().String())
}

// thousandPairs makes 1,000 connections from clients at p, which stay until the test ends.
func (p *place) thousandPairs(t *testing.T, l *net.TCPListener, to string) {
	t.Helper()
	const count = 1000
	byMine := make(map[uint64]int)
	var list []pairing.Tokens
	for i := range count {
		pr := p.dialFor(t, l, to, onlyToken)
		if err := p.join(t, pr.client, pr.server); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		for _, end := range []syscall.Conn{pr.client, pr.server} {
			tokens, cause := tokensOf(t, end)
			if other, ok := byMine[tokens.Mine]; ok || cause != pairing.Paired {
				t.Fatalf("connection %d: %v, with the token of socket %d", i, cause, other)
			}
			byMine[tokens.Mine] = len(list)
			list = append(list, tokens)
		}
	}
	matches := 0
	for _, a := range list {
		for _, b := range list {
			if pairing.Match(a, b) {
				matches++
			}
		}
	}
	if matches != 2*count { // each pair in both orders
		t.Errorf("%d matches among %d connections", matches, count)
	}
}

// TestRequestErrors asks on sockets that cannot have a token, and reads sockets that are no
// connection.
func TestRequestErrors(t *testing.T) {
	p := newPlace(t)
	l := p.listenFor(t, "127.0.0.1:0", nothing)
	pr := p.dialFor(t, l, l.Addr().String(), nothing)
	for name, c := range map[string]syscall.Conn{"listener": l, "client": pr.client, "server": pr.server} {
		onSocket(t, c, func(fd uintptr) error {
			if err := pairing.Request(fd); !errors.Is(err, pairing.ErrTooLate) {
				t.Errorf("%s: Request = %v, want ErrTooLate", name, err)
			}
			return nil
		})
	}
	open := func(family, kind, protocol int) uintptr {
		fd, err := -1, error(nil)
		p.run(func() { fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return uintptr(fd)
	}
	multipath := open(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
	if err := pairing.Request(multipath); !errors.Is(err, pairing.ErrMultipath) {
		t.Errorf("multipath TCP: Request = %v, want ErrMultipath", err)
	}
	if _, _, err := pairing.TokensOf(multipath); !errors.Is(err, pairing.ErrMultipath) {
		t.Errorf("multipath TCP: TokensOf = %v, want ErrMultipath", err)
	}
	udp, unixSocket := open(unix.AF_INET, unix.SOCK_DGRAM, 0), open(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err := pairing.Request(udp); !errors.Is(err, pairing.ErrNoService) {
		t.Errorf("UDP: Request = %v, want ErrNoService", err)
	}
	raw := open(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP)
	fresh := open(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err := pairing.Request(fresh); err != nil {
		t.Error(err)
	}
	if _, cause, err := pairing.TokensOf(fresh); cause != pairing.Pending || err != nil {
		t.Errorf("after Request: %q, %v", cause, err)
	}
	reader := p.pairing(t)
	for name, tt := range map[string]struct {
		fd   uintptr
		want error
	}{
		"UDP": {udp, ErrNotTCP}, "Unix": {unixSocket, ErrNotTCP}, "raw": {raw, ErrNotTCP}, "multipath TCP": {multipath, ErrNotTCP},
		"no socket": {0, ErrNotTCP}, "unconnected": {fresh, ErrNotAlive},
	} {
		if _, err := reader.Read(int(tt.fd)); !errors.Is(err, tt.want) {
			t.Errorf("%s: Read = %v, want %v", name, err, tt.want)
		}
	}
	if err := pairing.Withdraw(fresh); err != nil {
		t.Error(err)
	}
	if _, cause, err := pairing.TokensOf(fresh); cause != pairing.NotAsked || err != nil {
		t.Errorf("after Withdraw: %q, %v", cause, err)
	}
	asked := p.listenFor(t, "127.0.0.1:0", onlyToken)
	if _, cause := tokensOf(t, asked); cause != pairing.Listening {
		t.Errorf("a socket that asked and listens: %q", cause)
	}
	onSocket(t, asked, func(fd uintptr) error {
		if _, err := reader.Read(int(fd)); !errors.Is(err, ErrListens) {
			t.Errorf("listening: Read = %v", err)
		}
		return nil
	})
	paired := p.dialFor(t, asked, asked.Addr().String(), onlyToken)
	paired.wantCauses(t, p, pairing.Paired, pairing.Paired)
	if err := p.join(t, paired.client, paired.client); !errors.Is(err, ErrSameSocket) {
		t.Errorf("the same socket: %v", err)
	}
	other := p.dialFor(t, asked, asked.Addr().String(), onlyToken)
	if err := p.join(t, paired.client, other.server); !errors.Is(err, ErrNoPair) {
		t.Errorf("ends of two connections: %v", err)
	}
	var unpaired *UnpairedError
	if err := p.join(t, paired.client, pr.server); !errors.As(err, &unpaired) || unpaired.Cause != pairing.NotAsked {
		t.Errorf("a socket that did not ask: %v", err)
	}
	paired.client.CloseWrite()
	if err := p.join(t, paired.client, paired.server); err != nil {
		t.Errorf("after one end has shut down: %v", err)
	}
	paired.server.SetLinger(0)
	paired.server.Close()
	paired.client.Read(make([]byte, 1)) // waits for the reset
	onSocket(t, paired.client, func(fd uintptr) error {
		if _, err := reader.Read(int(fd)); !errors.Is(err, ErrNotAlive) {
			t.Errorf("after a reset: Read = %v", err)
		}
		return nil
	})
}
