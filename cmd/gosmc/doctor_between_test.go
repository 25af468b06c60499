package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/option"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/smctest"
)

// twoHosts are two network namespaces with a cable between them. 'gosmc doctor' runs in the first
// one, and its peer in the second one.
type twoHosts struct {
	*smctest.Cables
	environ [2][]string
	args    []string // for doctor: the address of the server
}

// newTwoHosts makes two hosts with a configuration each.
func newTwoHosts(t *testing.T, ours, theirs string) *twoHosts {
	t.Helper()
	h := &twoHosts{Cables: smctest.NewCables(t, 1)}
	for end, text := range []string{ours, theirs} {
		h.environ[end] = runEnviron(t)
		file := filepath.Join(t.TempDir(), "gosmc.conf")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		h.environ[end] = append(h.environ[end], "GOSMC_CONFIG="+file)
	}
	return h
}

// in starts a command at an end.
func (h *twoHosts) in(t *testing.T, end int, cmd *exec.Cmd) {
	t.Helper()
	cmd.Env = h.environ[end]
	var err error
	h.Run[end](func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
}

// serve starts 'gosmc doctor --serve' on the other host.
func (h *twoHosts) serve(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "doctor", "--serve", h.Addr[0][1].String()+":0")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.in(t, 1, cmd)
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	address, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		t.Fatalf("gosmc doctor --serve says %q, %v", line, err)
	}
	h.args = []string{address}
}

// listen starts a server of TCP on the other host that knows no SMC, and does with each connection
// as it is told. asks has TCP option 254 on its SYN-ACKs all the same.
func (h *twoHosts) listen(t *testing.T, asks bool, serve func(net.Conn)) {
	t.Helper()
	var l net.Listener
	var err error
	h.Run[1](func() {
		c := net.ListenConfig{}
		c.SetMultipathTCP(false)
		if asks {
			c.Control = func(_, _ string, raw syscall.RawConn) error { return option.AskConn(raw) }
		}
		l, err = c.Listen(t.Context(), "tcp4", h.Addr[0][1].String()+":0")
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	h.args = []string{l.Addr().String()}
}

// filter gives an end rules of nftables for packets that come in.
func (h *twoHosts) filter(t *testing.T, end int, rules ...string) {
	t.Helper()
	text := "table inet faults {\n chain in {\n  type filter hook input priority 0;\n  " + strings.Join(rules, "\n  ") + "\n }\n}\n"
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	var out []byte
	var err error
	h.Run[end](func() { out, err = cmd.CombinedOutput() })
	if err != nil {
		t.Fatalf("nft: %v, %s", err, out)
	}
}

// doctor runs 'gosmc doctor --json' on the first host.
func (h *twoHosts) doctor(t *testing.T) doctorReport {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"doctor", "--json"}, h.args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	cmd.Stderr = &text
	h.in(t, 0, cmd)
	b, err := io.ReadAll(out)
	cmd.Wait() // its status is checked elsewhere
	var r doctorReport
	if e := json.Unmarshal(b, &r); err != nil || e != nil {
		t.Fatalf("gosmc doctor %q: %v, %v, %s, %s", h.args, err, e, b, text.String())
	}
	return r
}

// withAgent starts an agent whose programs are for this test alone.
func withAgent(t *testing.T, more ...string) {
	t.Helper()
	root, err := bpf.CgroupRoot()
	if err != nil {
		t.Skip(err)
	}
	socket := filepath.Join(t.TempDir(), "socket")
	group := smctest.EnterCgroup(t, root)
	flags := []string{"--socket", socket, "--pins", filepath.Join(smctest.MountBPF(t), "gosmc"), "--cgroup", group}
	t.Setenv(port.EnvSocket, socket)
	a := startAgent(t, slices.Concat(flags, more)...)
	t.Cleanup(func() { // before the control group is removed
		a.end(t)
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			list, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
			if err == nil && strings.Count(string(list), "\n") <= 1 {
				break // supervisors of programs have ended, too
			}
		}
		if got := gosmc(t, "", append([]string{"agent", "--detach"}, flags...)...); got != (outcome{}) {
			t.Errorf("detach: %+v", got)
		}
	})
}

// A betweenFault is a fault between two hosts, and the finding that has to name it.
type betweenFault struct {
	name         string
	agent        bool                            // TCP option 254 tells the hosts of each other
	ours, theirs string                          // configurations; empty: a common UEID, and peers without an agent
	prepare      func(t *testing.T, h *twoHosts) // before the peer starts
	inject       func(t *testing.T, h *twoHosts) // after the peer has started
	noServe      bool                            // inject starts the peer
	want         []string                        // parts of the finding: "check: text -> remedy"; none: no finding
}

