package metrics

import (
	"strconv"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/sockdiag"
)

// A Kernel is the part of a snapshot about the kernel's own SMC.
type Kernel struct {
	Stats   sockdiag.SMCStats
	Sockets []sockdiag.SMCSocket
}

// AddKernel adds the kernel's SMC in this network namespace, where the kernel has it.
func (s *Snapshot) AddKernel() {
	stats, err := sockdiag.Stats()
	if err != nil || stats == nil {
		return
	}
	s.Kernel = &Kernel{Stats: *stats}
	s.Kernel.Sockets, _ = sockdiag.SMC()
}

// Modes of the kernel's connections, in the order of [sockdiag.SMCMode].
var kernelModes = []string{sockdiag.SMCModeR: "SMC-R", sockdiag.SMCModeTCP: "TCP", sockdiag.SMCModeD: "SMC-D"}

// counters are the counters of the kernel as series.
func (k *Kernel) counters() counters {
	list := make(counters)
	set := func(family int, n uint64, labels ...string) {
		s := series{family: family, source: inventory.SourceKernel}
		copy(s.labels[:], labels)
		list[s] = addUp(list[s], n)
	}
	st := &k.Stats
	for mode, t := range map[string]*sockdiag.SMCTech{"SMC-D": &st.SMCD, "SMC-R": &st.SMCR} {
		set(famConnections, t.Client, mode, "client")
		set(famConnections, t.Server, mode, "server")
		set(famBytes, t.In, mode, "in")
		set(famBytes, t.Out, mode, "out")
		set(famHandshakes, addUp(t.Client, t.Server), "ok")
		set(famBuffersFull, t.PeerFull)
	}
	set(famConnections, st.ClientFallbacks, "TCP", "client")
	set(famConnections, st.ServerFallbacks, "TCP", "server")
	set(famHandshakes, addUp(st.ClientErrors, st.ServerErrors), "failed")
	for _, r := range st.Reasons {
		side := "client"
		if r.Server {
			side = "server"
		}
		set(famFallbacks, r.Count, codeLabel(control.ReasonCode(r.Code)), side)
	}
	return list
}

// addOpen adds the kernel's connections to the gauge of those that there are. The kernel does not say
// of each which end it is.
func (k *Kernel) addOpen(f *Family) {
	open := make([]int, len(kernelModes))
	for _, s := range k.Sockets {
		if s.State != sockdiag.TCPListen && s.Peer.Port() != 0 && int(s.Mode) < len(open) {
			open[s.Mode]++
		}
	}
	for _, mode := range []sockdiag.SMCMode{sockdiag.SMCModeD, sockdiag.SMCModeR, sockdiag.SMCModeTCP} {
		f.add(strconv.Itoa(open[mode]), "mode", kernelModes[mode], "role", other, "source",
			inventory.SourceKernel)
	}
}
