package core

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// TestServerOrder checks which choices a server tries, in which order, and the diagnosis in the
// Decline when they fail. try lists the result of each attempt, in order; attempts beyond it
// succeed.
func TestServerOrder(t *testing.T) {
	const mem, dmb, link = clc.DiagMemory, clc.DiagMaxDMB, clc.DiagLink
	type failures = []clc.Diagnosis
	otherNet := func(c *Capabilities) { c.Networks = []netip.Prefix{netip.MustParsePrefix("10.0.0.2/25")} }
	otherEIDs := func(c *Capabilities) { c.SEID, c.UEIDs = eid(t, "GOSMC-MACHINE2"), []wire.EID{eid(t, "NORTH")} }
	for _, tt := range []struct {
		name           string
		client, server string // types
		change         func(c *Capabilities)
		unreachable    bool
		try            failures
		tried          string
		diagnosis      clc.Diagnosis // DiagNone: established
		byType         clc.DiagnosisByType
	}{
		{name: "the first succeeds", client: "Dv2 Dv1 Rv2 Rv1", server: "Dv2 Dv1 Rv2 Rv1", tried: "SMC-Dv2"},
		{name: "each succeeds after the others failed", client: "Dv2 Dv1 Rv2 Rv1", server: "Dv2 Dv1 Rv2 Rv1",
			try: failures{mem, dmb, mem, dmb}, tried: "SMC-Dv2 SMC-Dv2 SMC-Dv1 SMC-Rv2 SMC-Rv1"},
		{name: "all fail, the last reason counts", client: "Dv2 Dv1 Rv2 Rv1", server: "Dv2 Dv1 Rv2 Rv1",
			try: failures{dmb, mem, mem, link, clc.DiagInternal}, tried: "SMC-Dv2 SMC-Dv2 SMC-Dv1 SMC-Rv2 SMC-Rv1",
			diagnosis: clc.DiagInternal, byType: clc.DiagnosisByType{SMCDv2: mem, SMCDv1: mem, SMCRv2: link, SMCRv1: clc.DiagInternal}},
		{name: "local reason", client: "Dv2", server: "Dv2", try: failures{clc.DiagBudget}, tried: "SMC-Dv2",
			diagnosis: clc.DiagBudget, byType: clc.DiagnosisByType{SMCDv2: clc.DiagBudget}},
		{name: "unreachable GIDs", client: "Dv2 Dv1 Rv2 Rv1", server: "Dv2 Dv1 Rv2 Rv1", unreachable: true, tried: "SMC-Rv2"},
		{name: "unreachable GIDs, SMC-D only", client: "Dv2 Dv1", server: "Dv2 Dv1", unreachable: true,
			diagnosis: clc.DiagNoSMCDDevice, byType: clc.DiagnosisByType{SMCDv2: clc.DiagNoSMCDv2Device, SMCDv1: clc.DiagNoSMCDDevice}},
		{name: "unreachable GIDs, SMC-Dv1", client: "Dv1", server: "Dv1", unreachable: true,
			diagnosis: clc.DiagNoSMCDDevice, byType: clc.DiagnosisByType{SMCDv1: clc.DiagNoSMCDDevice}},
		{name: "no device of the server", client: "Dv1", server: "Rv2",
			diagnosis: clc.DiagNoSMCDDevice, byType: clc.DiagnosisByType{SMCDv1: clc.DiagNoSMCDDevice}},
		{name: "no ISM at the server", client: "Dv2", server: "Dv1 Rv2 Rv1",
			diagnosis: clc.DiagNoISMv2, byType: clc.DiagnosisByType{SMCDv2: clc.DiagNoISMv2}},
		{name: "no ISM at the server, but RoCE", client: "Dv2 Rv1", server: "Rv1", tried: "SMC-Rv1"},
		{name: "no RoCEv2", client: "Rv2", server: "Dv2", diagnosis: clc.DiagNoSMCRDevice,
			byType: clc.DiagnosisByType{SMCRv2: clc.DiagNoSMCRDevice}},
		{name: "no RoCEv1", client: "Rv1", server: "Dv2", diagnosis: clc.DiagNoDevice,
			byType: clc.DiagnosisByType{SMCRv1: clc.DiagNoDevice}},
		{name: "no RoCE at all", client: "Rv2 Rv1", server: "Dv2", diagnosis: clc.DiagNoDevice,
			byType: clc.DiagnosisByType{SMCRv2: clc.DiagNoSMCRDevice, SMCRv1: clc.DiagNoDevice}},
		{name: "another network leaves version 2", client: "Dv1 Rv2 Rv1", server: "Dv1 Rv2 Rv1", change: otherNet, tried: "SMC-Rv2",
			byType: clc.DiagnosisByType{}},
		{name: "another network", client: "Dv1 Rv1", server: "Dv1 Rv1", change: otherNet, diagnosis: clc.DiagPrefix,
			byType: clc.DiagnosisByType{SMCDv1: clc.DiagPrefix, SMCRv1: clc.DiagPrefix}},
		{name: "another network, SMC-D only", client: "Dv1", server: "Dv1", change: otherNet, diagnosis: clc.DiagPrefix,
			byType: clc.DiagnosisByType{SMCDv1: clc.DiagPrefix}},
		{name: "another network, the last reason", client: "Dv2 Rv2 Rv1", server: "Dv2 Rv2 Rv1", change: otherNet,
			try: failures{dmb, link}, tried: "SMC-Dv2 SMC-Rv2", diagnosis: clc.DiagPrefix,
			byType: clc.DiagnosisByType{SMCDv2: dmb, SMCRv2: link, SMCRv1: clc.DiagPrefix}},
		{name: "another network, after SMC-Dv2", client: "Dv2 Dv1", server: "Dv2 Dv1", change: otherNet,
			try: failures{dmb, dmb}, tried: "SMC-Dv2 SMC-Dv2", diagnosis: clc.DiagPrefix,
			byType: clc.DiagnosisByType{SMCDv2: dmb, SMCDv1: clc.DiagPrefix}},
		{name: "no common EID", client: "Dv2", server: "Dv2", change: otherEIDs,
			diagnosis: clc.DiagNoUEID, byType: clc.DiagnosisByType{SMCDv2: clc.DiagNoUEID}},
		{name: "no common EID, SMC-R", client: "Rv2", server: "Rv2", change: otherEIDs,
			diagnosis: clc.DiagNoUEID, byType: clc.DiagnosisByType{SMCRv2: clc.DiagNoUEID}},
		{name: "no common EID leaves version 1", client: "Dv2 Dv1 Rv2", server: "Dv2 Dv1 Rv2", change: otherEIDs, tried: "SMC-Dv1"},
		{name: "refused", client: "Dv2 Rv2", server: "Dv2 Rv2", change: func(c *Capabilities) { c.Refuse = clc.DiagBusy }, diagnosis: clc.DiagBusy,
			byType: clc.DiagnosisByType{SMCDv2: clc.DiagBusy, SMCRv2: clc.DiagBusy}},
		{name: "refused, all types", client: "Dv2 Dv1 Rv2 Rv1", server: "Dv2 Rv2", change: func(c *Capabilities) { c.Refuse = clc.DiagBusy }, diagnosis: clc.DiagBusy,
			byType: clc.DiagnosisByType{SMCDv2: clc.DiagBusy, SMCDv1: clc.DiagBusy, SMCRv2: clc.DiagBusy, SMCRv1: clc.DiagBusy}},
		{name: "server without anything", client: "Dv2 Dv1 Rv2 Rv1", server: "", diagnosis: clc.DiagNoDevice,
			byType: clc.DiagnosisByType{SMCDv2: clc.DiagNoISMv2, SMCDv1: clc.DiagNoSMCDDevice, SMCRv2: clc.DiagNoSMCRDevice, SMCRv1: clc.DiagNoDevice}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client, server := only(clientCaps(t), tt.client), only(serverCaps(t), tt.server)
			if tt.change != nil {
				tt.change(&server)
			}
			p := newPair(t, client, server)
			if tt.unreachable {
				p.reachable = []wire.ISMGID{serverGID, kernelGID}
			}
			attempts := tt.try
			p.try = func(role Role, _ Choice) clc.Diagnosis {
				if role == RoleClient || len(attempts) == 0 {
					return clc.DiagNone
				}
				why := attempts[0]
				attempts = attempts[1:]
				return why
			}
			p.run()
			if got := strings.Join(p.tried, " "); got != tt.tried {
				t.Errorf("tried %q, want %q", got, tt.tried)
			}
			if tt.diagnosis == clc.DiagNone {
				if p.end(RoleClient) != "established" || p.end(RoleServer) != "established" {
					t.Errorf("client %s, server %s, want established", p.end(RoleClient), p.end(RoleServer))
				}
				return
			}
			want := FallBack{Diagnosis: tt.diagnosis, ByType: tt.byType}
			if p.ends[RoleServer] != HandshakeOutput(want) {
				t.Errorf("server %+v, want %+v", p.ends[RoleServer], want)
			}
			want = FallBack{ByPeer: true, Diagnosis: tt.diagnosis.WireCode(), OS: clc.OSZOS, ByType: wireByType(tt.byType)}
			if !strings.Contains(tt.client, "v2") { // it is told in version 1, which has no room for more
				want.OS, want.ByType = clc.OSUnspecified, clc.DiagnosisByType{}
			}
			if p.ends[RoleClient] != HandshakeOutput(want) {
				t.Errorf("client %+v, want %+v", p.ends[RoleClient], want)
			}
		})
	}
}

