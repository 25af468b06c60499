package uverbs

// A PD is a protection domain: queue pairs can use the memory regions of their own domain only.
type PD struct {
	c      *Context
	handle uint32
	users  int // queue pairs and regions; guarded by Context.mu
	closed bool
}

const allocPDLen = 4

// parseAllocPD decodes the answer to ALLOC_PD.
//
//	offset  size  field
//	     0     4  handle
func parseAllocPD(b []byte) (handle uint32, err error) {
	if err := needs("answer to ALLOC_PD", b, allocPDLen); err != nil {
		return 0, err
	}
	return host.Uint32(b), nil
}

// NewPD makes a protection domain.
func (c *Context) NewPD() (*PD, error) {
	response := make([]byte, allocPDLen)
	if err := c.command(cmdAllocPD, nil, response); err != nil {
		return nil, err
	}
	handle, err := parseAllocPD(response)
	if err != nil {
		return nil, err
	}
	p := &PD{c: c, handle: handle}
	if err := register(c, c.pds, p, struct{}{}); err != nil {
		c.destroy(cmdDeallocPD, appendHandle(nil, handle), nil)
		return nil, err
	}
	return p, nil
}

// hold counts a user of the domain, and release ends its use.
func (p *PD) hold() error {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.closed || p.c.closed {
		return ErrClosed
	}
	p.users++
	return nil
}

func (p *PD) release() {
	p.c.mu.Lock()
	p.users--
	p.c.mu.Unlock()
}

// Close ends the domain. The error is [ErrBusy] while it has queue pairs or regions.
func (p *PD) Close() error {
	p.c.mu.Lock()
	switch {
	case p.closed:
		p.c.mu.Unlock()
		return nil
	case p.users != 0: // rule: TestBusy
		p.c.mu.Unlock()
		return ErrBusy
	}
	p.closed = true
	delete(p.c.pds, p)
	p.c.mu.Unlock()
	return p.c.destroy(cmdDeallocPD, appendHandle(nil, p.handle), nil)
}
