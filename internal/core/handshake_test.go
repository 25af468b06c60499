package core

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

func eid(t testing.TB, text string) wire.EID {
	t.Helper()
	e, err := wire.ParseEID(text)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

var (
	clientGID                  = wire.ISMGID{Hi: 0xc1c1c1c1c1c14c1c, Lo: 0x81c1c1c1c1c1c1c1}
	serverGID                  = wire.ISMGID{Hi: 0x5e5e5e5e5e5e4e5e, Lo: 0x8e5e5e5e5e5e5e5e}
	kernelGID                  = wire.ISMGID{Hi: 0x4e4e4e4e4e4e4e4e, Lo: 0x9e4e4e4e4e4e4e4e}
	clientPeer                 = wire.PeerID{0, 1, 2, 0, 0, 0, 0, 0xc1}
	serverPeer                 = wire.PeerID{0, 2, 2, 0, 0, 0, 0, 0x5e}
	clientNative, serverNative = uint64(0x1111), uint64(0x2222)
)

// clientCaps and serverCaps have everything: all four types, both releases.
func clientCaps(t testing.TB) Capabilities {
	return Capabilities{
		PeerID: clientPeer, OS: clc.OSLinux, HostName: "client", Release: clc.Release1,
		SEID: eid(t, "GOSMC-MACHINE1"), UEIDs: []wire.EID{eid(t, "EAST"), eid(t, "WEST")},
		ISM:      []clc.ISMDevice{{GID: clientGID, CHID: wire.CHIDLoopback}},
		ISMv1:    &clc.ISMDevice{GID: wire.ISMGID{Hi: clientNative}, CHID: 0x0700},
		RoCEv1:   &RNIC{GID: wire.GID{0: 0xfe, 1: 0x80, 15: 1}, MAC: wire.MAC{2, 0, 0, 0, 0, 0xc1}},
		RoCEv2:   &RNIC{GID: wire.GIDFromAddr(netip.MustParseAddr("10.0.0.1")), MAC: wire.MAC{2, 0, 0, 0, 0, 0xc2}},
		Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")},
		MaxConns: 64, MaxLinks: 2, Features: 0x8001,
		VendorOUI: [3]byte{1, 2, 3}, VendorOffer: [5]byte{5, 4, 3, 2, 1},
	}
}

func serverCaps(t testing.TB) Capabilities {
	return Capabilities{
		PeerID: serverPeer, OS: clc.OSZOS, HostName: "server", Release: clc.Release1,
		SEID: eid(t, "GOSMC-MACHINE1"), UEIDs: []wire.EID{eid(t, "NORTH"), eid(t, "WEST"), eid(t, "EAST")},
		ISM: []clc.ISMDevice{
			{GID: wire.ISMGID{Hi: serverNative}, CHID: 0x0700},
			{GID: serverGID, CHID: wire.CHIDLoopback},
		},
		ISMv1:    &clc.ISMDevice{GID: wire.ISMGID{Hi: serverNative}, CHID: 0x0700},
		RoCEv1:   &RNIC{GID: wire.GID{0: 0xfe, 1: 0x80, 15: 2}, MAC: wire.MAC{2, 0, 0, 0, 0, 0x5e}},
		RoCEv2:   &RNIC{GID: wire.GIDFromAddr(netip.MustParseAddr("10.0.0.2")), MAC: wire.MAC{2, 0, 0, 0, 0, 0x5f}},
		Networks: []netip.Prefix{netip.MustParsePrefix("192.168.7.1/16"), netip.MustParsePrefix("10.0.0.2/24")},
		MaxConns: 32, MaxLinks: 1, Features: 0x4001,
		VendorOUI: [3]byte{1, 2, 3}, VendorOptions: [4]byte{9, 8, 7, 6},
	}
}

// only leaves the devices of the named types in c: "Dv2 Dv1 Rv2 Rv1".
func only(c Capabilities, types string) Capabilities {
	if !strings.Contains(types, "Dv2") {
		c.ISM = nil
	}
	if !strings.Contains(types, "Dv1") {
		c.ISMv1 = nil
	}
	if !strings.Contains(types, "Rv2") {
		c.RoCEv2 = nil
	}
	if !strings.Contains(types, "Rv1") {
		c.RoCEv1 = nil
	}
	return c
}

// resources returns buffers that fit the choice. The number tells two peers apart.
func resources(c Choice, role Role, firstContact bool, n uint8) Resources {
	r := Resources{FirstContact: firstContact, Direct: true}
	if c.Mode == SMCD {
		r.D = &clc.ParamsD{Token: wire.Token(n) << 8, DMBEIndex: n, DMBESize: 2, LinkID: wire.LinkID(n)}
		return r
	}
	r.R = &clc.ParamsR{
		GID: wire.GIDFromAddr(netip.AddrFrom4([4]byte{10, 0, 0, n})), MAC: wire.MAC{2, 0, 0, 0, 0, 0xc2}, QPN: wire.QPN(n), RKey: wire.RKey(n), RMBEIndex: 1,
		AlertToken: wire.AlertToken(n), RMBESize: 3, MTU: wire.MTU1024, RMBAddr: uint64(n) << 12, PSN: wire.PSN(n),
	}
	if c.Version == clc.V1 {
		r.R.GID = wire.GID{0: 0xfe, 1: 0x80, 15: n}
	}
	if role == RoleClient && c.FirstContact && c.Version == clc.V2 {
		r.ClientGIDs = []wire.GID{r.R.GID, {15: n + 1}}
	}
	return r
}

// words describes outputs in short: the messages, and how it ends.
func words(now time.Time, outs []HandshakeOutput) string {
	var list []string
	for _, o := range outs {
		switch o := o.(type) {
		case SendCLC:
			w := "send " + o.Message.Type().String()
			if d, ok := o.Message.(clc.Decline); ok {
				w += fmt.Sprintf(" v%d %v", d.Version, d.Diagnosis)
				if d.OutOfSync {
					w += " out-of-sync"
				}
			}
			list = append(list, w)
		case Prepare:
			list = append(list, fmt.Sprintf("prepare %vv%d", o.Choice.Mode, o.Choice.Version))
		case StartLink:
			list = append(list, "link")
		case Established:
			list = append(list, "established")
		case FallBack:
			w := "fallback"
			if o.ByPeer {
				w = "fallback by peer"
			}
			if o.OutOfSync {
				w += " out-of-sync"
			}
			list = append(list, w+" "+o.Diagnosis.String())
		case EndTCP:
			w := "end: " + o.Err.Error()
			list = append(list, w)
		case SetTimer:
			list = append(list, outputWord(now, o))
		case ClearTimer:
			list = append(list, outputWord(now, o))
		}
	}
	return strings.Join(list, ", ")
}

// A pair is a client and a server that talk through values. Messages pass through their encoded
// form, as they do in life.
type pair struct {
	t      *testing.T
	client *Handshake
	server *Handshake
	// tamper may change a message on its way.
	tamper func(m clc.Message) clc.Message
	// try answers Prepare: a reason to fail, or DiagNone.
	try func(role Role, c Choice) clc.Diagnosis
	// firstContact is the first contact flag of the server.
	firstContact bool
	reachable    []wire.ISMGID

	log    []string // messages and ends
	tried  []string // choices of the server
	result map[Role]Result
	ends   map[Role]HandshakeOutput
}

func newPair(t *testing.T, client, server Capabilities) *pair {
	return &pair{
		t: t, client: NewHandshake(RoleClient, client), server: NewHandshake(RoleServer, server),
		firstContact: true, reachable: []wire.ISMGID{clientGID, {Hi: clientNative}},
		result: map[Role]Result{}, ends: map[Role]HandshakeOutput{},
	}
}

func (p *pair) side(role Role) *Handshake {
	if role == RoleClient {
		return p.client
	}
	return p.server
}

func other(role Role) Role { return RoleClient + RoleServer - role }

// run plays the handshake to its end.
func (p *pair) run() *pair {
	p.t.Helper()
	p.server.SetReachable(p.reachable...)
	p.do(RoleServer, p.server.Start(epoch, nil))
	p.do(RoleClient, p.client.Start(epoch, nil))
	return p
}

func (p *pair) do(role Role, outs []HandshakeOutput) {
	p.t.Helper()
	h := p.side(role)
	for _, o := range outs {
		switch o := o.(type) {
		case SendCLC:
			b := o.Message.Append(nil)
			m, err := clc.Parse(b)
			if err != nil {
				p.t.Fatalf("%v sent %v, which does not decode: %v", role, o.Message, err)
			}
			if p.tamper != nil {
				m = p.tamper(m)
			}
			p.log = append(p.log, fmt.Sprintf("%v: %v", role, m))
			defer func() { p.do(other(role), p.side(other(role)).HandleMessage(epoch, m, nil, nil)) }()
		case Prepare:
			why := clc.DiagNone
			if role == RoleServer {
				p.tried = append(p.tried, fmt.Sprintf("%vv%d", o.Choice.Mode, o.Choice.Version))
			}
			if p.try != nil {
				why = p.try(role, o.Choice)
			}
			if why != clc.DiagNone {
				p.do(role, h.PrepareFailed(epoch, why, nil))
				continue
			}
			n := uint8(0x10)
			if role == RoleServer {
				n = 0x20
			}
			p.do(role, h.Prepared(epoch, resources(o.Choice, role, p.firstContact, n), nil))
		case StartLink:
			if role == RoleServer { // the client has got there before
				p.do(role, h.LinkRequested(epoch, nil))
				p.do(RoleClient, p.client.LinkRequested(epoch, nil))
				p.do(RoleClient, p.client.LinkReplied(epoch, nil))
				p.do(RoleClient, p.client.LinkConfirmed(epoch, nil))
				p.do(role, h.LinkConfirmed(epoch, nil))
				p.do(RoleClient, p.client.LinkUp(epoch, nil))
				p.do(role, h.LinkUp(epoch, nil))
			}
		case Established:
			p.result[role] = o.Result
			p.ends[role] = o
		case FallBack:
			p.ends[role] = o
		case EndTCP:
			p.ends[role] = o
		}
	}
}

func (p *pair) end(role Role) string {
	if p.ends[role] == nil {
		return "none"
	}
	return words(epoch, []HandshakeOutput{p.ends[role]})
}

// TestHandshakeTypes makes each of the four types, on first contact and later, and compares the
// results of both sides in the end.
func TestHandshakeTypes(t *testing.T) {
	for _, tt := range []struct {
		types   string
		mode    Mode
		version clc.Version
		eid     string
	}{
		{"Dv2", SMCD, clc.V2, "GOSMC-MACHINE1"},
		{"Dv1", SMCD, clc.V1, ""},
		{"Rv2", SMCR, clc.V2, "EAST"}, // the client's order
		{"Rv1", SMCR, clc.V1, ""},
	} {
		for _, first := range []bool{true, false} {
			for _, release := range []clc.Release{clc.Release0, clc.Release1} {
				if tt.types == "Dv2" && release == clc.Release0 {
					continue // the Emulated-ISM device needs release 1
				}
				name := fmt.Sprintf("%s first=%t release=%d", tt.types, first, release)
				client, server := only(clientCaps(t), tt.types), only(serverCaps(t), tt.types)
				client.Release = release
				p := newPair(t, client, server)
				p.firstContact = first
				p.run()
				c, cok := p.result[RoleClient]
				s, sok := p.result[RoleServer]
				if !cok || !sok {
					t.Errorf("%s: client %s, server %s\n%s", name, p.end(RoleClient), p.end(RoleServer), strings.Join(p.log, "\n"))
					continue
				}
				if c.Mode != tt.mode || c.Version != tt.version || c.EID.String() != tt.eid || c.FirstContact != first {
					t.Errorf("%s: client has %+v", name, c)
				}
				if s.Mode != c.Mode || s.Version != c.Version || s.EID != c.EID || s.FirstContact != c.FirstContact ||
					s.Release != c.Release || s.MaxConns != c.MaxConns || s.MaxLinks != c.MaxLinks ||
					s.Features != c.Features || s.VendorOptions != c.VendorOptions || s.Direct != c.Direct {
					t.Errorf("%s: the sides differ:\nclient %+v\nserver %+v", name, c, s)
				}
				checkResult(t, name, c, s, first, release)
			}
		}
	}
}

// checkResult checks the negotiated values and that each side has the other's buffer.
func checkResult(t *testing.T, name string, c, s Result, first bool, release clc.Release) {
	t.Helper()
	if c.Mode == SMCD {
		if c.D == nil || s.D == nil || c.R != nil || s.R != nil {
			t.Fatalf("%s: parameters %v %v %v %v", name, c.D, s.D, c.R, s.R)
		}
		if c.D.Token != 0x2000 || s.D.Token != 0x1000 || c.D.LinkID != 0x20 || s.D.LinkID != 0x10 {
			t.Errorf("%s: client has %+v, server %+v", name, *c.D, *s.D)
		}
		if c.D.GID != s.Local.GID || s.D.GID != c.Local.GID || c.D.CHID != s.Local.CHID || s.D.CHID != c.Local.CHID {
			t.Errorf("%s: devices: client has %+v and %+v, server %+v and %+v", name, c.Local, *c.D, s.Local, *s.D)
		}
	} else {
		if c.D != nil || s.D != nil || c.R == nil || s.R == nil {
			t.Fatalf("%s: parameters %v %v %v %v", name, c.D, s.D, c.R, s.R)
		}
		if c.R.QPN != 0x20 || s.R.QPN != 0x10 || c.R.PeerID != serverPeer || s.R.PeerID != clientPeer {
			t.Errorf("%s: client has %+v, server %+v", name, *c.R, *s.R)
		}
	}
	want := Result{}
	if c.Mode == SMCR && (c.Version == clc.V1 || first) {
		want.MaxConns, want.MaxLinks = 255, 2
	}
	if first && c.Version == clc.V2 {
		want.Release = release
		if c.PeerOS != clc.OSZOS || s.PeerOS != clc.OSLinux || c.PeerHostName != "server" || s.PeerHostName != "client" {
			t.Errorf("%s: client knows %v %q, server %v %q", name, c.PeerOS, c.PeerHostName, s.PeerOS, s.PeerHostName)
		}
		if release == clc.Release1 {
			want.Features = clc.FeatureEmulatedISM
			want.VendorOptions = [4]byte{9, 8, 7, 6}
			if c.Mode == SMCR {
				want.MaxConns, want.MaxLinks = 32, 1
			}
		}
		if c.Mode == SMCR {
			want.Direct = true
			if len(s.PeerGIDs) != 2 || s.PeerGIDs[0] != s.R.GID {
				t.Errorf("%s: server knows the client's GIDs %v", name, s.PeerGIDs)
			}
		}
	}
	if c.Release != want.Release || c.MaxConns != want.MaxConns || c.MaxLinks != want.MaxLinks ||
		c.Features != want.Features || c.VendorOptions != want.VendorOptions || c.Direct != want.Direct {
		t.Errorf("%s: negotiated release %d conns %d links %d features %x vendor %x direct %t, want %d %d %d %x %x %t", name,
			c.Release, c.MaxConns, c.MaxLinks, c.Features, c.VendorOptions, c.Direct,
			want.Release, want.MaxConns, want.MaxLinks, want.Features, want.VendorOptions, want.Direct)
	}
	if got := s.VendorOffer != ([5]byte{}); got != (want.VendorOptions != [4]byte{}) {
		t.Errorf("%s: server has the vendor offer %x", name, s.VendorOffer)
	}
}

// TestHandshakeVendor checks that options go only to the vendor that they belong to.
func TestHandshakeVendor(t *testing.T) {
	for _, tt := range []struct {
		client, server [3]byte
		want           [4]byte
	}{
		{[3]byte{1, 2, 3}, [3]byte{1, 2, 3}, [4]byte{9, 8, 7, 6}},
		{[3]byte{1, 2, 4}, [3]byte{1, 2, 3}, [4]byte{}},
		{[3]byte{}, [3]byte{1, 2, 3}, [4]byte{}},
		{[3]byte{1, 2, 3}, [3]byte{}, [4]byte{}},
		{[3]byte{}, [3]byte{}, [4]byte{}},
	} {
		client, server := clientCaps(t), serverCaps(t)
		client.VendorOUI, server.VendorOUI = tt.client, tt.server
		p := newPair(t, client, server).run()
		if got := p.result[RoleClient].VendorOptions; got != tt.want {
			t.Errorf("client %x, server %x: client has vendor options %x, want %x", tt.client, tt.server, got, tt.want)
		}
		if got := p.result[RoleServer].VendorOptions; got != tt.want {
			t.Errorf("client %x, server %x: server has vendor options %x, want %x", tt.client, tt.server, got, tt.want)
		}
	}
}

// TestHandshakeUnsent checks that nobody takes a handshake for done if its last message could not
// be sent.
func TestHandshakeUnsent(t *testing.T) {
	p := newPair(t, only(clientCaps(t), "Dv2"), only(serverCaps(t), "Dv2")).run()
	if p.client.State() != HandshakeEstablished {
		t.Fatalf("client is in state %v, want Established", p.client.State())
	}
	refuses := clientCaps(t)
	refuses.Refuse = clc.DiagPolicy
	declined := NewHandshake(RoleClient, refuses)
	for _, tt := range []struct {
		h   *Handshake
		out []HandshakeOutput
	}{
		{p.client, []HandshakeOutput{Established{p.result[RoleClient]}}},
		{declined, declined.Start(epoch, nil)},
	} {
		outs := tt.h.HandleTCPEnd(epoch, io.ErrClosedPipe, tt.out)
		last, ok := outs[len(outs)-1].(EndTCP)
		if !ok || !errors.Is(last.Err, io.ErrClosedPipe) || tt.h.State() != HandshakeFailed {
			t.Errorf("after %v that is not carried out HandleTCPEnd = %v in state %v, want EndTCP with its error", tt.out, outs, tt.h.State())
		}
	}
}

// TestHandshakeTCPEnd checks that the caller's error comes back.
func TestHandshakeTCPEnd(t *testing.T) {
	h := NewHandshake(RoleServer, serverCaps(t))
	h.Start(epoch, nil)
	outs := h.HandleTCPEnd(epoch, io.ErrUnexpectedEOF, nil)
	last, ok := outs[len(outs)-1].(EndTCP)
	if !ok || !errors.Is(last.Err, io.ErrUnexpectedEOF) || h.State() != HandshakeFailed {
		t.Errorf("HandleTCPEnd = %v in state %v", outs, h.State())
	}
}

// TestHandshakeErrors checks the types of the errors.
func TestHandshakeErrors(t *testing.T) {
	start := func() *Handshake {
		h := NewHandshake(RoleServer, serverCaps(t))
		h.Start(epoch, nil)
		return h
	}
	endErr := func(outs []HandshakeOutput) error {
		t.Helper()
		e, ok := outs[len(outs)-1].(EndTCP)
		if !ok {
			t.Fatalf("outputs %v do not end with EndTCP", outs)
		}
		return e.Err
	}
	h := start()
	var timeout *TimeoutError
	if err := endErr(h.Advance(h.Deadline(), nil)); !errors.As(err, &timeout) || !timeout.Timeout() || timeout.Temporary() ||
		timeout.Awaited != "CLC Proposal" || !strings.Contains(err.Error(), "CLC Proposal") {
		t.Errorf("Advance at the deadline = %v, want a *TimeoutError for the Proposal", err)
	}
	var protocol *ProtocolError
	decode := &wire.DecodeError{Message: "clc.Proposal", Field: "length", Offset: 5, Err: wire.ErrLength}
	h = start()
	if err := endErr(h.HandleMessage(epoch, nil, decode, nil)); !errors.As(err, &protocol) || !errors.Is(err, wire.ErrLength) {
		t.Errorf("HandleMessage of a broken message = %v, want a *ProtocolError around it", err)
	}
	h = start()
	if err := endErr(h.HandleMessage(epoch, clc.Accept{}, nil, nil)); !errors.As(err, &protocol) ||
		protocol.Message != "CLC Accept" || protocol.State != "AwaitProposal" {
		t.Errorf("HandleMessage of an Accept at the server = %v, want a *ProtocolError that says so", err)
	}
	h = start()
	if err := endErr(h.HandleMessage(epoch, nil, nil, nil)); !errors.As(err, &protocol) {
		t.Errorf("HandleMessage(nil, nil) = %v, want a *ProtocolError", err)
	}
}
