package clc

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/gosmc/smc/wire"
)

// TestValidate has the messages that cannot be sent; Append panics for them.
func TestValidate(t *testing.T) {
	v4 := netip.MustParsePrefix("192.0.2.0/24")
	v6 := netip.MustParsePrefix("2001:db8::/64")
	r, d := testParamsR, testParamsD
	fce := &FCE{OS: OSLinux}
	changedR := func(change func(*ParamsR)) *ParamsR { p := r; change(&p); return &p }
	changedD := func(change func(*ParamsD)) *ParamsD { p := d; change(&p); return &p }
	proposal := func(change func(*Proposal)) Proposal {
		p := Proposal{
			Version: V2, V1: TypesBoth, V2: TypesBoth, IP: &IPArea{IPv4: v4},
			Ext: &ProposalV2{D: &ProposalDv2{}},
		}
		change(&p)
		return p
	}
	emulated := ISMDevice{wire.ISMGID{Hi: 1, Lo: 2}, wire.CHIDLoopback}
	for _, tt := range []struct {
		what string
		msg  Message
	}{
		{"version 0", proposal(func(p *Proposal) { p.Version = 0 })},
		{"version 3", proposal(func(p *Proposal) { p.Version = 3 })},
		{"types", proposal(func(p *Proposal) { p.V1 = 4 })},
		{"types", proposal(func(p *Proposal) { p.V2 = 4 })},
		{"version 2 types in version 1", proposal(func(p *Proposal) { p.Version = V1 })},
		{"nothing offered", Proposal{Version: V2, V1: TypesNone, V2: TypesNone}},
		{"no IP area", proposal(func(p *Proposal) { p.IP = nil })},
		{"IP area", proposal(func(p *Proposal) { p.V1 = TypesNone })},
		{"no v2 extension", proposal(func(p *Proposal) { p.Ext = nil })},
		{"v2 extension", proposal(func(p *Proposal) { p.V2 = TypesNone })},
		{"no SMC-Dv2 extension", proposal(func(p *Proposal) { p.Ext.D = nil })},
		{"SMC-Dv2 extension", proposal(func(p *Proposal) { p.V2 = TypesR })},
		{"ISM GID", proposal(func(p *Proposal) { p.V1, p.ISMGID = TypesR, 1 })},
		{"ISM CHID", proposal(func(p *Proposal) { p.V1, p.ISMCHID = TypesR, 1 })},
		{"no prefix", proposal(func(p *Proposal) { p.IP = &IPArea{} })},
		{"both prefixes", proposal(func(p *Proposal) { p.IP = &IPArea{IPv4: v4, IPv6: []netip.Prefix{v6}} })},
		{"9 prefixes", proposal(func(p *Proposal) { p.IP = &IPArea{IPv6: repeat(v6, 9)} })},
		{"IPv6 as IPv4", proposal(func(p *Proposal) { p.IP = &IPArea{IPv4: v6} })},
		{"IPv4 as IPv6", proposal(func(p *Proposal) { p.IP = &IPArea{IPv6: []netip.Prefix{v4}} })},
		{"bad IPv6", proposal(func(p *Proposal) { p.IP = &IPArea{IPv6: []netip.Prefix{{}}} })},
		{"9 UEIDs", proposal(func(p *Proposal) { p.Ext.UEIDs = repeat(eid("A"), 9) })},
		{"9 entries", proposal(func(p *Proposal) { p.Ext.D.Devices = repeat(ISMDevice{}, 9) })},
		{"10 entries", proposal(func(p *Proposal) { p.Ext.D.Devices = repeat(emulated, 5) })},
		{"native with Extended GID", proposal(func(p *Proposal) { p.Ext.D.Devices = []ISMDevice{{emulated.GID, 1}} })},
		{"release", proposal(func(p *Proposal) { p.Ext.Release = 16 })},

		{"version 0", Accept{R: &r}},
		{"no type", Accept{Version: V1}},
		{"both types", Accept{Version: V1, R: &r, D: &d}},
		{"FCE in version 1", Accept{Version: V1, FirstContact: true, R: &r, FCE: fce}},
		{"no FCE", Accept{Version: V2, FirstContact: true, R: &r}},
		{"FCE", Accept{Version: V2, R: &r, FCE: fce}},
		{"OS", Accept{Version: V2, FirstContact: true, R: &r, FCE: &FCE{OS: 16}}},
		{"release", Accept{Version: V2, FirstContact: true, D: &d, FCE: &FCE{Release: 16}}},
		{"QPN", Accept{Version: V1, R: changedR(func(p *ParamsR) { p.QPN = 1 << 24 })}},
		{"PSN", Accept{Version: V1, R: changedR(func(p *ParamsR) { p.PSN = 1 << 24 })}},
		{"size", Accept{Version: V1, R: changedR(func(p *ParamsR) { p.RMBESize = 16 })}},
		{"MTU", Accept{Version: V1, R: changedR(func(p *ParamsR) { p.MTU = 16 })}},
		{"size", Accept{Version: V1, D: changedD(func(p *ParamsD) { p.DMBESize = 16 })}},
		{"emulated in version 1", Accept{Version: V1, D: changedD(func(p *ParamsD) { p.CHID = wire.CHIDLoopback })}},
		{"native with Extended GID", Accept{Version: V2, D: changedD(func(p *ParamsD) { p.GID.Lo = 1 })}},
		{"reason kept in version 1", Accept{Version: V1, R: &r, ReasonKept: true}},
		{"reason kept for SMC-D", Accept{Version: V2, D: &d, ReasonKept: true}},
		{"no GIDs", Confirm{Version: V2, FirstContact: true, R: &r, FCE: fce}},
		{"9 GIDs", Confirm{Version: V2, FirstContact: true, R: &r, FCE: fce, ClientGIDs: repeat(testGID, 9)}},
		{"GIDs on later contact", Confirm{Version: V2, R: &r, ClientGIDs: repeat(testGID, 1)}},
		{"GIDs in version 1", Confirm{Version: V1, R: &r, ClientGIDs: repeat(testGID, 1)}},
		{"GIDs with SMC-D", Confirm{Version: V2, FirstContact: true, D: &d, FCE: fce, ClientGIDs: repeat(testGID, 1)}},

		{"version 0", Decline{}},
		{"OS", Decline{Version: V2, OS: 16}},
		{"local reason", Decline{Version: V2, Diagnosis: DiagBudget}},
		{"local reason by type", Decline{Version: V2, ByType: DiagnosisByType{SMCRv1: DiagBudget}}},
	} {
		err := tt.msg.Validate()
		if err == nil || !strings.HasPrefix(err.Error(), "clc: impossible "+tt.msg.Type().String()+": ") {
			t.Errorf("%v, %s: Validate = %v, want an error", tt.msg.Type(), tt.what, err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%v, %s: Append did not panic", tt.msg.Type(), tt.what)
				}
			}()
			tt.msg.Append(nil)
		}()
	}
}

