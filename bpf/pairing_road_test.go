package bpf

import (
	"context"
	"net"
	"testing"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/pairing"
)

// connectFor makes a connection over the road, whose ends ask; server and client have other options
// of their sockets.
func (r *road) connectFor(t *testing.T, w wish, server, client func(fd uintptr)) pair {
	t.Helper()
	l := r.server.listenFor(t, "192.0.2.2:0", w, server)
	if client == nil {
		client = func(uintptr) {}
	}
	return r.client.dialFor(t, l, l.Addr().String(), w, client)
}

// checkTokens checks how many of the segments so far have a token.
func (r *road) checkTokens(t *testing.T, syns int, synack bool) {
	t.Helper()
	n := 0
	for i, s := range r.segments() {
		switch s.flags & (flagSYN | flagACK) {
		case flagSYN:
			if s.token() != 0 {
				n++
			}
		case flagSYN | flagACK:
			if synack != (s.token() != 0) {
				t.Errorf("segment %d, a SYN-ACK with %x: token %v, want %v", i, s.options, s.token() != 0, synack)
			}
		default:
			if s.token() != 0 {
				t.Errorf("segment %d has a token: %x", i, s.options)
			}
		}
	}
	if n != syns {
		t.Errorf("%d SYNs have a token, want %d", n, syns)
	}
}

// TestPairingBothEndsAgree makes connections whose handshake is disturbed. Both ends are paired, or
// neither is, and each says why.
func TestPairingBothEndsAgree(t *testing.T) {
	p := newPlace(t)
	paired := [2]pairing.Cause{pairing.Paired, pairing.Paired}
	fastOpen := [2]pairing.Cause{pairing.FastOpen, pairing.PeerSilent}
	signed := [2]pairing.Cause{pairing.Signed, pairing.PeerSilent}
	cookies := map[string]string{"net.ipv4.tcp_syncookies": "2"}
	tcp := func(name, value int) func(t *testing.T) func(uintptr) {
		return func(t *testing.T) func(uintptr) { return setTCP(t, name, value) }
	}
	key := func(last byte) func(t *testing.T) func(uintptr) {
		return func(t *testing.T) func(uintptr) { return md5Key(t, [4]byte{192, 0, 2, last}) }
	}
	aoKey := func(*testing.T) func(uintptr) {
		const addAOKey = 38 // TCP_AO_ADD_KEY; that this one is no key does not matter
		return func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_TCP, addAOKey, 0) }
	}
	for _, tt := range []struct {
		name           string
		sysctls        map[string]string // at both ends
		pass           func() func(segment, bool) bool
		server, client func(t *testing.T) func(uintptr)
		syns           int // with a token
		synack         bool
		causes         [2]pairing.Cause // of client and server
		crowded        bool             // with the SMC option there is no room for the token
	}{
		{name: "undisturbed", syns: 1, synack: true, causes: paired},
		{name: "SYN lost", pass: losing(flagSYN, 1), syns: 1, causes: [2]pairing.Cause{pairing.SentAgain, pairing.PeerSilent}},
		{name: "SYN-ACK lost", pass: losing(flagSYN|flagACK, 2), syns: 1, synack: true, causes: paired},
		{name: "ACK lost", pass: losing(flagACK, 2), syns: 1, synack: true, causes: paired},
		{name: "no timestamps", sysctls: map[string]string{"net.ipv4.tcp_timestamps": "0"}, syns: 1, synack: true, causes: paired},
		{name: "no SACK", sysctls: map[string]string{"net.ipv4.tcp_sack": "0"}, syns: 1, synack: true, causes: paired},
		{name: "ECN", sysctls: map[string]string{"net.ipv4.tcp_ecn": "1"}, syns: 1, synack: true, causes: paired},
		{name: "deferred accept", server: tcp(unix.TCP_DEFER_ACCEPT, 10), syns: 1, synack: true, causes: paired},
		{name: "saved SYNs of the program", server: tcp(unix.TCP_SAVE_SYN, 1), syns: 1, synack: true, causes: paired},
		{name: "SYN cookie", sysctls: cookies, syns: 1, causes: [2]pairing.Cause{pairing.PeerSilent, pairing.Cookie}},
		{name: "SYN cookie lost", sysctls: cookies, pass: losing(flagSYN|flagACK, 1), syns: 1, causes: [2]pairing.Cause{pairing.SentAgain, pairing.Cookie}},
		{name: "Fast Open", sysctls: map[string]string{"net.ipv4.tcp_fastopen": "3"},
			server: tcp(unix.TCP_FASTOPEN, 16), client: tcp(unix.TCP_FASTOPEN_CONNECT, 1), causes: fastOpen, crowded: true},
		{name: "Fast Open without cookies", sysctls: map[string]string{"net.ipv4.tcp_fastopen": "519"}, // 0x207
			server: tcp(unix.TCP_FASTOPEN, 16), client: tcp(unix.TCP_FASTOPEN_CONNECT, 1), causes: fastOpen},
		{name: "MD5", server: key(1), client: key(2), causes: signed},
		{name: "AO", client: aoKey, causes: signed},
	} {
		for _, w := range []wish{onlyToken, allOfIt} {
			name := tt.name
			if w.option {
				name += " with the SMC option"
			}
			t.Run(name, func(t *testing.T) {
				r := newRoad(t, p)
				for name, value := range tt.sysctls {
					r.client.sysctl(t, name, value)
					r.server.sysctl(t, name, value)
				}
				if tt.pass != nil {
					r.pass = tt.pass()
				}
				var server, client func(uintptr)
				if tt.server != nil {
					server = tt.server(t)
				}
				if tt.client != nil {
					client = tt.client(t)
				}
				if tt.crowded && w.option {
					tt.causes[0] = pairing.NoRoom
				}
				r.connectFor(t, w, server, client).wantCauses(t, p, tt.causes[0], tt.causes[1])
				r.checkTokens(t, tt.syns, tt.synack)
				checkTables(t, p)
			})
		}
	}
}

