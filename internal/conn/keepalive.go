package conn

import (
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Package net turns TCP's keepalive on for every connection. On one host it tells nothing that the
// peering does not tell at once, and it costs four system calls at either end. So it is turned on
// once it is known that a connection is not SMC-D, unless the program has asked for it itself.

// A LateKeepAlive says whether keepalive is to be turned on for a connection once it is known to need it.
type LateKeepAlive bool

// PutOff takes package net's own default out of a dialer or a listener; config and idle are theirs.
func PutOff(config net.KeepAliveConfig, idle *time.Duration) LateKeepAlive {
	if config.Enable || *idle != 0 { // rule: internal/host TestKeepAlive: *idle != 0 -> false
		return false
	}
	*idle = -1
	return true
}

// turnOn turns keepalive on as package net would have done when the connection was made, and cares
// as little for errors.
func (k LateKeepAlive) turnOn(tcp *net.TCPConn) {
	if k { // rule: internal/host TestKeepAlive
		tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true})
	}
}

// On a connection that is plain TCP keepalive is turned on a moment later, as most of those that
// are TCP because they are short have ended by then. Nobody can tell the difference: the first probe
// is sent after 15 seconds without a word, from the last one on, and who looks at the socket, or sets
// an option of keepalive, finds it turned on.

// A keepAlives turns keepalive on for connections that have lasted for keepAliveDelay. Its zero value
// is ready for use.
type keepAlives struct {
	mu      sync.Mutex
	waiting []*TCP // a timer runs while there is one
}

// soon turns keepalive on for a connection within keepAliveDelay. The timer of a bubble might never
// fire, if the bubble ends first, so there it is done at once.
func (k *keepAlives) soon(c *TCP) {
	if bubbleAt(c.since) { // rule: TestLateKeepAliveInBubble: bubbleAt(c.since) -> false
		c.turnOnKeepAlive()
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiting = append(k.waiting, c)
	if len(k.waiting) == 1 {
		time.AfterFunc(keepAliveDelay, k.turnOn)
	}
}

func (k *keepAlives) turnOn() {
	k.mu.Lock()
	waiting := k.waiting
	k.waiting = nil
	k.mu.Unlock()
	for _, c := range waiting {
		c.turnOnKeepAlive()
	}
}

// turnOnKeepAlive turns keepalive on if that was put off until now.
func (b *base) turnOnKeepAlive() {
	b.options.mu.Lock()
	defer b.options.mu.Unlock()
	if b.options.lateKeepAlive {
		b.options.lateKeepAlive = false // rule: TestLateKeepAlive
		b.keepAlive.turnOn(b.tcp)
	}
}

// TCP's keepalive cannot tell of a connection over SMC-R whether RDMA still gets through. So its
// link is asked with TEST LINK when it was silent for as long as the keepalive of any of its
// connections says: "as long as some SMC-R connections on a given SMC-R link are active ... then
// there is no need to perform additional link viability testing" (RFC 7609 §4.5.3, p.65). One probe
// is enough, whatever KeepAliveConfig says of their number and interval, since its packets are sent
// again.

// TCP's own keepalive on such a connection finds no dead peer that TEST LINK does not find, but
// load balancers and firewalls keep their state of the connection by it. So there a short time
// counts for TEST LINK alone: "consider providing a configuration option that limits the minimum
// keepalive timer that will be used for TCP-layer keepalives on SMC-R connections" (RFC 7609
// §4.5.3, p.66). The value is package net's: a box that forgets a connection sooner forgets the
// connections of all Go programs.
const leastTCPKeepAlive = 15 * time.Second

// SetKeepAlive implements [Conn].
func (c *SMC) SetKeepAlive(on bool) error {
	defer c.tellKeepAlive()
	return c.base.SetKeepAlive(on)
}

// SetKeepAlivePeriod is the method of [net.TCPConn].
func (c *SMC) SetKeepAlivePeriod(d time.Duration) error {
	defer c.tellKeepAlive()
	return c.setKeepAlivePeriod(d, c.floorKeepAlive(net.KeepAliveConfig{Idle: d}).Idle)
}

// SetKeepAliveConfig is the method of [net.TCPConn].
func (c *SMC) SetKeepAliveConfig(config net.KeepAliveConfig) error {
	defer c.tellKeepAlive()
	return c.setKeepAliveConfig(config, c.floorKeepAlive(config))
}

// floorKeepAlive returns the setting of TCP's keepalive where a program asks for config. It depends
// on the transport of the connection.
func (c *SMC) floorKeepAlive(config net.KeepAliveConfig) net.KeepAliveConfig {
	if c.traits.Tests { // rule: internal/host TestSMCRKeepAliveFloor
		floor := func(d *time.Duration) {
			if *d > 0 {
				*d = max(*d, leastTCPKeepAlive)
			}
		}
		floor(&config.Idle)
		floor(&config.Interval)
	}
	return config
}

// raiseKeepAlive has the same for the setting that a dialer or a listener made before the
// connection's transport was known.
func (c *SMC) raiseKeepAlive() {
	if !c.traits.Tests || bool(c.keepAlive) { // package net's own default is no shorter
		return
	}
	raw, err := c.tcp.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		for _, option := range [...]int{unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL} {
			least := int(leastTCPKeepAlive / time.Second)
			if n, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); err == nil && n < least { // rule: internal/host TestSMCRKeepAliveFloor
				unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, option, least)
			}
		}
	})
}

const (
	defaultQuiet = 15 * time.Second // as package net has it
	// as for TCP: nobody is to ask all the time. RFC 7609 §4.5.3 (p.66) has a least interval too
	leastQuiet = time.Second
)

// tellKeepAlive tells the fabric of a connection of its keepalive, if the program wants that.
func (c *SMC) tellKeepAlive() {
	if !c.traits.Tests {
		return
	}
	quiet := time.Duration(0)
	switch k := c.Options().KeepAlive; {
	case !k.Enable, k.Idle < 0: // the system's time, two hours, is longer than the host's
	case k.Idle == 0:
		quiet = defaultQuiet
	default:
		quiet = max(k.Idle, leastQuiet)
	}
	c.binding.SetQuiet(quiet)
}
