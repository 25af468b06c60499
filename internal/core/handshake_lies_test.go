package core

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// capture plays a handshake and returns its messages and the choice that the server made.
func capture(t *testing.T, types string, first bool, release clc.Release) (client, server Capabilities, p clc.Proposal, a clc.Accept, c clc.Confirm) {
	t.Helper()
	client, server = only(clientCaps(t), types), only(serverCaps(t), types)
	client.Release = release
	run := newPair(t, client, server)
	run.firstContact = first
	run.tamper = func(m clc.Message) clc.Message {
		switch m := m.(type) {
		case clc.Proposal:
			p = m
		case clc.Accept:
			a = m
		case clc.Confirm:
			c = m
		}
		return m
	}
	run.run()
	if run.end(RoleClient) != "established" {
		t.Fatalf("%s: client %s", types, run.end(RoleClient))
	}
	return client, server, p, a, c
}

// cloneAccept and cloneConfirm let a test change a message without changing its source.
func cloneAccept(a clc.Accept) clc.Accept {
	if a.R != nil {
		r := *a.R
		a.R = &r
	}
	if a.D != nil {
		d := *a.D
		a.D = &d
	}
	if a.FCE != nil {
		f := *a.FCE
		a.FCE = &f
	}
	return a
}

func cloneConfirm(c clc.Confirm) clc.Confirm {
	a := cloneAccept(clc.Accept{R: c.R, D: c.D, FCE: c.FCE})
	c.R, c.D, c.FCE = a.R, a.D, a.FCE
	return c
}