// TestProposalChecks checks the reasons that concern a Proposal as a whole.
func TestProposalChecks(t *testing.T) {
	good := func(types string) clc.Proposal {
		c := only(clientCaps(t), types).normalized()
		p, ok := c.proposal()
		if !ok {
			t.Fatalf("nothing to offer of %q", types)
		}
		return p
	}
	for _, tt := range []struct {
		name   string
		types  string
		change func(p *clc.Proposal)
		want   string
	}{
		{"good", "Dv2", func(*clc.Proposal) {}, "t(4), prepare SMC-Dv2"},
		{"nothing offered", "Dv2", func(p *clc.Proposal) { p.V2 = clc.TypesNone }, "send Decline v1 PEER_NO_SMC (0x03010000), -t, fallback PEER_NO_SMC (0x03010000)"},
		{"no v2 extension", "Dv2 Rv2", func(p *clc.Proposal) { p.Ext = nil }, "send Decline v2 NOV2EXT (0x03030004), -t, fallback NOV2EXT (0x03030004)"},
		{"no v2 extension, but version 1", "Dv2 Dv1", func(p *clc.Proposal) { p.Ext = nil }, "t(4), prepare SMC-Dv1"},
		{"no Dv2 extension", "Dv2", func(p *clc.Proposal) { p.Ext.D = nil }, "send Decline v2 NOV2DEXT (0x03030005), -t, fallback NOV2DEXT (0x03030005)"},
		{"no Dv2 extension, but the associated device", "Dv2 Dv1", func(p *clc.Proposal) { p.Ext.D = nil }, "t(4), prepare SMC-Dv2"},
		{"no EIDs", "Dv2 Rv2", func(p *clc.Proposal) { p.Ext.UEIDs, p.Ext.D.HasSEID = nil, false }, "send Decline v2 NOUEID (0x03030008), -t, fallback NOUEID (0x03030008)"},
		{"SEID only", "Dv2 Rv2", func(p *clc.Proposal) { p.Ext.UEIDs = nil }, "t(4), prepare SMC-Dv2"},
		{"SEID only, SMC-R", "Rv2", func(p *clc.Proposal) { p.Ext.UEIDs = nil }, "send Decline v2 NOUEID (0x03030008), -t, fallback NOUEID (0x03030008)"},
		{"SEID only, and no limits either", "Rv2", func(p *clc.Proposal) { p.Ext.UEIDs, p.Ext.MaxConns = nil, 0 }, "send Decline v2 NOUEID (0x03030008), -t, fallback NOUEID (0x03030008)"},
		{"SEID only, SMC-R without limits", "Dv2 Rv2", func(p *clc.Proposal) { p.Ext.UEIDs, p.Ext.MaxConns = nil, 0 }, "t(4), prepare SMC-Dv2"},
		{"SEID flag off", "Dv2", func(p *clc.Proposal) { p.Ext.D.HasSEID = false; p.Ext.UEIDs = p.Ext.UEIDs[1:] }, "t(4), prepare SMC-Dv2"},
		{"max conns 15", "Rv2", func(p *clc.Proposal) { p.Ext.MaxConns = 15 }, "send Decline v2 MAXCONNS (0x0303000a), -t, fallback MAXCONNS (0x0303000a)"},
		{"max conns 15, SMC-D would do", "Dv2 Rv2", func(p *clc.Proposal) { p.Ext.MaxConns = 15 }, "send Decline v2 MAXCONNS (0x0303000a), -t, fallback MAXCONNS (0x0303000a)"},
		{"max conns 0 without SMC-R", "Dv2", func(p *clc.Proposal) { p.Ext.MaxConns = 0 }, "t(4), prepare SMC-Dv2"},
		{"max conns 0 in release 0", "Rv2", func(p *clc.Proposal) { p.Ext.Release, p.Ext.MaxConns = 0, 0 }, "t(4), prepare SMC-Rv2"},
		{"max links 0", "Rv2", func(p *clc.Proposal) { p.Ext.MaxLinks = 0 }, "send Decline v2 MAXLINKS (0x0303000b), -t, fallback MAXLINKS (0x0303000b)"},
		{"max links 200", "Rv2", func(p *clc.Proposal) { p.Ext.MaxLinks = 200 }, "t(4), prepare SMC-Rv2"},
		{"GID of the other IP version", "Rv2", func(p *clc.Proposal) { p.Ext.GID = wire.GID{0: 0x20, 1: 1, 15: 1} }, "send Decline v2 NOSMCRDEV (0x03030002), -t, fallback NOSMCRDEV (0x03030002)"},
		{"GID right-aligned", "Rv2", func(p *clc.Proposal) { p.Ext.GID = wire.GID{12: 10, 15: 1} }, "t(4), prepare SMC-Rv2"},
		{"no GID", "Rv2", func(p *clc.Proposal) { p.Ext.GID = wire.GID{} }, "send Decline v2 NOSMCRDEV (0x03030002), -t, fallback NOSMCRDEV (0x03030002)"},
		{"Emulated-ISM without its feature bit", "Dv2", func(p *clc.Proposal) { p.Ext.Features &^= clc.FeatureEmulatedISM }, "send Decline v2 NOSMCD2DEV (0x03030007), -t, fallback NOSMCD2DEV (0x03030007)"},
		{"Emulated-ISM in release 0", "Dv2", func(p *clc.Proposal) { p.Ext.Release = 0 }, "send Decline v2 NOSMCD2DEV (0x03030007), -t, fallback NOSMCD2DEV (0x03030007)"},
		{"native ISM in release 0", "Dv2", func(p *clc.Proposal) {
			p.Ext.Release, p.Ext.Features = 0, 0
			p.Ext.D.Devices = []clc.ISMDevice{{GID: wire.ISMGID{Hi: clientNative}, CHID: 0x0700}}
		}, "t(4), prepare SMC-Dv2"},
		{"release 9", "Rv2", func(p *clc.Proposal) { p.Ext.Release = 9 }, "t(4), prepare SMC-Rv2"},
		{"no IP area", "Dv1 Rv1", func(p *clc.Proposal) { p.IP = nil }, "send Decline v1 DIFFPREFIX (0x03070000), -t, fallback DIFFPREFIX (0x03070000)"},
		{"version 1", "Dv1", func(p *clc.Proposal) { p.Version = clc.V1 }, "t(4), prepare SMC-Dv1"},
		{"version 1 declined in version 1", "Dv1", func(p *clc.Proposal) { p.Version = clc.V1; p.ISMGID++ }, "send Decline v1 NOSMCDDEV (0x03030001), -t, fallback NOSMCDDEV (0x03030001)"},
	} {
		p := good(tt.types)
		tt.change(&p)
		server := serverCaps(t)
		server.Peer = netip.MustParseAddr("::ffff:10.0.0.1") // as a socket for both versions of IP has it
		h := NewHandshake(RoleServer, server)
		h.SetReachable(clientGID, wire.ISMGID{Hi: clientNative})
		h.Start(epoch, nil)
		if got := words(epoch, h.HandleMessage(epoch, p, nil, nil)); got != tt.want {
			t.Errorf("%s: HandleMessage(%v) = %s, want %s", tt.name, p, got, tt.want)
		}
	}
}

