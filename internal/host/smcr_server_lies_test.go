package host

import (
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// serve plays a server to one connection of our client: it goes as far as the client's Confirm, and
// returns the result of Dial.
func (x *smcrLiar) serve() <-chan dialed {
	t := x.t
	t.Helper()
	result, p := x.meet()
	x.write(x.honestAccept(p, true))
	m, err := readCLC(x.tcp)
	c, ok := m.(clc.Confirm)
	if err != nil || !ok {
		t.Fatalf("the client sent %v, %v, want a Confirm", m, err)
	}
	if err = x.link.ReadyToReceive(link.Peer{GID: c.R.GID, QPN: c.R.QPN, PSN: c.R.PSN, MTU: c.R.MTU}); err == nil {
		err = x.link.ReadyToSend()
	}
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// honestAccept is an honest Accept, if direct is.
func (x *smcrLiar) honestAccept(p clc.Proposal, direct bool) clc.Accept {
	token, _ := x.rmb.Token(x.link)
	return clc.Accept{
		Version: clc.V2, FirstContact: true, EID: p.Ext.UEIDs[0],
		FCE: &clc.FCE{OS: clc.OSLinux, Release: clc.Release1, Direct: direct, MaxConns: 16, MaxLinks: 2},
		R: &clc.ParamsR{
			PeerID: x.peerID, GID: x.gid, MAC: x.peerID.MAC(), QPN: x.link.QPN(), PSN: x.link.PSN(), MTU: x.link.MTU(),
			RKey: token.RKey, RMBAddr: token.Addr, RMBEIndex: 1, AlertToken: 7,
		},
	}
}

// TestSMCRIndirect has a server that says that a router is between us, where there is none: Linux net/smc.
func TestSMCRIndirect(t *testing.T) {
	r := newSMCRRig(t, nil)
	x := newSMCRLiar(t, r)
	result, p := x.meet()
	x.write(x.honestAccept(p, false))
	m, err := readCLC(x.tcp)
	if d, ok := m.(clc.Decline); err != nil || !ok || d.Diagnosis != clc.DiagIndirect {
		t.Fatalf("the client sent %v, %v, want a Decline", m, err)
	}
	res := <-result
	if res.err != nil || res.conn.Mode() != conn.ModeTCP || res.conn.Reason().Code != clc.DiagIndirect {
		t.Fatalf("Dial = %+v, want TCP", res)
	}
	checkExchange(t, res.conn, x.tcp)
	res.conn.Close()
}

// serverConfirm is an honest CONFIRM LINK.
func (x *smcrLiar) serverConfirm() llc.ConfirmLink {
	return llc.ConfirmLink{
		Header: liarForm, CacheSize: llc.NoEyecatcher, MAC: x.peerID.MAC(), GID: x.gid, QPN: x.link.QPN(), Link: 1, MaxLinks: 2, MaxConns: 16,
	}
}

// addLink is an honest ADD LINK.
func (x *smcrLiar) addLink() llc.AddLink {
	return llc.AddLink{Header: liarForm, MAC: x.peerID.MAC(), GID: x.gid, QPN: x.link.QPN() + 1, Link: 2, MTU: x.link.MTU(), PSN: 5}
}

// confirmed makes the client confirm the link.
func (x *smcrLiar) confirmed() {
	x.t.Helper()
	x.send(x.serverConfirm().Append(nil))
	if m, ok := x.next().(llc.ConfirmLink); !ok || !m.Reply {
		x.t.Fatalf("the client answered %v", m)
	}
}

// TestSMCRServerLies has a server with a first contact that goes wrong after the Confirm.
func TestSMCRServerLies(t *testing.T) {
	const (
		tcp  = iota // the client declines, and goes on over TCP
		peer        // the client takes the server's Decline
		ends        // the client resets TCP
		smcr        // it has no effect
	)
	for _, tt := range []struct {
		name string
		lie  func(x *smcrLiar)
		want int
	}{
		{"CONFIRM LINK of another queue pair", func(x *smcrLiar) {
			m := x.serverConfirm()
			m.QPN ^= 1
			x.send(m.Append(nil))
		}, tcp},
		{"CONFIRM LINK for link 0", func(x *smcrLiar) {
			m := x.serverConfirm()
			m.Link = 0
			x.send(m.Append(nil))
		}, tcp},
		{"more connections than agreed on", func(x *smcrLiar) {
			m := x.serverConfirm()
			m.MaxConns++
			x.send(m.Append(nil))
		}, tcp},
		{"CONFIRM LINK twice", func(x *smcrLiar) { x.confirmed(); x.send(x.serverConfirm().Append(nil)) }, tcp},
		{"ADD LINK CONTINUATION", func(x *smcrLiar) {
			x.confirmed()
			x.send(llc.AddLinkCont{Header: llc.Header{Form: llc.V1}, Link: 2}.Append(nil))
		}, tcp},
		{"DELETE LINK all in place of ADD LINK", func(x *smcrLiar) {
			x.confirmed()
			x.send(llc.DeleteLink{Header: liarForm, All: true, Reason: llc.DeleteProgram}.Append(nil))
		}, tcp},
		{"Decline in place of CONFIRM LINK", func(x *smcrLiar) {
			x.write(clc.Decline{Version: clc.V2, PeerID: x.peerID, Diagnosis: clc.DiagLink, OS: clc.OSLinux})
		}, peer},
		{"Decline in place of ADD LINK", func(x *smcrLiar) {
			x.confirmed()
			x.write(clc.Decline{Version: clc.V2, PeerID: x.peerID, Diagnosis: clc.DiagLink, OS: clc.OSLinux})
		}, peer},
		{"application data in place of ADD LINK", func(x *smcrLiar) {
			x.confirmed()
			x.tcp.Write([]byte("application data, which may not come before the connection is open"))
		}, ends},
		{"ADD LINK with an MTU that is none", func(x *smcrLiar) {
			x.confirmed()
			m := x.addLink()
			m.MTU = 9
			x.send(m.Append(nil))
			if r, ok := x.next().(llc.AddLink); !ok || !r.Rejected || r.Reason != llc.RejectMTU {
				x.t.Fatalf("the client answered %v", r)
			}
		}, smcr},
		{"no ADD LINK", func(x *smcrLiar) { x.confirmed() }, smcr},
		{"ADD LINK a hundred times", func(x *smcrLiar) {
			x.confirmed()
			for range 100 {
				x.send(x.addLink().Append(nil))
				if r, ok := x.next().(llc.AddLink); !ok || !r.Rejected {
					x.t.Fatalf("the client answered %v", r)
				}
			}
		}, smcr},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newSMCRRig(t, nil)
			honest, other := r.connect()
			x := newSMCRLiar(t, r)
			result := x.serve()
			tt.lie(x)
			if tt.want == tcp {
				if m, err := readCLC(x.tcp); err != nil || m.Type() != clc.TypeDecline {
					t.Fatalf("the client sent %v, %v, want a Decline", m, err)
				}
			}
			res := <-result
			switch tt.want {
			case ends:
				if res.err == nil {
					t.Errorf("Dial made a connection of %v", res.conn.Mode())
				}
			case tcp, peer:
				if res.err != nil || res.conn.Mode() != conn.ModeTCP || res.conn.ByPeer() != (tt.want == peer) {
					t.Fatalf("Dial = %+v, want TCP", res)
				}
				checkExchange(t, res.conn, x.tcp)
			case smcr:
				if res.err != nil {
					t.Fatal(res.err)
				}
				checkSMCR(t, res.conn)
				// The connection ends with its group, and not before.
				x.send(llc.DeleteLink{Header: liarForm, All: true, Reason: llc.DeleteOperator}.Append(nil))
				res.conn.SetDeadline(time.Now().Add(patience))
				if n, err := res.conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
					t.Errorf("read %d bytes, %v after the end of the group", n, err)
				}
			}
			if res.conn != nil {
				res.conn.Close()
			}
			x.checkOthers(honest, other)
			honest.Close()
			other.Close()
		})
	}
}