// TestClientChecksAccept checks the outputs of a client for an Accept that does not match its
// offer.
func TestClientChecksAccept(t *testing.T) {
	const ok, broken = "prepare", "broken"
	for _, tt := range []struct {
		name   string
		types  string
		change func(a *clc.Accept)
		want   string // ok, broken and a part of the error, or the tag of the Decline
	}{
		{"as it is, Dv2", "Dv2", func(a *clc.Accept) {}, ok},
		{"as it is, Dv1", "Dv1", func(a *clc.Accept) {}, ok},
		{"as it is, Rv2", "Rv2", func(a *clc.Accept) {}, ok},
		{"as it is, Rv1", "Rv1", func(a *clc.Accept) {}, ok},

		{"SMC-R was not offered", "Dv2", func(a *clc.Accept) { a.R, a.D = &clc.ParamsR{}, nil }, "MODEUNSUPP"},
		{"SMC-D was not offered", "Rv2", func(a *clc.Accept) { a.R, a.D = nil, &clc.ParamsD{} }, "MODEUNSUPP"},
		{"version 1 was not offered", "Dv2", func(a *clc.Accept) { a.Version, a.FCE = clc.V1, nil }, "MODEUNSUPP"},
		{"version 2 was not offered", "Dv1", func(a *clc.Accept) { a.Version = clc.V2 }, "MODEUNSUPP"},
		{"neither type", "Dv2", func(a *clc.Accept) { a.D = nil }, broken + " not exactly one"},
		{"both types", "Dv2", func(a *clc.Accept) { a.R = &clc.ParamsR{} }, broken + " not exactly one"},

		{"EID was not offered", "Dv2", func(a *clc.Accept) { a.EID = eid(t, "NORTH") }, broken + ` EID "NORTH"`},
		{"no EID", "Dv2", func(a *clc.Accept) { a.EID = wire.EID{} }, broken + " EID"},
		{"a UEID for SMC-D", "Dv2", func(a *clc.Accept) { a.EID = eid(t, "WEST") }, ok},
		{"the SEID for SMC-R", "Rv2", func(a *clc.Accept) { a.EID = eid(t, "GOSMC-MACHINE1") }, broken + " EID"},
		{"CHID was not offered", "Dv2", func(a *clc.Accept) { a.D.CHID = 0xff00 }, broken + " CHID ff00"},
		{"CHID of version 1 in version 2", "Dv2 Dv1", func(a *clc.Accept) { a.D.CHID, a.D.GID.Lo = 0x0700, 0 }, ok},
		{"CHID of version 1, which was not offered", "Dv2", func(a *clc.Accept) { a.D.CHID, a.D.GID.Lo = 0x0700, 0 }, broken + " CHID 0700"},
		{"no GID", "Dv2", func(a *clc.Accept) { a.D.GID = wire.ISMGID{} }, broken + " no GID"},
		{"no GID, SMC-Dv1", "Dv1", func(a *clc.Accept) { a.D.GID = wire.ISMGID{} }, broken + " no GID"},
		{"no GID, SMC-R", "Rv1", func(a *clc.Accept) { a.R.GID = wire.GID{} }, broken + " no GID"},
		{"no queue pair", "Rv2", func(a *clc.Accept) { a.R.QPN = 0 }, broken + " queue pair"},
		{"first contact without extension", "Dv2", func(a *clc.Accept) { a.FCE = nil }, broken + " first contact"},
		{"extension without first contact", "Dv2", func(a *clc.Accept) { a.FirstContact = false }, broken + " first contact"},

		{"release 2", "Dv2", func(a *clc.Accept) { a.FCE.Release = 2 }, "RELEASE"},
		{"release 2, SMC-R", "Rv2", func(a *clc.Accept) { a.FCE.Release = 2 }, "RELEASE"},
		{"Emulated-ISM in release 0", "Dv2", func(a *clc.Accept) { *a.FCE = clc.FCE{OS: clc.OSAIX} }, "RELEASE"},
		{"release 0", "Dv2 Dv1", func(a *clc.Accept) { a.D.CHID, a.D.GID.Lo, *a.FCE = 0x0700, 0, clc.FCE{OS: clc.OSAIX} }, ok},
		{"release 0 without limits", "Rv2", func(a *clc.Accept) { *a.FCE = clc.FCE{OS: clc.OSAIX} }, ok},
		{"Emulated-ISM without its feature bit", "Dv2", func(a *clc.Accept) { a.FCE.Features = 0x8000 }, "RELEASE"},
		{"native ISM without features", "Dv2 Dv1", func(a *clc.Accept) { a.D.CHID, a.D.GID.Lo, a.FCE.Features = 0x0700, 0, 0 }, ok},
		{"GID of the other IP version", "Rv2", func(a *clc.Accept) { a.R.GID = wire.GID{0: 0x20, 1: 1, 15: 1} }, broken + " IP version"},
		{"IPv4 for a link-local GID in version 1", "Rv1", func(a *clc.Accept) { a.R.GID = wire.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1} }, "NOSMCRDEV"},
		{"any GID of the family in version 1", "Rv1", func(a *clc.Accept) { a.R.GID = wire.GID{0: 0xfe, 1: 0x80, 15: 1} }, ok},
		{"RMB element 0", "Rv2", func(a *clc.Accept) { a.R.RMBEIndex = 0 }, broken + " RMB element"},
		{"RMB element 0 in version 1", "Rv1", func(a *clc.Accept) { a.R.RMBEIndex = 0 }, broken + " RMB element"},
		{"RMB element 255", "Rv1", func(a *clc.Accept) { a.R.RMBEIndex = 255 }, ok},
		{"reason kept", "Rv2", func(a *clc.Accept) { a.ReasonKept = true }, ok},
		{"max conns 15", "Rv2", func(a *clc.Accept) { a.FCE.MaxConns = 15 }, "MAXCONNS"},
		{"max conns 0", "Rv2", func(a *clc.Accept) { a.FCE.MaxConns = 0 }, "MAXCONNS"},
		{"max conns 255", "Rv2", func(a *clc.Accept) { a.FCE.MaxConns = 255 }, ok},
		{"max links 0", "Rv2", func(a *clc.Accept) { a.FCE.MaxLinks = 0 }, "MAXLINKS"},
		{"max links 3", "Rv2", func(a *clc.Accept) { a.FCE.MaxLinks = 3 }, "MAXLINKS"},
		{"max links 2", "Rv2", func(a *clc.Accept) { a.FCE.MaxLinks = 2 }, ok},
		{"limits do not count for SMC-D", "Dv2", func(a *clc.Accept) { a.FCE.MaxConns, a.FCE.MaxLinks = 1, 9 }, ok},
		{"all features", "Dv2", func(a *clc.Accept) { a.FCE.Features = 0xffff }, ok},
	} {
		client, _, _, a, _ := capture(t, tt.types, true, clc.Release1)
		client.Peer = netip.MustParseAddr("10.0.0.2")
		h := NewHandshake(RoleClient, client)
		h.Start(epoch, nil)
		a = cloneAccept(a)
		tt.change(&a)
		outs := h.HandleMessage(epoch, a, nil, nil)
		got := words(epoch, outs)
		switch {
		case tt.want == ok:
			if h.State() != HandshakePreparing || !strings.Contains(got, "prepare") {
				t.Errorf("%s: HandleMessage = %s, want Prepare", tt.name, got)
			}
			checkConfirmOf(t, tt.name, h, outs, a)
		case strings.HasPrefix(tt.want, broken):
			if h.State() != HandshakeFailed || !strings.Contains(got, tt.want[len(broken)+1:]) || strings.Contains(got, "send") {
				t.Errorf("%s: HandleMessage = %s, want EndTCP with %q", tt.name, got, tt.want)
			}
		default:
			if h.State() != HandshakeFellBack || !strings.Contains(got, "send Decline") || !strings.Contains(got, "fallback "+tt.want) {
				t.Errorf("%s: HandleMessage = %s, want a Decline with %s", tt.name, got, tt.want)
			}
		}
	}
}

