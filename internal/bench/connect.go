package bench

import (
	"errors"
	"fmt"
	"net"
	"sync"
)

// connectClose opens connections in several goroutines.
var connectClose = &workload{
	clientCounts: true,
	server: func(m *meter, l net.Listener) error {
		for {
			c, err := m.accept(l)
			if err != nil {
				return err
			}
			go func() {
				defer c.Close()
				var b [1]byte
				if _, err := c.Read(b[:]); err != nil {
					return // the client reports it
				}
				if _, err := c.Write(b[:]); err != nil {
					return
				}
				c.Read(b[:]) // the client closes first
			}()
		}
	},
	client: func(m *meter, dial dialFunc) error {
		errs := make([]error, m.settings.Conns)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() {
				for !m.stopped() && errs[i] == nil {
					errs[i] = connectOnce(m, dial, byte(i))
				}
				if errs[i] != nil {
					m.finish() // the others are to end as well
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	},
}

func connectOnce(m *meter, dial dialFunc, mark byte) error {
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.Close()
	b := [1]byte{mark}
	if _, err := c.Write(b[:]); err != nil {
		return err
	}
	if _, err := c.Read(b[:]); err != nil {
		return err
	}
	if b[0] != mark {
		return fmt.Errorf("sent %#x, got %#x back", mark, b[0])
	}
	m.count(1, 2)
	m.start()
	return nil
}