// TestTolerationServer checks that a server of release 0 takes no notice of the fields that release
// 1 has added: limits that a server of release 1 declines.
func TestTolerationServer(t *testing.T) {
	client := only(clientCaps(t), "Rv2").normalized()
	p, _ := client.proposal()
	p.Ext.MaxConns, p.Ext.MaxLinks = 15, 0
	server := serverCaps(t)
	server.Release = clc.Release0
	h := NewHandshake(RoleServer, server)
	h.Start(epoch, nil)
	outs := h.HandleMessage(epoch, p, nil, nil)
	if got := words(epoch, outs); got != "t(4), prepare SMC-Rv2" {
		t.Fatalf("HandleMessage(%v) = %s, want Prepare", p, got)
	}
	outs = h.Prepared(epoch, resources(outs[1].(Prepare).Choice, RoleServer, true, 0x20), nil)
	if a, ok := outs[0].(SendCLC).Message.(clc.Accept); !ok || a.FCE == nil || a.FCE.Release != clc.Release0 ||
		a.FCE.MaxConns != 0 || a.FCE.MaxLinks != 0 || a.FCE.Features != 0 {
		t.Errorf("Prepared = %s, want an Accept in release 0", words(epoch, outs))
	}
}

// TestKernelDeviceSkipped checks that a kernel's loopback device, which has our CHID but a GID out
// of reach, is passed over for the next device and the next type.
func TestKernelDeviceSkipped(t *testing.T) {
	client := clientCaps(t)
	client.ISM = []clc.ISMDevice{
		{GID: kernelGID, CHID: wire.CHIDLoopback},
		{GID: clientGID, CHID: wire.CHIDLoopback},
	}
	client = client.normalized()
	proposal, _ := client.proposal()
	h := NewHandshake(RoleServer, only(serverCaps(t), "Dv2 Rv2"))
	h.SetReachable(clientGID)
	h.Start(epoch, nil)
	outs := h.HandleMessage(epoch, proposal, nil, nil)
	prepare, ok := outs[len(outs)-1].(Prepare)
	if !ok || prepare.Choice.Remote.GID != clientGID || prepare.Choice.Local.GID != serverGID {
		t.Errorf("HandleMessage = %+v, want Prepare with the device that can be reached", outs)
	}
	h = NewHandshake(RoleServer, only(serverCaps(t), "Dv2 Rv2"))
	h.Start(epoch, nil) // nothing is reachable
	if got := words(epoch, h.HandleMessage(epoch, proposal, nil, nil)); got != "t(4), prepare SMC-Rv2" {
		t.Errorf("HandleMessage = %s, want SMC-Rv2", got)
	}
}