// losing is lose, made anew for each road.
func losing(flags byte, n int) func() func(segment, bool) bool {
	return func() func(segment, bool) bool { return lose(flags, n) }
}

// TestMultipathClient has a client of multipath TCP connect to a socket that asked.
func TestMultipathClient(t *testing.T) {
	p := newPlace(t)
	l := p.listenFor(t, "127.0.0.1:0", onlyToken)
	var c net.Conn
	var err error
	p.run(func() {
		var d net.Dialer
		d.SetMultipathTCP(true)
		c, err = d.DialContext(context.Background(), "tcp", l.Addr().String())
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, cause := tokensOf(t, s); cause != pairing.PeerSilent {
		t.Errorf("the server is %q, want %q", cause, pairing.PeerSilent)
	}
}

// TestForeignProgramTakesRoom has a program of others reserve 8 bytes of the SYN-ACK: the SMC
// option fits, and the token does not.
func TestForeignProgramTakesRoom(t *testing.T) {
	p := newPlace(t)
	attachForeign(t, p, true, asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R0, asm.R6, sockOpsOp, asm.Word),
		asm.JNE.Imm(asm.R0, opOptionLength, "end"),
		asm.LoadMem(asm.R0, asm.R6, sockOpsTCPFlags, asm.Word),
		asm.And.Imm(asm.R0, flagSYN|flagACK),
		asm.JNE.Imm(asm.R0, flagSYN|flagACK, "end"),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, 8),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnReserveHdrOpt.Call(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("end"),
		asm.Return(),
	})
	r := newRoad(t, p)
	r.pass = lose(flagSYN|flagACK, 1)
	pr := r.connectFor(t, allOfIt, nil, nil)
	pr.wantCauses(t, p, pairing.SentAgain, pairing.NotSent) // the SYN has come again, as the SYN-ACK was lost
	pr.want(t, both, both)
	checkTables(t, p)
	if c, err := p.pairing(t).Counters(); err != nil || c.SYNACKSent != 0 || c.ServerPaired != 0 {
		t.Errorf("counters %+v, %v", c, err)
	}
}

// TestAnotherKernel has the secret change while the SYN is under way, and while the SYN-ACK is: as
// if the peer, which has an agent, were on another kernel. No end takes the other one for one of
// this kernel.
func TestAnotherKernel(t *testing.T) {
	p := newPlace(t)
	for _, tt := range []struct {
		name   string
		flags  byte
		causes [2]pairing.Cause
		synack bool
	}{
		{"server", flagSYN, [2]pairing.Cause{pairing.PeerSilent, pairing.OtherKernel}, false},
		{"client", flagSYN | flagACK, [2]pairing.Cause{pairing.OtherKernel, pairing.OtherKernel}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRoad(t, p)
			r.pass = func(s segment, _ bool) bool {
				if s.flags&(flagSYN|flagACK) == tt.flags {
					changeSecret(t, p)
				}
				return true
			}
			pr := r.connectFor(t, allOfIt, nil, nil)
			pr.wantCauses(t, p, tt.causes[0], tt.causes[1])
			pr.want(t, both, both) // the SMC option is of any kernel
			r.checkTokens(t, 1, tt.synack)
		})
	}
}
