package bench

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// connectClose opens connections in several goroutines, each for a request and its answer: of 1
// byte, or of Size and Reads bytes.
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
				answer := make([]byte, max(1, m.settings.Reads))
				request := make([]byte, max(1, m.settings.Size))
				if _, err := io.ReadFull(c, request); err != nil {
					return // the client reports it
				}
				answer[0] = request[0]
				if _, err := c.Write(answer); err != nil {
					return
				}
				c.Read(answer[:1]) // the client closes first
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
	request, answer := make([]byte, max(1, m.settings.Size)), make([]byte, max(1, m.settings.Reads))
	request[0] = mark
	if _, err := c.Write(request); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, answer); err != nil {
		return err
	}
	if answer[0] != mark {
		return fmt.Errorf("sent %#x, got %#x back", mark, answer[0])
	}
	m.count(1, len(request)+len(answer))
	m.start()
	return nil
}
