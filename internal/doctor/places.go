package doctor

import (
	"net"
	"net/netip"
	"sync"
)

// Prefixes of clients that share a bound: one host has an IPv4 address, and as many IPv6 addresses
// of a network of 64 bits as it likes.
const (
	placesBits4 = 32
	placesBits6 = 64
)

// places counts the connections that a server has, of all clients and of each. The zero value has
// none, and several goroutines may use it.
type places struct {
	mu   sync.Mutex
	all  int
	each map[netip.Prefix]int // none is 0
}

// take takes a place for a client, if there is one left. The caller calls leave then, once.
func (p *places) take(client net.Addr) (leave func(), ok bool) {
	from := clientOf(client)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == maxServed || p.each[from] == maxServedEach { // rule: TestServeMany: p.each[from] == maxServedEach -> false
		return nil, false
	}
	if p.each == nil {
		p.each = make(map[netip.Prefix]int)
	}
	p.all++
	p.each[from]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all--
		if p.each[from]--; p.each[from] == 0 {
			delete(p.each, from)
		}
	}, true
}

// clientOf is the prefix of a client's address. Addresses that are none of IP share the zero value.
func clientOf(client net.Addr) netip.Prefix {
	at, err := netip.ParseAddrPort(client.String())
	if err != nil {
		return netip.Prefix{}
	}
	addr := at.Addr().Unmap()
	bits := placesBits6
	if addr.Is4() {
		bits = placesBits4
	}
	from, _ := addr.Prefix(bits) // fails for no address that was parsed
	return from
}
