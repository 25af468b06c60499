package transport

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// TestReason has errors of fabrics and of the kernel: the peer is told why there is no SMC.
func TestReason(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want clc.Diagnosis
	}{
		{&DeclinedError{Why: clc.DiagBudget}, clc.DiagBudget},
		{fmt.Errorf("%w: %w", &DeclinedError{Why: clc.DiagSync}, unix.ENOMEM), clc.DiagSync}, // the fabric knows better
		{os.NewSyscallError("socket", unix.EMFILE), clc.DiagNoFile},
		{fmt.Errorf("open: %w", unix.ENFILE), clc.DiagNoFile},
		{os.NewSyscallError("mmap", unix.ENOMEM), clc.DiagMemory},
		{fmt.Errorf("write: %w", unix.ENOSPC), clc.DiagMemory},
		{unix.EPERM, clc.DiagUnreachable},
		{ErrUnreachable, clc.DiagUnreachable},
		{ErrGone, clc.DiagUnreachable},
	} {
		if got := Reason(tt.err); got != tt.want {
			t.Errorf("Reason(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}

// TestDeclinedError has the words of the catalogue, for each reason.
func TestDeclinedError(t *testing.T) {
	for _, why := range []clc.Diagnosis{clc.DiagBudget, clc.DiagSync} {
		want := clc.Lookup(why, clc.OSUnspecified).Sentence
		if got := (&DeclinedError{Why: why}).Error(); got != want || got == "" {
			t.Errorf("reason %v: %q, want %q", why, got, want)
		}
	}
}

// TestDetail has a peer break rules: the words say which one, and have no numbers of the peer, since they are counted and a peer could
// make any number of them.
func TestDetail(t *testing.T) {
	decode := &wire.DecodeError{Message: "llc.AddLink", Field: "length", Offset: 4711, Err: errors.New("4712 bytes")}
	for _, tt := range []struct {
		err  core.ProtocolError
		want string
	}{
		{core.ProtocolError{Message: "CLC Accept", State: "AwaitAccept", Err: errors.New("4713")}, "CLC Accept in AwaitAccept"},
		{core.ProtocolError{Message: "LLC message", State: "Active", Err: decode}, "LLC message in Active: llc.AddLink length"},
		{core.ProtocolError{Message: "LLC message", State: "Active", Err: fmt.Errorf("on link 4714: %w", decode)}, "LLC message in Active: llc.AddLink length"},
		{core.ProtocolError{Message: "CDC message", State: "Active"}, "CDC message in Active"},
	} {
		if got := Detail(&tt.err); got != tt.want || strings.Contains(got, "47") {
			t.Errorf("Detail(%v) = %q, want %q", &tt.err, got, tt.want)
		}
	}
}

// TestNoGroupError has the number as tools show it, and the fabric.
func TestNoGroupError(t *testing.T) {
	err := &NoGroupError{Group: 0xa1, Mode: core.SMCR}
	if got := err.Error(); got != "there is no link group 000000a1 of SMC-R" {
		t.Errorf("%q", got)
	}
}

// TestGroupStatus describes a link group before its first contact is over, and after.
func TestGroupStatus(t *testing.T) {
	eid, err := wire.ParseEID("GOSMC.TEST")
	if err != nil {
		t.Fatal(err)
	}
	gid := wire.GID{0xfe, 0x80, 15: 1}
	lg := &core.LinkGroup{
		Key: core.GroupKey{Mode: core.SMCR, Role: core.RoleServer, Version: clc.V2}, ID: 7, Conns: 3, MaxConns: 16, VLAN: 5, PNETID: "NET",
	}
	want := control.StatusGroup{
		ID: 7, Mode: "SMC-R", State: "Pending", Role: "server", VLAN: 5, PNETID: "NET", Conns: 3, MaxConns: 16, Links: []control.StatusLink{},
	}
	check := func(when string) {
		t.Helper()
		if got := GroupStatus(lg); fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) || got.Links == nil {
			t.Errorf("%s:\n got %+v\nwant %+v", when, got, want)
		}
	}
	check("before the first contact is over")
	lg.Result = core.Result{
		Mode: core.SMCR, Version: clc.V2, Release: clc.Release1, EID: eid, PeerHostName: "peer", PeerOS: clc.OSLinux, Direct: true,
		R: &clc.ParamsR{GID: gid, PeerID: wire.PeerID{1, 2, 3}},
	}
	want.State, want.Version, want.EID, want.PeerHost, want.PeerOS, want.Direct = "Active", "2.1", "GOSMC.TEST", "peer", clc.OSLinux.String(), true
	want.Peer, want.PeerID = gid.String(), wire.PeerID{1, 2, 3}.String()
	check("over SMC-R")
	lg.Key.Mode, lg.Result = core.SMCD, core.Result{Mode: core.SMCD, Version: clc.V1}
	want = control.StatusGroup{
		ID: 7, Mode: "SMC-D", State: "Active", Role: "server", VLAN: 5, PNETID: "NET", Conns: 3, MaxConns: 16, Links: []control.StatusLink{},
		Version: "1.0", PeerOS: clc.OSUnspecified.String(),
	}
	check("over SMC-D, in version 1")
}

// TestMembershipOf has the result of the first contact, under our name for the link group.
func TestMembershipOf(t *testing.T) {
	first := &core.Result{Release: clc.Release1, PeerHostName: "peer", PeerOS: clc.OSLinux}
	want := Membership{Group: 7, Release: clc.Release1, PeerHost: "peer", PeerOS: clc.OSLinux}
	if got := MembershipOf(7, first); got != want {
		t.Errorf("MembershipOf = %+v, want %+v", got, want)
	}
}

// TestNoLinks has a fabric without links: it cannot start one, and has nothing else to do.
func TestNoLinks(t *testing.T) {
	var b NoLinks
	told := func(core.LinkStep) { t.Error("a step of a link is told") }
	if err := b.StartLink(core.Result{}, told); !errors.Is(err, ErrNoLinks) {
		t.Errorf("StartLink = %v, want %v", err, ErrNoLinks)
	}
	b.Declined()
	b.Flush()
	b.Suspect()
	b.SetNoDelay(true)
	b.SetQuiet(time.Second)
	if b.MayMiss() || b.LinkNumber() != 0 {
		t.Errorf("it may miss something: %t; it has link %d", b.MayMiss(), b.LinkNumber())
	}
}
