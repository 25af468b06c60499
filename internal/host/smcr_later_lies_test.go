package host

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// meet has our client dial the liar, and returns the result of Dial, and the client's Proposal.
func (x *smcrLiar) meet() (<-chan dialed, clc.Proposal) {
	t := x.t
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loop3, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	result := make(chan dialed, 1)
	go func() {
		o := DialOptions{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(loop1, 0))}
		c, err := x.r.client.Dial(boundedContext(t), "tcp", l.Addr().String(), o)
		result <- dialed{c, err}
	}()
	l.SetDeadline(time.Now().Add(patience))
	if x.tcp, err = l.AcceptTCP(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.tcp.Close() })
	x.tcp.SetDeadline(time.Now().Add(patience))
	m, err := readCLC(x.tcp)
	p, ok := m.(clc.Proposal)
	if err != nil || !ok {
		t.Fatalf("the client sent %v, %v, want a Proposal", m, err)
	}
	return result, p
}

// acceptLater names the link group that there is, with a lie.
func (x *smcrLiar) acceptLater(p clc.Proposal, change func(p *clc.ParamsR)) {
	token, _ := x.rmb.Token(x.link)
	r := clc.ParamsR{
		PeerID: x.peerID, GID: x.gid, MAC: x.peerID.MAC(), QPN: x.link.QPN(), PSN: x.link.PSN(), MTU: x.link.MTU(),
		RKey: token.RKey, RMBAddr: token.Addr, RMBEIndex: 1, AlertToken: 8,
	}
	if change != nil {
		change(&r)
	}
	x.write(clc.Accept{Version: clc.V2, EID: p.Ext.UEIDs[0], R: &r})
}

// TestSMCRLaterServerLies has a server, or another program at its address, that names a link group
// of the client. But it names no link of that group, or no element that the server has told of on
// the link. The client's links and elements there stay.
func TestSMCRLaterServerLies(t *testing.T) {
	const (
		sync  = iota // the client says that it is out of sync, and goes on over TCP
		token        // the client declines the element
		ends         // the client ends TCP
		taken        // the connection is made, and takes the element of the first
	)
	for _, tt := range []struct {
		name   string
		change func(p *clc.ParamsR)
		want   int
	}{
		{"another peer ID", func(p *clc.ParamsR) { p.PeerID[0] ^= 1 }, sync},
		{"another queue pair", func(p *clc.ParamsR) { p.QPN ^= 1 }, sync},
		{"another GID", func(p *clc.ParamsR) { p.GID[15] ^= 1 }, sync},
		{"RKey that was not told", func(p *clc.ParamsR) { p.RKey ^= 0x5555 }, token},
		{"another address", func(p *clc.ParamsR) { p.RMBAddr += 4096 }, token},
		{"address that wraps", func(p *clc.ParamsR) { p.RMBAddr = 1<<64 - 1 }, token},
		{"element 0", func(p *clc.ParamsR) { p.RMBEIndex = 0 }, ends},
		{"element of another connection", func(*clc.ParamsR) {}, taken},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newSMCRRig(t, nil)
			honest, other := r.connect()
			x := newSMCRLiar(t, r)
			result := x.serve()
			x.confirmed()
			x.send(x.addLink().Append(nil))
			if m, ok := x.next().(llc.AddLink); !ok || !m.Rejected {
				t.Fatalf("the client answered %v", m)
			}
			first := <-result
			if first.err != nil {
				t.Fatal(first.err)
			}
			checkSMCR(t, first.conn)
			first.conn.SetDeadline(time.Now().Add(patience))
			others := x.obey()

			result, proposal := x.meet()
			x.acceptLater(proposal, tt.change)
			m, err := readCLC(x.tcp)
			d, declined := m.(clc.Decline)
			switch tt.want {
			case sync, token:
				why := clc.DiagSync
				if tt.want == token {
					why = clc.DiagRToken.WireCode()
				}
				if !declined || d.OutOfSync != (tt.want == sync) || d.Diagnosis != why {
					t.Errorf("the client sent %v, %v, want a Decline for %v", m, err, why)
				}
			case ends:
				if err == nil || isTimeout(err) {
					t.Errorf("the client sent %v, %v, want the end of TCP", m, err)
				}
			case taken:
				if c, ok := m.(clc.Confirm); !ok || c.FirstContact {
					t.Errorf("the client sent %v, %v, want a Confirm", m, err)
				}
			}
			second := <-result
			switch {
			case tt.want == ends:
				if second.err == nil {
					t.Error("Dial made a connection")
				}
			case second.err != nil:
				t.Error(second.err)
			case tt.want == taken:
				checkSMCR(t, second.conn)
			case second.conn.Mode() != conn.ModeTCP:
				t.Errorf("mode %v, want TCP", second.conn.Mode())
			default:
				checkExchange(t, second.conn, x.tcp)
			}
			if tt.want == taken {
				if n, err := first.conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("read %d bytes, %v from the connection whose element was given away", n, err)
				}
				checkEnd(t, r.client, endOfConnection, "the peer uses our element")
			}
			x.send(llc.ConfirmRKey{Header: liarForm, RToken: llc.RToken{RKey: 77}}.Append(nil)) // the link is alive
			if m, ok := (<-others).(llc.ConfirmRKey); !ok || m.Negative {
				t.Errorf("the client answered %v", m)
			}
			if isOver(first.conn) {
				t.Error("the link group has ended")
			}
			for _, c := range []conn.Conn{first.conn, second.conn} {
				if c != nil {
					c.Abort()
					c.Close()
				}
			}
			x.checkOthers(honest, other)
			honest.Close()
			other.Close()
			x.link.Fail(nil)
			for range others {
			}
		})
	}
}