// checkConfirmOf checks the Confirm to an Accept that was taken.
func checkConfirmOf(t *testing.T, name string, h *Handshake, outs []HandshakeOutput, a clc.Accept) {
	t.Helper()
	prepare, ok := outs[len(outs)-1].(Prepare)
	if !ok {
		t.Errorf("%s: no Prepare", name)
		return
	}
	outs = h.Prepared(epoch, resources(prepare.Choice, RoleClient, false, 0x10), nil)
	send, ok := outs[0].(SendCLC)
	if !ok {
		t.Errorf("%s: Prepared = %s", name, words(epoch, outs))
		return
	}
	c, ok := send.Message.(clc.Confirm)
	if !ok || c.Version != a.Version || c.EID != a.EID {
		t.Errorf("%s: confirmed %v with %v", name, a, send.Message)
		return
	}
	if a.FCE == nil {
		return
	}
	f := c.FCE
	if f == nil || f.Release != a.FCE.Release || f.MaxConns != a.FCE.MaxConns || f.MaxLinks != a.FCE.MaxLinks {
		if a.FCE.Release != clc.Release0 {
			t.Errorf("%s: FCE %+v confirmed with %+v", name, *a.FCE, f)
		}
	}
	if f.Features&^(a.FCE.Features&h.caps.Features) != 0 {
		t.Errorf("%s: features %x, which are not common", name, f.Features)
	}
	if a.FCE.Release == clc.Release0 && (f.Features != 0 || f.VendorOptions != [4]byte{}) {
		t.Errorf("%s: release 0 confirmed with %+v", name, *f)
	}
}

