package core

import (
	"encoding/hex"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// An exchange is one handshake between two Linux kernels.
type exchange struct {
	name     string
	proposal clc.Proposal
	accept   clc.Accept
	confirm  clc.Confirm
	bytes    map[clc.Type][]byte
}

// linuxExchanges reads testdata/linux.txt.
func linuxExchanges(t *testing.T) []exchange {
	t.Helper()
	data, err := os.ReadFile("testdata/linux.txt")
	if err != nil {
		t.Fatal(err)
	}
	var list []exchange
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) != 4 || fields[0] == "#" {
			continue
		}
		b, err := hex.DecodeString(fields[3])
		if err != nil {
			t.Fatal(err)
		}
		m, err := clc.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := m.(clc.Proposal); ok {
			list = append(list, exchange{name: fields[0] + " frame " + fields[1], proposal: p, bytes: map[clc.Type][]byte{}})
		}
		x := &list[len(list)-1]
		x.bytes[m.Type()] = b
		switch m := m.(type) {
		case clc.Accept:
			x.accept = m
		case clc.Confirm:
			x.confirm = m
		}
	}
	if len(list) < 5 {
		t.Fatalf("testdata/linux.txt has %d handshakes", len(list))
	}
	return list
}

// linuxCaps returns the capabilities that one of those kernels had.
func linuxCaps(x exchange, r *clc.ParamsR, d *clc.ParamsD) Capabilities {
	c := Capabilities{
		OS: clc.OSLinux, HostName: "(none)", Release: clc.Release1, UEIDs: x.proposal.Ext.UEIDs,
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
	for _, x := range linuxExchanges(t) {
		h := NewHandshake(RoleServer, linuxCaps(x, x.accept.R, x.accept.D))
		if d := x.confirm.D; d != nil {
			h.SetReachable(d.GID)
		}
		h.Start(epoch, nil)
		outs := h.HandleMessage(epoch, x.proposal, nil, nil)
		if _, ok := outs[len(outs)-1].(Prepare); !ok {
			t.Errorf("%s: HandleMessage(%v) = %s", x.name, x.proposal, words(epoch, outs))
			continue
		}
		r := Resources{FirstContact: x.accept.FirstContact, R: x.accept.R, D: x.accept.D, Direct: true}
		outs = h.Prepared(epoch, r, nil)
		accept, _ := outs[0].(SendCLC).Message.(clc.Accept)
		if kept := x.proposal.V2 == clc.TypesBoth; accept.ReasonKept != kept {
			t.Errorf("%s: ReasonKept = %t, want %t", x.name, accept.ReasonKept, kept)
		}
		accept.ReasonKept = false // which the kernel neither sends nor reads
		if got := accept.Append(nil); string(got) != string(x.bytes[clc.TypeAccept]) {
			t.Errorf("%s: Accept\n got %x\nwant %x", x.name, got, x.bytes[clc.TypeAccept])
		}
		outs = h.HandleMessage(epoch, x.confirm, nil, nil)
		var res Result
		switch o := outs[len(outs)-1].(type) {
		case Established:
			res = o.Result
		case StartLink:
			res = o.Result
		default:
			t.Errorf("%s: HandleMessage(%v) = %s", x.name, x.confirm, words(epoch, outs))
			continue
		}
		if !reflect.DeepEqual(res.R, x.confirm.R) || !reflect.DeepEqual(res.D, x.confirm.D) ||
			res.FirstContact && (res.Release != clc.Release1 || res.PeerOS != clc.OSLinux || res.Features != clc.FeatureEmulatedISM) {
			t.Errorf("%s: Result = %+v", x.name, res)
		}
	}
}

// TestLinuxClient plays the client to a Linux server's messages in the same way.
func TestLinuxClient(t *testing.T) {
	for _, x := range linuxExchanges(t) {
		caps := linuxCaps(x, x.confirm.R, x.confirm.D)
		if caps.RoCEv2 != nil {
			caps.RoCEv2.GID = x.proposal.Ext.GID // a later Confirm may name another link's
		}
		h := NewHandshake(RoleClient, caps)
		outs := h.Start(epoch, nil)
		p, ok := outs[0].(SendCLC).Message.(clc.Proposal)
		if !ok || p.V1 != clc.TypesNone || p.Ext == nil {
			t.Errorf("%s: Start = %s", x.name, words(epoch, outs))
			continue
		}
		// The kernel offers its loopback-ism device with SMC-R too, keeps peer ID and MAC to
		// itself, and sends limits of SMC-R even if it offers SMC-D alone. With that made even,
		// the bytes are its bytes.
		even := p
		ext := *p.Ext
		even.Ext = &ext
		even.V2, even.PeerID, even.MAC = x.proposal.V2, x.proposal.PeerID, x.proposal.MAC
		ext.D, ext.MaxConns, ext.MaxLinks = x.proposal.Ext.D, x.proposal.Ext.MaxConns, x.proposal.Ext.MaxLinks
		if got := even.Append(nil); string(got) != string(x.bytes[clc.TypeProposal]) {
			t.Errorf("%s: Proposal\n got %x\nwant %x", x.name, got, x.bytes[clc.TypeProposal])
		}
		if x.proposal.V2 == clc.TypesD && !reflect.DeepEqual(p.Ext.D, x.proposal.Ext.D) {
			t.Errorf("%s: SMC-D offered as %+v, want %+v", x.name, p.Ext.D, x.proposal.Ext.D)
		}
		outs = h.HandleMessage(epoch, x.accept, nil, nil)
		prepare, ok := outs[len(outs)-1].(Prepare)
		if !ok || prepare.Choice.FirstContact != x.accept.FirstContact {
			t.Errorf("%s: HandleMessage(%v) = %s", x.name, x.accept, words(epoch, outs))
			continue
		}
		outs = h.Prepared(epoch, Resources{R: x.confirm.R, D: x.confirm.D, ClientGIDs: x.confirm.ClientGIDs}, nil)
		if got := outs[0].(SendCLC).Message.Append(nil); string(got) != string(x.bytes[clc.TypeConfirm]) {
			t.Errorf("%s: Confirm\n got %x\nwant %x", x.name, got, x.bytes[clc.TypeConfirm])
		}
	}
}

// TestLinuxLoopback checks that a kernel's loopback-ism device is not taken for ours: it has the
// same CHID, and its GID is out of reach.
func TestLinuxLoopback(t *testing.T) {
	for _, x := range linuxExchanges(t) {
		if x.confirm.D == nil {
			continue
		}
		c := linuxCaps(x, nil, &clc.ParamsD{GID: serverGID, CHID: wire.CHIDLoopback})
		h := NewHandshake(RoleServer, c)
		h.SetReachable(clientGID)
		h.Start(epoch, nil)
		const want = "send Decline v2 NOSMCD2DEV (0x03030007), -t, fallback NOSMCD2DEV (0x03030007)"
		if got := words(epoch, h.HandleMessage(epoch, x.proposal, nil, nil)); got != want {
			t.Errorf("%s: HandleMessage = %s, want %s", x.name, got, want)
		}
	}
}
