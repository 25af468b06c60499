package rdma

// SetGuard has all WRITEs to the region that are placed from now on obey g, nil for none. Any
// goroutine may call it.
func (m *MR) SetGuard(g *Guard) { m.guard.Store(g) }

// Place copies a peer's bytes for a virtual address into the region, except to guarded places. It
// reports false, and places nothing, if the region is gone or does not have all of these addresses.
func (m *MR) Place(addr uint64, b []byte) bool {
	if m.dead.Load() { // rule: TestDeadRegion
		return false
	}
	to, ok := m.slice(addr, uint64(len(b)))
	if !ok {
		return false
	}
	if g := m.guard.Load(); g != nil { // rule: TestGuardedWrite
		g.Place(m.mem, int(addr-m.addr), b)
	} else {
		copy(to, b)
	}
	return true
}

// Arrived adds n bytes, a whole WRITE that was placed, to those that [MR.Placed] counts. It is not
// done for each packet: the processor would wait until all copied bytes are in its cache.
func (m *MR) Arrived(n uint64) { m.placed.Add(n) }
