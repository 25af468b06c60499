package host

import (
	"net"
	"time"
)

// Package net turns TCP's keepalive on for every connection. On one host it tells nothing that the peering does not
// tell at once, and it costs four system calls at either end. So it is turned on once it is known that a
// connection is not SMC-D, or if the program asked for it by name.

// A lateKeepAlive says what is to be turned on for a connection once it is known to need it.
type lateKeepAlive struct {
	wanted bool
	idle   time.Duration // as net.Dialer.KeepAlive
}

// putOff takes package net's own default out of a dialer or a listener; config and idle are theirs.
func putOff(config net.KeepAliveConfig, idle *time.Duration) (k lateKeepAlive) {
	if config.Enable || *idle < 0 { // rule: TestKeepAlive: *idle < 0 -> false
		return k
	}
	k = lateKeepAlive{true, *idle}
	*idle = -1
	return k
}

// turnOn does what package net would have done when the connection was made, and cares as little for errors.
func (k lateKeepAlive) turnOn(tcp *net.TCPConn) {
	if k.wanted { // rule: TestKeepAlive: k.wanted -> false
		tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: k.idle})
	}
}
