package bench

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/gosmc/smc/internal/child"
)

// Transports that are not net.Conns have a TCP connection beside them, on which the two workers
// tell each other addresses and keys before the work, and afterwards the data that has arrived.
// SMC-R has such a connection for the CLC handshake.

// controlPatience bounds each wait for the other worker on that connection.
const controlPatience = child.Patience / 2

// A controlConn exchanges JSON objects with the other worker. It has one user at a time.
type controlConn struct {
	net.Conn
	in  *json.Decoder
	out *json.Encoder
}

func newControl(c net.Conn) *controlConn {
	return &controlConn{c, json.NewDecoder(c), json.NewEncoder(c)}
}

func (c *controlConn) tell(v any) error {
	if err := c.SetWriteDeadline(time.Now().Add(controlPatience)); err != nil {
		return err
	}
	return c.out.Encode(v)
}

func (c *controlConn) hear(v any) error { return c.hearWithin(controlPatience, v) }

// hearWithin waits for the next object; d is 0 for a wait that ends when the other worker
// says something or ends.
func (c *controlConn) hearWithin(d time.Duration, v any) error {
	var deadline time.Time
	if d > 0 {
		deadline = time.Now().Add(d)
	}
	if err := c.SetReadDeadline(deadline); err != nil {
		return err
	}
	return c.in.Decode(v)
}

// acceptControl takes the client's control connection.
func (m *meter) acceptControl(l net.Listener) (*controlConn, error) {
	c, err := m.accept(l)
	if err != nil {
		return nil, err
	}
	return newControl(c), nil
}

func dialControl(dial dialFunc) (*controlConn, error) {
	c, err := dial()
	if err != nil {
		return nil, err
	}
	return newControl(c), nil
}

// localIP is our own address on the path to the other worker.
func (c *controlConn) localIP() (netip.Addr, error) { return ipOf(c.LocalAddr()) }

// remoteIP is the address of the other worker.
func (c *controlConn) remoteIP() (netip.Addr, error) { return ipOf(c.RemoteAddr()) }

func ipOf(a net.Addr) (netip.Addr, error) {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}, fmt.Errorf("control connection has the address %v, which is not of TCP", a)
	}
	return t.AddrPort().Addr().Unmap(), nil
}