// TestEIDOrder checks the choice among several EIDs: the SEID first, then the client's order.
func TestEIDOrder(t *testing.T) {
	e := func(names ...string) []wire.EID {
		var l []wire.EID
		for _, n := range names {
			l = append(l, eid(t, n))
		}
		return l
	}
	seid, otherSEID := eid(t, "GOSMC-A"), eid(t, "GOSMC-B")
	for _, tt := range []struct {
		name         string
		clientSEID   wire.EID
		clientUEIDs  []wire.EID
		serverSEID   wire.EID
		serverUEIDs  []wire.EID
		wantD, wantR string // "" for none
	}{
		{"SEID first", seid, e("A", "B"), seid, e("A"), "GOSMC-A", "A"},
		{"client's order", wire.EID{}, e("C", "B", "A"), wire.EID{}, e("A", "B"), "B", "B"},
		{"SEIDs differ", seid, e("A"), otherSEID, e("A"), "A", "A"},
		{"SEIDs differ, no UEID", seid, nil, otherSEID, e("A"), "", ""},
		{"server's SEID off", seid, e("A"), wire.EID{}, e("A"), "A", "A"},
		{"client's SEID off", wire.EID{}, e("A"), seid, e("A"), "A", "A"},
		{"SEID is not for SMC-R", seid, e("X"), seid, e("A"), "GOSMC-A", ""},
		{"server's SEID as the client's UEID", wire.EID{}, []wire.EID{seid}, seid, e("A"), "", ""},
		{"nothing in common", wire.EID{}, e("A"), wire.EID{}, e("B"), "", ""},
	} {
		for _, types := range []string{"Dv2", "Rv2"} {
			client, server := only(clientCaps(t), types), only(serverCaps(t), types)
			client.SEID, client.UEIDs = tt.clientSEID, tt.clientUEIDs
			server.SEID, server.UEIDs = tt.serverSEID, tt.serverUEIDs
			p := newPair(t, client, server).run()
			want := tt.wantD
			if types == "Rv2" {
				want = tt.wantR
			}
			got := p.result[RoleClient].EID.String()
			if got != want || p.result[RoleServer].EID.String() != want {
				t.Errorf("%s, %s: EID %q, want %q\n%s", tt.name, types, got, want, strings.Join(p.log, "\n"))
			}
		}
	}
}

