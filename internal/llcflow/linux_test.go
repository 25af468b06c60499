package llcflow

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/core/coretest"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// linuxLLC returns an LLC message that a Linux 6.12 kernel has sent, from the captures that
// wire/llc/testdata/README.md describes.
func linuxLLC(t *testing.T, capture, frame string) []byte {
	t.Helper()
	data, err := os.ReadFile("../../wire/llc/testdata/captured.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 5 && strings.Contains(f[0], capture) && f[1] == frame {
			b, err := hex.DecodeString(f[4])
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
	t.Fatalf("no frame %s of %s", frame, capture)
	return nil
}

// linuxControl returns the link group that one of the two kernels in a capture had.
func linuxControl(t *testing.T, role core.Role, capture string) *LinkControl {
	t.Helper()
	for _, x := range coretest.LinuxExchanges(t) {
		if !strings.HasPrefix(x.Name, capture) || !x.Accept.FirstContact {
			continue
		}
		own, peer := x.Accept.R, x.Confirm.R
		if role == core.RoleClient {
			own, peer = peer, own
		}
		local := core.LinkEnd{GID: own.GID, MAC: own.MAC, QPN: own.QPN, PSN: own.PSN, MTU: own.MTU}
		return New(Config{
			Result: core.Result{
				Role: role, Mode: core.SMCR, Version: clc.V2, Release: x.Accept.FCE.Release, FirstContact: true, R: peer,
				MaxConns: x.Accept.FCE.MaxConns, MaxLinks: x.Accept.FCE.MaxLinks, PeerOS: clc.OSLinux, Direct: true,
			},
			Local: local, GroupID: 1, RMB: 1, Token: llc.RToken{RKey: own.RKey, VA: own.RMBAddr}, Owner: 1, RNICs: []core.RNIC{{GID: local.GID, MAC: local.MAC}},
		})
	}
	t.Fatalf("no first contact in %s", capture)
	return nil
}

// TestControlLinux plays each side of a link group of two Linux kernels to the other, and compares
// our messages with the messages of that kernel, byte for byte.
func TestControlLinux(t *testing.T) {
	const capture = "smcrv2-one-link"
	frame := func(n string) []byte { return linuxLLC(t, capture, n) }
	take := func(lc *LinkControl, b []byte) []Output {
		m, err := llc.Parse(b)
		return lc.HandleMessage(epoch, 0, m, err, nil)
	}
	sent := func(name string, outs []Output, want []byte) {
		t.Helper()
		m := sentOf(outs)
		if len(m) != 1 {
			t.Fatalf("%s: %s", name, controlWords(epoch, outs))
		}
		if got := m[0].Append(nil); string(got) != string(want) {
			t.Errorf("%s:\n got %x\nwant %x", name, got, want)
		}
	}
	server := linuxControl(t, core.RoleServer, capture)
	sent("server's CONFIRM LINK", server.Start(epoch, nil), frame("10"))
	outs := take(server, frame("12"))
	second := server.cfg.Local
	second.QPN++
	add := sentOf(server.LinkOpened(epoch, 2, second, map[RMBID]llc.RToken{1: {RKey: 0x999, VA: 0x77000}}, outs))
	if len(add) != 1 || add[0].Type() != llc.TypeAddLink || server.State() != StateAdding {
		t.Fatalf("after the client's reply: %v, %v", server.State(), add)
	}
	want := frame("14")
	// The kernel has a new PSN and queue pair for the second link, an RKey of its own for its RMB, and puts its own address where ours has none.
	if len(want) != len(add[0].Append(nil)) || string(add[0].Append(nil)[70:76]) != string(want[70:76]) {
		t.Errorf("server's ADD LINK:\n got %x\nwant %x", add[0].Append(nil), want)
	}
	if got := add[0].Append(nil); string(got[:28]) != string(want[:28]) || got[31] != want[31] || got[32] != want[32] {
		t.Errorf("server's ADD LINK:\n got %x\nwant %x", got, want)
	}
	if outs := take(server, frame("16")); server.State() != StateActive {
		t.Fatalf("after the client's rejection: %v, %s", server.State(), controlWords(epoch, outs))
	}

	client := linuxControl(t, core.RoleClient, capture)
	client.Start(epoch, nil)
	sent("client's CONFIRM LINK", take(client, frame("10")), frame("12"))
	client.Sent(epoch, tagConfirm, nil)
	rejection := frame("16")
	rejection[3] |= byte(llc.RejectNoPath) // which the kernel does not tell
	sent("client's rejection", take(client, frame("14")), rejection)
	if client.State() != StateActive {
		t.Fatalf("the client is in state %v", client.State())
	}

	// RMBs come and go, and the group ends.
	const two = "smcrv2-two-links"
	for _, tt := range []struct {
		role           core.Role
		request, reply string
	}{{core.RoleServer, "312", "319"}, {core.RoleClient, "313", "316"}} {
		lc := linuxControl(t, tt.role, two)
		lc.state = StateActive
		lc.links[0].num = 1
		lc.own[1].tokens, lc.own[1].told = onFirst(lc.cfg.Token), map[llc.LinkNum]bool{1: true}
		lc.form = llc.V2Little
		outs := take(lc, linuxLLC(t, two, tt.request))
		sent("reply to DELETE RKEY", outs[1:], linuxLLC(t, two, tt.reply))
		own := lc.cfg.Token
		sent("DELETE RKEY", lc.DeleteRMB(epoch, 1, true, nil), linuxLLC(t, two, map[core.Role]string{core.RoleServer: "313", core.RoleClient: "312"}[tt.role]))
		if outs := take(lc, linuxLLC(t, two, map[core.Role]string{core.RoleServer: "316", core.RoleClient: "319"}[tt.role])); rmbAnswers(outs) != "deleted(1)" {
			t.Errorf("after the reply: %s", controlWords(epoch, outs))
		}
		// The same RKey comes back.
		outs = lc.ConfirmRMB(epoch, 1, onFirst(own), nil)
		if m, ok := sentOf(outs)[0].(llc.ConfirmRKey); !ok || m.RToken.RKey != own.RKey {
			t.Errorf("CONFIRM RKEY: %s", controlWords(epoch, outs))
		}
	}
	server.state = StateActive
	sent("server's DELETE LINK", take(server, linuxLLC(t, two, "623")), linuxLLC(t, two, "625"))
	test := linuxLLC(t, two, "722")
	reply := append([]byte(nil), test...)
	reply[3] |= 0x80
	sent("reply to TEST LINK", take(server, test), reply)
}
