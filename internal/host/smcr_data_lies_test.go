package host

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// Kinds of ends that a host counts.
const (
	endOfHandshake  = "handshake"
	endOfConnection = "connection"
	endOfLinkGroup  = "link group"
)

// checkEnd waits until a host has counted an end for a reason that begins like this.
func checkEnd(t testing.TB, h *Host, what, reason string) {
	t.Helper()
	if reason == "" {
		return
	}
	smctest.Eventually(t, patience, "stats say "+what+": "+reason, func() bool {
		for _, e := range h.Status().Counters.Ends {
			if e.What == what && strings.HasPrefix(e.Reason, reason) {
				return true
			}
		}
		return false
	})
}

// another is one more client at the same RNIC, with another identity.
func (x *smcrLiar) another() *smcrLiar {
	x.t.Helper()
	y := *x
	y.net, y.peerID[1] = link.NewGroup(), x.peerID[1]+1
	x.t.Cleanup(y.net.Close)
	var err error
	if y.link, err = y.net.NewLink(rdma.Verbs(x.dev)); err != nil {
		x.t.Fatal(err)
	}
	if y.rmb, err = y.net.NewRMB(0); err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(y.rmb.Free)
	return &y
}

// connectAs is connect with a lie in the Confirm.
func (x *smcrLiar) connectAs(change func(p *clc.ParamsR)) conn.Conn {
	x.t.Helper()
	x.propose()
	x.confirm(change)
	x.send(x.confirmLink(x.next()).Append(nil))
	x.reject(x.next())
	s := mustAccept(x.t, x.r.l)
	checkSMCR(x.t, s)
	return s
}

// say sends a CDC message to the connection of the first contact.
func (x *smcrLiar) say(m cdc.Message) {
	m.AlertToken = x.accept.R.AlertToken
	x.send(m.Append(nil))
}

// alive makes sure that the server still answers on the link.
func (x *smcrLiar) alive() {
	x.t.Helper()
	x.send(llc.TestLink{Header: liarForm, UserData: [16]byte{7}}.Append(nil))
	for {
		m := x.next()
		if m == nil {
			x.t.Fatal("the link has failed")
		}
		if m.Type() == llc.TypeTestLink {
			return
		}
	}
}

