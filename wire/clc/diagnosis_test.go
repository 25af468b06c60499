package clc

import (
	"regexp"
	"strings"
	"testing"
)

// TestCatalogue checks that the catalogue is complete, in order and without doubles.
func TestCatalogue(t *testing.T) {
	tag := regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)
	seen := map[string]Diagnosis{}
	var last Diagnosis
	for i, r := range Reasons() {
		if i > 0 && r.Code <= last {
			t.Errorf("%v is not in order", r)
		}
		last = r.Code
		if other, ok := seen[r.Tag]; ok || !tag.MatchString(r.Tag) || r.Tag == "UNKNOWN" || r.Tag == "VENDOR" {
			t.Errorf("%v: bad tag, or that of %#x", r, uint32(other))
		}
		seen[r.Tag] = r.Code
		for _, s := range []string{r.Sentence, r.Cause, r.Advice} {
			if s == "" || !strings.HasSuffix(s, ".") || s[:1] != strings.ToUpper(s[:1]) {
				t.Errorf("%v: %q is no sentence", r, s)
			}
		}
		if want := r.Code.IsLocal() || r.Code == DiagPeerDeclined; r.Local != want {
			t.Errorf("%v: Local = %v, want %v", r, r.Local, want)
		}
		if got := Lookup(r.Code, OSLinux); got != r {
			t.Errorf("Lookup(%#x) = %v, want %v", uint32(r.Code), got, r)
		}
		if got, ok := LookupTag(r.Tag); !ok || got != r {
			t.Errorf("LookupTag(%q) = %v, %v; want %v", r.Tag, got, ok, r)
		}
	}
}

// TestLinuxTags has the numbers and tags as tools for Linux print them.
func TestLinuxTags(t *testing.T) {
	for d, want := range map[Diagnosis]string{
		0x01010000: "MEMORY", 0x02010000: "TIMEOUT_CL", 0x02020000: "TIMEOUT_AL", 0x03000000: "CNF_ERR",
		0x03010000: "PEER_NO_SMC", 0x03020000: "IPSEC", 0x03030000: "NOSMCDEV", 0x03030001: "NOSMCDDEV",
		0x03030002: "NOSMCRDEV", 0x03030003: "NOISM2SUPP", 0x03030004: "NOV2EXT", 0x03030005: "NOV2DEXT",
		0x03030006: "NOSEID", 0x03030007: "NOSMCD2DEV", 0x03030008: "NOUEID", 0x03030009: "RELEASE",
		0x0303000a: "MAXCONNS", 0x0303000b: "MAXLINKS", 0x03040000: "MODEUNSUPP", 0x03050000: "RMBE_EC",
		0x03060000: "OPTUNSUPP", 0x03070000: "DIFFPREFIX", 0x03080000: "GETVLANERR", 0x03090000: "ISMVLANERR",
		0x030a0000: "NOACTLINK", 0x030b0000: "NOSRVLINK", 0x030c0000: "VERSMISMAT", 0x030d0000: "MAX_DMB",
		0x030e0000: "NOROUTE", 0x030f0000: "INDIRECT", 0x04000000: "SYNCERR", 0x05000000: "PEERDECL",
		0x09990000: "INTERR", 0x09990001: "RTOKENERR", 0x09990002: "LINKERR", 0x09990003: "REGERR",
		0x99990000: "INTERR_OLD",
	} {
		if got := Lookup(d, OSUnspecified).Tag; got != want {
			t.Errorf("Lookup(%#x).Tag = %q, want %q", uint32(d), got, want)
		}
		if want := d; d != DiagPeerDeclined && d.WireCode() != want {
			t.Errorf("%#x.WireCode() = %#x, want %#x", uint32(d), uint32(d.WireCode()), uint32(want))
		}
	}
}