// TestServerChecksConfirm checks the outputs of a server for a Confirm that does not match its
// Accept.
func TestServerChecksConfirm(t *testing.T) {
	const ok, broken = "established", "broken"
	for _, tt := range []struct {
		name   string
		types  string
		first  bool
		change func(c *clc.Confirm)
		want   string // ok, "link", broken and a part of the error, or the tag of the Decline
	}{
		{"as it is, Dv2", "Dv2", true, func(c *clc.Confirm) {}, ok},
		{"as it is, Dv2 later", "Dv2", false, func(c *clc.Confirm) {}, ok},
		{"as it is, Dv1", "Dv1", true, func(c *clc.Confirm) {}, ok},
		{"as it is, Rv2", "Rv2", true, func(c *clc.Confirm) {}, "link"},
		{"as it is, Rv2 later", "Rv2", false, func(c *clc.Confirm) {}, ok},
		{"as it is, Rv1", "Rv1", true, func(c *clc.Confirm) {}, "link"},

		{"another version", "Dv2", true, func(c *clc.Confirm) { c.Version = clc.V1 }, broken + " version 1"},
		{"SMC-R instead of SMC-D", "Dv2", true, func(c *clc.Confirm) { c.R, c.D = &clc.ParamsR{}, nil }, broken + " another SMC type"},
		{"SMC-D instead of SMC-R", "Rv2", true, func(c *clc.Confirm) { c.R, c.D = nil, &clc.ParamsD{} }, broken + " another SMC type"},
		{"neither", "Dv2", true, func(c *clc.Confirm) { c.D = nil }, broken + " another SMC type"},
		{"another EID", "Dv2", true, func(c *clc.Confirm) { c.EID = eid(t, "EAST") }, broken + ` EID "EAST"`},
		{"another CHID", "Dv2", true, func(c *clc.Confirm) { c.D.CHID = 0xff00 }, broken + " CHID ff00"},
		{"another GID", "Dv2", true, func(c *clc.Confirm) { c.D.GID.Lo++ }, broken + " GID"},
		{"another GID, SMC-Dv1", "Dv1", true, func(c *clc.Confirm) { c.D.GID.Hi++ }, broken + " GID"},
		{"another peer", "Rv2", true, func(c *clc.Confirm) { c.R.PeerID[7]++ }, broken + " peer ID"},
		{"no GID", "Rv2", true, func(c *clc.Confirm) { c.R.GID = wire.GID{} }, broken + " no GID"},
		{"no queue pair", "Rv1", false, func(c *clc.Confirm) { c.R.QPN = 0 }, broken + " queue pair"},
		{"no first contact", "Dv2", true, func(c *clc.Confirm) { c.FirstContact, c.FCE = false, nil }, broken + " first contact"},
		{"first contact of its own", "Dv2", false, func(c *clc.Confirm) { c.FirstContact, c.FCE = true, &clc.FCE{} }, broken + " first contact"},
		{"flag without extension", "Dv2", true, func(c *clc.Confirm) { c.FCE = nil }, broken + " first contact"},

		{"another release", "Dv2", true, func(c *clc.Confirm) { c.FCE.Release = 0 }, broken + " RELEASE"},
		{"another release, SMC-R", "Rv2", true, func(c *clc.Confirm) { c.FCE.Release = 0 }, "RELEASE"},
		{"another max conns", "Rv2", true, func(c *clc.Confirm) { c.FCE.MaxConns = 33 }, "MAXCONNS"},
		{"another max links", "Rv2", true, func(c *clc.Confirm) { c.FCE.MaxLinks = 2 }, "MAXLINKS"},
		{"limits do not count for SMC-D", "Dv2", true, func(c *clc.Confirm) { c.FCE.MaxConns = 33 }, ok},
		{"reserved MTU", "Rv1", true, func(c *clc.Confirm) { c.R.MTU = 7 }, "VERSMISMAT"},
		{"reserved MTU later", "Rv1", false, func(c *clc.Confirm) { c.R.MTU = 7 }, ok},
		{"no list of GIDs", "Rv2", true, func(c *clc.Confirm) { c.ClientGIDs = nil }, "link"},
		{"list that begins with another GID", "Rv2", true, func(c *clc.Confirm) { c.ClientGIDs = []wire.GID{{15: 9}, c.R.GID} }, "VERSMISMAT"},
		{"list with the GID in another form", "Rv2", true, func(c *clc.Confirm) { c.ClientGIDs = []wire.GID{{12: 10, 15: 0x10}} }, "link"},
		{"GID of the other IP version", "Rv2", true, func(c *clc.Confirm) { c.R.GID = wire.GID{0: 0x20, 1: 1, 15: 1} }, broken + " IP version"},
		{"another MAC", "Rv2", true, func(c *clc.Confirm) { c.R.MAC[5]++ }, "VERSMISMAT"},
		{"another MAC later", "Rv2", false, func(c *clc.Confirm) { c.R.MAC[5]++ }, ok},
		{"another MAC in version 1", "Rv1", true, func(c *clc.Confirm) { c.R.MAC[5]++ }, "link"},
		{"RMB element 0", "Rv2", false, func(c *clc.Confirm) { c.R.RMBEIndex = 0 }, broken + " RMB element"},
		{"RMB element 0 in version 1", "Rv1", true, func(c *clc.Confirm) { c.R.RMBEIndex = 0 }, broken + " RMB element"},
		{"a feature that is not common", "Dv2", true, func(c *clc.Confirm) { c.FCE.Features |= 0x4000 }, broken + " RELEASE"},
		{"a feature that is not common, SMC-R", "Rv2", true, func(c *clc.Confirm) { c.FCE.Features |= 0x8000 }, "RELEASE"},
		{"fewer features", "Rv2", true, func(c *clc.Confirm) { c.FCE.Features = 0 }, "link"},
		{"Emulated-ISM without its feature bit", "Dv2", true, func(c *clc.Confirm) { c.FCE.Features = 0 }, broken + " RELEASE"},
		{"other vendor options", "Dv2", true, func(c *clc.Confirm) { c.FCE.VendorOptions[0]++ }, broken + " RELEASE"},
		{"other vendor options, SMC-R", "Rv2", true, func(c *clc.Confirm) { c.FCE.VendorOptions = [4]byte{} }, "RELEASE"},
	} {
		_, server, p, _, c := capture(t, tt.types, tt.first, clc.Release1)
		server.Peer = netip.MustParseAddr("10.0.0.1")
		h := NewHandshake(RoleServer, server)
		h.SetReachable(clientGID, wire.ISMGID{Hi: clientNative})
		h.Start(epoch, nil)
		outs := h.HandleMessage(epoch, p, nil, nil)
		h.Prepared(epoch, resources(outs[len(outs)-1].(Prepare).Choice, RoleServer, tt.first, 0x20), nil)
		c = cloneConfirm(c)
		tt.change(&c)
		outs = h.HandleMessage(epoch, c, nil, nil)
		got := words(epoch, outs)
		switch {
		case tt.want == ok:
			est, isEnd := outs[len(outs)-1].(Established)
			if !isEnd || h.State() != HandshakeEstablished {
				t.Errorf("%s: HandleMessage = %s, want Established", tt.name, got)
			}
			if f := est.Result.Features; f&^(server.Features&offeredFeatures(p)) != 0 {
				t.Errorf("%s: features %x, which are not common", tt.name, f)
			}
		case tt.want == "link":
			if h.State() != HandshakeLinkTurn || !strings.Contains(got, "link") {
				t.Errorf("%s: HandleMessage = %s, want StartLink", tt.name, got)
			}
		case strings.HasPrefix(tt.want, broken):
			if h.State() != HandshakeFailed || !strings.Contains(got, tt.want[len(broken)+1:]) || strings.Contains(got, "send") {
				t.Errorf("%s: HandleMessage = %s, want EndTCP with %q", tt.name, got, tt.want)
			}
		default:
			if h.State() != HandshakeFellBack || !strings.Contains(got, "send Decline") || !strings.Contains(got, "fallback "+tt.want) {
				t.Errorf("%s: HandleMessage = %s, want a Decline with %s", tt.name, got, tt.want)
			}
		}
	}
}

