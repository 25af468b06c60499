package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// patience bounds what must happen soon.
const patience = 20 * time.Second

// often makes an agent look for ended processes all the time.
func often(c *Config) { c.lookPeriod = 50 * time.Millisecond }

// briefly makes vacancies short besides.
func briefly(c *Config) { c.lookPeriod, c.vacancyTime = 10*time.Millisecond, 50*time.Millisecond }

// A remote plays a host with soft-RoCE.
type remote struct {
	local      netip.Addr // that it sends to
	out, naks  *net.UDPConn
	own, dead  wire.QPN // its queue pair, and the one that it sends to
	sourcePort uint16
}

// newRemote makes a host at far, with a queue pair that sends to dead.
func newRemote(local, far netip.Addr, dead wire.QPN) (r *remote, err error) {
	r = &remote{local: local, own: 17, dead: dead}
	v := uint64(r.own) * uint64(dead)
	v ^= v >> 20
	r.sourcePort = 0xc000 | uint16(v&0x3fff^v>>14&0x3f) // Linux rdma_flow_label_to_udp_sport
	for _, s := range []struct {
		c    **net.UDPConn
		port uint16
	}{{&r.out, r.sourcePort}, {&r.naks, roce.Port}} {
		if *s.c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(far, s.port))); err != nil {
			return nil, err
		}
	}
	raw, err := r.out.SyscallConn()
	if err != nil {
		return nil, err
	}
	var set error
	// The identification of its packets is 0.
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	})
	return r, errors.Join(err, set)
}

func (r *remote) close() {
	r.out.Close()
	r.naks.Close()
}

// send sends a packet, as soft-RoCE does again and again.
func (r *remote) send(psn wire.PSN) error {
	p := roce.Packet{BTH: roce.BTH{Opcode: roce.SendOnly, PKey: roce.DefaultPKey, DestQPN: r.dead, PSN: psn}, Payload: []byte{1, 2, 3, 4}}
	b := append(p.Append(nil), 0, 0, 0, 0)
	to := netip.AddrPortFrom(r.local, roce.Port)
	flow := roce.NewFlow(r.out.LocalAddr().(*net.UDPAddr).AddrPort(), to)
	flow.Seal(0, b)
	if _, err := r.out.WriteToUDPAddrPort(b, to); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	return nil
}

// awaitNAK sends a packet until it is answered with the NAK that ends the queue pair.
func (r *remote) awaitNAK(psn wire.PSN) error {
	b := make([]byte, 2048)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if err := r.send(psn); err != nil {
			return err
		}
		r.naks.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		n, _, err := r.naks.ReadFromUDPAddrPort(b)
		var p roce.Packet
		if err == nil && p.Parse(b[:n]) == nil && p.Opcode == roce.Acknowledge && p.AETH.Syndrome == roce.NakRemoteOperation && p.DestQPN == r.own && p.PSN == psn {
			return nil
		}
	}
	return fmt.Errorf("no NAK in %v", patience)
}

// leave is a process that closes its socket of a port, as the kernel does for one that is killed.
// Afterwards it plays a host that still sends to it.
func leave(p *smctest.Parent) {
	dir, local, far := p.Args[0], netip.MustParseAddr(p.Args[1]), netip.MustParseAddr(p.Args[2])
	p.Check(smctest.Up("lo"))
	g, err := port.Claim(context.Background(), dir, local, 0)
	p.Check(err)
	p.Say("claimed")
	p.Hear()
	p.Check(g.Close())
	p.Say("left")
	p.Hear()
	r, err := newRemote(local, far, g.First+5)
	p.Check(err)
	p.Check(r.awaitNAK(7))
	p.Say("answered")
	p.Hear()
}

func (p *place) vacant(t *testing.T) int {
	t.Helper()
	return len(p.status(t).Vacant)
}

// TestVacancy has the last process of a port end, in the agent's network namespace and in another
// one, before and while the agent is started again. A queue pair that still sends to it is answered.
func TestVacancy(t *testing.T) {
	for _, tt := range []struct {
		name    string
		flags   uintptr
		restart bool
	}{{"here", 0, false}, {"here, restart", 0, true}, {"another namespace", syscall.CLONE_NEWNET, false}, {"another namespace, restart", syscall.CLONE_NEWNET, true}} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlace(t, often)
			child := smctest.StartIn(t, tt.flags, "leave", p.dir, "127.91.92.93", "127.91.92.94")
			child.Hear("claimed")
			if n := p.vacant(t); n != 0 {
				t.Errorf("%d vacant ports, want none: there is a process", n)
			}
			if tt.restart {
				p.agent.Close()
			}
			child.Say("leave")
			child.Hear("left")
			if tt.restart {
				p.start(t, often)
			}
			smctest.Eventually(t, patience, "the port to be vacant", func() bool { return p.vacant(t) == 1 })
			if tt.restart { // while it is vacant
				p.start(t, often)
			}
			child.Say("send")
			child.Hear("answered")
			smctest.Eventually(t, patience, "the answer to be counted", func() bool {
				s := p.status(t)
				return len(s.Vacant) == 1 && s.Vacant[0].Answers > 0 && len(s.Ports) == 0
			})
			child.Say("end")
			child.Wait()
			if tt.flags != 0 { // no process is there any more: the namespace must not stay
				smctest.Eventually(t, patience, "the agent to leave the namespace", func() bool { return p.vacant(t) == 0 })
			}
		})
	}
}

