package host

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// An smcrLiar plays a client of SMC-R with an RNIC of its own, down to the bytes of its LLC messages.
type smcrLiar struct {
	t      *testing.T
	r      *smcrRig
	dev    *rdma.Device
	net    *link.Group
	link   *link.Link
	rmb    *link.RMB
	tcp    *net.TCPConn
	accept clc.Accept
	peerID wire.PeerID
	gid    wire.GID // in its Proposal
}

// newSMCRLiar opens a device at 127.0.0.3.
func newSMCRLiar(t *testing.T, r *smcrRig) *smcrLiar {
	t.Helper()
	dev, err := rdma.Open(loop3, &r.server.cfg.RDMA)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	x := &smcrLiar{t: t, r: r, dev: dev, net: link.NewGroup(), peerID: wire.PeerID{0, 9, 2, 0, 0, 0, 0, 3}, gid: wire.GIDFromAddr(loop3)}
	t.Cleanup(x.net.Close)
	if x.link, err = x.net.NewLink(rdma.Verbs(dev)); err != nil {
		t.Fatal(err)
	}
	if x.rmb, err = x.net.NewRMB(0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.rmb.Free)
	return x
}

// propose connects TCP, and goes as far as the Accept.
func (x *smcrLiar) propose() *net.TCPConn {
	x.t.Helper()
	x.dial()
	x.write(x.proposal())
	m, err := readCLC(x.tcp)
	a, ok := m.(clc.Accept)
	if err != nil || !ok {
		x.t.Fatalf("the server answered %v, %v, want an Accept", m, err)
	}
	x.accept = a
	return x.tcp
}

// dial connects TCP.
func (x *smcrLiar) dial() {
	x.t.Helper()
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(loop3, 0))}
	c, err := d.Dial("tcp", x.r.l.Addr().String())
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { c.Close() })
	x.tcp = c.(*net.TCPConn)
	x.tcp.SetDeadline(time.Now().Add(patience))
}

// proposal is an honest Proposal.
func (x *smcrLiar) proposal() clc.Proposal {
	x.t.Helper()
	eid, err := wire.ParseEID("GOSMC.TEST")
	if err != nil {
		x.t.Fatal(err)
	}
	return clc.Proposal{
		Version: clc.V2, V1: clc.TypesNone, V2: clc.MakeSMCTypes(true, false), PeerID: x.peerID, MAC: x.peerID.MAC(),
		Ext: &clc.ProposalV2{Release: clc.Release1, UEIDs: []wire.EID{eid}, GID: x.gid, MaxConns: 16, MaxLinks: 2},
	}
}

func (x *smcrLiar) write(m clc.Message) {
	x.t.Helper()
	if _, err := x.tcp.Write(m.Append(nil)); err != nil {
		x.t.Fatal(err)
	}
}

// confirm answers the Accept with the RMB that there is, or with a lie.
func (x *smcrLiar) confirm(change func(p *clc.ParamsR)) {
	x.t.Helper()
	a := x.accept
	token, _ := x.rmb.Token(x.link)
	p := clc.ParamsR{
		PeerID: x.peerID, GID: wire.GIDFromAddr(loop3), MAC: x.peerID.MAC(), QPN: x.link.QPN(), PSN: x.link.PSN(), MTU: x.link.MTU(),
		RKey: token.RKey, RMBAddr: token.Addr, RMBEIndex: 1, AlertToken: 7,
	}
	c := clc.Confirm{Version: clc.V2, EID: a.EID, FirstContact: a.FirstContact, R: &p}
	if a.FirstContact {
		c.FCE = &clc.FCE{OS: clc.OSLinux, Release: a.FCE.Release, Direct: a.FCE.Direct, MaxConns: a.FCE.MaxConns, MaxLinks: a.FCE.MaxLinks}
		c.ClientGIDs = []wire.GID{p.GID}
		err := x.link.ReadyToReceive(link.Peer{GID: a.R.GID, QPN: a.R.QPN, PSN: a.R.PSN, MTU: a.R.MTU})
		if err == nil {
			err = x.link.ReadyToSend()
		}
		if err != nil {
			x.t.Fatal(err)
		}
	}
	if change != nil {
		change(&p)
	}
	x.write(c)
}