// TestZeroPeerID checks that a Proposal like the one of Linux for SMC-Rv2, with neither peer ID nor
// MAC, is taken, and that the Confirm then gives the client's identity.
func TestZeroPeerID(t *testing.T) {
	p := newPair(t, only(clientCaps(t), "Rv2"), only(serverCaps(t), "Rv2"))
	p.tamper = func(m clc.Message) clc.Message {
		if m, ok := m.(clc.Proposal); ok {
			m.PeerID, m.MAC = wire.PeerID{}, wire.MAC{}
			return m
		}
		return m
	}
	p.run()
	if p.end(RoleServer) != "established" || p.result[RoleServer].R.PeerID != clientPeer {
		t.Errorf("server %s with %+v", p.end(RoleServer), p.result[RoleServer].R)
	}
}

// TestDeclineForms checks the bytes' length and the version of Declines: 28 bytes in version 1,
// without the sender's OS, 44 in version 2. Linux 5.10 to 5.15 fail a connection for 44 bytes, so a
// message that they may have sent is answered with 28. A server that answers a Proposal says why
// for each type that was offered, and its main reason is one of these: SMCv2 p.79, note 3.
func TestDeclineForms(t *testing.T) {
	decline := func(outs []HandshakeOutput) clc.Decline {
		t.Helper()
		for _, o := range outs {
			if s, ok := o.(SendCLC); ok {
				if d, ok := s.Message.(clc.Decline); ok {
					return d
				}
			}
		}
		t.Fatalf("no Decline in %s", words(epoch, outs))
		return clc.Decline{}
	}
	var byType clc.DiagnosisByType
	check := func(name string, d clc.Decline, wantVersion clc.Version, wantLen int, wantPeer wire.PeerID) {
		t.Helper()
		if got := len(d.Append(nil)); d.Version != wantVersion || got != wantLen || d.ByType != byType || d.PeerID != wantPeer {
			t.Errorf("%s: %+v of %d bytes, want version %d, %d bytes, peer %v", name, d, got, wantVersion, wantLen, wantPeer)
		}
		if b := d.Append(nil); (b[20] != 0) != (wantVersion == clc.V2) {
			t.Errorf("%s: byte 20 of version %d is %#x", name, wantVersion, b[20])
		}
	}
	c := Capabilities{OS: clc.OSLinux}
	check("client without ISM", decline(NewHandshake(RoleClient, c).Start(epoch, nil)), clc.V1, 28, wire.PeerID{})
	c.ISM = []clc.ISMDevice{{GID: wire.ISMGID{Hi: 1}, CHID: 1}}
	check("client with ISM", decline(NewHandshake(RoleClient, c).Start(epoch, nil)), clc.V1, 28, wire.PeerID{})
	// Version 1 was chosen by the server, so that it is spoken though we have a device for version 2.
	client, _, _, accept, _ := capture(t, "Dv1", true, clc.Release1)
	client.ISM = clientCaps(t).ISM
	h := NewHandshake(RoleClient, client)
	h.Start(epoch, nil)
	h.HandleMessage(epoch, accept, nil, nil)
	check("client with ISM after an Accept Dv1", decline(h.PrepareFailed(epoch, clc.DiagMemory, nil)), clc.V1, 28, clientPeer)
	for _, tt := range []struct {
		types   string
		version clc.Version
		length  int
		byType  clc.DiagnosisByType
	}{
		{"Dv1", clc.V1, 28, clc.DiagnosisByType{}},
		{"Dv2", clc.V2, 44, clc.DiagnosisByType{SMCDv2: clc.DiagNoSMCDv2Device}},
	} {
		byType = clc.DiagnosisByType{} // a client has one reason: note 4
		client, server, p, a, _ := capture(t, tt.types, true, clc.Release1)
		h := NewHandshake(RoleClient, client)
		h.Start(epoch, nil)
		h.HandleMessage(epoch, a, nil, nil)
		check("client after an Accept "+tt.types, decline(h.PrepareFailed(epoch, clc.DiagMemory, nil)), tt.version, tt.length, clientPeer)
		h = NewHandshake(RoleServer, server)
		h.Start(epoch, nil)
		byType = tt.byType
		check("server", decline(h.HandleMessage(epoch, p, nil, nil)), tt.version, tt.length, serverPeer)
	}

	// Proposals that Linux may have sent. 5.10 to 5.15 know no UEIDs and no release 1.
	old := func(change func(p *clc.Proposal)) clc.Proposal {
		_, _, p, _, _ := capture(t, "Dv2", true, clc.Release1)
		ext := *p.Ext
		p.Ext, ext.UEIDs, ext.Release = &ext, nil, clc.Release0
		change(&p)
		return p
	}
	_, _, v1, _, _ := capture(t, "Dv1", true, clc.Release1)
	v1R := v1
	v1R.V1, v1R.GID = clc.TypesR, wire.GIDFromAddr(netip.MustParseAddr("fe80::1"))
	eids := []wire.EID{eid(t, "NORTH")}
	for _, tt := range []struct {
		name    string
		p       clc.Proposal
		version clc.Version
		length  int
	}{
		{"version 1 of SMC-R in a Proposal of version 2", v1R, clc.V1, 28},
		{"SMC-Dv2 of Linux 5.10", old(func(*clc.Proposal) {}), clc.V1, 28},
		{"SMC-Dv2 with a UEID", old(func(p *clc.Proposal) { p.Ext.UEIDs = eids }), clc.V2, 44},
		{"SMC-Dv2 of release 1", old(func(p *clc.Proposal) { p.Ext.Release = clc.Release1 }), clc.V2, 44},
		{"SMC-Rv2", old(func(p *clc.Proposal) { p.V2 = clc.TypesBoth }), clc.V2, 44},
	} {
		h := NewHandshake(RoleServer, Capabilities{OS: clc.OSLinux, PeerID: serverPeer, Refuse: clc.DiagBusy})
		h.Start(epoch, nil)
		d := decline(h.HandleMessage(epoch, tt.p, nil, nil))
		byType = d.ByType
		check(tt.name, d, tt.version, tt.length, serverPeer)
	}
}

