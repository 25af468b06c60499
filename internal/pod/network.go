package pod

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"github.com/gosmc/smc/internal/netns"
)

// Two containers and a bridge, each in a network namespace of its own. The client connects to a service
// address, which the bridge's namespace translates to the server's, and the client's to its own (DNAT
// and masquerading).
//
//	client 10.78.0.3 --- bridge 10.78.0.1 --- 10.78.0.2 server
//	                     10.79.0.1, the service
var (
	Server  = netip.MustParseAddr("10.78.0.2")
	Service = netip.MustParseAddr("10.79.0.1")

	client = netip.MustParseAddr("10.78.0.3")
	bridge = netip.MustParsePrefix("10.78.0.1/24")
)

// rules are the translation, for nft.
var rules = fmt.Sprintf(`table ip gosmc {
	chain in { type nat hook prerouting priority dstnat; ip daddr %v tcp dport 1-65535 dnat to %v; }
	chain out { type nat hook postrouting priority srcnat; ip daddr %v ct status dnat masquerade; }
}`, Service, Server, Server)

// CheckTools returns an error that matches [exec.ErrNotFound] if a command is missing that makes the
// network.
func CheckTools() error {
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("containers need iproute2 and nftables: %w", err)
		}
	}
	return nil
}

// A step is a command in the network namespace of a process.
type step struct {
	pid   int
	words string
	input string
}

func (s step) run() error {
	return netns.In(s.pid, func() error {
		args := strings.Fields(s.words)
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdin = strings.NewReader(s.input)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %.200q", s.words, err, out)
		}
		return nil
	})
}

// Join makes the network between the namespaces of three processes: of the bridge, the server and the
// client. It ends with the namespaces.
func Join(bridgePID, serverPID, clientPID int) error {
	steps := []step{
		{pid: bridgePID, words: "ip link set lo up"},
		{pid: bridgePID, words: "ip link add br0 type bridge"},
		{pid: bridgePID, words: fmt.Sprintf("ip addr add %v dev br0", bridge)},
		{pid: bridgePID, words: "ip link set br0 up"},
	}
	steps = append(steps, plug(bridgePID, serverPID, "server", Server)...)
	steps = append(steps, plug(bridgePID, clientPID, "client", client)...)
	steps = append(steps, step{bridgePID, "nft -f -", rules})
	for _, s := range steps {
		if err := s.run(); err != nil {
			return err
		}
	}
	return netns.In(bridgePID, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	})
}

// plug joins a container to the bridge.
func plug(bridgePID, pid int, name string, addr netip.Addr) []step {
	return []step{
		{pid: bridgePID, words: fmt.Sprintf("ip link add %s type veth peer name eth0 netns %d", name, pid)},
		{pid: bridgePID, words: "ip link set " + name + " master br0 up"},
		{pid: pid, words: "ip link set lo up"},
		{pid: pid, words: fmt.Sprintf("ip addr add %v/%d dev eth0", addr, bridge.Bits())},
		{pid: pid, words: "ip link set eth0 up"},
		{pid: pid, words: fmt.Sprintf("ip route add default via %v", bridge.Addr())},
	}
}
