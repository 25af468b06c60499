package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/smctest"
)

func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){"smc-pod": childSMC})
}

// headBytes is how much a server of testdata/reach.c says first: whether its connection is moved, and which
// addresses it sees.
const headBytes = 160

// childSMC is a program with package smc in a network namespace, as a user: the first argument. The second
// one is its run directory. It serves and dials as testdata/reach.c does.
func childSMC(p *smctest.Parent) {
	uid, err := strconv.Atoi(p.Args[0])
	p.Check(err)
	p.Check(os.Chown(p.Args[1], uid, uid))
	p.Check(syscall.Setgroups(nil))
	p.Check(syscall.Setgid(uid))
	p.Check(syscall.Setuid(uid))
	h, err := host.New(host.Config{Dir: p.Args[1], ShortAfter: -1})
	p.Check(err)
	fallen := make(map[string]int)
	var rings ringCounts
	for {
		words := strings.Fields(p.Hear())
		switch words[0] {
		case "serve":
			at := netip.AddrPortFrom(netip.MustParseAddr(words[1]), 0)
			l, err := h.Listen(context.Background(), "tcp", at.String(), host.ListenOptions{})
			p.Check(err)
			go func() {
				for {
					c, err := l.Accept()
					p.Check(err)
					go func() {
						defer c.Close()
						echoHead(c)
						rings.count(c)
					}()
				}
			}()
			p.Say("listening %d", l.Addr().(*net.TCPAddr).Port)
		case "dial": // address, port, number of connections, bytes of each
			count, err1 := strconv.Atoi(words[3])
			size, err2 := strconv.Atoi(words[4])
			p.Check(err1)
			p.Check(err2)
			here, there, head := 0, 0, ""
			for range count {
				c, err := h.Dial(context.Background(), "tcp", net.JoinHostPort(words[1], words[2]), host.DialOptions{})
				p.Check(err)
				if c.Mode() == conn.ModeUnix {
					here++
				} else {
					fallen[fmt.Sprintf("%v:%s", c.Mode(), c.Reason().Tag)]++
				}
				head, err = throughHead(c, size)
				p.Check(err)
				if strings.HasPrefix(head, "moved ") {
					there++
				}
				rings.count(c)
				p.Check(c.Close())
			}
			p.Say("dialled %d here %d there %d sees %s", count, here, there, head)
		case "hold": // address and port, of a connection on which nothing is sent before it is told of
			c, err := h.Dial(context.Background(), "tcp", net.JoinHostPort(words[1], words[2]), host.DialOptions{})
			p.Check(err)
			p.Say("holding %v %s", c.Mode(), c.Reason().Tag)
			head, err := throughHead(c, 2000)
			p.Check(err)
			p.Say("held %s", head)
			p.Check(c.Close())
		case "rings":
			p.Say("rings in %d out %d", rings.in.Load(), rings.out.Load())
		case "counts":
			p.Say("counts %v", fallen)
		}
	}
}

// ringCounts has how many directions of connections were in rings when these ended.
type ringCounts struct{ in, out atomic.Int32 }

func (r *ringCounts) count(c conn.Conn) {
	u, ok := c.(*conn.Unix)
	if !ok {
		return
	}
	in, out := u.Rings()
	if in {
		r.in.Add(1)
	}
	if out {
		r.out.Add(1)
	}
}

// echoHead is the server's side of testdata/reach.c.
func echoHead(c conn.Conn) {
	var head [headBytes]byte
	how := "tcp"
	if c.Mode() == conn.ModeUnix {
		how = "moved"
	}
	local, peer := c.LocalAddr().(*net.TCPAddr), c.RemoteAddr().(*net.TCPAddr)
	copy(head[:], fmt.Sprintf("%s %v %d %v %d", how, local.IP, local.Port, peer.IP, peer.Port))
	b := make([]byte, 64<<10)
	for first := true; ; first = false {
		n, err := c.Read(b)
		if n > 0 && first {
			c.Write(head[:])
		}
		if n > 0 {
			c.Write(b[:n])
		}
		if err != nil {
			return
		}
	}
}

// throughHead is the client's side: it returns what the server says first.
func throughHead(c conn.Conn, size int) (head string, err error) {
	sent, got := make([]byte, size), make([]byte, headBytes+size)
	smctest.Pattern(sent, 1)
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		wrote <- err
	}()
	if _, err = io.ReadFull(c, got); err != nil {
		return "", err
	}
	if err = <-wrote; err != nil {
		return "", err
	}
	if !bytes.Equal(got[headBytes:], sent) {
		return "", fmt.Errorf("other bytes come back than were sent")
	}
	text, _, _ := strings.Cut(string(got[:headBytes]), "\x00")
	return text, nil
}

// smc starts a program with package smc at an end of the cable.
func (n *podNet) smc(end, uid int) (p *smctest.Process) {
	n.t.Helper()
	dir := n.dir()
	n.run[end](func() { p = smctest.Start(n.t, "smc-pod", strconv.Itoa(uid), dir) })
	return p
}

