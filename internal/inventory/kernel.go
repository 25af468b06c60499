package inventory

import (
	"strconv"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/sockdiag"
	"github.com/gosmc/smc/wire/clc"
)

// SourceKernel is the source of connections and listeners of the kernel's own SMC.
const SourceKernel = "kernel"

// AddKernel adds the sockets of the kernel's SMC (AF_SMC) in this network namespace, which is netns:
// connections and listeners, each if asked for. Where the kernel has no SMC there are none.
func (r *Report) AddKernel(connections, listeners bool, netns uint64) {
	list, _ := sockdiag.SMC()
	r.addKernel(list, inspect.Owners(inodesOf(list)), connections, listeners, netns)
}

func inodesOf(list []sockdiag.SMCSocket) (inodes []uint64) {
	for _, s := range list {
		inodes = append(inodes, s.Inode)
	}
	return inodes
}

// addKernel is [Report.AddKernel] with the sockets, and the processes that have them, by inode.
func (r *Report) addKernel(
	list []sockdiag.SMCSocket, owners map[uint64]inspect.Owner, connections, listeners bool, netns uint64,
) {
	for _, s := range list {
		owner := owners[s.Inode]
		switch {
		case s.State == sockdiag.TCPListen:
			if listeners {
				r.Listeners = append(r.Listeners, Listener{
					StatusListener: control.StatusListener{
						Local: s.Local.String(), Require: "any", UID: s.UID, Inode: s.Inode, NetNS: netns,
					},
					PID: owner.PID, Command: owner.Command, Source: SourceKernel,
				})
			}
		case connections && s.Peer.Port() != 0:
			r.Connections = append(r.Connections, kernelConn(&s, owner, netns))
		}
	}
}

// kernelConn is a connection of the kernel's SMC. The kernel does not count its bytes.
func kernelConn(s *sockdiag.SMCSocket, owner inspect.Owner, netns uint64) Conn {
	c := Conn{StatusConn: control.StatusConn{
		State: kernelState(s.State), Local: s.Local.String(), Peer: s.Peer.String(), Mode: "TCP",
		UID: s.UID, Inode: s.Inode, NetNS: netns, RecvQ: s.RecvQ, SendQ: s.SendQ,
	}, PID: owner.PID, Command: owner.Command, Source: SourceKernel}
	switch s.Mode {
	case sockdiag.SMCModeR:
		c.Mode, c.Link, c.RcvBuf, c.SndBuf = "SMC-R", s.Link, &s.RcvBuf, &s.SndBuf
	case sockdiag.SMCModeD:
		c.Mode, c.RcvBuf, c.SndBuf = "SMC-D", &s.RcvBuf, &s.SndBuf
	default:
		code := s.Reason
		if s.PeerReason != 0 { // the peer has declined, and says more than "the peer has declined"
			code = s.PeerReason
		}
		c.ReasonCode = control.ReasonCode(code)
		if code != 0 {
			c.Reason = clc.Lookup(clc.Diagnosis(code), clc.OSUnspecified).Sentence
		}
		c.Explain()
	}
	return c
}

// kernelState names a state of a socket of AF_SMC: those that it has in common with TCP, others by
// their number.
func kernelState(state uint8) string {
	switch state {
	case sockdiag.TCPEstablished:
		return "Active"
	case sockdiag.TCPSynSent:
		return "Init"
	case sockdiag.TCPClose:
		return "Closed"
	}
	return "State " + strconv.Itoa(int(state))
}
