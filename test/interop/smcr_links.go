package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/test/interop/talk"
)

// Cases of SMC-R with two adapters on each side: two links, and the one that is left when the other
// goes.

// Shell commands. An address of version 6 is gone with an interface that was down.
var (
	guestAddress6 = "/bin/ip -6 addr add " + guestAddr6.String() + prefix6 + " dev eth0 nodad 2>/dev/null; true"
	ourAddress6   = "ip -6 addr add " + ourAddr6.String() + prefix6 + " dev " + dataTap + " nodad 2>/dev/null; true"
	newRXE1       = "[ -d /sys/class/infiniband/rxe1 ] || /bin/rdma link add rxe1 type rxe netdev eth2; echo 0 >/sys/class/infiniband/rxe1/ports/1/hw_counters/lifespan"

	// ownARP has an interface answer for its own addresses only, where several are on one network.
	ownARP = "echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore; echo 2 >/proc/sys/net/ipv4/conf/all/arp_announce"
)

// here runs shell commands in this network namespace.
func here(ctx context.Context, script string) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	_, err := run(ctx, "sh", "-c", script)
	return err
}

// readyTwin is ready with second interfaces. The guest has a device there if it is to have two.
func (l *lab) readyTwin(ctx context.Context, guestHasTwo bool) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	l.atEnd(func() error {
		return l.here(context.WithoutCancel(ctx), fmt.Sprintf("ip addr flush dev %[1]s; ip link set %[1]s down", secondTap))
	})
	err := l.here(ctx, fmt.Sprintf("set -e; %s; for i in all %s %s; do echo 0 >/proc/sys/net/ipv4/conf/$i/rp_filter; done; ip addr add %v%s dev %[3]s; "+
		"ip link set %[3]s txqueuelen %[6]s up", ownARP, dataTap, secondTap, ourSecond, prefix4, tapQueueLen))
	if err != nil {
		return err
	}
	l.atEnd(func() error {
		return l.inGuest(context.WithoutCancel(ctx), "/bin/rdma link del rxe1; /bin/ip addr flush dev eth2; /bin/ip link set eth2 down")
	})
	script := fmt.Sprintf("set -e; %s; /bin/ip addr add %v%s dev eth2; /bin/ip link set eth2 up", ownARP, guestSecond, prefix4)
	if guestHasTwo {
		script += "; " + newRXE1
	}
	return l.inGuest(ctx, script)
}

// twinDevices are both addresses of ours.
var twinDevices = []string{ourAddr4.String(), ourSecond.String()}

// A view is one side's view of the link group: everything that the other side has to agree to.
type view struct {
	kind  string           // as 'smcr linkgroup' has it, but without which side has one adapter
	conns int              //
	links map[uint8]joined // by number, those in use
}

// joined are the addresses of a link, ours first.
type joined struct{ ours, guests string }

func (v view) String() string { return fmt.Sprintf("%s %d %v", v.kind, v.conns, v.links) }

// ourView is the view of 'gosmc linkgroup'.
func (l *lab) ourView(ctx context.Context) (views []view, err error) {
	groups, err := l.linkGroups(ctx)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		v := view{kind: g.Type, conns: g.Conns, links: make(map[uint8]joined)}
		for _, link := range g.Links {
			ours, err := netip.ParseAddr(link.LocalGID)
			if err != nil {
				return nil, err
			}
			guests, err := netip.ParseAddr(link.PeerGID)
			if err != nil {
				return nil, err
			}
			if link.State == "LINK_ACTIVE" {
				v.links[link.Number] = joined{ours.Unmap().String(), guests.Unmap().String()}
			}
		}
		views = append(views, v)
	}
	return views, nil
}

