package main

import "fmt"

// The cases in which the guest's programs use this library, on the guest's rxe device, and ours use
// software RoCE as always.

// The harm to the device of the guest's program. The kernel puts off the removal of a device until the
// program has closed it, so that the command of the removal ends only if the program does so by itself.
var (
	deviceKilled = cut{"kill -9 $(pidof gosmcpeer)", ""}
	deviceDown   = cut{"/bin/ip link set eth0 down", "kill -9 $(pidof gosmcpeer); /bin/ip link set eth0 up; " + guestAddress6 + "; true"}
	deviceGone   = cut{"/bin/rdma link del rxe0", "kill -9 $(pidof gosmcpeer); [ -d /sys/class/infiniband/rxe0 ] || " + newRXE}
)

// guestPeer returns the command of the guest's end of conversations, without its arguments. A program
// of this library outlives its connections for a moment, in which their last words are acknowledged.
func (l *lab) guestPeer() string {
	if !l.device {
		return "smcpeer"
	}
	return fmt.Sprintf("GOSMC_SMCR_DEVICES=rdma:rxe0 GOSMC_SMCR_PEERS=%v GOSMC_UEIDS=%s GOSMC_SHORT_AFTER=off "+
		"GOSMCPEER_STAY=1s gosmcpeer", ourAddr4, ueid)
}

// guestPeers returns the hosts that ours take for peers without TCP option 254.
func (l *lab) guestPeers() []string {
	if !l.device {
		return nil
	}
	return []string{guestAddr4.String()}
}
