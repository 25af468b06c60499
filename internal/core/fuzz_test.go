package core

import (
	"io"
	"slices"
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// FuzzConn feeds any events, with any flags at any time, and checks the rules that hold for all of
// them. It also plays them twice: the same events have to give the same outputs.
func FuzzConn(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 0, 4, 0xff, 9})
	f.Add([]byte{0, 0, 1, 3, 0, 9, 9, 0, 200})
	f.Fuzz(func(t *testing.T, in []byte) {
		c, again := NewConn(SMCD), NewConn(SMCD)
		if len(in) > 0 && in[0]&0x80 != 0 {
			c, again = NewConn(SMCR), NewConn(SMCR)
		}
		now := epoch
		released, ended, tcpEnds, fails, eofs := 0, 0, 0, 0, 0
		for ; len(in) >= 3; in = in[3:] {
			now = now.Add(time.Duration(in[2]) * time.Second)
			ev := ConnEvent{Kind: ConnEventKind(in[0] & 0x0f), Abortive: in[0]&0x40 != 0, Unsent: in[0]&0x20 != 0, Peer: cdc.ConnFlags(in[1])}
			before, sent := c.State(), c.SentFlags()
			outs := c.Handle(now, ev, nil)
			if other := again.Handle(now, ev, nil); !slices.Equal(outs, other) || *c != *again {
				t.Fatalf("Handle(%+v) in %v = %v, and again %v", ev, before, outs, other)
			}
			for _, o := range outs {
				if ended > 0 {
					t.Fatalf("Handle(%+v) in %v = %v after ConnClosed", ev, before, outs)
				}
				switch o := o.(type) {
				case SendFlags:
					if sent&(cdc.Closed|cdc.Abort) != 0 || o.Flags&sent != sent {
						t.Fatalf("SendFlags %v after %v", o.Flags, sent)
					}
					sent = o.Flags
				case ReadEOF:
					eofs++
				case FailIO:
					fails++
				case ResetTCP, CloseTCP:
					tcpEnds++
				case ReleaseBuffers:
					released++
					if o.Clean && c.PeerFlags()&(cdc.Closed|cdc.Abort) == 0 {
						t.Fatalf("clean release, but the peer has set %v", c.PeerFlags())
					}
				case ConnClosed:
					ended++
					if o.Why != c.Failure() {
						t.Fatalf("ConnClosed %v, Failure %v", o.Why, c.Failure())
					}
				}
			}
			if closed := c.State() == StateClosed; closed != (ended == 1) || closed != (released == 1) || fails > 1 || eofs > 1 || tcpEnds > 1 {
				t.Fatalf("in %v: %d ConnClosed, %d ReleaseBuffers, %d FailIO, %d ReadEOF, TCP ended %d times",
					c.State(), ended, released, fails, eofs, tcpEnds)
			}
			if before == StateClosed && c.State() != before {
				t.Fatalf("left Closed for %v", c.State())
			}
		}
		// After any events, close and time end it.
		c.Handle(now, ConnEvent{Kind: EventClose}, nil)
		for range 3 {
			if d := c.Deadline(); !d.IsZero() {
				c.Handle(d, ConnEvent{Kind: EventTimer}, nil)
			}
		}
		if c.State() != StateClosed || !c.Deadline().IsZero() {
			t.Fatalf("in %v after close and time", c.State())
		}
	})
}

// FuzzHandshake feeds messages made of any bytes, mixed with the caller's answers.
func FuzzHandshake(f *testing.F) {
	caps := clientCaps(f)
	norm := caps.normalized()
	p, _ := norm.proposal()
	f.Add(true, p.Append(nil), uint32(0x4321))
	f.Add(false, clc.Decline{Version: clc.V2, OutOfSync: true}.Append(nil), uint32(0))
	accept := clc.Accept{Version: clc.V2, FirstContact: true, EID: caps.UEIDs[0], FCE: &clc.FCE{Release: 1},
		D: &clc.ParamsD{GID: serverGID, CHID: wire.CHIDLoopback, Token: 1}}
	f.Add(false, accept.Append(nil), uint32(0x22))
	confirm := clc.Confirm{Version: clc.V2, FirstContact: true, EID: caps.SEID, FCE: &clc.FCE{Release: 1},
		D: &clc.ParamsD{GID: clientGID, CHID: wire.CHIDLoopback, Token: 1}}
	f.Add(true, confirm.Append(p.Append(nil)), uint32(0x12))
	f.Fuzz(func(t *testing.T, server bool, in []byte, answers uint32) {
		role, caps := RoleClient, clientCaps(t)
		if server {
			role, caps = RoleServer, serverCaps(t)
		}
		h := NewHandshake(role, caps)
		h.SetReachable(clientGID, wire.ISMGID{Hi: clientNative})
		var choice Choice
		over := 0
		take := func(outs []HandshakeOutput) {
			for _, o := range outs {
				if over > 0 {
					t.Fatalf("%T after the end", o)
				}
				switch o := o.(type) {
				case SendCLC:
					if err := o.Message.Validate(); err != nil {
						t.Fatalf("sent %v: %v", o.Message, err)
					}
					if _, err := clc.Parse(o.Message.Append(nil)); err != nil {
						t.Fatalf("sent %v: %v", o.Message, err)
					}
				case Prepare:
					choice = o.Choice
				case Established, FallBack, EndTCP:
					over++
				}
			}
			if h.Over() != (over == 1) {
				t.Fatalf("state %v after %d ends", h.State(), over)
			}
		}
		take(h.Start(epoch, nil))
		for len(in) >= clc.HeaderLen {
			n := len(in)
			if hdr, err := clc.ParseHeader(in); err == nil && hdr.Len < n {
				n = hdr.Len
			}
			m, err := clc.Parse(in[:n])
			in = in[n:]
			take(h.HandleMessage(epoch, m, err, nil))
			switch answers & 7 {
			case 0:
				take(h.PrepareFailed(epoch, clc.DiagSync, nil))
			case 1, 2, 3:
				take(h.Prepared(epoch, resources(choice, role, answers&1 != 0, 7), nil))
			case 4:
				take(h.LinkRequested(epoch, nil))
				take(h.LinkReplied(epoch, nil))
			case 5:
				take(h.LinkConfirmed(epoch, nil))
				take(h.LinkUp(epoch, nil))
			case 6:
				take(h.LinkFailed(epoch, clc.DiagLink, nil))
			case 7:
				take(h.Prepared(epoch, Resources{}, nil))
			}
			answers >>= 3
		}
		take(h.Advance(epoch, nil))
		take(h.HandleTCPEnd(epoch, io.EOF, nil))
		if !h.Over() {
			t.Fatalf("state %v after TCP ended", h.State())
		}
	})
}