// TestVacancyEnds has vacancies end: in time, for a process that asks the agent, and for one that
// does not. Nothing stays. None of the processes has to wait.
func TestVacancyEnds(t *testing.T) {
	addr := netip.MustParseAddr("127.91.92.95")
	vacate := func(t *testing.T, p *place) {
		t.Helper()
		p.claim(t, here, addr).Close()
		smctest.Eventually(t, patience, "the port to be vacant", func() bool { return p.vacant(t) == 1 })
	}
	nothingLeft := func(t *testing.T, p *place) {
		t.Helper()
		smctest.Eventually(t, patience, "no pins", func() bool {
			names, err := os.ReadDir(p.pins)
			return err == nil && len(names) == 0 && p.vacant(t) == 0
		})
	}
	t.Run("time", func(t *testing.T) {
		p := newPlace(t, briefly)
		p.claim(t, here, addr).Close()
		nothingLeft(t, p)
		before := smctest.CountDescriptors()
		p.claim(t, here, addr).Close()
		nothingLeft(t, p)
		if n := smctest.CountDescriptors(); n > before+2 { // of the test's own sockets
			t.Errorf("%d descriptors, before there were %d", n, before)
		}
	})
	t.Run("process", func(t *testing.T) {
		p := newPlace(t, often)
		vacate(t, p)
		p.claim(t, here, addr)
		if s := p.status(t); len(s.Vacant) != 0 || len(s.Ports) != 1 {
			t.Errorf("%+v", s)
		}
	})
	t.Run("alone", func(t *testing.T) {
		p := newPlace(t, often)
		vacate(t, p)
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, roce.Port)))
		if err != nil {
			t.Fatalf("a vacant port is not free: %v", err)
		}
		defer c.Close()
		nothingLeft(t, p)
	})
	t.Run("all addresses", func(t *testing.T) { // as the kernel's rdma_rxe
		p := newPlace(t, often)
		vacate(t, p)
		c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: roce.Port})
		if err != nil {
			t.Fatalf("a vacant port is not free: %v", err)
		}
		defer c.Close()
		nothingLeft(t, p)
	})
	t.Run("close", func(t *testing.T) {
		p := newPlace(t, often)
		vacate(t, p)
		p.start(t, briefly) // the next agent finds it, and nothing of the last one
		nothingLeft(t, p)
	})
}

// TestVacancyLiving has packets for a process that lives come several times. Nobody but it gets, or
// answers, them, though the port was vacant before.
func TestVacancyLiving(t *testing.T) {
	p := newPlace(t, func(c *Config) { c.lookPeriod = time.Hour })
	addr := netip.MustParseAddr("127.91.92.96")
	p.claim(t, here, addr).Close()
	smctest.Eventually(t, patience, "no sockets", func() bool { return p.sockets(t) == 0 })
	p.agent.ports.tick()
	if n := p.vacant(t); n != 1 {
		t.Fatalf("%d vacant ports, want 1", n)
	}
	alone, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, roce.Port)))
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRemote(addr, netip.MustParseAddr("127.91.92.97"), 0x123456)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	for range 10 { // the agent has not noticed its owner
		if err := r.send(3); err != nil {
			t.Fatal(err)
		}
	}
	alone.Close()
	if err := r.awaitNAK(2); err != nil { // an earlier packet, now for nobody; a NAK for the other one is passed over
		t.Error(err)
	}
	s := p.status(t)
	if len(s.Vacant) != 1 || s.Vacant[0].Answers == 0 {
		t.Errorf("%+v", s.Vacant)
	}
}

// TestVacancyBound has users end with more ports than the agent watches, and checks that none pushes
// out the others'.
func TestVacancyBound(t *testing.T) {
	p := newPlace(t, func(c *Config) { c.Policy.Everyone, c.lookPeriod = true, time.Hour })
	own := netip.MustParseAddr("127.91.92.98")
	p.claim(t, here, own).Close()
	smctest.Eventually(t, patience, "no sockets", func() bool { return p.sockets(t) == 0 })
	p.agent.ports.tick()
	living := 0
	end := func(user, first int) {
		t.Helper()
		child := smctest.Start(t, "addresses", p.dir, fmt.Sprint(user), fmt.Sprint(first))
		child.Say("ask")
		if got := child.Hear("granted"); got != fmt.Sprint(maxAccountPorts) {
			t.Fatalf("user %d has the port of %s addresses, want %d", user, got, maxAccountPorts)
		}
		child.Kill()
		child.Wait()
		smctest.Eventually(t, patience, "its sockets to be gone", func() bool { return p.sockets(t) == living })
		p.agent.ports.tick()
	}
	for _, first := range []int{0, 100} { // once more, with other addresses
		end(4001, first)
		if n := p.vacant(t); n != 1+maxAccountPorts {
			t.Errorf("%d vacant ports after addresses from %d, want %d", n, first, 1+maxAccountPorts)
		}
	}
	p.claim(t, here, netip.MustParseAddr("127.91.92.99")) // there is room for others
	living++
	for user := 4002; user < 4002+maxVacancies/maxAccountPorts+1; user++ {
		end(user, 0)
	}
	s := p.status(t)
	if len(s.Vacant) != maxVacancies {
		t.Errorf("%d vacant ports, want %d", len(s.Vacant), maxVacancies)
	}
	if !slices.ContainsFunc(s.Vacant, func(v VacantStatus) bool { return v.Address == netip.AddrPortFrom(own, roce.Port).String() }) {
		t.Error("a user's only vacant port was given up for those of users with many")
	}
	pins, err := filepath.Glob(filepath.Join(p.pins, "port-*"))
	if err != nil || len(pins) != maxVacancies+1 {
		t.Errorf("%d pinned ports, %v; want %d", len(pins), err, maxVacancies+1)
	}
}
