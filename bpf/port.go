package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Slots is how many sockets can share a port. Queue pair numbers have 24 bits; a socket's are those
// with its slot in the upper 8.
const Slots = 256

// An Owner is the process that was given a socket.
type Owner struct {
	Cookie  uint64 // the socket's
	User    uint32
	Process uint32
}

// A Port is one UDP port of one address, shared by the sockets of many processes. It is not safe
// for use by several goroutines.
type Port struct {
	sockets, owners *ebpf.Map
	program         *ebpf.Program
	secret          [16]byte
	dir             string
	last            uint32 // a slot that had a socket
}

var portMaps = []string{"sockets", "owners", "secrets"}

// OpenPort makes a port, or finds it again with the sockets that it has: pinned in the directory
// name of pins. random is the secret that it gets if it is new.
func OpenPort(pins, name string, random [16]byte) (*Port, error) {
	spec, err := load(portObject)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(pins, name)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("bpf: port: %w", err)
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: dir}})
	if err != nil {
		return nil, explain("load", err)
	}
	p := &Port{dir: dir, sockets: c.DetachMap("sockets"), owners: c.DetachMap("owners"),
		program: c.DetachProgram("steer")}
	secrets := c.Maps["secrets"]
	defer c.Close()
	if err = secrets.Lookup(uint32(0), &p.secret); err == nil && p.secret == ([16]byte{}) {
		p.secret = random
		err = secrets.Put(uint32(0), random)
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("bpf: port: %w", err)
	}
	return p, nil
}

// Secret returns the secret of all processes that share the port.
func (p *Port) Secret() [16]byte { return p.secret }

// Owners returns the slots that have a socket, and the owner of each.
func (p *Port) Owners() (map[uint32]Owner, error) {
	owners := make(map[uint32]Owner)
	for slot := range uint32(Slots) {
		var cookie uint64
		if err := p.sockets.Lookup(slot, &cookie); errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("bpf: port: %w", err)
		}
		var o Owner
		if err := p.owners.Lookup(slot, &o); err != nil {
			return nil, fmt.Errorf("bpf: port: %w", err)
		}
		if o.Cookie != cookie {
			o = Owner{Cookie: cookie}
		}
		owners[slot] = o
	}
	return owners, nil
}

// Used reports whether any slot has a socket.
func (p *Port) Used() (bool, error) {
	var cookie uint64
	for i := range uint32(Slots) {
		slot := (p.last + i) % Slots // mostly the first of them
		if err := p.sockets.Lookup(slot, &cookie); err == nil {
			p.last = slot
			return true, nil
		} else if !errors.Is(err, ebpf.ErrKeyNotExist) {
			return false, fmt.Errorf("bpf: port: %w", err)
		}
	}
	return false, nil
}

// Put gives a free slot to a socket, which is bound with SO_REUSEPORT, and has the port's packets
// steered. It forbids the socket's next owner to exchange the steering for something else.
func (p *Port) Put(slot uint32, fd int, o Owner) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_EBPF,
		p.program.FD()); err != nil {
		return explain("steer", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1); err != nil {
		return explain("lock the steering", err)
	}
	if err := p.owners.Put(slot, o); err != nil {
		return fmt.Errorf("bpf: port: %w", err)
	}
	if err := p.sockets.Update(slot, uint64(fd), ebpf.UpdateNoExist); err != nil {
		return fmt.Errorf("bpf: port: slot %d: %w", slot, err)
	}
	return nil
}

// Close lets go of the port. It stays, and so do its sockets.
func (p *Port) Close() {
	p.sockets.Close()
	p.owners.Close()
	p.program.Close()
}

// Remove forgets a port that has no sockets any more, and closes it.
func (p *Port) Remove() error {
	p.Close()
	return RemovePort(filepath.Dir(p.dir), filepath.Base(p.dir))
}

// RemovePort forgets the port that is pinned as name. Sockets of processes are not touched, and
// steering goes on as long as they live.
func RemovePort(pins, name string) error {
	dir := filepath.Join(pins, name)
	var errs []error
	for _, m := range portMaps {
		if err := os.Remove(filepath.Join(dir, m)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
