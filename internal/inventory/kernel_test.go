package inventory

import (
	"net/netip"
	"testing"

	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/sockdiag"
)

// TestAddKernel lists sockets of the kernel's SMC: their modes, and the reason for TCP. The peer's
// reason counts more than ours, which is that the peer has declined.
func TestAddKernel(t *testing.T) {
	at := netip.MustParseAddrPort
	list := []sockdiag.SMCSocket{
		{Local: at("192.0.2.1:5000"), State: sockdiag.TCPListen, Inode: 1},
		{Local: at("192.0.2.1:5000"), Peer: at("192.0.2.7:1"), State: sockdiag.TCPEstablished, Mode: sockdiag.SMCModeR, Inode: 2, Link: 2, RcvBuf: 64, RecvQ: 3},
		{Local: at("192.0.2.1:5000"), Peer: at("192.0.2.7:2"), State: 20, Mode: sockdiag.SMCModeD},
		{Local: at("192.0.2.1:5000"), Peer: at("192.0.2.7:3"), State: sockdiag.TCPEstablished, Mode: sockdiag.SMCModeTCP, Reason: 0x03010000},
		{Local: at("192.0.2.1:5000"), Peer: at("192.0.2.7:4"), State: sockdiag.TCPEstablished, Mode: sockdiag.SMCModeTCP, Reason: 0x01010000, PeerReason: 0x03030000},
		{Local: at("0.0.0.0:0"), Peer: at("0.0.0.0:0"), State: sockdiag.TCPSynSent}, // neither bound nor connected
	}
	var r Report
	r.addKernel(list, map[uint64]inspect.Owner{2: {PID: 7, Command: "server"}}, true, true, 9)
	if len(r.Listeners) != 1 || r.Listeners[0].Local != "192.0.2.1:5000" || r.Listeners[0].Source != SourceKernel {
		t.Errorf("listeners are %+v", r.Listeners)
	}
	if len(r.Connections) != 4 {
		t.Fatalf("%d connections, want 4: %+v", len(r.Connections), r.Connections)
	}
	for i, want := range []struct {
		mode, state string
		code        uint32
	}{{"SMC-R", "Active", 0}, {"SMC-D", "State 20", 0}, {"TCP", "Active", 0x03010000}, {"TCP", "Active", 0x03030000}} {
		c := r.Connections[i]
		if c.Mode != want.mode || c.State != want.state || uint32(c.ReasonCode) != want.code || (c.Reason != "") != (want.code != 0) || c.Source != SourceKernel {
			t.Errorf("connection %d is %+v, want %+v", i, c, want)
		}
	}
	if c := r.Connections[0]; c.PID != 7 || c.Command != "server" || c.Link != 2 || *c.RcvBuf != 64 || c.RecvQ != 3 || c.BytesIn != nil {
		t.Errorf("the connection over SMC-R is %+v", c)
	}
	var none Report
	none.addKernel(list, nil, false, false, 9)
	if len(none.Connections)+len(none.Listeners) != 0 {
		t.Errorf("what nobody asked for is there: %+v", none)
	}
}