// next returns the server's next LLC message, nil if the link fails before.
func (x *smcrLiar) next() llc.Message {
	x.t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		for ev, ok := x.net.Poll(); ok; ev, ok = x.net.Poll() {
			switch ev.Kind {
			case link.EventLLC:
				m, err := llc.Parse(ev.Message)
				if err != nil {
					x.t.Fatal(err)
				}
				return m
			case link.EventFailed:
				return nil
			}
		}
		select {
		case <-x.net.News():
		case <-late.C:
			x.t.Fatal("the server says nothing on the link")
		}
	}
}

func (x *smcrLiar) send(b []byte) {
	// Some lies are meant to make the link fail.
	_ = x.link.SendLLC(b, 0)
}

var liarForm = llc.Header{Form: llc.V2}

// confirmLink is an honest reply to CONFIRM LINK.
func (x *smcrLiar) confirmLink(m llc.Message) llc.ConfirmLink {
	x.t.Helper()
	request, ok := m.(llc.ConfirmLink)
	if !ok {
		x.t.Fatalf("the server's first message is %v", m)
	}
	request.Header.Reply = true
	request.MAC, request.GID, request.QPN = x.peerID.MAC(), wire.GIDFromAddr(loop3), x.link.QPN()
	return request
}

// connect makes a first contact like an honest client.
func (x *smcrLiar) connect() conn.Conn {
	x.t.Helper()
	x.propose()
	x.confirm(nil)
	x.send(x.confirmLink(x.next()).Append(nil))
	x.reject(x.next())
	s := mustAccept(x.t, x.r.l)
	checkSMCR(x.t, s)
	return s
}

func (x *smcrLiar) reject(m llc.Message) {
	x.t.Helper()
	add, ok := m.(llc.AddLink)
	if !ok {
		x.t.Fatalf("the server's second message is %v", m)
	}
	add.Header.Reply, add.Rejected, add.Reason = true, true, llc.RejectNoPath
	x.send(add.Append(nil))
}

// rejectAll rejects ADD LINK until the link fails.
func (x *smcrLiar) rejectAll() {
	for range x.net.News() {
		for ev, ok := x.net.Poll(); ok; ev, ok = x.net.Poll() {
			if ev.Kind == link.EventFailed {
				return
			}
			if m, err := llc.Parse(ev.Message); err == nil && m.Type() == llc.TypeAddLink {
				x.reject(m)
			}
		}
	}
}

// checkOthers makes sure that an honest client has noticed nothing.
func (x *smcrLiar) checkOthers(c, s conn.Conn) {
	x.t.Helper()
	checkSMCR(x.t, c, s)
	checkExchange(x.t, c, s)
}