// TestSMCRImpostor has another host that names itself as a client which has a link group, queue pair included: but it does not know an
// RMB of that client. Its connection ends; the client notices nothing.
func TestSMCRImpostor(t *testing.T) {
	r := newSMCRRig(t, nil)
	c, s := r.connect()
	us := r.client.rnicOf(loop1).RNIC()
	theirs := clc.ParamsR{PeerID: r.client.peerID, GID: us.GID, MAC: us.MAC, QPN: wire.QPN(groupsOf(r.client)[0].Links[0].LocalQPN)}
	for _, tt := range []struct {
		name   string
		peerID wire.PeerID
	}{
		{"with the identity in the Proposal", theirs.PeerID},
		{"with a Proposal as of Linux, which has none", wire.PeerID{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := newSMCRLiar(t, r)
			x.peerID, x.gid = tt.peerID, wire.GIDFromAddr(loop1)
			x.propose()
			if x.accept.FirstContact {
				t.Fatal("the server does not take it for the client")
			}
			x.confirm(func(p *clc.ParamsR) {
				p.PeerID, p.GID, p.MAC, p.QPN = theirs.PeerID, theirs.GID, theirs.MAC, theirs.QPN
			})
			if n, err := x.tcp.Read(make([]byte, 1)); err == nil || isTimeout(err) {
				t.Errorf("read %d bytes, %v from a connection that should have ended", n, err)
			}
			x.checkOthers(c, s)
		})
	}
	checkEnd(t, r.server, endOfHandshake, clc.Lookup(clc.DiagRToken, clc.OSUnspecified).Sentence)
	c2, s2 := r.connect()
	x := smcrLiar{t: t}
	x.checkOthers(c2, s2)
	if s.Association() != s2.Association() {
		t.Error("the next connection made another group")
	}
	for _, conn := range []conn.Conn{c, s, c2, s2} {
		conn.Close()
	}
}

// TestSMCRDeclines has peers that decline in place of each CLC message, and of each LLC message in
// a later contact. Declines in place of a first contact's LLC messages are in
// TestSMCRFirstContactLies and TestSMCRServerLies.
func TestSMCRDeclines(t *testing.T) {
	decline := clc.Decline{Version: clc.V2, Diagnosis: clc.DiagNoDevice, OS: clc.OSLinux}
	later := func(x *smcrLiar) conn.Conn {
		s := x.connect()
		x.obey()
		x.propose()
		if x.accept.FirstContact {
			x.t.Fatal("a second first contact")
		}
		return s
	}
	for _, tt := range []struct {
		name string
		run  func(x *smcrLiar) conn.Conn // of a first contact before; nil if there is none
	}{
		{"for a Proposal", func(x *smcrLiar) conn.Conn { x.dial(); return nil }},
		{"for a Confirm of first contact", func(x *smcrLiar) conn.Conn { x.propose(); return nil }},
		{"for a Confirm of a later contact", later},
	} {
		t.Run("of a client, "+tt.name, func(t *testing.T) {
			r := newSMCRRig(t, nil)
			x := newSMCRLiar(t, r)
			first := tt.run(x)
			x.write(decline)
			s := mustAccept(t, r.l)
			if s.Mode() != conn.ModeTCP || !s.ByPeer() || s.Reason().Code != clc.DiagNoDevice {
				t.Errorf("accepted: mode %v, reason %v, by peer %v; want TCP by the peer", s.Mode(), s.Reason(), s.ByPeer())
			}
			checkExchange(t, s, x.tcp)
			s.Close()
			if first != nil {
				if isOver(first) {
					t.Error("the link group has ended")
				}
				first.Abort()
				first.Close()
			}
			c, s := r.connect()
			x.checkOthers(c, s)
			c.Close()
			s.Close()
			x.link.Fail(nil)
		})
	}
	t.Run("of a server, for an Accept", func(t *testing.T) {
		r := newSMCRRig(t, nil)
		x := newSMCRLiar(t, r)
		result, _ := x.meet()
		x.write(decline)
		res := <-result
		if res.err != nil || res.conn.Mode() != conn.ModeTCP || !res.conn.ByPeer() {
			t.Fatalf("Dial = %+v, want TCP by the peer", res)
		}
		checkExchange(t, res.conn, x.tcp)
		res.conn.Close()
	})
	t.Run("of a server, after a later Confirm", func(t *testing.T) {
		r := newSMCRRig(t, nil)
		x := newSMCRLiar(t, r)
		result := x.serve()
		x.confirmed()
		x.send(x.addLink().Append(nil))
		x.next()
		first := <-result
		if first.err != nil {
			t.Fatal(first.err)
		}
		others := x.obey()
		result, proposal := x.meet()
		x.acceptLater(proposal, nil)
		if m, err := readCLC(x.tcp); err != nil || m.Type() != clc.TypeConfirm {
			t.Fatalf("the client sent %v, %v, want a Confirm", m, err)
		}
		x.write(decline)
		res := <-result
		if res.err != nil {
			t.Fatal(res.err)
		}
		res.conn.SetDeadline(time.Now().Add(patience))
		if n, err := res.conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Errorf("read %d bytes, %v after a Decline that came too late", n, err)
		}
		checkEnd(t, r.client, endOfConnection, "protocol violation: bytes on the idle TCP connection")
		for _, c := range []conn.Conn{first.conn, res.conn} {
			c.Abort()
			c.Close()
		}
		x.link.Fail(nil)
		for range others {
		}
	})
}
