package main

import "fmt"

// Ends of the network, each of which is a network namespace.
const (
	atServer = iota
	atClient
	atMiddle // of a proxy
	atShort  // that is removed
)

// Addresses of the router: its own, and one that is no interface's, as that of a service of Kubernetes.
const (
	router  = "10.97.0.1"
	service = "10.96.0.1"
)

// ports are those of servers. The router publishes each at its own address.
var ports = []int{portTalk, portRedis, portNginx, portPostgres}

const (
	portTalk     = 7000
	portRedis    = 6379
	portNginx    = 8080
	portHaproxy  = 8081
	portPostgres = 5432
)

// address is that of an end's interface.
func address(end int) string { return fmt.Sprintf("10.97.0.%d", end+2) }

// netns is the name of an end's network namespace.
func (l *lab) netns(end int) string { return fmt.Sprintf("%s-%d", l.name(), end) }

// routerNS is the name of the router's network namespace.
func (l *lab) routerNS() string { return l.name() + "-router" }

// network makes the ends, and a bridge in a namespace of its own that joins them. nftables there translate the service
// address and the published ports to the server, and the sources of such connections to the router's address. Where
// br_netfilter is loaded direct connections pass the same chains.
func (l *lab) network() error {
	in := "ip netns exec " + l.routerNS() + " "
	lines := "ip netns add " + l.routerNS() + "\n" +
		"ip -n " + l.routerNS() + " link set lo up\n" +
		"ip -n " + l.routerNS() + " link add br0 type bridge\n" +
		"ip -n " + l.routerNS() + " addr add " + router + "/24 dev br0\n" +
		"ip -n " + l.routerNS() + " link set br0 up\n" +
		in + "sysctl -q -w net.ipv4.ip_forward=1\n" +
		in + "nft add table ip nat\n" +
		in + "nft add chain ip nat pre { type nat hook prerouting priority -100 ; }\n" +
		in + "nft add chain ip nat post { type nat hook postrouting priority 100 ; }\n" +
		in + "nft add rule ip nat pre ip daddr " + service + " dnat to " + address(atServer) + "\n" +
		in + "nft add rule ip nat post ct status dnat masquerade\n"
	for _, port := range ports {
		lines += fmt.Sprintf("%snft add rule ip nat pre ip daddr %s tcp dport %d dnat to %s:%d\n",
			in, router, published(port), address(atServer), port)
	}
	if err := l.lines(lines); err != nil {
		return err
	}
	for _, end := range []int{atServer, atClient, atMiddle} {
		if err := l.addEnd(end); err != nil {
			return err
		}
	}
	return nil
}

// published is the port of the router that is a server's.
func published(port int) int { return port + 10_000 }

// addEnd makes an end, and joins it to the bridge.
func (l *lab) addEnd(end int) error {
	ns := l.netns(end)
	ip := "ip -n " + ns + " "
	return l.lines("ip netns add " + ns + "\n" + ip + "link set lo up\n" +
		fmt.Sprintf("ip -n %s link add v%d type veth peer name eth0 netns %s\n", l.routerNS(), end, ns) +
		fmt.Sprintf("ip -n %s link set v%d master br0 up\n", l.routerNS(), end) +
		ip + "addr add " + address(end) + "/24 dev eth0\n" + ip + "link set eth0 up\n" +
		ip + "route add default via " + router + "\n")
}

// removeEnd takes an end's interface and namespace away. Processes that are there keep the namespace until they end.
func (l *lab) removeEnd(end int) error {
	return l.lines(fmt.Sprintf("ip -n %s link delete v%d\n", l.routerNS(), end) + "ip netns delete " + l.netns(end))
}

// A way is one that leads to the server at a port.
type way struct{ name, host, port string }

// ways are directly, and through the router's translation of the destination and the source.
func ways(port int) []way {
	return []way{
		{"directly", address(atServer), fmt.Sprint(port)},
		{"by the service address", service, fmt.Sprint(port)},
		{"by the published port", router, fmt.Sprint(published(port))},
	}
}