// TestNetworks checks when two hosts are on one network.
func TestNetworks(t *testing.T) {
	prefixes := func(list string) []netip.Prefix {
		var l []netip.Prefix
		for s := range strings.FieldsSeq(list) {
			l = append(l, netip.MustParsePrefix(s))
		}
		return l
	}
	for _, tt := range []struct {
		client, server string
		want           bool
	}{
		{"10.0.0.1/24", "10.0.0.2/24", true},
		{"10.0.0.1/24", "10.0.0.2/25", false},
		{"10.0.0.1/24", "10.0.1.2/24", false},
		{"10.0.0.1/24", "192.168.0.1/16 10.0.0.9/24", true},
		{"10.0.0.1/24 192.168.0.1/16", "192.168.0.1/16", false}, // one is sent
		{"127.0.0.1/8", "127.0.0.1/8", true},
		{"2001:db8::1/64", "2001:db8::2/64", true},
		{"2001:db8::1/64", "2001:db8::2/65", false},
		{"2001:db8:1::1/64 2001:db8::1/64", "2001:db8::2/64", true},
		{"fe80::1/64 2001:db8::1/64", "fe80::2/64 2001:db9::2/64", false}, // link-local does not count
		{"10.0.0.1/24", "2001:db8::2/64", false},
	} {
		c := Capabilities{Networks: prefixes(tt.client)}
		s := Capabilities{Networks: prefixes(tt.server)}
		if got := s.matchNetwork(c.ipArea()); got != tt.want {
			t.Errorf("matchNetwork of %s and %s = %t, want %t", tt.client, tt.server, got, tt.want)
		}
	}
	s := Capabilities{Networks: prefixes("10.0.0.0/24")}
	if s.matchNetwork(&clc.IPArea{}) || s.matchNetwork(nil) {
		t.Error("matchNetwork of an empty area = true")
	}
	s = Capabilities{Networks: prefixes("fe80::1/64 2001:db8::1/64")}
	if s.matchNetwork(&clc.IPArea{IPv6: prefixes("fe80::/64")}) {
		t.Error("matchNetwork of a client's link-local network = true: every host is on that")
	}
	linkLocal := Capabilities{Networks: prefixes("fe80::1/64")}
	if a := linkLocal.ipArea(); a != nil {
		t.Errorf("ipArea of a link-local network = %v, want nil", a)
	}
}