// TestSMCRDataLies has a client that lies on the data path of a connection: that connection ends, or the lie is dropped, or
// where the RNIC has refused memory that does not exist the link group. An honest client notices nothing.
func TestSMCRDataLies(t *testing.T) {
	const (
		dropped = iota // nothing ends
		alone          // the connection
		group          // with its link group
	)
	size := uint32(wire.SizeCode(0).Bytes()) // of the liar's RMB
	for _, tt := range []struct {
		name    string
		confirm func(p *clc.ParamsR) // the lie is in the Confirm
		lie     func(x *smcrLiar, s conn.Conn)
		ends    int
		why     string
	}{
		{"unknown token", nil, func(x *smcrLiar, _ conn.Conn) {
			m := cdc.Message{Seq: 1, AlertToken: x.accept.R.AlertToken ^ 1, ConnFlags: cdc.Abort}
			x.send(m.Append(nil))
		}, dropped, ""},
		{"overtaken message", nil, func(x *smcrLiar, _ conn.Conn) {
			x.say(cdc.Message{Seq: 9})
			x.say(cdc.Message{Seq: 8, ConnFlags: cdc.Abort})
		}, dropped, ""},
		{"half a message", nil, func(x *smcrLiar, _ conn.Conn) {
			x.send(cdc.Message{Seq: 9, AlertToken: x.accept.R.AlertToken, ConnFlags: cdc.Abort}.Append(nil)[:26])
		}, dropped, ""},
		{"producer outside of the element", nil, func(x *smcrLiar, s conn.Conn) {
			local, _ := s.Buffers()
			x.say(cdc.Message{Seq: 1, Producer: cdc.Cursor{Count: uint32(local)}})
		}, alone, "protocol violation: producer"},
		{"producer that has passed the consumer", nil, func(x *smcrLiar, _ conn.Conn) {
			x.say(cdc.Message{Seq: 1, Producer: cdc.Cursor{Wrap: 1, Count: 1}})
		}, alone, "protocol violation: producer"},
		{"consumer that has passed the producer", nil, func(x *smcrLiar, s conn.Conn) {
			x.say(cdc.Message{Seq: 1, Consumer: cdc.Cursor{Wrap: 2}})
			smctest.Eventually(x.t, patience, "the message is there", func() bool { return peerMessage(x.t, s).Consumer.Wrap == 2 })
			s.Write(make([]byte, size+1))
		}, alone, "protocol violation: consumer"},
		{"a message that should have come", nil, func(x *smcrLiar, _ conn.Conn) {
			x.say(cdc.NewFailoverValidation(7, 0))
		}, alone, "protocol violation: producer"},
		{"bytes on TCP", nil, func(x *smcrLiar, _ conn.Conn) { x.tcp.Write([]byte{0}) }, alone, "protocol violation: bytes on the idle TCP connection"},
		{"Decline on TCP", nil, func(x *smcrLiar, _ conn.Conn) {
			x.write(clc.Decline{Version: clc.V2, PeerID: x.peerID, Diagnosis: clc.DiagLink, OS: clc.OSLinux})
		}, alone, "protocol violation: bytes on the idle TCP connection"},
		{"reset of TCP", nil, func(x *smcrLiar, _ conn.Conn) { x.tcp.SetLinger(0); x.tcp.Close() }, alone, "reset by peer"},
		{"element that is not in the RMB", func(p *clc.ParamsR) { p.RMBEIndex = 200 }, write, group, "link failed: "},
		{"element at an address that wraps", func(p *clc.ParamsR) { p.RMBAddr, p.RMBEIndex = -uint64(size), 2 }, write, group, "link failed: "},
		{"element larger than the RMB", func(p *clc.ParamsR) { p.RMBESize = 3 }, write, group, "link failed: "},
		{"RKey of nobody", func(p *clc.ParamsR) { p.RKey ^= 0x5a5a }, write, group, "link failed: "},
		{"WRITE to an RKey of nobody", nil, func(x *smcrLiar, _ conn.Conn) { x.write64(x.accept.R.RKey^1, x.accept.R.RMBAddr) }, group, "link failed: "},
		{"WRITE behind the RMB", nil, func(x *smcrLiar, s conn.Conn) {
			local, _ := s.Buffers()
			x.write64(x.accept.R.RKey, x.accept.R.RMBAddr+uint64(local)-1)
		}, group, "link failed: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newSMCRRig(t, nil)
			honest, other := r.connect()
			x := newSMCRLiar(t, r)
			s := x.connectAs(tt.confirm)
			s.SetDeadline(time.Now().Add(patience))
			tt.lie(x, s)
			if tt.ends != dropped {
				if n, err := s.Read(make([]byte, 1)); err == nil || isTimeout(err) {
					t.Errorf("read %d bytes, %v from a connection that should have ended", n, err)
				}
				checkEnd(t, r.server, map[int]string{alone: endOfConnection, group: endOfLinkGroup}[tt.ends], tt.why)
			}
			if tt.ends != group {
				x.alive()
				if isOver(s) {
					t.Error("the link group has ended")
				}
			}
			if tt.ends == dropped {
				x.say(cdc.Message{Seq: 10, ConnFlags: cdc.DoneWriting})
				if n, err := s.Read(make([]byte, 1)); n != 0 || errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("read %d bytes, %v after a lie that should have been dropped", n, err)
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

// write has the server write more than the liar's RMB has room for.
func write(x *smcrLiar, s conn.Conn) {
	s.Write(make([]byte, 100<<10)) // the error is read afterwards
}

// write64 writes 64 bytes to an address of the server, by a carrier that is attached to it as its
// peer's RMBE.
func (x *smcrLiar) write64(key wire.RKey, addr uint64) {
	x.t.Helper()
	c, err := x.net.NewCarrier(link.CarrierConfig{RMB: x.rmb, Wake: func() {}})
	if err != nil {
		x.t.Fatal(err)
	}
	if err := c.Attach(x.link, link.PeerRMBE{AlertToken: 1, RKey: key, Addr: addr, Index: 1, Size: 0}, false); err != nil {
		x.t.Fatal(err)
	}
	copy(c.Buffer(), make([]byte, 64))
	c.Produce(cdc.Cursor{Count: 64})
}

// TestSMCRGIDLies has a client that names an address for its queue pair where there is none, or
// none of its own. Nothing is sent there for long, and the connection ends or goes on over TCP.
func TestSMCRGIDLies(t *testing.T) {
	gid := func(s string) wire.GID { return wire.GIDFromAddr(netip.MustParseAddr(s)) }
	for _, tt := range []struct {
		name    string
		lie     func(x *smcrLiar, p *clc.ParamsR)
		refused bool // before anything is sent
	}{
		{"multicast", func(x *smcrLiar, p *clc.ParamsR) { p.GID = gid("224.0.0.1") }, true},
		{"broadcast", func(x *smcrLiar, p *clc.ParamsR) { p.GID = gid("255.255.255.255") }, false},
		{"unspecified", func(x *smcrLiar, p *clc.ParamsR) { p.GID = gid("0.0.0.0") }, true},
		{"of another version of IP", func(x *smcrLiar, p *clc.ParamsR) { p.GID = gid("fd00::1") }, true},
		{"of the honest client", func(x *smcrLiar, p *clc.ParamsR) { p.GID = gid(loop1.String()) }, false},
		{"of the server, and its queue pair", func(x *smcrLiar, p *clc.ParamsR) {
			p.GID, p.QPN, p.PSN = x.accept.R.GID, x.accept.R.QPN, x.accept.R.PSN
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newSMCRRig(t, nil)
			honest, other := r.connect()
			x := newSMCRLiar(t, r)
			x.propose()
			x.confirmGID(func(p *clc.ParamsR) { tt.lie(x, p) })
			switch m, err := readCLC(x.tcp); {
			case err == nil && m.Type() == clc.TypeDecline:
				if why := m.(clc.Decline).Diagnosis; tt.refused && why == clc.DiagTimeoutConfirmLink {
					t.Errorf("declined for %v: something was sent there", why)
				}
				mustAccept(t, r.l).Close()
			case err == nil || isTimeout(err):
				t.Errorf("read %v, %v from a connection that should have ended", m, err)
			}
			smctest.Eventually(t, patience, "the group is gone", func() bool { return len(groupsOf(r.server)) == 1 })
			x.checkOthers(honest, other)
			honest.Close()
			other.Close()
		})
	}
}

// confirmGID sends a Confirm of a first contact that lies about the end of the link.
func (x *smcrLiar) confirmGID(change func(p *clc.ParamsR)) {
	x.t.Helper()
	a := x.accept
	token, _ := x.rmb.Token(x.link)
	p := clc.ParamsR{
		PeerID: x.peerID, GID: wire.GIDFromAddr(loop3), MAC: x.peerID.MAC(), QPN: x.link.QPN(), PSN: x.link.PSN(), MTU: x.link.MTU(),
		RKey: token.RKey, RMBAddr: token.Addr, RMBEIndex: 1, AlertToken: 7,
	}
	change(&p)
	x.write(clc.Confirm{
		Version: clc.V2, EID: a.EID, FirstContact: true, R: &p, ClientGIDs: []wire.GID{p.GID},
		FCE: &clc.FCE{OS: clc.OSLinux, Release: a.FCE.Release, Direct: a.FCE.Direct, MaxConns: a.FCE.MaxConns, MaxLinks: a.FCE.MaxLinks},
	})
}

// TestSMCRCrossed has two first contacts of one client at the same time, which answers the CONFIRM LINK of each on the link of the other:
// neither is believed.
func TestSMCRCrossed(t *testing.T) {
	r := newSMCRRig(t, nil)
	honest, other := r.connect()
	x := newSMCRLiar(t, r)
	y := x.another()
	x.propose()
	y.propose()
	x.confirm(nil)
	y.confirm(nil)
	toX, toY := x.confirmLink(x.next()), y.confirmLink(y.next())
	x.send(toY.Append(nil))
	y.send(toX.Append(nil))
	for _, z := range []*smcrLiar{x, y} {
		switch m, err := readCLC(z.tcp); {
		case err == nil && m.Type() == clc.TypeDecline: // as long as the server has not heard that its request was sent
			mustAccept(t, r.l).Close()
		case err == nil || isTimeout(err):
			t.Errorf("read %v, %v from a connection that should have ended", m, err)
		}
	}
	checkEnd(t, r.server, endOfLinkGroup, "protocol violation: CONFIRM LINK in Confirming")
	smctest.Eventually(t, patience, "the groups are gone", func() bool { return len(groupsOf(r.server)) == 1 })
	x.checkOthers(honest, other)
	honest.Close()
	other.Close()
}