// TestNotSent checks that fields which the version or release does not define stay behind.
func TestNotSent(t *testing.T) {
	for _, tt := range []struct {
		name      string
		got, want Message
	}{
		{"release 0 proposal",
			Proposal{
				Version: V2, V1: TypesNone, V2: TypesR, VendorOUI: [3]byte{1}, VendorOptions: [5]byte{1},
				Ext: &ProposalV2{MaxConns: 255, MaxLinks: 2, Features: 1},
			},
			Proposal{Version: V2, V1: TypesNone, V2: TypesR, Ext: &ProposalV2{}}},
		{"vendor options without OUI",
			Proposal{Version: V2, V1: TypesNone, V2: TypesR, VendorOptions: [5]byte{1}, Ext: &ProposalV2{Release: Release1}},
			Proposal{Version: V2, V1: TypesNone, V2: TypesR, Ext: &ProposalV2{Release: Release1}}},
		{"SEID without its flag",
			Proposal{Version: V2, V1: TypesNone, V2: TypesD, Ext: &ProposalV2{D: &ProposalDv2{SEID: eid("A")}}},
			Proposal{Version: V2, V1: TypesNone, V2: TypesD, Ext: &ProposalV2{D: &ProposalDv2{}}}},
		{"prefix that is not masked",
			Proposal{Version: V1, V1: TypesR, V2: TypesNone, IP: &IPArea{IPv4: netip.MustParsePrefix("192.0.2.77/24")}},
			Proposal{Version: V1, V1: TypesR, V2: TypesNone, IP: &IPArea{IPv4: netip.MustParsePrefix("192.0.2.0/24")}}},
		{"version 1 accept",
			Accept{Version: V1, FirstContact: true, R: &testParamsR, EID: eid("A")},
			Accept{Version: V1, FirstContact: true, R: &testParamsR}},
		{"version 1 confirm",
			Confirm{Version: V1, FirstContact: true, R: &testParamsR},
			Confirm{Version: V1, R: &testParamsR}},
		{"SMC-D first contact",
			Accept{Version: V2, FirstContact: true, D: &testParamsD, FCE: &FCE{Release: 1, Direct: true, MaxConns: 1, MaxLinks: 1}},
			Accept{Version: V2, FirstContact: true, D: &testParamsD, FCE: &FCE{Release: 1}}},
		{"release 0 first contact",
			Accept{Version: V2, FirstContact: true, R: &testParamsR, FCE: &FCE{MaxConns: 1, MaxLinks: 1, Features: 1, VendorOptions: [4]byte{1}}},
			Accept{Version: V2, FirstContact: true, R: &testParamsR, FCE: &FCE{}}},
		{"long host name",
			Accept{Version: V2, FirstContact: true, R: &testParamsR, FCE: &FCE{HostName: strings.Repeat("x", 99)}},
			Accept{Version: V2, FirstContact: true, R: &testParamsR, FCE: &FCE{HostName: strings.Repeat("x", 32)}}},
		{"version 1 decline",
			Decline{Version: V1, ByType: DiagnosisByType{SMCDv1: DiagMemory}},
			Decline{Version: V1}},
	} {
		got, err := Parse(tt.got.Append(nil))
		if err != nil || got.String() != tt.want.String() {
			t.Errorf("%s: Parse(Append) = %v, %v; want %v", tt.name, got, err, tt.want)
		}
	}
}

// TestHostName reads host names that no host should send.
func TestHostName(t *testing.T) {
	b := vectorBytes(t, "Accept v2.0 R, first contact")
	for _, tt := range []struct{ sent, want string }{
		{"server" + strings.Repeat(" ", 26), "server"},
		{"server" + strings.Repeat("\x00", 26), "server"},
		{"two words" + strings.Repeat(" ", 23), "two"},
		{strings.Repeat("y", 32), strings.Repeat("y", 32)},
		{strings.Repeat(" ", 32), ""},
		{"\x1b[2Jx" + strings.Repeat(" ", 27), ""},
		{"caf\xc3\xa9" + strings.Repeat(" ", 27), ""},
		{"del\x7f" + strings.Repeat(" ", 28), ""},
	} {
		copy(b[108:140], tt.sent)
		if a, err := ParseAccept(b); err != nil || a.FCE.HostName != tt.want {
			t.Errorf("ParseAccept with host name %q = %v, %v; want %q", tt.sent, a, err, tt.want)
		}
	}
}