// guestView is the view of the guest's kernel.
func (l *lab) guestView(ctx context.Context) (views []view, err error) {
	text, err := l.vm.run(ctx, commandTimeout, "smcpeer groups")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(text) {
		what, rest, _ := strings.Cut(line, " ")
		switch what {
		case "group":
			v := view{links: make(map[uint8]joined)}
			var id, role string
			if _, err := fmt.Sscan(rest, &id, &role, &v.kind, &v.conns); err != nil {
				return nil, fmt.Errorf("smcpeer groups: %w\n%s", err, text)
			}
			v.kind, _, _ = strings.Cut(v.kind, "_")
			views = append(views, v)
		case "link":
			var number uint8
			var state, device, gid, peer string
			if _, err := fmt.Sscan(rest, &number, &state, &device, &gid, &peer); err != nil || len(views) == 0 {
				return nil, fmt.Errorf("smcpeer groups: %w\n%s", err, text)
			}
			guests, err := netip.ParseAddr(gid)
			if err != nil {
				return nil, err
			}
			ours, err := netip.ParseAddr(peer)
			if err != nil {
				return nil, err
			}
			if state == "ACTIVE" {
				views[len(views)-1].links[number] = joined{ours.Unmap().String(), guests.Unmap().String()}
			}
		}
	}
	return views, nil
}

// agreeWithin is the time until both sides have to see a change. A peer that has nothing to say
// tests its link every 30 s.
const agreeWithin = 60 * time.Second

// agree waits until there is one link group, of that kind, and both sides say the same of it; of
// none if kind is empty.
func (l *lab) agree(ctx context.Context, kind string) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, agreeWithin)
	defer cancel()
	var ours, guests []view
	var last string
	err := try(ctx, "both sides agree on "+kind, func() (done bool, err error) {
		if ours, err = l.ourView(ctx); err != nil {
			return false, err
		}
		if guests, err = l.guestView(ctx); err != nil {
			return false, err
		}
		last = fmt.Sprintf("we see %v, the guest %v", ours, guests)
		if kind == "" {
			return len(ours)+len(guests) == 0, nil
		}
		return len(ours) == 1 && ours[0].kind == kind && fmt.Sprint(ours) == fmt.Sprint(guests), nil
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, last)
	}
	if kind == "" {
		return nil
	}
	l.note("%s after %.1f s", strings.ToLower(kind), time.Since(began).Seconds())
	return nil
}

// A damage is done to one of two links in the middle of a transfer, and repaired afterwards. All
// but what are shell commands.
type damage struct {
	what        string
	ours, guest string // do the damage, here and in the guest
	oursAfter   string // undoes it
	guestAfter  string
}

const drop = "limit 100 loss 100%"

// losesOut drops the packets that the guest sends on an interface, and losesIn the packets that it
// would receive. restore ends both.
func losesOut(dev string) string { return "/bin/tc qdisc add dev " + dev + " root netem " + drop }

func losesIn(dev string) string {
	return "set -e; /bin/tc qdisc add dev ifb0 root netem " + drop + "; /bin/tc qdisc add dev " + dev + " ingress; " +
		"/bin/tc filter add dev " + dev + " parent ffff: matchall action mirred egress redirect dev ifb0"
}

func restore(dev string) string {
	return "for q in '" + dev + " ingress' '" + dev + " root' 'ifb0 root'; do /bin/tc qdisc del dev $q 2>/dev/null; done; true"
}

// The damages, by the link: the first contact's link, on eth0, and the other one, on eth2.
var (
	downs = []damage{
		{what: "first link down at the guest", guest: "/bin/ip link set eth0 down", guestAfter: "/bin/ip link set eth0 up; " + guestAddress6},
		{what: "second link down at the guest", guest: "/bin/ip link set eth2 down", guestAfter: "/bin/ip link set eth2 up"},
		{what: "first link down here", ours: "ip link set " + dataTap + " down", oursAfter: "ip link set " + dataTap + " up; " + ourAddress6},
		{what: "second link down here", ours: "ip link set " + secondTap + " down", oursAfter: "ip link set " + secondTap + " up"},
	}
	silences = []damage{
		{what: "packets on the first link vanish", guest: losesOut("eth0") + "; " + losesIn("eth0"), guestAfter: restore("eth0")},
		{what: "packets on the second link vanish", guest: losesOut("eth2") + "; " + losesIn("eth2"), guestAfter: restore("eth2")},
		{what: "packets from the guest vanish on the first link", guest: losesOut("eth0"), guestAfter: restore("eth0")},
		{what: "packets to the guest vanish on the second link", guest: losesIn("eth2"), guestAfter: restore("eth2")},
	}
)

