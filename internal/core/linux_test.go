package core

import (
	"reflect"
	"testing"

	"github.com/gosmc/smc/internal/core/coretest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// linuxCaps returns the capabilities that one of those kernels had.
func linuxCaps(x coretest.Exchange, r *clc.ParamsR, d *clc.ParamsD) Capabilities {
	c := Capabilities{
		OS: clc.OSLinux, HostName: "(none)", Release: clc.Release1, UEIDs: x.Proposal.Ext.UEIDs,
		MaxConns: 255, MaxLinks: 2, Features: clc.FeatureEmulatedISM,
	}
	if r != nil {
		c.PeerID = r.PeerID
		c.RoCEv2 = &RNIC{GID: r.GID, MAC: r.MAC}
	}
	if d != nil {
		c.ISM = []clc.ISMDevice{{GID: d.GID, CHID: d.CHID}}
	}
	return c
}

// TestLinuxServer plays the server to a Linux client's messages, in place of the kernel that
// answered it, and compares our Accept with that kernel's, byte for byte.
func TestLinuxServer(t *testing.T) {
	for _, x := range coretest.LinuxExchanges(t) {
		h := NewHandshake(RoleServer, linuxCaps(x, x.Accept.R, x.Accept.D))
		if d := x.Confirm.D; d != nil {
			h.SetReachable(d.GID)
		}
		h.Start(epoch, nil)
		outs := h.HandleMessage(epoch, x.Proposal, nil, nil)
		if _, ok := outs[len(outs)-1].(Prepare); !ok {
			t.Errorf("%s: HandleMessage(%v) = %s", x.Name, x.Proposal, words(epoch, outs))
			continue
		}
		r := Resources{FirstContact: x.Accept.FirstContact, R: x.Accept.R, D: x.Accept.D, Direct: true}
		outs = h.Prepared(epoch, r, nil)
		accept, _ := outs[0].(SendCLC).Message.(clc.Accept)
		if kept := x.Proposal.V2 == clc.TypesBoth; accept.ReasonKept != kept {
			t.Errorf("%s: ReasonKept = %t, want %t", x.Name, accept.ReasonKept, kept)
		}
		accept.ReasonKept = false // which the kernel neither sends nor reads
		if got := accept.Append(nil); string(got) != string(x.Bytes[clc.TypeAccept]) {
			t.Errorf("%s: Accept\n got %x\nwant %x", x.Name, got, x.Bytes[clc.TypeAccept])
		}
		outs = h.HandleMessage(epoch, x.Confirm, nil, nil)
		var res Result
		switch o := outs[len(outs)-1].(type) {
		case Established:
			res = o.Result
		case StartLink:
			res = o.Result
		default:
			t.Errorf("%s: HandleMessage(%v) = %s", x.Name, x.Confirm, words(epoch, outs))
			continue
		}
		if !reflect.DeepEqual(res.R, x.Confirm.R) || !reflect.DeepEqual(res.D, x.Confirm.D) ||
			res.FirstContact && (res.Release != clc.Release1 || res.PeerOS != clc.OSLinux || res.Features != clc.FeatureEmulatedISM) {
			t.Errorf("%s: Result = %+v", x.Name, res)
		}
	}
}

// TestLinuxClient plays the client to a Linux server's messages in the same way.
func TestLinuxClient(t *testing.T) {
	for _, x := range coretest.LinuxExchanges(t) {
		caps := linuxCaps(x, x.Confirm.R, x.Confirm.D)
		if caps.RoCEv2 != nil {
			caps.RoCEv2.GID = x.Proposal.Ext.GID // a later Confirm may name another link's
		}
		h := NewHandshake(RoleClient, caps)
		outs := h.Start(epoch, nil)
		p, ok := outs[0].(SendCLC).Message.(clc.Proposal)
		if !ok || p.V1 != clc.TypesNone || p.Ext == nil {
			t.Errorf("%s: Start = %s", x.Name, words(epoch, outs))
			continue
		}
		// The kernel offers its loopback-ism device with SMC-R too, keeps peer ID and MAC to
		// itself, and sends limits of SMC-R even if it offers SMC-D alone. With that made even,
		// the bytes are its bytes.
		even := p
		ext := *p.Ext
		even.Ext = &ext
		even.V2, even.PeerID, even.MAC = x.Proposal.V2, x.Proposal.PeerID, x.Proposal.MAC
		ext.D, ext.MaxConns, ext.MaxLinks = x.Proposal.Ext.D, x.Proposal.Ext.MaxConns, x.Proposal.Ext.MaxLinks
		if got := even.Append(nil); string(got) != string(x.Bytes[clc.TypeProposal]) {
			t.Errorf("%s: Proposal\n got %x\nwant %x", x.Name, got, x.Bytes[clc.TypeProposal])
		}
		if x.Proposal.V2 == clc.TypesD && !reflect.DeepEqual(p.Ext.D, x.Proposal.Ext.D) {
			t.Errorf("%s: SMC-D offered as %+v, want %+v", x.Name, p.Ext.D, x.Proposal.Ext.D)
		}
		outs = h.HandleMessage(epoch, x.Accept, nil, nil)
		prepare, ok := outs[len(outs)-1].(Prepare)
		if !ok || prepare.Choice.FirstContact != x.Accept.FirstContact {
			t.Errorf("%s: HandleMessage(%v) = %s", x.Name, x.Accept, words(epoch, outs))
			continue
		}
		outs = h.Prepared(epoch, Resources{R: x.Confirm.R, D: x.Confirm.D, ClientGIDs: x.Confirm.ClientGIDs}, nil)
		if got := outs[0].(SendCLC).Message.Append(nil); string(got) != string(x.Bytes[clc.TypeConfirm]) {
			t.Errorf("%s: Confirm\n got %x\nwant %x", x.Name, got, x.Bytes[clc.TypeConfirm])
		}
	}
}

// TestLinuxLoopback checks that a kernel's loopback-ism device is not taken for ours: it has the
// same CHID, and its GID is out of reach.
func TestLinuxLoopback(t *testing.T) {
	for _, x := range coretest.LinuxExchanges(t) {
		if x.Confirm.D == nil {
			continue
		}
		c := linuxCaps(x, nil, &clc.ParamsD{GID: serverGID, CHID: wire.CHIDLoopback})
		h := NewHandshake(RoleServer, c)
		h.SetReachable(clientGID)
		h.Start(epoch, nil)
		const want = "send Decline v2 NOSMCD2DEV (0x03030007), -t, fallback NOSMCD2DEV (0x03030007)"
		if got := words(epoch, h.HandleMessage(epoch, x.Proposal, nil, nil)); got != want {
			t.Errorf("%s: HandleMessage = %s, want %s", x.Name, got, want)
		}
	}
}
