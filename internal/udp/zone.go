package udp

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
)

// zones turns IPv6 zones into interface indexes and back. Answers are kept, so that neither costs a
// system call or memory per datagram, and so that equal interfaces give equal zones.
type zones struct {
	mu    sync.Mutex // held by the goroutine that replaces known
	known atomic.Pointer[[]zone]
}

// A zone is an interface by name and by index.
type zone struct {
	index uint32
	name  string
	addr  netip.Addr // any address with that zone: keeps it interned
}

// maxZones bounds the table. With more interfaces in use it is begun anew.
const maxZones = 256

// index is the interface of the zone called name, 0 for no zone.
func (z *zones) index(name string) (uint32, error) {
	if name == "" {
		return 0, nil
	}
	if known := z.known.Load(); known != nil {
		for i := range *known {
			if (*known)[i].name == name {
				return (*known)[i].index, nil
			}
		}
	}
	index, err := strconv.ParseUint(name, 10, 31)
	if err != nil || index == 0 {
		ifi, err := net.InterfaceByName(name)
		if err != nil {
			return 0, fmt.Errorf("zone %q: %w", name, err)
		}
		index = uint64(ifi.Index)
	}
	z.prefer(uint32(index), name)
	return uint32(index), nil
}

// with is ip in the zone of the interface with that index.
func (z *zones) with(ip netip.Addr, index uint32) netip.Addr {
	if index == 0 {
		return ip
	}
	if known := z.known.Load(); known != nil {
		for i := range *known {
			if (*known)[i].index == index {
				return ip.WithZone((*known)[i].name)
			}
		}
	}
	name := strconv.FormatUint(uint64(index), 10)
	if ifi, err := net.InterfaceByIndex(int(index)); err == nil {
		name = ifi.Name
	}
	z.prefer(index, name)
	return ip.WithZone(name)
}

// prefer adds a zone to the table. The first name for an index is the one that with gives.
func (z *zones) prefer(index uint32, name string) {
	if index == 0 || name == "" {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	var known []zone
	if p := z.known.Load(); p != nil && len(*p) < maxZones {
		known = slices.Clone(*p)
	}
	known = append(known, zone{index, name, netip.IPv6LinkLocalAllNodes().WithZone(name)})
	z.known.Store(&known)
}

// forget empties the table but for the zone of local: an interface in it may be gone.
func (z *zones) forget(local netip.Addr) {
	z.mu.Lock()
	defer z.mu.Unlock()
	var keep []zone
	if p := z.known.Load(); p != nil {
		for _, known := range *p {
			if known.name == local.Zone() {
				keep = append(keep, known)
			}
		}
	}
	z.known.Store(&keep)
}
