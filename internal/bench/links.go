package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/child"
	"github.com/gosmc/smc/internal/netns"
)

// This file has the work of link groups with several links, between two namespaces with as many veth pairs.

// bulkOver is oneWay by several connections, which must be spread over so many links.
func bulkOver(links int) *workload {
	return &workload{
		server: func(m *meter, l net.Listener) error {
			return acceptAll(m, l, func(_ int, c net.Conn) error {
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
			})
		},
		client: func(m *meter, dial dialFunc) error {
			conns, err := dialAll(m, dial)
			defer closeAll(conns)
			if err != nil {
				return err
			}
			if err := awaitLinks(conns, links); err != nil {
				return err
			}
			return each(conns, func(_ int, c net.Conn) error {
				b := make([]byte, m.settings.Size)
				for !m.stopped() {
					if _, err := c.Write(b); err != nil {
						m.finish()
						return err
					}
					m.start()
				}
				return nil
			})
		},
	}
}

// failover is many connections over two links that always have something to write, when one of the
// links is lost. They write a pattern, by which the reader sees that nothing is lost, comes twice
// or out of order; and it measures for how long nothing comes. The number is the longest such time
// of any connection.
//
// Both processes are told that the measurement begins, which is when the link is lost. The server
// reports at the end.
func failover(cut func(server int) error) *workload {
	return &workload{
		server: func(m *meter, l net.Listener) error {
			return acceptAll(m, l, func(i int, c net.Conn) error { return checkPattern(m, i, c) })
		},
		client: func(m *meter, dial dialFunc) error {
			conns, err := dialAll(m, dial)
			defer closeAll(conns)
			if err != nil {
				return err
			}
			if err := awaitLinks(conns, 2); err != nil {
				return err
			}
			var pid [8]byte
			for _, c := range conns {
				if _, err := io.ReadFull(c, pid[:]); err != nil {
					return err
				}
			}
			done := make(chan error, 1)
			go func() {
				done <- each(conns, func(_ int, c net.Conn) error {
					err := writePattern(m, c)
					if err != nil {
						m.finish()
					}
					return err
				})
			}()
			<-m.begun
			timer := time.NewTimer(cutAfter)
			defer timer.Stop()
			select {
			case err := <-done:
				return err
			case <-timer.C:
			}
			if used := linksOf(conns); len(used) != 2 {
				m.finish()
				return errors.Join(fmt.Errorf("connections use the links %v before one is lost",
					used), <-done)
			}
			if err := cut(int(binary.BigEndian.Uint64(pid[:]))); err != nil {
				m.finish()
				return errors.Join(err, <-done)
			}
			err = <-done
			if used := linksOf(conns); err == nil && len(used) != 1 {
				err = fmt.Errorf("connections use the links %v after one is lost", used)
			}
			return err
		},
	}
}

// cutAfter is when the link is lost, after the beginning of the measurement.
const cutAfter = 50 * time.Millisecond

// cutInterface takes down the client's end of the pair that TCP uses too.
func cutInterface(int) error {
	s, err := netns.Open()
	if err != nil {
		return err
	}
	defer s.Close()
	return s.SetDown(netns.VethName)
}

// cutPath has the packets of that pair vanish in both directions.
func cutPath(server int) error {
	ends := []struct {
		pid  int
		role string // of the other end
	}{{os.Getpid(), roleServer}, {server, roleClient}}
	for _, end := range ends {
		err := netns.In(end.pid, func() error {
			s, err := netns.Open()
			if err != nil {
				return err
			}
			defer s.Close()
			return s.Misdirect(netns.VethName, vethPrefix(end.role, 0).Addr())
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// The pattern has a prime for its period, so that a piece that is not where it belongs is noticed.
const patternPeriod = 65521

var pattern = sync.OnceValue(func() []byte {
	b := make([]byte, 2*patternPeriod)
	for i := range b {
		x := uint32(i%patternPeriod) * 2654435761
		b[i] = byte(x >> 24)
	}
	return b
})

// patternAt returns the pattern from an offset: at most a period of it.
func patternAt(offset uint64, n int) []byte {
	from := int(offset % patternPeriod)
	return pattern()[from : from+min(n, patternPeriod)]
}

// A patternReport is the report of the reader at the end.
type patternReport struct {
	Bytes uint64
	Stall int64 // a time.Duration
}

// writePattern writes until the end has come, and compares its own count with the reader's report.
func writePattern(m *meter, c net.Conn) error {
	var total uint64
	for !m.stopped() {
		n, err := c.Write(patternAt(total, m.settings.Size))
		total += uint64(n)
		if err != nil {
			return err
		}
		m.start()
	}
	if err := c.(*smc.Conn).CloseWrite(); err != nil {
		return err
	}
	var r patternReport
	if err := binary.Read(c, binary.BigEndian, &r); err != nil {
		return fmt.Errorf("no word of the reader, who is to have %d bytes: %w", total, err)
	}
	if r.Bytes != total {
		return fmt.Errorf("%d bytes have arrived of %d", r.Bytes, total)
	}
	for {
		longest := m.slowest.Load()
		if r.Stall <= longest || m.slowest.CompareAndSwap(longest, r.Stall) {
			return nil
		}
	}
}

// checkPattern reads until the end, and says how it was.
func checkPattern(m *meter, i int, c net.Conn) error {
	if err := binary.Write(c, binary.BigEndian, uint64(os.Getpid())); err != nil {
		return err
	}
	b := make([]byte, min(m.settings.Reads, patternPeriod))
	var r patternReport
	last := time.Now()
	for {
		n, err := c.Read(b)
		now := time.Now()
		if m.phase.Load() != phaseWarmUp {
			r.Stall = max(r.Stall, int64(now.Sub(last)))
		}
		last = now
		if !bytes.Equal(b[:n], patternAt(r.Bytes, n)) {
			return fmt.Errorf("connection %d: what came after %d bytes is not what was written", i, r.Bytes)
		}
		r.Bytes += uint64(n)
		m.count(1, n)
		if err == io.EOF {
			return binary.Write(c, binary.BigEndian, &r)
		}
		if err != nil {
			return err
		}
	}
}

// acceptAll does something with all connections of the settings at a time.
func acceptAll(m *meter, l net.Listener, do func(i int, c net.Conn) error) error {
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for i := range m.settings.Conns {
		c, err := m.accept(l)
		if err != nil {
			return err
		}
		wg.Go(func() {
			defer c.Close()
			if err := do(i, c); err != nil {
				failed.Store(&err)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func dialAll(m *meter, dial dialFunc) (conns []net.Conn, err error) {
	for range m.settings.Conns {
		c, err := dial()
		if err != nil {
			return conns, err
		}
		conns = append(conns, c)
	}
	return conns, nil
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		c.Close()
	}
}

// each does something with all at a time.
func each(conns []net.Conn, do func(i int, c net.Conn) error) error {
	errs := make([]error, len(conns))
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() { errs[i] = do(i, c) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// linksOf returns the numbers of the links that connections write over.
func linksOf(conns []net.Conn) (used []uint8) {
	for _, c := range conns {
		if n := c.(*smc.Conn).State().Link; !slices.Contains(used, n) {
			used = append(used, n)
		}
	}
	return used
}

// awaitLinks waits until connections are spread over so many links: the second one comes when the
// first connection is there already.
func awaitLinks(conns []net.Conn, want int) error {
	for deadline := time.Now().Add(child.Patience / 2); ; time.Sleep(linkLook) {
		used := linksOf(conns)
		if len(used) == want {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("connections use the links %v, want %d links", used, want)
		}
	}
}

const linkLook = 5 * time.Millisecond
