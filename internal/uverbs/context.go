package uverbs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"sync"

	"golang.org/x/sys/unix"
)

// A Context is an open device. [Context.Close] releases everything that was made with it.
type Context struct {
	name   string
	node   string // such as "uverbs0"
	inode  uint64 // of the node in sysfs: another one means another device of the same name
	limits Limits
	events *os.File // asynchronous events

	deviceFile

	mu     sync.Mutex
	closed bool
	pds    map[*PD]struct{}
	cqs    map[*CQ]struct{}
	mrs    map[*MR]struct{}
	qps    map[uint64]*QP // by the handle that events name
	nextQP uint32
}

// Open opens a device. The errors are [ErrUnsupported] with the reason, or those of open(2). Close
// the Context.
func Open(d Device) (*Context, error) {
	switch { // The state of ports does not count: it may change.
	case d.UVerbs == "", d.Driver != driverNameRXE, d.ABI != rxeABI:
		return nil, fmt.Errorf("uverbs: %s: %w: %s", d.Name, ErrUnsupported, d.Unused())
	}
	version := readAttribute(os.DirFS("/sys/class"), "infiniband_verbs/abi_version")
	if version != fmt.Sprint(abiVersion) {
		return nil, fmt.Errorf("uverbs: %w: the kernel has version %q of its interface, not %d",
			ErrUnsupported, version, abiVersion)
	}
	inode, err := nodeInode(d.UVerbs)
	if err != nil {
		return nil, err
	}
	name := path.Join("/dev/infiniband", path.Base(d.UVerbs))
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	c := &Context{
		name: d.Name, node: d.UVerbs, inode: inode, deviceFile: deviceFile{fd: fd},
		pds: make(map[*PD]struct{}), cqs: make(map[*CQ]struct{}),
		mrs: make(map[*MR]struct{}), qps: make(map[uint64]*QP),
	}
	if err := c.start(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// start makes the context known to the kernel, and asks for its limits.
func (c *Context) start() error {
	response := make([]byte, getContextLen)
	if err := c.command(cmdGetContext, nil, response); err != nil {
		return err
	}
	fd, _, err := parseGetContext(response)
	if err != nil {
		return err
	}
	if c.events, err = openAnswer(fd, "asynchronous events"); err != nil {
		return err
	}
	response = make([]byte, queryDeviceLen)
	if err := c.command(cmdQueryDevice, nil, response); err != nil {
		return err
	}
	if c.limits, err = parseQueryDevice(response); err != nil {
		return err
	}
	_, err = c.GIDs() // The kernel answers it only if the driver is rxe.
	return err
}

const getContextLen = 8

// parseGetContext decodes the answer to GET_CONTEXT.
//
//	offset  size  field
//	     0     4  descriptor of asynchronous events
//	     4     4  number of completion vectors
func parseGetContext(b []byte) (fd, vectors uint32, err error) {
	if err := needs("answer to GET_CONTEXT", b, getContextLen); err != nil {
		return 0, 0, err
	}
	return host.Uint32(b), host.Uint32(b[4:]), nil
}

// openAnswer takes a descriptor from an answer of the kernel, for Go's poller.
func openAnswer(fd uint32, name string) (*os.File, error) {
	const standard = 3 // the number of standard descriptors, which no answer names
	if fd < standard || fd > 1<<30 {
		return nil, kernelError("descriptor %d for %s", fd, name)
	}
	if err := unix.SetNonblock(int(fd), true); err != nil {
		return nil, kernelError("descriptor %d for %s: %v", fd, name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// nodeInode returns the inode of a device's node in sysfs.
func nodeInode(node string) (uint64, error) {
	name := path.Join("/sys/class/infiniband_verbs", path.Base(node))
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return st.Ino, nil
}

// Removed reports whether the device is gone from the kernel. The kernel may wait with the rest of
// the removal until the context is closed.
func (c *Context) Removed() bool {
	inode, err := nodeInode(c.node)
	return err != nil && errors.Is(err, unix.ENOENT) || err == nil && inode != c.inode
}

// Name returns the name of the device, such as "rxe0".
func (c *Context) Name() string { return c.name }

// Limits returns the limits of the device.
func (c *Context) Limits() Limits { return c.limits }

// GIDs returns the GIDs of all ports that are set.
func (c *Context) GIDs() ([]GIDEntry, error) { return c.queryGIDs(maxGIDs) }

// QueryPort returns the present attributes of a port; the first port is 1.
func (c *Context) QueryPort(port uint8) (PortAttr, error) {
	response := make([]byte, queryPortLen)
	if err := c.command(cmdQueryPort, appendQueryPort(nil, port), response); err != nil {
		return PortAttr{}, err
	}
	return parseQueryPort(response)
}

// nextID returns the identifier of the next queue pair.
func (c *Context) nextID() (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nextQP == 1<<31-1 {
		return 0, ErrExhausted
	}
	c.nextQP++
	return c.nextQP, nil
}

// Close releases all objects of the context and closes the device. Waits for events and completions
// end with [ErrClosed]. Memory that the context has allocated must not be used any more.
func (c *Context) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	var closers []func() error
	for _, q := range c.qps {
		closers = append(closers, q.Close)
	}
	for cq := range c.cqs {
		closers = append(closers, func() error { return cq.end(true) })
	}
	for m := range c.mrs {
		closers = append(closers, m.Deregister)
	}
	for p := range c.pds {
		closers = append(closers, p.Close)
	}
	c.mu.Unlock()
	var errs []error
	for _, f := range closers {
		errs = append(errs, f())
	}
	if c.events != nil {
		errs = append(errs, c.events.Close())
	}
	errs = append(errs, c.deviceFile.close())
	return errors.Join(errs...)
}

// register adds an object to a table of the context, unless the context is closed.
func register[K comparable, V any](c *Context, table map[K]V, key K, value V) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	table[key] = value
	return nil
}

// forget removes an object from a table of the context.
func forget[K comparable, V any](c *Context, table map[K]V, key K) {
	c.mu.Lock()
	delete(table, key)
	c.mu.Unlock()
}

// appendHandle appends the body of a command that names one object and has no answer: DEALLOC_PD,
// DEREG_MR.
//
//	offset  size  field
//	     0     4  handle
func appendHandle(b []byte, handle uint32) []byte { return host.AppendUint32(b, handle) }

// appendDestroy appends the body of DESTROY_CQ and DESTROY_QP, which have an answer. The answer
// counts events that a program must have acknowledged; this package keeps no events, so it does not
// need the number.
//
//	offset  size  field
//	     0     4  handle
//	     4     4  reserved
func appendDestroy(b []byte, handle uint32) []byte {
	return host.AppendUint32(host.AppendUint32(b, handle), 0)
}

// Lengths of the answers to DESTROY_CQ and DESTROY_QP.
const (
	destroyCQLen = 8
	destroyQPLen = 4
)