// A starting starts a server and a client of two users, at the two ends of the cable.
type starting func(n *podNet, serverUser, clientUser int) (server, client *smctest.Process)

// mixed runs f with package smc at the client and 'gosmc run' at the server, and the other way round.
func mixed(t *testing.T, f func(t *testing.T, start starting)) {
	t.Run("client", func(t *testing.T) {
		f(t, func(n *podNet, serverUser, clientUser int) (server, client *smctest.Process) {
			return n.pod(0, serverUser), n.smc(1, clientUser)
		})
	})
	t.Run("server", func(t *testing.T) {
		f(t, func(n *podNet, serverUser, clientUser int) (server, client *smctest.Process) {
			return n.smc(0, serverUser), n.pod(1, clientUser)
		})
	})
}

// TestPodsMixed has package smc at one end and 'gosmc run' at the other, in two network namespaces, of one
// user and of two: all connections are moved. The agent is closed and started again meanwhile.
func TestPodsMixed(t *testing.T) {
	mixed(t, func(t *testing.T, start starting) {
		n := newPodNet(t)
		for _, users := range [][2]int{{podUserA, podUserA}, {podUserA, podUserB}} {
			server, client := start(n, users[0], users[1])
			for _, addr := range n.addr {
				port := serveAt(server, addr, "serve %v")
				dialAll(t, client, addr.String(), port, 50, 2000, 50)
				dialAll(t, client, addr.String(), port, 2, 3_000_000, 2)
			}
			smc := client
			if strings.HasSuffix(t.Name(), "/server") {
				smc = server
			}
			checkRings(t, smc, users)
			port := serveAt(server, n.addr[0], "serve %v")
			n.agent.Close()
			dialAll(t, client, n.addr[0].String(), port, 5, 2000, 0)
			client.Say("counts")
			if got := client.Hear("counts"); !strings.Contains(got, "NO_AGENT") {
				t.Errorf("users %v: without an agent: %s", users, got)
			}
			n.start()
			dialAll(t, client, n.addr[0].String(), port, 5, 2000, 5)
		}
	})
}

// checkRings waits until a program with package smc has had directions in rings. Which one goes over depends on
// how fast the other end reads: TestTurns of internal/ring holds both to it.
func checkRings(t *testing.T, smc *smctest.Process, users [2]int) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		smc.Say("rings")
		line := strings.TrimSpace(smc.Hear("rings"))
		var in, out int
		if _, err := fmt.Sscanf(line, "in %d out %d", &in, &out); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if in+out > 0 {
			return
		}
		if time.Since(begin) > ringPatience {
			t.Fatalf("users %v: %s directions of package smc were in rings, want some", users, line)
		}
	}
}

// TestPodsMixedNAT connects to a service address, hidden behind the router's. The server sees the addresses
// that TCP has there.
func TestPodsMixedNAT(t *testing.T) {
	mixed(t, func(t *testing.T, start starting) {
		n, service, route := newNATNet(t)
		server, client := start(n, podUserA, podUserB)
		port := serveAt(server, n.addr[0], "serve %v")
		route(port)
		sees := dialAll(t, client, service.Addr().String(), "6379", 100, 2000, 100)
		if want := "moved 10.98.0.2 " + port + " 10.98.0.1 "; !strings.HasPrefix(sees, want) {
			t.Errorf("the server sees %q, want %q", sees, want)
		}
	})
}

// TestPodsMixedPolicy has a machine whose policy refuses other users: both ends of their connections are TCP,
// with that reason.
func TestPodsMixedPolicy(t *testing.T) {
	mixed(t, func(t *testing.T, start starting) {
		n := newPodNet(t)
		n.agent.Close()
		n.cfg.Introduce = &introduce.Users{Mode: introduce.ModeSame}
		n.start()
		server, client := start(n, podUserA, podUserB)
		port := serveAt(server, n.addr[0], "serve %v")
		dialAll(t, client, n.addr[0].String(), port, 3, 2000, 0)
		client.Say("counts")
		if got := client.Hear("counts"); !strings.Contains(got, "OTHER_USER") {
			t.Errorf("the reason is %s", got)
		}
	})
}

// TestPodsMixedLate has a server of 'gosmc run' that accepts too late for clients with package smc: they use
// TCP, and so does the server.
func TestPodsMixedLate(t *testing.T) {
	n := newPodNet(t)
	server, client := n.pod(0, podUserA), n.smc(1, podUserB)
	port := serveAt(server, n.addr[0], "serve %v late")
	client.Say("hold %v %s", n.addr[0], port)
	if got, want := strings.TrimSpace(client.Hear("holding")), "TCP NOT_ACCEPTED"; got != want {
		t.Errorf("before its server accepts, the client's connection is %q, want %q", got, want)
	}
	server.Say("go")
	if got := strings.TrimSpace(client.Hear("held")); !strings.HasPrefix(got, "tcp ") {
		t.Errorf("the server sees %q, want TCP", got)
	}
	dialAll(t, client, n.addr[0].String(), port, 3, 2000, 3)
}
