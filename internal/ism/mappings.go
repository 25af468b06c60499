package ism

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// mappingShare is the part of vm.max_map_count, in percent, up to which buffers are made, and
// mappingHardShare the part up to which peers' buffers are still mapped, if we have already agreed
// to their connections. The rest is for the runtime, which ends the process when it gets no
// mapping, and for the program.
const (
	mappingShare     = 75
	mappingHardShare = 85
)

// defaultMaxMapCount is the value in the kernel's documentation; it holds where the setting cannot
// be read.
const defaultMaxMapCount = 65530

// mappingAge is how long a count of the process's mappings is believed.
const mappingAge = 10 * time.Second

// mappings counts the mappings of this process: its own are the mappings of all devices.
var mappings = mappingCount{maps: "/proc/self/maps", max: "/proc/sys/vm/max_map_count"}

// A mappingCount knows how many mappings the process has. It counts the mappings of this package as
// they come and go. It counts the others now and then, since the kernel has to list them for that.
type mappingCount struct {
	maps, max string // files

	mu      sync.Mutex
	own     int
	others  int       // as of the last list; 0 if there was none
	limit   int       // vm.max_map_count
	counted time.Time // when others and limit were read; zero: never
	at      int       // own at that time
}

// take counts n mappings that are about to be made, if that leaves the process within share percent
// of the mappings that it may have. Otherwise the error matches [ErrMappings].
func (c *mappingCount) take(n, share int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recount()
	if c.own+c.others+n > c.limit/100*share {
		return fmt.Errorf("%w: %d of %d", ErrMappings, c.own+c.others, c.limit)
	}
	c.own += n
	return nil
}

// Mappings returns how many memory mappings this process has, as far as is known, and how many it
// may have before connections are made without shared memory.
func Mappings() (used, limit int) {
	mappings.mu.Lock()
	defer mappings.mu.Unlock()
	mappings.recount()
	return mappings.own + mappings.others, mappings.limit / 100 * mappingShare
}

// room is take without taking.
func (c *mappingCount) room(n, share int) error {
	err := c.take(n, share)
	if err == nil {
		c.give(n)
	}
	return err
}

// give says that n mappings are no more.
func (c *mappingCount) give(n int) {
	c.mu.Lock()
	c.own -= n
	c.mu.Unlock()
}

// recount lists the mappings of the process if the last list is old, or many were made since. c.mu is
// held: a list of 50,000 takes some 20 ms, for every 2,000 that are made.
func (c *mappingCount) recount() {
	if !c.counted.IsZero() && time.Since(c.counted) < mappingAge && c.own-c.at < c.limit/32 {
		return
	}
	c.counted, c.at = time.Now(), c.own
	if c.limit == 0 {
		c.limit = defaultMaxMapCount
	}
	if text, err := os.ReadFile(c.max); err == nil {
		fmt.Sscan(string(text), &c.limit)
	}
	if n, err := countLines(c.maps); err == nil {
		c.others = max(n-c.own, 0)
	}
}

// countLines returns the number of lines of a file.
func countLines(name string) (int, error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := 0
	buf := make([]byte, 64<<10)
	for {
		n, err := f.Read(buf)
		lines += bytes.Count(buf[:n], []byte{'\n'})
		if err == io.EOF {
			return lines, nil
		}
		if err != nil {
			return 0, err
		}
	}
}