// TestSMCRFirstContactLies has a client with a first contact that goes wrong after the Confirm.
func TestSMCRFirstContactLies(t *testing.T) {
	garbage := bytes.Repeat([]byte{0x2b}, llc.MinLen)
	for _, tt := range []struct {
		name string
		lie  func(x *smcrLiar)
		tcp  bool // the connection goes on over TCP
	}{
		{"reply of another queue pair", func(x *smcrLiar) {
			m := x.confirmLink(x.next())
			m.QPN ^= 1
			x.send(m.Append(nil))
		}, false},
		{"reply for another link", func(x *smcrLiar) {
			m := x.confirmLink(x.next())
			m.Link = 7
			x.send(m.Append(nil))
		}, false},
		{"bytes that are no message", func(x *smcrLiar) { x.next(); x.send(garbage) }, false},
		{"CONFIRM LINK of its own", func(x *smcrLiar) {
			m := x.confirmLink(x.next())
			m.Reply = false
			x.send(m.Append(nil))
		}, false},
		{"DELETE LINK all", func(x *smcrLiar) {
			x.next()
			x.send(llc.DeleteLink{Header: liarForm, All: true, Reason: llc.DeleteProgram}.Append(nil))
		}, false},
		{"bytes after the reply", func(x *smcrLiar) {
			x.send(x.confirmLink(x.next()).Append(nil))
			x.next()
			x.send(garbage)
		}, false},
		{"yes to a second link that both have no adapter for", func(x *smcrLiar) {
			x.send(x.confirmLink(x.next()).Append(nil))
			add := x.next().(llc.AddLink)
			add.Reply, add.GID, add.QPN = true, wire.GIDFromAddr(netip.MustParseAddr("127.9.9.9")), add.QPN+1
			x.send(add.Append(nil))
		}, false},
		{"Decline in place of the reply", func(x *smcrLiar) {
			x.next()
			x.write(clc.Decline{Version: clc.V2, PeerID: x.peerID, Diagnosis: clc.DiagLink, OS: clc.OSLinux})
		}, true},
		{"Decline after the reply, whose acknowledgement was lost", func(x *smcrLiar) {
			x.send(x.confirmLink(x.next()).Append(nil))
			x.next() // ADD LINK, so that the server has the reply
			x.write(clc.Decline{Version: clc.V2, PeerID: x.peerID, Diagnosis: clc.DiagLink, OS: clc.OSLinux})
		}, true},
		{"Proposal after the Confirm", func(x *smcrLiar) { x.next(); x.write(clc.Decline{Version: clc.V1}); x.tcp.Write(garbage) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newSMCRRig(t, nil)
			x := newSMCRLiar(t, r)
			x.propose()
			x.confirm(nil)
			tt.lie(x)
			if tt.tcp {
				s := mustAccept(t, r.l)
				defer s.Close()
				if s.Mode() != conn.ModeTCP || !s.ByPeer() {
					t.Errorf("accepted: mode %v, reason %v, by peer %v; want TCP by the peer", s.Mode(), s.Reason(), s.ByPeer())
				}
				if tt.name != "Proposal after the Confirm" {
					checkExchange(t, s, x.tcp)
				}
			} else {
				over := make(chan struct{})
				go func() { // if it is believed the connection must open, and not wait for ADD LINK's reply
					defer close(over)
					x.rejectAll()
				}()
				// Where the server has not yet heard that its CONFIRM LINK was sent, it may still decline.
				switch m, err := readCLC(x.tcp); {
				case err == nil && m.Type() == clc.TypeDecline:
					mustAccept(t, r.l).Close()
				case err == nil || isTimeout(err):
					t.Errorf("read %v, %v from a connection that should have ended", m, err)
				}
				x.link.Fail(nil)
				<-over
			}
			smctest.Eventually(t, patience, "the group is gone", func() bool { return len(groupsOf(r.server)) == 0 })
			c, s := r.connect()
			x.checkOthers(c, s)
			c.Close()
			s.Close()
		})
	}
}

