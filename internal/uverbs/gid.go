package uverbs

import (
	"fmt"

	"github.com/gosmc/smc/wire"
)

// A GIDType is the protocol for which a GID can be used. The values are the kernel's: enum
// ib_uverbs_gid_type.
type GIDType uint32

// All values.
const (
	GIDTypeIB     GIDType = iota // InfiniBand
	GIDTypeRoCEv1                // RoCE in Ethernet frames, for SMC-Rv1
	GIDTypeRoCEv2                // RoCE over UDP, for SMC-Rv2
)

// String returns "IB", "RoCE v1" or "RoCE v2".
func (t GIDType) String() string {
	switch t {
	case GIDTypeIB:
		return "IB"
	case GIDTypeRoCEv1:
		return "RoCE v1"
	case GIDTypeRoCEv2:
		return "RoCE v2"
	}
	return fmt.Sprintf("GID type %d", uint32(t))
}

// A GIDEntry is one place in the GID table of a port.
type GIDEntry struct {
	Port      uint8 // from 1
	Index     int   // place in the table of the port, from 0
	GID       wire.GID
	Type      GIDType
	Interface string // network interface, in entries of sysfs; empty if there is none
	Ifindex   uint32 // number of the network interface, in entries of a context; 0 if there is none
}

const gidEntryLen = 32

// parseGIDTable decodes the answer to QUERY_GID_TABLE: n entries.
//
//	offset  size  field
//	     0    16  GID
//	    16     4  index in the table of the port
//	    20     4  port
//	    24     4  type
//	    28     4  number of the network interface, 0 for none
func parseGIDTable(b []byte, n uint64) ([]GIDEntry, error) {
	if n > uint64(len(b)/gidEntryLen) { // rule: TestGIDTable: b)/gidEntryLen -> b)
		return nil, kernelError("%d GIDs in %d bytes", n, len(b))
	}
	var list []GIDEntry
	for i := range int(n) {
		e := b[i*gidEntryLen:][:gidEntryLen]
		index, port := host.Uint32(e[16:]), host.Uint32(e[20:])
		if index >= 1<<16 || port == 0 || port > maxPorts {
			return nil, kernelError("a GID with index %d of port %d", index, port)
		}
		list = append(list, GIDEntry{
			Port: uint8(port), Index: int(index), GID: wire.GID(e[:16]),
			Type: GIDType(host.Uint32(e[24:])), Ifindex: host.Uint32(e[28:]),
		})
	}
	return list, nil
}