// TestLocalReasons checks that every local reason has a number for the wire which Linux knows.
func TestLocalReasons(t *testing.T) {
	for d, want := range map[Diagnosis]Diagnosis{
		DiagNotLocal: DiagPeerNoSMC, DiagNoListener: DiagPeerNoSMC, DiagStale: DiagPeerNoSMC, DiagForeign: DiagPeerNoSMC,
		DiagOtherUser: DiagConfig, DiagRefused: DiagPeerNoSMC, DiagNoRunDir: DiagConfig,
		DiagRendezvousTimeout: DiagPeerNoSMC, DiagNotAccepted: DiagPeerNoSMC, DiagIncompatible: DiagVersion,
		DiagCrowded: DiagPeerNoSMC, DiagNoSockDiag: DiagConfig,
		DiagNetwork: DiagConfig, DiagDisabled: DiagConfig, DiagPolicy: DiagConfig, DiagClosing: DiagConfig,
		DiagInherited: DiagPeerNoSMC, DiagBubble: DiagConfig, DiagNotAllowed: DiagConfig,
		DiagBudget: DiagMemory, DiagNoFile: DiagMemory, DiagLimit: DiagMaxDMB, DiagBusy: DiagPeerNoSMC,
		DiagUnreachable: DiagNoSMCDv2Device, DiagFabric: DiagBufferRegistration,
		DiagPeerDeclined: DiagInternal, 0x7e01ffff: DiagInternal,
	} {
		if got := d.WireCode(); got != want {
			t.Errorf("%v.WireCode() = %v, want %v", d, got, want)
		}
	}
	for _, r := range Reasons() {
		if w := r.Code.WireCode(); w.IsLocal() || w.WireCode() != w {
			t.Errorf("%v.WireCode() = %v, want a number that can be sent", r, w)
		}
	}
}

func TestLookup(t *testing.T) {
	for _, tt := range []struct {
		d    Diagnosis
		os   OS
		want string
	}{
		{0x03030000, OSUnspecified, "NOSMCDEV (0x03030000)"},
		{0x03030000, OSLinux, "NOSMCDEV (0x03030000)"},
		{0x03030000, OSZOS, "VENDOR (0x03030000)"},
		{0x52060001, OSAIX, "VENDOR (0x52060001)"},
		{0x52060001, OSUnknown, "VENDOR (0x52060001)"},
		{0x52060001, 7, "VENDOR (0x52060001)"},
		{0x52060001, OSLinux, "UNKNOWN (0x52060001)"},
		{0, OSZOS, "NONE (0x00000000)"},
		{DiagStale, OSUnspecified, "STALE (0x7e010002)"},
		{0xffffffff, OSUnspecified, "UNKNOWN (0xffffffff)"},
	} {
		r := Lookup(tt.d, tt.os)
		if r.String() != tt.want || r.Code != tt.d || r.Sentence == "" || r.Cause == "" || r.Advice == "" {
			t.Errorf("Lookup(%#x, %v) = %+v, want %s", uint32(tt.d), tt.os, r, tt.want)
		}
	}
	// A peer in a container of this machine is as little local as one on another host, and needs another advice.
	for _, where := range []string{"another host", "another network namespace", "container"} {
		if r := Lookup(DiagNotLocal, OSUnspecified); !strings.Contains(r.Cause, where) {
			t.Errorf("Lookup(%v).Cause = %q, want %q in it", DiagNotLocal, r.Cause, where)
		}
	}
	if r := Lookup(1, OSZOS); !strings.Contains(r.Sentence, "z/OS") {
		t.Errorf("Lookup(1, z/OS).Sentence = %q, want the system's name in it", r.Sentence)
	}
	if _, ok := LookupTag("memory"); ok {
		t.Errorf(`LookupTag("memory") = true, want false: tags have capitals`)
	}
}

// TestPeerReason explains a peer's number, which is never one of our own.
func TestPeerReason(t *testing.T) {
	for _, os := range []OS{OSUnspecified, OSLinux} {
		d := Decline{Version: V2, Diagnosis: DiagForeign, OS: os}
		if r := d.Reason(); r.Tag != "UNKNOWN" || r.Local {
			t.Errorf("%v.Reason() = %+v, want UNKNOWN", d, r)
		}
	}
	if r := (Decline{Version: V2, Diagnosis: DiagNoUEID, OS: OSLinux}).Reason(); r.Tag != "NOUEID" {
		t.Errorf("Reason() = %+v, want NOUEID", r)
	}
	if r := (Decline{Version: V2, Diagnosis: DiagNoUEID, OS: OSZOS}).Reason(); r.Tag != "VENDOR" {
		t.Errorf("Reason() = %+v, want VENDOR", r)
	}
}