// TestSMCRGroupLies has a client that lies on a link in use. The group ends, or the lie has no effect; an honest client's
// connection goes on.
func TestSMCRGroupLies(t *testing.T) {
	repeat := func(n int, m llc.Message) func(x *smcrLiar) {
		return func(x *smcrLiar) {
			b := m.Append(nil)
			for range n {
				x.send(b)
			}
		}
	}
	for _, tt := range []struct {
		name string
		lie  func(x *smcrLiar)
		ends bool // the group
		why  string
	}{
		{"bytes that are no message", func(x *smcrLiar) { x.send(bytes.Repeat([]byte{0x2b}, llc.MinLen)) }, true, "protocol violation: LLC message in Active"},
		{"nothing", func(x *smcrLiar) { x.send([]byte{0x21}) }, true, "protocol violation: LLC message in Active"},
		{"CONFIRM LINK again", repeat(1, llc.ConfirmLink{Header: liarForm, Link: 1}), true, "protocol violation: CONFIRM LINK in Active"},
		{"ADD LINK CONTINUATION for no ADD LINK", repeat(1, llc.AddLinkCont{Header: llc.Header{Form: llc.V1}, Link: 1}), true, "protocol violation: ADD LINK CONTINUATION in Active"},
		{"DELETE LINK", repeat(1, llc.DeleteLink{Header: liarForm, Link: 1, Reason: llc.DeleteLostPath}), true, "deleted by peer: lost path"},
		{"DELETE LINK all", repeat(1, llc.DeleteLink{Header: liarForm, All: true, Reason: llc.DeleteOperator}), true, "deleted by peer: operator"},
		{"DELETE LINK all for a reason that is none", repeat(1, llc.DeleteLink{Header: liarForm, All: true, Reason: 0x4711}), true, "deleted by peer: for no known reason"},
		{"DELETE RKEY of an RMB in use", func(x *smcrLiar) {
			token, _ := x.rmb.Token(x.link)
			x.send(llc.DeleteRKey{Header: liarForm, RKeys: []wire.RKey{token.RKey}}.Append(nil))
		}, true, ""}, // for its connection
		{"answers that nobody awaits", func(x *smcrLiar) {
			reply := llc.Header{Form: llc.V2, Reply: true}
			for _, m := range []llc.Message{
				llc.AddLink{Header: reply, Link: 2, QPN: 5}, llc.DeleteLink{Header: reply, Link: 1}, llc.ConfirmRKey{Header: reply},
				llc.DeleteRKey{Header: reply, Count: 1}, llc.TestLink{Header: reply}, llc.RequestAddLink{Header: reply},
			} {
				x.send(m.Append(nil))
			}
		}, false, ""},
		{"DELETE LINK of a link that is not there", repeat(20, llc.DeleteLink{Header: liarForm, Link: 9}), false, ""},
		{"RMBs without number", func(x *smcrLiar) {
			for i := range 600 {
				x.send(llc.ConfirmRKey{Header: liarForm, RToken: llc.RToken{RKey: wire.RKey(1000 + i)}}.Append(nil))
				if m, ok := x.next().(llc.ConfirmRKey); !ok || m.Negative != (i >= llc.MaxRKeys-1) {
					x.t.Fatalf("RMB %d: %v", i, m)
				}
			}
		}, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newSMCRRig(t, nil)
			honest, other := r.connect()
			x := newSMCRLiar(t, r)
			s := x.connect()
			tt.lie(x)
			if tt.ends {
				s.SetDeadline(time.Now().Add(patience))
				if n, err := s.Read(make([]byte, 1)); err == nil || isTimeout(err) {
					t.Errorf("read %d bytes, %v from a connection that should have ended", n, err)
				}
				if tt.why == "" {
					checkEnd(t, r.server, endOfConnection, "the peer uses our element")
				}
				checkEnd(t, r.server, endOfLinkGroup, tt.why)
			} else {
				x.send(llc.TestLink{Header: liarForm, UserData: [16]byte{1}}.Append(nil))
				for {
					m := x.next()
					if m == nil {
						t.Fatal("the link has failed")
					}
					if m.Type() == llc.TypeTestLink {
						break
					}
				}
			}
			x.checkOthers(honest, other)
			s.Abort()
			s.Close()
			honest.Close()
			other.Close()
		})
	}
}

// TestSMCRLaterLies has connections to a group that another one has, or is said to have lost.
func TestSMCRLaterLies(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(p *clc.ParamsR)
	}{
		{"RKey that was not told", func(p *clc.ParamsR) { p.RKey ^= 0x5555 }},
		{"another address", func(p *clc.ParamsR) { p.RMBAddr += 4096 }},
		{"address that wraps", func(p *clc.ParamsR) { p.RMBAddr = 1<<64 - 1 }},
		{"element 0", func(p *clc.ParamsR) { p.RMBEIndex = 0 }},
		{"another queue pair", func(p *clc.ParamsR) { p.QPN ^= 1 }},
		{"another GID", func(p *clc.ParamsR) { p.GID[15] ^= 1 }},
		{"another peer ID", func(p *clc.ParamsR) { p.PeerID[0] ^= 1 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newSMCRRig(t, nil)
			x := newSMCRLiar(t, r)
			first := x.connect()
			second := make(chan *net.TCPConn, 1)
			go func() { // the server tells of an RMB before its Accept
				m, ok := x.next().(llc.ConfirmRKey)
				if ok {
					m.Reply = true
					x.send(m.Append(nil))
				}
			}()
			second <- x.propose()
			if x.accept.FirstContact {
				t.Fatal("a second first contact")
			}
			x.confirm(tt.change)
			if n, err := (<-second).Read(make([]byte, 1)); err == nil || isTimeout(err) {
				t.Errorf("read %d bytes, %v from a connection that should have ended", n, err)
			}
			// The first one has lost nothing.
			x.send(llc.TestLink{Header: liarForm}.Append(nil))
			for m := x.next(); m.Type() != llc.TypeTestLink; m = x.next() {
			}
			if isOver(first) {
				t.Error("the group has ended")
			}
			first.Abort()
			first.Close()
		})
	}
}

