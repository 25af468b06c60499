package bench

import "net"

// oneWay writes as fast as the other side reads. The reader counts.
var oneWay = &workload{
	server: func(m *meter, l net.Listener) error {
		c, err := m.accept(l)
		if err != nil {
			return err
		}
		defer c.Close()
		b := make([]byte, m.settings.Reads)
		for {
			n, err := c.Read(b)
			m.count(1, n)
			if err != nil {
				if gone(err) {
					return nil
				}
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
		b := make([]byte, m.settings.Size)
		for i := range b {
			b[i] = byte(i)
		}
		for !m.stopped() {
			if _, err := c.Write(b); err != nil {
				return err
			}
			m.start()
		}
		return nil
	},
}
