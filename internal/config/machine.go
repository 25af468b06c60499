package config

import "net/netip"

// A Machine says which servers can be on this machine, as far as their addresses say: programs and
// containers to which a connection asks for pairing tokens, where an agent runs. The zero value is the
// default, private networks. Addresses of the machine itself are for the caller to know.
type Machine struct{ rules Rules }

// NewMachine makes a Machine of the values of [MachineAddress]. Exceptions take addresses out of the
// default; a list with other entries takes its place.
func NewMachine(list []string) (Machine, error) {
	r, err := newRules(Filter{Addresses: list}, "", MachineAddress)
	return Machine{r}, err
}

// MayHave reports whether a server can be on this machine.
func (m *Machine) MayHave(server netip.Addr) bool {
	server = server.Unmap().WithZone("")
	if len(m.rules.addresses) > 0 && m.rules.refusesAddress(server) != "" { // rule: TestMachine
		return false
	}
	return m.rules.positive[1] || isPrivate(server) // rule: TestMachine: m.rules.positive[1] -> false
}

// isPrivate reports whether an address is of a private network, of one link or of the loopback interface.
func isPrivate(a netip.Addr) bool {
	return a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || sharedSpace.Contains(a)
}

// sharedSpace is the address space of RFC 6598, which container networks use.
var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")