// TestSMCRIntruder has another host that names itself as a client which has a group, and says that it has lost it. The client keeps
// its connections, and its next one makes another group.
func TestSMCRIntruder(t *testing.T) {
	r := newSMCRRig(t, nil)
	c, s := r.connect()
	x := newSMCRLiar(t, r)
	x.peerID, x.gid = r.client.peerID, wire.GIDFromAddr(loop1)
	x.propose()
	if x.accept.FirstContact {
		t.Fatal("the server does not take it for the client")
	}
	x.write(clc.Decline{Version: clc.V2, OutOfSync: true, PeerID: x.peerID, Diagnosis: clc.DiagSync, OS: clc.OSLinux})
	fell := mustAccept(t, r.l)
	defer fell.Close()
	checkExchange(t, fell, x.tcp)
	x.checkOthers(c, s)
	c2, s2 := r.connect()
	x.checkOthers(c2, s2)
	x.checkOthers(c, s)
	if s.Association() == s2.Association() {
		t.Error("the next connection joined the group that was said to be lost")
	}
	for _, conn := range []conn.Conn{c, s, c2, s2} {
		conn.Close()
	}
}

// obey answers the server's requests until the link fails, and hands its other messages on.
func (x *smcrLiar) obey() <-chan llc.Message {
	others := make(chan llc.Message, 64)
	go func() {
		defer close(others)
		for range x.net.News() {
			for ev, ok := x.net.Poll(); ok; ev, ok = x.net.Poll() {
				if ev.Kind == link.EventFailed {
					return
				}
				switch m, _ := llc.Parse(ev.Message); m := m.(type) {
				case llc.ConfirmRKey:
					if m.Reply {
						others <- m
						continue
					}
					m.Reply = true
					x.send(m.Append(nil))
				case llc.DeleteRKey:
					if m.Reply {
						others <- m
						continue
					}
					x.send(m.Answer(func(wire.RKey) bool { return true }).Append(nil))
				case llc.TestLink:
					m.Reply = true
					x.send(m.Append(nil))
				}
			}
		}
	}()
	return others
}

// TestSMCRRoom fills the table of a client's RMBs: the server makes another group, and uses the first again when there is room.
func TestSMCRRoom(t *testing.T) {
	r := newSMCRRig(t, nil)
	x := newSMCRLiar(t, r)
	s := x.connect()
	others := x.obey()
	for i := range llc.MaxRKeys - 1 {
		x.send(llc.ConfirmRKey{Header: liarForm, RToken: llc.RToken{RKey: wire.RKey(1000 + i)}}.Append(nil))
		if m, ok := (<-others).(llc.ConfirmRKey); !ok || m.Negative {
			t.Fatalf("RMB %d: %v", i, m)
		}
	}
	// contact goes as far as the Accept, and reports whether that was a first contact.
	contact := func() bool {
		tcp := x.propose()
		first := x.accept.FirstContact
		x.write(clc.Decline{Version: clc.V2, PeerID: x.peerID, Diagnosis: clc.DiagMemory, OS: clc.OSLinux})
		tcp.Close()
		smctest.Eventually(t, patience, "the server has given it up", func() bool { return groupConns(r.server) == 1 })
		return first
	}
	contact() // finds out
	if !contact() {
		t.Error("a connection joined a group without room")
	}
	x.send(llc.DeleteRKey{Header: liarForm, RKeys: []wire.RKey{1000}}.Append(nil))
	if m, ok := (<-others).(llc.DeleteRKey); !ok || m.Negative {
		t.Fatalf("DELETE RKEY: %v", m)
	}
	smctest.Eventually(t, patience, "the group is used again", func() bool { return !contact() })
	s.Abort()
	s.Close()
	x.link.Fail(nil)
	for range others {
	}
}

// groupConns counts the connections of all link groups.
func groupConns(h *Host) (n int) {
	for _, g := range h.groupStatus() {
		n += g.Conns
	}
	return n
}