// TestClientOffers checks the Proposal of a client for its capabilities.
func TestClientOffers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		types  string
		change func(c *Capabilities)
		want   string // V1, V2; or the Decline
	}{
		{"all", "Dv2 Dv1 Rv2 Rv1", nil, "R+D R+D"},
		{"SMC-Dv2", "Dv2", nil, "none D"},
		{"SMC-Rv1", "Rv1", nil, "R none"},
		{"nothing", "", nil, "send Decline v1 CNF_ERR (0x03000000), fallback CNF_ERR (0x03000000)"},
		{"no EID at all", "Dv2 Rv2", func(c *Capabilities) { c.SEID, c.UEIDs = wire.EID{}, nil },
			"send Decline v1 CNF_ERR (0x03000000), fallback CNF_ERR (0x03000000)"},
		{"no UEID", "Dv2 Rv2", func(c *Capabilities) { c.UEIDs = nil }, "none D"},
		{"no SEID", "Dv2 Rv2", func(c *Capabilities) { c.SEID = wire.EID{} }, "none R+D"},
		{"no network", "Dv2 Dv1 Rv1", func(c *Capabilities) { c.Networks = nil }, "none D"},
		{"link-local network", "Dv2 Dv1 Rv1", func(c *Capabilities) { c.Networks = []netip.Prefix{netip.MustParsePrefix("fe80::1/64")} }, "none D"},
		{"no network, version 1 only", "Dv1 Rv1", func(c *Capabilities) { c.Networks = nil },
			"send Decline v1 CNF_ERR (0x03000000), fallback CNF_ERR (0x03000000)"},
		{"refused", "Dv2", func(c *Capabilities) { c.Refuse = clc.DiagPolicy },
			"send Decline v1 CNF_ERR (0x03000000), fallback POLICY (0x7e010012)"},
		{"Emulated-ISM in release 0", "Dv2", func(c *Capabilities) { c.Release = clc.Release0 },
			"send Decline v1 CNF_ERR (0x03000000), fallback CNF_ERR (0x03000000)"},
		{"GID of the other IP version", "Dv2 Rv2", func(c *Capabilities) { c.Peer = netip.MustParseAddr("2001:db8::2") }, "none D"},
		{"GID of the IP version", "Dv2 Rv2", func(c *Capabilities) { c.Peer = netip.MustParseAddr("10.0.0.2") }, "none R+D"},
		{"impossible device", "Dv2", func(c *Capabilities) { c.ISM = []clc.ISMDevice{{GID: clientGID, CHID: 7}} },
			"send Decline v1 INTERR (0x09990000), fallback INTERR (0x09990000)"},
	} {
		c := only(clientCaps(t), tt.types)
		if tt.change != nil {
			tt.change(&c)
		}
		h := NewHandshake(RoleClient, c)
		outs := h.Start(epoch, nil)
		got := words(epoch, outs)
		if send, ok := outs[0].(SendCLC); ok {
			if p, ok := send.Message.(clc.Proposal); ok {
				got = fmt.Sprintf("%v %v", p.V1, p.V2)
				if len(outs) != 2 || outs[1] != HandshakeOutput(SetTimer{epoch.Add(HandshakeTimeout)}) || h.State() != HandshakeAwaitAccept {
					t.Errorf("%s: Start = %s in state %v", tt.name, words(epoch, outs), h.State())
				}
				parsed, err := clc.Parse(p.Append(nil))
				if err != nil || parsed.String() != p.String() {
					t.Errorf("%s: %v is parsed as %v, %v", tt.name, p, parsed, err)
				}
			}
		}
		if got != tt.want {
			t.Errorf("%s: Start = %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestOfferedDevices checks the limit of 8 entries, of which an Emulated-ISM device takes two.
func TestOfferedDevices(t *testing.T) {
	native := func(n uint64) clc.ISMDevice { return clc.ISMDevice{GID: wire.ISMGID{Hi: n}, CHID: wire.CHID(n)} }
	emulated := func(n uint64) clc.ISMDevice {
		return clc.ISMDevice{GID: wire.ISMGID{Hi: n, Lo: n}, CHID: wire.CHIDEmulatedFirst + wire.CHID(n)}
	}
	c := Capabilities{Release: clc.Release1, ISM: []clc.ISMDevice{
		native(1), emulated(1), emulated(2), emulated(3), emulated(4), native(2), native(3),
	}}
	want := []clc.ISMDevice{native(1), emulated(1), emulated(2), emulated(3), native(2)}
	n := c.normalized()
	if !slices.Equal(n.ISM, want) || n.Features != clc.FeatureEmulatedISM {
		t.Errorf("normalized devices = %v, features %x, want %v", n.ISM, n.Features, want)
	}
	if n := (Capabilities{Release: clc.Release1}).normalized(); n.Features != clc.FeatureEmulatedISM {
		t.Errorf("features of a host without such a device = %x, want the bit all the same", n.Features)
	}
	c.Release = clc.Release0
	if n := c.normalized(); !slices.Equal(n.ISM, []clc.ISMDevice{native(1), native(2), native(3)}) || n.Features != 0 {
		t.Errorf("normalized devices in release 0 = %v, features %x", n.ISM, n.Features)
	}
	for _, tt := range []struct{ conns, links, wantConns, wantLinks uint8 }{
		{0, 0, 16, 1}, {15, 1, 16, 1}, {16, 2, 16, 2}, {255, 3, 255, 2}, {32, 255, 32, 2},
	} {
		n := Capabilities{MaxConns: tt.conns, MaxLinks: tt.links}.normalized()
		if n.MaxConns != tt.wantConns || n.MaxLinks != tt.wantLinks {
			t.Errorf("normalized limits of %d, %d = %d, %d, want %d, %d", tt.conns, tt.links, n.MaxConns, n.MaxLinks, tt.wantConns, tt.wantLinks)
		}
	}
}

// TestPrepareTimer checks that all choices together have one PrepareTimeout: the client waits.
func TestPrepareTimer(t *testing.T) {
	client := only(clientCaps(t), "Dv2 Dv1").normalized()
	proposal, _ := client.proposal()
	h := NewHandshake(RoleServer, serverCaps(t))
	h.SetReachable(clientGID, wire.ISMGID{Hi: clientNative})
	h.Start(epoch, nil)
	h.HandleMessage(epoch, proposal, nil, nil)
	want := epoch.Add(PrepareTimeout)
	outs := h.PrepareFailed(epoch.Add(PrepareTimeout/2), clc.DiagMemory, nil)
	if got := words(epoch, outs); got != "prepare SMC-Dv2" || !h.Deadline().Equal(want) {
		t.Errorf("PrepareFailed = %s with deadline %v, want the next choice with deadline %v", got, h.Deadline(), want)
	}
	if PrepareTimeout >= HandshakeTimeout || LinkTurnTimeout >= LinkWaitTimeout {
		t.Error("a Decline would find that the peer has given up")
	}
}

// TestMaximaOfBoth checks that a server agrees to the limits of the host with the lower limits,
// whichever that is.
func TestMaximaOfBoth(t *testing.T) {
	for _, tt := range []struct{ clientConns, clientLinks, serverConns, serverLinks, conns, links uint8 }{
		{64, 2, 32, 1, 32, 1},
		{32, 1, 64, 2, 32, 1},
		{16, 2, 255, 1, 16, 1},
		{255, 2, 255, 2, 255, 2},
	} {
		client, server := only(clientCaps(t), "Rv2"), only(serverCaps(t), "Rv2")
		client.MaxConns, client.MaxLinks = tt.clientConns, tt.clientLinks
		server.MaxConns, server.MaxLinks = tt.serverConns, tt.serverLinks
		p := newPair(t, client, server).run()
		for _, role := range []Role{RoleClient, RoleServer} {
			if r := p.result[role]; r.MaxConns != tt.conns || r.MaxLinks != tt.links {
				t.Errorf("%+v: %v has %d connections and %d links", tt, role, r.MaxConns, r.MaxLinks)
			}
		}
	}
}

// TestAssociatedDeviceFirst checks that a server tries the ISM device of the client's own network
// before those in the list, for version 2 too: SMCv2 p.54, note 4.
func TestAssociatedDeviceFirst(t *testing.T) {
	client := only(clientCaps(t), "Dv2 Dv1").normalized()
	p, _ := client.proposal()
	h := NewHandshake(RoleServer, serverCaps(t))
	h.SetReachable(clientGID, wire.ISMGID{Hi: clientNative})
	h.Start(epoch, nil)
	outs := h.HandleMessage(epoch, p, nil, nil)
	var order []wire.CHID
	for {
		prepare, ok := outs[len(outs)-1].(Prepare)
		if !ok || prepare.Choice.Version != clc.V2 {
			break
		}
		order = append(order, prepare.Choice.Remote.CHID)
		outs = h.PrepareFailed(epoch, clc.DiagMemory, nil)
	}
	if want := []wire.CHID{0x0700, wire.CHIDLoopback}; !slices.Equal(order, want) {
		t.Errorf("devices were tried in the order %v, want %v", order, want)
	}
}

// TestReasonKept checks the bit "SMC Type RC Saved" of an Accept for SMC-Rv2: whether the client offered
// SMC-D too, and the server knows why it did not take that (SMCv2 p.66).
func TestReasonKept(t *testing.T) {
	for _, tt := range []struct {
		client, server string
		want           bool
	}{
		{"Rv2", "Rv2", false},
		{"Dv2 Rv2", "Rv2", true},
		{"Dv1 Rv2", "Rv2", true},
		{"Dv2 Rv2", "Dv2 Rv2", true},
		{"Dv1 Rv1", "Rv1", false}, // version 1 has no such bit
	} {
		p := newPair(t, only(clientCaps(t), tt.client), only(serverCaps(t), tt.server))
		p.try = func(_ Role, c Choice) clc.Diagnosis {
			if c.Mode == SMCD {
				return clc.DiagMemory
			}
			return clc.DiagNone
		}
		p.run()
		got := p.result[RoleClient]
		if got.Mode != SMCR || got.ReasonKept != tt.want {
			t.Errorf("client %q, server %q: client has %v with ReasonKept %t, want SMC-R with %t", tt.client, tt.server, got.Mode, got.ReasonKept, tt.want)
		}
	}
}

// TestSEIDNotForSMCR checks that a system EID in common does not let two hosts use SMC-R, which needs a
// UEID: SMCv2 p.57, note 2, p.60, note 2.
func TestSEIDNotForSMCR(t *testing.T) {
	client, server := only(clientCaps(t), "Dv2 Rv2"), only(serverCaps(t), "Rv2")
	client.UEIDs, server.UEIDs = []wire.EID{eid(t, "X")}, []wire.EID{eid(t, "A")}
	if client.SEID != server.SEID {
		t.Fatal("no SEID in common")
	}
	p := newPair(t, client, server).run()
	if len(p.tried) > 0 || p.end(RoleServer) != "fallback NOUEID (0x03030008)" {
		t.Errorf("the server tried %v and ended with %s, want a Decline for want of a UEID", p.tried, p.end(RoleServer))
	}
}

// TestHandshakeWaitOn has a server wait longer for CLC messages, and still take those that come.
func TestHandshakeWaitOn(t *testing.T) {
	client := only(clientCaps(t), "Rv2").normalized()
	proposal, _ := client.proposal()
	h := NewHandshake(RoleServer, only(serverCaps(t), "Rv2"))
	h.Start(epoch, nil)
	later := epoch.Add(HandshakeTimeout)
	if h.WaitOn(epoch.Add(1), nil); !h.Deadline().Equal(later.Add(1)) {
		t.Errorf("WaitOn for a Proposal: deadline %v, want %v", h.Deadline(), later.Add(1))
	}
	outs := h.HandleMessage(epoch, proposal, nil, nil)
	if preparing := h.Deadline(); len(h.WaitOn(later, nil)) != 0 || !h.Deadline().Equal(preparing) {
		t.Errorf("WaitOn in %v: deadline %v, want %v", h.State(), h.Deadline(), preparing)
	}
	h.Prepared(epoch, resources(outs[len(outs)-1].(Prepare).Choice, RoleServer, true, 0x20), nil)
	if h.State() != HandshakeAwaitConfirm || !h.Deadline().Equal(later) {
		t.Fatalf("%v until %v, want %v until %v", h.State(), h.Deadline(), HandshakeAwaitConfirm, later)
	}
	h.WaitOn(later, nil)
	if outs := h.Advance(later, nil); len(outs) != 0 || h.Over() || !h.Deadline().Equal(later.Add(HandshakeTimeout)) {
		t.Errorf("Advance after WaitOn = %v, %v, deadline %v", outs, h.State(), h.Deadline())
	}
	if h.Advance(later.Add(HandshakeTimeout), nil); h.State() != HandshakeFailed {
		t.Errorf("%v in the end, want %v", h.State(), HandshakeFailed)
	}
}

// TestHandshakeLateDecline has the link fail for a server before the client's Decline is there, which says why: the connection becomes TCP, as the client
// has made it. Without a Decline it ends, as the client may take the link for confirmed.
func TestHandshakeLateDecline(t *testing.T) {
	for _, declines := range []bool{true, false} {
		b := newBench(t, RoleServer, "r1")
		for _, w := range strings.Fields("start proposal prepared confirm requested") {
			b.do(w)
		}
		if now, outs := b.do("down"); words(now, outs) != "t(5)" || b.h.State() != HandshakeLinkWait {
			t.Fatalf("the link fails: %s, %v; want to wait on", words(now, outs), b.h.State())
		}
		event, want := "decline", HandshakeFellBack
		if !declines {
			event, want = "late", HandshakeFailed
		}
		if now, outs := b.do(event); b.h.State() != want {
			t.Errorf("%s: %v, %s; want %v", event, b.h.State(), words(now, outs), want)
		}
	}
}
