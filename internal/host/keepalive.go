package host

import (
	"net"
	"time"
)

// Package net turns TCP's keepalive on for every connection. On one host it tells nothing that the peering does not
// tell at once, and it costs four system calls at either end. So it is turned on once it is known that a
// connection is not SMC-D, unless the program has asked for it itself.

// A lateKeepAlive says whether keepalive is to be turned on for a connection once it is known to need it.
type lateKeepAlive bool

// putOff takes package net's own default out of a dialer or a listener; config and idle are theirs.
func putOff(config net.KeepAliveConfig, idle *time.Duration) lateKeepAlive {
	if config.Enable || *idle != 0 { // rule: TestKeepAlive: *idle != 0 -> false
		return false
	}
	*idle = -1
	return true
}

// turnOn does what package net would have done when the connection was made, and cares as little for errors.
func (k lateKeepAlive) turnOn(tcp *net.TCPConn) {
	if k { // rule: TestKeepAlive
		tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true})
	}
}
