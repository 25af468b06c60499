package host

import (
	"context"
	"io"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
)

// nobody is a user that owns nothing here.
const nobody = 65534

func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){
		"host-serve":  childServe,
		"host-nobody": childNobody,
		"host-claim":  childClaim,
		"host-smcr":   childSMCR,
	})
}

// childServe listens in the run directory of its first argument, says where, and echoes. With a
// second argument, that is the address, which it shares.
func childServe(p *smctest.Parent) {
	h, err := New(Config{Dir: p.Args[0]})
	p.Check(err)
	addr, opts := "127.0.0.1:0", ListenOptions{}
	if len(p.Args) > 1 {
		addr, opts.Net.Control = p.Args[1], reusePort
	}
	l, err := h.Listen(context.Background(), "tcp", addr, opts)
	p.Check(err)
	p.Say("listening %v", l.Addr())
	for {
		c, err := l.Accept()
		p.Check(err)
		go func() {
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}

// becomeNobody gives up root.
func becomeNobody(p *smctest.Parent) {
	p.Check(syscall.Setgroups(nil))
	p.Check(syscall.Setgid(nobody))
	p.Check(syscall.Setuid(nobody))
}

// childNobody has no rights in the run directory of its first argument. It connects to itself.
func childNobody(p *smctest.Parent) {
	becomeNobody(p)
	h, err := New(Config{Dir: p.Args[0]})
	p.Check(err)
	l, err := h.Listen(context.Background(), "tcp", "127.0.0.1:0", ListenOptions{})
	p.Check(err)
	go func() {
		s, err := l.Accept()
		p.Check(err)
		p.Say("server %v", s.Reason().Tag)
		io.Copy(s, s)
		s.Close()
	}()
	c, err := h.Dial(context.Background(), "tcp", l.Addr().String(), DialOptions{})
	p.Check(err)
	p.Check(echo(c))
	p.Hear()
	p.Say("client %v", c.Reason().Tag)
	p.Check(c.Close())
	p.Check(h.Close())
}

// childClaim is a process of another user: it announces itself at an address that is not its own,
// its second argument, and claims sockets of others toward a server. The server's GID is the third
// argument.
func childClaim(p *smctest.Parent) {
	becomeNobody(p)
	handler := &claimer{p: p}
	d, err := ism.Open(ism.Config{Dir: rundir.Own(p.Args[0]), AnyUser: true, Handler: handler})
	p.Check(err)
	at, err := netip.ParseAddrPort(p.Args[1])
	p.Check(err)
	netns, err := strconv.ParseUint(p.Args[3], 16, 64)
	p.Check(err)
	_, err = rendezvous.Announce(p.Args[0], netns, d.GID(), at, false)
	p.Check(err)
	gid, ok := rendezvous.ParseGID(p.Args[2])
	if !ok {
		gid = wire.ISMGID{}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	peer, err := d.Peer(ctx, gid)
	p.Check(err)
	p.Say("ready")
	for {
		socket, err := strconv.ParseUint(p.Hear(), 16, 64)
		p.Check(err)
		dest, err := netip.ParseAddrPort(p.Hear())
		p.Check(err)
		m := rendezvous.Message{Kind: rendezvous.Expect, ID: socket, Netns: netns, Socket: socket, Dest: dest}
		p.Check(peer.Send(m.Append(nil)))
		p.Say("claimed")
	}
}

// A claimer says that it has every connection it is asked for.
type claimer struct{ p *smctest.Parent }

func (*claimer) PeerUp(*ism.Peer)          {}
func (*claimer) PeerGone(*ism.Peer, error) {}

func (c *claimer) Signal(p *ism.Peer, payload []byte) {
	m, err := rendezvous.Parse(payload)
	c.p.Check(err)
	if m.Kind == rendezvous.Expect {
		accepted := rendezvous.Message{Kind: rendezvous.Accepted, ID: m.ID}
		c.p.Check(p.Send(accepted.Append(nil)))
	}
}
