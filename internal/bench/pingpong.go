package bench

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// pingPong sends one message there and back, over and over. Every message carries a
// number, and must come back with it.
var pingPong = &workload{
	clientCounts: true,
	server: func(m *meter, l net.Listener) error {
		c, err := m.accept(l)
		if err != nil {
			return err
		}
		defer c.Close()
		b := make([]byte, m.settings.Size)
		for {
			if _, err := io.ReadFull(c, b); err != nil {
				if gone(err) {
					return nil
				}
				return err
			}
			if _, err := c.Write(b); err != nil {
				return err
			}
		}
	},
	client: func(m *meter, dial dialFunc) error {
		c, err := dial()
		if err != nil {
			return err
		}
		defer c.Close()
		out, in := make([]byte, m.settings.Size), make([]byte, m.settings.Size)
		start := time.Now()
		last := time.Since(start)
		for n := uint64(1); !m.stopped(); n++ {
			binary.LittleEndian.PutUint64(out, n)
			if _, err := c.Write(out); err != nil {
				return err
			}
			if _, err := io.ReadFull(c, in); err != nil {
				return err
			}
			if got := binary.LittleEndian.Uint64(in); got != n {
				return fmt.Errorf("message %d came back as %d", n, got)
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
