package smcd

import (
	"time"

	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/tcpwatch"
	"github.com/gosmc/smc/wire"
)

// A Device is an Emulated-ISM device, with the other parts that its connections need.
type Device struct {
	*ism.Device
	groups *Groups
	spin   time.Duration
	tcp    *tcpwatch.Watcher
}

// Open opens a device, whose connections are in these groups and spin for so long before they sleep.
func Open(cfg ism.Config, groups *Groups, spin time.Duration) (*Device, error) {
	w, err := tcpwatch.New()
	if err != nil {
		return nil, err
	}
	d, err := ism.Open(cfg)
	if err != nil {
		w.Close()
		return nil, err
	}
	return &Device{Device: d, groups: groups, spin: spin, tcp: w}, nil
}

// NewPath returns a path to the process behind a peering of the device. seid is the system EID that is
// offered if the host knows none, such as in a container without /proc; zero for none.
func (d *Device) NewPath(peer *ism.Peer, seid wire.EID) *Path {
	return &Path{device: d, peer: peer, seid: seid}
}

// Close reports every peer gone, which ends the waits for an answer.
func (d *Device) Close() {
	d.Device.Close()
	d.tcp.Close()
}
