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
	router   = "10.97.0.1"
	service  = "10.96.0.1"
	router6  = "fd97::1"
	service6 = "fd96::1"
)

// ports belong to servers. The router publishes each at its own address.
var ports = []int{portTalk, portRedis, portNginx, portPostgres, portSocat}

const (
	portTalk     = 7000
	portSocat    = 7001
	portLiar     = 7002
	portRange    = 7100 // and rangeCount-1 after it
	portRelay    = 7200 // and the next one
	portRedis    = 6379
	portNginx    = 8080
	portHaproxy  = 8081
	portPostgres = 5432
)

// address belongs to an end's interface.
func address(end int) string { return fmt.Sprintf("10.97.0.%d", end+2) }

// address6 is the one of IPv6, a unique local one.
func address6(end int) string { return fmt.Sprintf("fd97::%d", end+2) }

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
		"ip -n " + l.routerNS() + " addr add " + router6 + "/64 dev br0 nodad\n" +
		"ip -n " + l.routerNS() + " link set br0 up\n" +
		in + "sysctl -q -w net.ipv4.ip_forward=1\n" +
		in + "sysctl -q -w net.ipv6.conf.all.forwarding=1\n"
	for _, f := range []struct{ family, router, service, server, at string }{
		{"ip", router, service, address(atServer), address(atServer)},
		{"ip6", router6, service6, address6(atServer), "[" + address6(atServer) + "]"},
	} {
		add := in + "nft add "
		lines += add + "table " + f.family + " nat\n" +
			add + "chain " + f.family + " nat pre { type nat hook prerouting priority -100 ; }\n" +
			add + "chain " + f.family + " nat post { type nat hook postrouting priority 100 ; }\n" +
			add + "rule " + f.family + " nat pre " + f.family + " daddr " + f.service + " dnat to " + f.server + "\n" +
			add + "rule " + f.family + " nat post ct status dnat masquerade\n"
		for _, port := range ports {
			lines += fmt.Sprintf("%srule %s nat pre %[2]s daddr %s tcp dport %d dnat to %s:%d\n",
				add, f.family, f.router, published(port), f.at, port)
		}
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
		ip + "addr add " + address(end) + "/24 dev eth0\n" + ip + "addr add " + address6(end) + "/64 dev eth0 nodad\n" +
		ip + "link set eth0 up\n" +
		ip + "route add default via " + router + "\n" + ip + "route add default via " + router6 + "\n")
}

// removeEnd takes an end's interface and namespace away. Processes that are there keep the namespace until they end.
func (l *lab) removeEnd(end int) error {
	return l.lines(fmt.Sprintf("ip -n %s link delete v%d\n", l.routerNS(), end) + "ip netns delete " + l.netns(end))
}

// A way is one that leads to the server at a port. The host of IPv6 has brackets.
type way struct{ name, host, port string }

// ways are directly, and through the router's translation of the destination and the source.
func ways(port int) []way {
	return []way{
		{"directly", address(atServer), fmt.Sprint(port)},
		{"by the service address", service, fmt.Sprint(port)},
		{"by the published port", router, fmt.Sprint(published(port))},
	}
}

// ways6 are the same by IPv6.
func ways6(port int) []way {
	return []way{
		{"directly, IPv6", "[" + address6(atServer) + "]", fmt.Sprint(port)},
		{"by the service address, IPv6", "[" + service6 + "]", fmt.Sprint(port)},
		{"by the published port, IPv6", "[" + router6 + "]", fmt.Sprint(published(port))},
	}
}
