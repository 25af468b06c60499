package bench

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// udpEcho sends one datagram there and back, over and over, as a Go programmer would write it. The
// round trips of RDMA are compared with it.
var udpEcho = &workload{
	clientCounts: true,
	server: func(m *meter, l net.Listener) error {
		peer, err := m.acceptControl(l)
		if err != nil {
			return err
		}
		defer peer.Close()
		c, err := listenUDPFor(peer)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := peer.tell(c.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
			return err
		}
		go func() {
			var nothing struct{}
			peer.hearWithin(0, &nothing) // until the client ends
			c.Close()
		}()
		b := make([]byte, 2*m.settings.Size)
		for {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				if gone(err) {
					return nil
				}
				return err
			}
			if _, err := c.WriteToUDPAddrPort(b[:n], from); err != nil && !gone(err) {
				return err
			}
		}
	},
	client: func(m *meter, dial dialFunc) error {
		peer, err := dialControl(dial)
		if err != nil {
			return err
		}
		defer peer.Close()
		c, err := listenUDPFor(peer)
		if err != nil {
			return err
		}
		defer c.Close()
		var server netip.AddrPort
		if err := peer.hear(&server); err != nil {
			return err
		}
		m.note("UDP", 0)
		out, in := make([]byte, m.settings.Size), make([]byte, 2*m.settings.Size)
		start := time.Now()
		last := time.Since(start)
		for n := uint64(1); !m.stopped(); n++ {
			// One deadline for many round trips, or setting it would be a part of each.
			if n%1024 == 1 {
				if err := c.SetReadDeadline(time.Now().Add(controlPatience)); err != nil {
					return err
				}
			}
			binary.LittleEndian.PutUint64(out, n)
			if _, err := c.WriteToUDPAddrPort(out, server); err != nil {
				return err
			}
			got, _, err := c.ReadFromUDPAddrPort(in)
			if err != nil {
				return err
			}
			if got != len(out) || binary.LittleEndian.Uint64(in) != n {
				return fmt.Errorf("datagram %d of %d bytes came back as %d of %d", n, len(out),
					binary.LittleEndian.Uint64(in), got)
			}
			now := time.Since(start)
			if m.measuring() {
				m.latency.Record(now - last)
			}
			last = now
			m.count(1, 2*len(out))
			m.start()
		}
		return nil
	},
}

// listenUDPFor opens a plain UDP socket on our address of a control connection.
func listenUDPFor(peer *controlConn) (*net.UDPConn, error) {
	ip, err := peer.localIP()
	if err != nil {
		return nil, err
	}
	return net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, 0)))
}