// TestDeclineNoUEID has a server say NOUEID where a client could use SMC-R with a UEID, and not that the hosts are on different networks, or have
// no ISM device.
func TestDeclineNoUEID(t *testing.T) {
	_, _, dv2, _, _ := capture(t, "Dv2", true, clc.Release1)
	_, _, rv2, _, _ := capture(t, "Rv2 Rv1", true, clc.Release1)
	change := func(p clc.Proposal, f func(p *clc.Proposal)) clc.Proposal {
		ext := *p.Ext
		p.Ext = &ext
		f(&p)
		return p
	}
	noEID := func(p *clc.Proposal) {
		p.Ext.UEIDs = nil
		if p.Ext.D != nil {
			p.Ext.D = &clc.ProposalDv2{Devices: p.Ext.D.Devices}
		}
	}
	off := func(c *Capabilities) { c.Networks = nil }
	elsewhere := func(c *Capabilities) { c.Networks = []netip.Prefix{netip.MustParsePrefix("10.0.0.2/25")} }
	for _, tt := range []struct {
		name   string
		p      clc.Proposal
		server string
		change func(c *Capabilities)
		want   clc.Diagnosis
		byType clc.DiagnosisByType
	}{
		{"kernel with loopback-ism, server without ISM", change(dv2, noEID), "Rv2", off, clc.DiagNoUEID, clc.DiagnosisByType{SMCDv2: clc.DiagNoUEID}},
		{"version 1 alone, which is off", change(rv2, func(p *clc.Proposal) { p.V2, p.Ext = clc.TypesNone, nil }), "Rv2", off, clc.DiagNoUEID,
			clc.DiagnosisByType{SMCRv1: clc.DiagNoUEID}},
		{"both without a UEID, version 1 off", change(rv2, noEID), "Rv2", off, clc.DiagNoUEID,
			clc.DiagnosisByType{SMCRv2: clc.DiagNoUEID, SMCRv1: clc.DiagNoUEID}},
		{"both without a UEID, another network", change(rv2, noEID), "Rv2 Rv1", elsewhere, clc.DiagNoUEID,
			clc.DiagnosisByType{SMCRv2: clc.DiagNoUEID, SMCRv1: clc.DiagPrefix}},
		{"other UEIDs, another network", change(rv2, func(p *clc.Proposal) { p.Ext.UEIDs = []wire.EID{eid(t, "NOBODYS")} }), "Rv2 Rv1", elsewhere, clc.DiagNoUEID,
			clc.DiagnosisByType{SMCRv2: clc.DiagNoUEID, SMCRv1: clc.DiagPrefix}},
		{"no RNIC at the server, version 1 off", rv2, "", off, clc.DiagNoDevice,
			clc.DiagnosisByType{SMCRv2: clc.DiagNoSMCRDevice, SMCRv1: clc.DiagNoDevice}},
	} {
		server := only(serverCaps(t), tt.server)
		tt.change(&server)
		h := NewHandshake(RoleServer, server)
		h.Start(epoch, nil)
		outs := h.HandleMessage(epoch, tt.p, nil, nil)
		end, ok := outs[len(outs)-1].(FallBack)
		if !ok || end.Diagnosis != tt.want || end.ByType != tt.byType {
			t.Errorf("%s: %s, want %v %+v", tt.name, words(epoch, outs), tt.want, tt.byType)
		}
	}
}

// offeredFeatures returns the features in a Proposal, 0 without a version 2 extension.
func offeredFeatures(p clc.Proposal) clc.Features {
	if p.Ext == nil {
		return 0
	}
	return p.Ext.Features
}
