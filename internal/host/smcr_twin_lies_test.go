package host

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// TestSMCRAddLinkAgain has a server that asks for another link twice, before the client has its end of the first: one is made, and
// its end is the one that the client has told.
func TestSMCRAddLinkAgain(t *testing.T) {
	loop4, loop5 := netip.MustParseAddr("127.0.0.4"), netip.MustParseAddr("127.0.0.5")
	r := newSMCRRig(t, func(client, _ *Config) { client.SMCRDevices = []string{"127.0.0.0/8"} })
	x := newSMCRLiar(t, r)
	dev, err := rdma.Open(loop5, &r.server.cfg.RDMA)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })

	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loop3, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	result := make(chan dialed, 1)
	go func() {
		o := DialOptions{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(loop4, 0))} // 127.0.0.1 is the other RNIC
		c, err := r.client.Dial(boundedContext(t), "tcp", l.Addr().String(), o)
		result <- dialed{c, err}
	}()
	l.SetDeadline(time.Now().Add(patience))
	if x.tcp, err = l.AcceptTCP(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.tcp.Close() })
	x.tcp.SetDeadline(time.Now().Add(patience))
	m, err := readCLC(x.tcp)
	p, ok := m.(clc.Proposal)
	if err != nil || !ok {
		t.Fatalf("the client sent %v, %v, want a Proposal", m, err)
	}
	x.write(x.honestAccept(p, true))
	m, err = readCLC(x.tcp)
	c, ok := m.(clc.Confirm)
	if err != nil || !ok {
		t.Fatalf("the client sent %v, %v, want a Confirm", m, err)
	}
	if err = x.link.ReadyToReceive(link.Peer{GID: c.R.GID, QPN: c.R.QPN, PSN: c.R.PSN, MTU: c.R.MTU}); err == nil {
		err = x.link.ReadyToSend()
	}
	if err != nil {
		t.Fatal(err)
	}
	x.confirmed()
	second, err := x.net.NewLink(rdma.Verbs(dev))
	if err != nil {
		t.Fatal(err)
	}
	add := llc.AddLink{Header: liarForm, GID: wire.GIDFromAddr(loop5), QPN: second.QPN(), Link: 2, MTU: second.MTU(), PSN: second.PSN()}
	resume := r.client.rnics.Hold() // neither device is there before both are wanted
	x.send(add.Append(nil))
	x.send(add.Append(nil))
	x.send(llc.TestLink{Header: liarForm}.Append(nil))
	tested := x.next()
	resume()
	if tested.Type() != llc.TypeTestLink {
		t.Fatalf("the client answered %v", tested)
	}
	answer, ok := x.next().(llc.AddLink)
	if !ok || answer.Rejected {
		t.Fatalf("the client answered %v", answer)
	}
	if err = second.ReadyToReceive(link.Peer{GID: answer.GID, QPN: answer.QPN, PSN: answer.PSN, MTU: answer.MTU}); err == nil {
		err = second.ReadyToSend()
	}
	if err != nil {
		t.Fatal(err)
	}
	confirm := llc.ConfirmLink{
		Header: liarForm, CacheSize: llc.NoEyecatcher, GID: add.GID, QPN: add.QPN, Link: 2, MaxLinks: 2, MaxConns: 16,
	}
	if err := second.SendLLC(confirm.Append(nil), 0); err != nil {
		t.Fatal(err)
	}
	if m, ok := x.next().(llc.ConfirmLink); !ok || !m.Reply || m.QPN != answer.QPN {
		t.Errorf("the client answered %v on the second link", m)
	}
	first := <-result
	if first.err != nil {
		t.Fatal(first.err)
	}
	checkSMCR(t, first.conn)
	smctest.Eventually(t, patience, "the second link is up", func() bool {
		return groupsOf(r.client)[0].Type == "SYMMETRIC"
	})
	if links := groupsOf(r.client)[0].Links; len(links) != 2 || wire.QPN(links[1].LocalQPN) != answer.QPN {
		t.Errorf("the client has the links %+v, and has told queue pair %d of the second", links, answer.QPN)
	}
	first.conn.Abort()
	first.conn.Close()
	x.link.Fail(nil)
	second.Fail(nil)
}