const (
	bareUEID  = "ueid DOCTOR.TEST\n"
	withPeers = bareUEID + "peer 10.99.0.0/16\n"
)

var betweenFaults = []betweenFault{
	{name: "healthy, with peers"},
	{name: "healthy, with an agent", agent: true},
	{name: "healthy, version 1", ours: "smcr-v1 yes\npeer 10.99.0.0/16\n", theirs: "smcr-v1 yes\npeer 10.99.0.0/16\n"},
	{name: "nobody listens", noServe: true, inject: func(_ *testing.T, h *twoHosts) { h.args = []string{h.Addr[0][1].String() + ":9"} },
		want: []string{"tcp: ", "nobody listens", "-> start the server"}},
	{name: "firewall drops the TCP port", inject: func(t *testing.T, h *twoHosts) { h.filter(t, 1, "meta l4proto tcp drop") },
		want: []string{"tcp: ", "TCP does not connect", "firewalls that drop TCP port"}},
	{name: "firewall rejects TCP option 254", agent: true,
		inject: func(t *testing.T, h *twoHosts) { h.filter(t, 1, "tcp option 254 exists reject with tcp reset") },
		want:   []string{"tcp-option: ", "refuses SYNs with TCP option 254", "-> let the firewalls"}},
	{name: "firewall drops TCP option 254", agent: true,
		inject: func(t *testing.T, h *twoHosts) { h.filter(t, 1, "tcp option 254 exists drop") },
		want:   []string{"tcp-option: ", "answers nothing to SYNs with TCP option 254", "-> let the firewalls"}},
	{name: "box takes TCP option 254 away", agent: true,
		inject: func(t *testing.T, h *twoHosts) { h.filter(t, 1, "reset tcp option 254") },
		want:   []string{"tcp-option: ", "both hosts put TCP option 254", "takes it away", "-> have firewalls"}},
	{name: "peer speaks TCP only", agent: true, noServe: true,
		inject: func(t *testing.T, h *twoHosts) { h.listen(t, false, func(c net.Conn) { io.Copy(io.Discard, c) }) },
		want:   []string{"peer: ", "the program there does not use SMC", "gosmc doctor --serve"}},
	{name: "peer echoes TCP options", agent: true, noServe: true,
		inject: func(t *testing.T, h *twoHosts) { h.listen(t, true, func(c net.Conn) { io.Copy(io.Discard, c) }) },
		want:   []string{"tcp-option: ", "echoes TCP options", "gosmc policy add connect-address '!"}},
	{name: "peer echoes TCP options, and objects", agent: true, noServe: true,
		inject: func(t *testing.T, h *twoHosts) {
			h.listen(t, true, func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 400 Bad Request\r\n\r\n") })
		},
		want: []string{"tcp-option: ", "echoes TCP options"}},
	{name: "entry peer for a server of TCP", noServe: true,
		inject: func(t *testing.T, h *twoHosts) { h.listen(t, false, func(c net.Conn) { io.Copy(io.Discard, c) }) },
		want:   []string{"clc: ", "an entry 'peer'", "-> start the server with SMC; or remove"}},
	{name: "UDP port 4791 filtered both ways", inject: func(t *testing.T, h *twoHosts) {
		h.filter(t, 0, "udp dport 4791 drop")
		h.filter(t, 1, "udp dport 4791 drop")
	}, want: []string{"roce: ", "neither way", "both ways"}},
	{name: "UDP port 4791 filtered to the peer", inject: func(t *testing.T, h *twoHosts) { h.filter(t, 1, "udp dport 4791 drop") },
		want: []string{"roce-out: ", "arrive here, and do not arrive at the peer", "from this host to the peer"}},
	{name: "UDP port 4791 filtered from the peer", inject: func(t *testing.T, h *twoHosts) { h.filter(t, 0, "udp dport 4791 drop") },
		want: []string{"roce-in: ", "arrive at the peer, and do not arrive here", "from the peer to this host"}},
	{name: "path with a smaller MTU", inject: func(t *testing.T, h *twoHosts) { h.filter(t, 1, "udp dport 4791 udp length > 900 drop") },
		want: []string{"mtu: ", "small RoCE packets pass", "-> give the interfaces of both hosts the MTU"}},
	{name: "path with a smaller MTU, from the peer", inject: func(t *testing.T, h *twoHosts) { h.filter(t, 0, "udp dport 4791 udp length > 900 drop") },
		want: []string{"mtu: ", "small RoCE packets pass"}},
	{name: "UEIDs differ", theirs: "ueid ANOTHER\npeer 10.99.0.0/16\n",
		want: []string{"eid: ", "the peer declined", "NOUEID", "Here: DOCTOR.TEST; there: ANOTHER", "-> gosmc ueid add"}},
	{name: "peer without a UEID", agent: true, theirs: "smc on\n",
		want: []string{"eid: ", "the peer has no UEID", "-> there: gosmc ueid add"}},
	{name: "peer with version 1 only", theirs: "smcr-v1 yes\npeer 10.99.0.0/16\n",
		want: []string{"version: ", "this host speaks version 2 of SMC-R only, and the peer version 1", "-> gosmc ueid add"}},
	{name: "peer with version 2 only", ours: "smcr-v1 yes\npeer 10.99.0.0/16\n", theirs: withPeers,
		want: []string{"version: ", "this host speaks version 1 of SMC-R only, and the peer version 2", "-> gosmc ueid add"}},
	{name: "no common subnet", ours: "smcr-v1 yes\npeer 10.0.0.0/8\n", theirs: "smcr-v1 yes\npeer 10.0.0.0/8\n", prepare: apart,
		want: []string{"subnet: ", "the peer declined", "DIFFPREFIX", "-> Use version 2"}},
	{name: "PNETIDs differ", ours: withPeers + "pnet NETA cable0\npnet NETB cable1\ndevice 10.99.0.3\n", prepare: second,
		want: []string{"pnet: ", "this host declined", "PNETID NETA of cable0", "-> gosmc pnet"}},
	{name: "device of the peer is another", theirs: withPeers + "device 192.0.2.9\n", want: []string{"device: ", "the peer declined", "NOSMCRDEV 0x03030002", "-> Check the RoCE device"}},
	{name: "no agent", ours: bareUEID, theirs: bareUEID, want: []string{"agent: ", "no agent puts", "gosmc-agent"}},
}

// apart gives the hosts addresses in networks of their own, with routes to each other.
func apart(_ *testing.T, h *twoHosts) {
	var own [2]netip.Addr
	for end := range own {
		own[end] = netip.AddrFrom4([4]byte{10, byte(100 + end), 0, 1})
		h.IP(end, fmt.Sprintf("addr add %v/24 dev cable0", own[end]))
	}
	for end := range own {
		h.IP(end, fmt.Sprintf("addr del %v/24 dev cable0", h.Addr[0][end]))
		h.IP(end, fmt.Sprintf("route add %v/32 dev cable0 src %v", own[1-end], own[end]))
	}
	h.Addr[0] = own
}

// second has another interface on the first host.
func second(_ *testing.T, h *twoHosts) {
	h.IP(0, "link add cable1 type veth peer name far1")
	h.IP(0, "addr add 10.99.0.3/24 dev cable1")
	h.IP(0, "link set cable1 up")
	h.IP(0, "link set far1 up")
}

// TestDoctorBetween injects faults between two hosts, one at a time: doctor names each, with its
// remedy, and nothing else. Two healthy hosts have no finding.
func TestDoctorBetween(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft")
	}
	for _, tt := range betweenFaults {
		t.Run(strings.ReplaceAll(tt.name, " ", "-"), func(t *testing.T) {
			if tt.agent {
				withAgent(t, "--no-introduce", "--no-port")
			}
			standard := withPeers
			if tt.agent {
				standard = bareUEID
			}
			for _, text := range []*string{&tt.ours, &tt.theirs} {
				if *text == "" {
					*text = standard
				}
			}
			h := newTwoHosts(t, tt.ours, tt.theirs)
			if tt.prepare != nil {
				tt.prepare(t, h)
			}
			if !tt.noServe {
				h.serve(t)
			}
			if tt.inject != nil {
				tt.inject(t, h)
			}
			r := h.doctor(t)
			bad := r.bad()
			if len(tt.want) == 0 {
				if len(bad) > 0 || !strings.Contains(fmt.Sprint(r.Findings), "went there and back") {
					t.Errorf("on healthy hosts the findings are %+v", r.Findings)
				}
				return
			}
			if len(bad) != 1 {
				t.Fatalf("findings %q, want one with %q", bad, tt.want)
			}
			for _, w := range tt.want {
				if !strings.Contains(bad[0], w) {
					t.Errorf("finding %q, want %q in it", bad[0], w)
				}
			}
		})
	}
}