// removals are damages by which a device ceases to exist.
var removals = []damage{
	{what: "the guest's second device removed", guest: "/bin/rdma link del rxe1", guestAfter: newRXE1},
	{what: "our second address removed", ours: fmt.Sprintf("ip addr del %v%s dev %s", ourSecond, prefix4, secondTap),
		oursAfter: fmt.Sprintf("ip addr replace %v%s dev %s", ourSecond, prefix4, secondTap)},
	{what: "the guest's first device removed", guest: "/bin/rdma link del rxe0", guestAfter: "[ -d /sys/class/infiniband/rxe0 ] || " + newRXE},
}

// A failover is a case: transfers with damages in their middle, one after the other. No byte is
// lost, and no connection.
type failover struct {
	conversation
	damages []damage
}

// run begins with other hosts of ours, and so with another link group, for each damage. Linux 6.12
// does not register the memory of connections that use it again on a link that was made in the
// meantime, though it tells its key: see Facts in README.md.
func (f failover) run(ctx context.Context, l *lab, each func(h *host.Host, w witness) error) error {
	if err := l.readyTwin(ctx, true); err != nil {
		return err
	}
	for _, d := range f.damages {
		l.atEnd(func() error { return l.undo(context.WithoutCancel(ctx), d) })
		err := f.try(ctx, l, d, each)
		for tries := 1; errors.Is(err, errNotMoved) && tries < maxTries; tries++ {
			l.note("the transfers were over before the damage was done, once more")
			if err = errors.Join(l.undo(ctx, d), l.agree(ctx, "")); err == nil {
				err = f.try(ctx, l, d, each)
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", d.what, err)
		}
	}
	return nil
}

// try does one damage.
func (f failover) try(ctx context.Context, l *lab, d damage, each func(h *host.Host, w witness) error) error {
	h, err := l.host(host.Config{SMCRDevices: twinDevices})
	if err != nil {
		return err
	}
	err = each(h, f.witness(l, d))
	if err != nil {
		ours, ourErr := l.ourView(ctx)
		guests, guestErr := l.guestView(ctx)
		l.note("when it had failed, we saw %v %v, the guest %v %v", ours, ourErr, guests, guestErr)
	}
	if err == nil {
		if err = l.agree(ctx, "SYMMETRIC"); err != nil {
			err = fmt.Errorf("after the repair: %w", err)
		}
	}
	if err := errors.Join(err, h.Close()); err != nil {
		return err
	}
	return l.agree(ctx, "")
}

func (f failover) client(ctx context.Context, l *lab) error {
	return f.run(ctx, l, func(h *host.Host, w witness) error { return l.dialGuest(ctx, h, f.conversation, w) })
}

func (f failover) server(ctx context.Context, l *lab) error {
	return f.run(ctx, l, func(h *host.Host, w witness) error {
		listener, err := l.listen(ctx, h, conn.RequireSMCR)
		if err != nil {
			return err
		}
		return l.serveGuest(ctx, listener, f.conversation, w)
	})
}

// witness does the damage.
func (f failover) witness(l *lab, d damage) witness {
	return witness{
		open: func(ctx context.Context, _ int) error { return l.agree(ctx, "SYMMETRIC") },
		talking: func(ctx context.Context, conns []conn.Conn) error {
			if err := f.moving(ctx, conns); err != nil {
				return err
			}
			l.note("%s", d.what)
			return errors.Join(l.inGuest(ctx, d.guest), l.here(ctx, d.ours))
		},
		// close(2) of the guest may wait for its kernel, which waits for the path: see Facts in README.md.
		said: func(ctx context.Context) error { return errors.Join(l.moved(ctx), l.undo(ctx, d)) },
	}
}

// moving waits until the connections, as a whole, are in the middle of their transfers: when the
// last of a hundred begins, others have ended.
func (c conversation) moving(ctx context.Context, conns []conn.Conn) error {
	return try(ctx, "bytes of the transfer", func() (bool, error) {
		total := uint64(0)
		for _, conn := range conns {
			in, _ := conn.Totals()
			total += in
		}
		return total >= uint64(c.N)*uint64(len(conns))/8, nil
	})
}

// errNotMoved means that no connection needed another link: a busy guest may do the damage when all bytes have
// arrived.
var errNotMoved = errors.New("no connection has changed its link")

// moved checks that connections were on the link that was lost, and went on over another one.
func (l *lab) moved(ctx context.Context) error {
	groups, err := l.linkGroups(ctx)
	if err != nil {
		return err
	}
	if len(groups) != 1 || groups[0].Moved == 0 {
		return fmt.Errorf("%w: %+v", errNotMoved, groups)
	}
	l.note("%d connections moved", groups[0].Moved)
	return nil
}

// undo repairs a damage. It may be called twice.
func (l *lab) undo(ctx context.Context, d damage) error {
	return errors.Join(l.inGuest(ctx, d.guestAfter), l.here(ctx, d.oursAfter))
}

// inGuest runs shell commands in the guest. They may take its interfaces down or up, and packets
// that are dropped there are counted before and after.
func (l *lab) inGuest(ctx context.Context, script string) error {
	if script == "" {
		return nil
	}
	return l.withDrops(func() error {
		_, err := l.vm.run(ctx, commandTimeout, script)
		return err
	})
}

// here does the same in this network namespace.
func (l *lab) here(ctx context.Context, script string) error {
	if script == "" {
		return nil
	}
	return l.withDrops(func() error { return here(ctx, script) })
}

func (l *lab) withDrops(f func() error) error {
	_, before := l.drops.take()
	err := f()
	_, after := l.drops.take()
	return errors.Join(err, before, after)
}

// An oneSided is a case: one side has a second adapter, and the other one gets it in the middle of
// a transfer: the link group is asymmetric, and then symmetric.
type oneSided struct {
	conversation
	guestBegins bool // with two
}

// begin makes the host, and the witness that adds the adapter.
func (o oneSided) begin(ctx context.Context, l *lab) (*host.Host, witness, error) {
	if err := l.readyTwin(ctx, o.guestBegins); err != nil {
		return nil, witness{}, err
	}
	more := func(ctx context.Context) error { return l.inGuest(ctx, newRXE1) }
	if o.guestBegins {
		there, gone := removals[1].oursAfter, removals[1].ours
		if err := here(ctx, gone); err != nil {
			return nil, witness{}, err
		}
		more = func(ctx context.Context) error { return here(ctx, there) }
	}
	h, err := l.host(host.Config{SMCRDevices: twinDevices})
	return h, witness{
		open: func(ctx context.Context, _ int) error { return l.agree(ctx, "ASYMMETRIC") },
		talking: func(ctx context.Context, conns []conn.Conn) error {
			if err := o.moving(ctx, conns); err != nil {
				return err
			}
			if err := more(ctx); err != nil {
				return err
			}
			return l.agree(ctx, "SYMMETRIC")
		},
	}, err
}

func (o oneSided) client(ctx context.Context, l *lab) error {
	h, w, err := o.begin(ctx, l)
	if err != nil {
		return err
	}
	return l.dialGuest(ctx, h, o.conversation, w)
}

func (o oneSided) server(ctx context.Context, l *lab) error {
	h, w, err := o.begin(ctx, l)
	if err != nil {
		return err
	}
	listener, err := l.listen(ctx, h, conn.RequireSMCR)
	if err != nil {
		return err
	}
	return l.serveGuest(ctx, listener, o.conversation, w)
}

// twoLinks is a case: link groups with two links, over which connections are spread.
func twoLinks(client bool) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		f := failover{says(talk.Duplex, 1_000_000).times(8), nil}
		if err := l.readyTwin(ctx, true); err != nil {
			return err
		}
		h, err := l.host(host.Config{SMCRDevices: twinDevices})
		if err != nil {
			return err
		}
		w := witness{open: func(ctx context.Context, conns int) error {
			if err := l.agree(ctx, "SYMMETRIC"); err != nil {
				return err
			}
			groups, err := l.linkGroups(ctx)
			if err != nil {
				return err
			}
			for _, link := range groups[0].Links {
				if link.Conns != conns/2 {
					return fmt.Errorf("%d of %d connections on link %d: %+v", link.Conns, conns, link.Number, groups)
				}
			}
			return nil
		}}
		if client {
			return l.dialGuest(ctx, h, f.conversation, w)
		}
		listener, err := l.listen(ctx, h, conn.RequireSMCR)
		if err != nil {
			return err
		}
		return l.serveGuest(ctx, listener, f.conversation, w)
	}
}
