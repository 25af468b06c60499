package uverbs

import "github.com/gosmc/smc/wire"

// Limits are the limits of a device, as the driver states them.
type Limits struct {
	MaxMRSize   uint64 // bytes of a memory region
	MaxQP       int    // queue pairs
	MaxQPWR     int    // work requests of each queue of a queue pair
	MaxSGE      int    // pieces of memory of a work request
	MaxCQ       int    // completion queues
	MaxCQE      int    // completions of a completion queue
	MaxMR       int    // memory regions
	MaxPD       int    // protection domains
	Ports       uint8  // number of ports; the first is 1
	VendorID    uint32
	FirmwareVer uint64
}

const queryDeviceLen = 176

// parseQueryDevice decodes the answer to QUERY_DEVICE. Values that do not fit count as the largest
// that do.
//
//	offset  size  field
//	     0     8  version of the firmware
//	     8     8  GUID of the node
//	    16     8  GUID of the system
//	    24     8  bytes of a memory region
//	    32     8  sizes of pages
//	    40    12  vendor, part, version of the hardware
//	    52     4  queue pairs
//	    56     4  work requests of a queue
//	    60     4  capabilities
//	    64     4  pieces of memory of a work request
//	    68     4  the same of a READ
//	    72     4  completion queues
//	    76     4  completions of a queue
//	    80     4  memory regions
//	    84     4  protection domains
//	    88    80  limits of services that this package does not use
//	   168     2  partition keys
//	   170     1  delay of acknowledgements
//	   171     1  ports
//	   172     4  reserved
func parseQueryDevice(b []byte) (Limits, error) {
	if err := needs("answer to QUERY_DEVICE", b, queryDeviceLen); err != nil {
		return Limits{}, err
	}
	number := func(offset int) int { return int(min(host.Uint32(b[offset:]), 1<<30)) }
	l := Limits{
		FirmwareVer: host.Uint64(b), MaxMRSize: host.Uint64(b[24:]), VendorID: host.Uint32(b[40:]),
		MaxQP: number(52), MaxQPWR: number(56), MaxSGE: number(64), MaxCQ: number(72), MaxCQE: number(76),
		MaxMR: number(80), MaxPD: number(84), Ports: b[171],
	}
	if l.Ports == 0 || l.MaxSGE == 0 {
		return Limits{}, kernelError("a device with %d ports and %d SGEs", l.Ports, l.MaxSGE)
	}
	return l, nil
}

// A PortState is the state of a port, as the kernel numbers it.
type PortState uint8

// PortActive is the state of a port that can send and receive.
const PortActive PortState = 4

// PortAttr has the attributes of a port.
type PortAttr struct {
	State      PortState
	MaxMTU     wire.MTU // of the driver
	ActiveMTU  wire.MTU // of the network interface now: the largest path MTU
	GIDs       int      // places of the GID table
	MaxMessage uint32   // bytes
	Ethernet   bool     // RoCE, else InfiniBand
}

const (
	queryPortLen      = 40
	linkLayerEthernet = 2
)

// parseQueryPort decodes the answer to QUERY_PORT.
//
//	offset  size  field
//	     0     4  capabilities
//	     4     4  bytes of the largest message
//	     8     8  counters of violations
//	    16     4  places of the GID table
//	    20     6  places of the table of partition keys; LID; LID of the subnet manager
//	    26     1  state
//	    27     1  largest MTU
//	    28     1  active MTU
//	    29     8  properties of the link
//	    37     1  link layer: 1 = InfiniBand, 2 = Ethernet
//	    38     2  flags; reserved
func parseQueryPort(b []byte) (PortAttr, error) {
	if err := needs("answer to QUERY_PORT", b, queryPortLen); err != nil {
		return PortAttr{}, err
	}
	a := PortAttr{
		MaxMessage: host.Uint32(b[4:]), GIDs: int(min(host.Uint32(b[16:]), 1<<16)), State: PortState(b[26]),
		MaxMTU: wire.MTU(b[27]), ActiveMTU: wire.MTU(b[28]), Ethernet: b[37] == linkLayerEthernet,
	}
	if !validMTU(a.MaxMTU) || !validMTU(a.ActiveMTU) {
		return PortAttr{}, kernelError("a port with MTUs %d and %d", b[27], b[28])
	}
	return a, nil
}

func validMTU(m wire.MTU) bool { return m >= wire.MTU256 && m <= wire.MTU4096 }

// appendQueryPort appends the body of QUERY_PORT.
//
//	offset  size  field
//	     0     1  port
//	     1     7  reserved
func appendQueryPort(b []byte, port uint8) []byte { return append(b, port, 0, 0, 0, 0, 0, 0, 0) }
