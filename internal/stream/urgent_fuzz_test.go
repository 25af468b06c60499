package stream

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/gosmc/smc/wire/cdc"
)

// An urgentModel is the view that a reader has to have of a stream with urgent bytes, told by
// places in it.
type urgentModel struct {
	produced, seen, read uint64
	flags                cdc.ProducerFlags // beside produced
	inline               bool

	marked, skipped, pending bool
	mark                     uint64
	here                     bool
	value                    byte
}

// look is the step in which the reader looks at the producer cursor.
func (m *urgentModel) look() {
	fresh := m.produced != m.seen
	m.seen = m.produced
	switch {
	case m.flags&cdc.UrgentPresent != 0 && fresh:
		m.marked, m.skipped, m.pending = true, false, false
		m.mark = m.produced - 1
		m.here, m.value = true, pattern(m.mark)
		m.reach()
	case m.flags&cdc.UrgentPresent != 0:
	case m.flags&cdc.UrgentPending != 0:
		if !m.pending {
			m.pending, m.here = true, false
		}
	case m.pending:
		m.pending, m.here = false, false
	}
}

func (m *urgentModel) reach() {
	if m.marked && !m.skipped && !m.inline && m.read == m.mark {
		m.skipped = true
		m.read++
	}
}

func (m *urgentModel) atMark() bool { return m.marked && (m.skipped || m.read == m.mark) }

// take returns where a read of at most n bytes begins, and how many it gets.
func (m *urgentModel) take(n int) (from uint64, count int) {
	m.reach()
	count = min(n, int(m.seen-m.read))
	switch {
	case m.atMark():
		m.marked = false
	case m.marked:
		count = min(count, int(m.mark-m.read))
	}
	from = m.read
	m.read += uint64(count)
	m.reach()
	return from, count
}

// FuzzUrgent plays a peer that produces bytes with any flags about urgent data, and a reader: 3 bytes for each step, a kind and an
// argument. Cursors that no correct peer has end it.
func FuzzUrgent(f *testing.F) {
	const capacity = 100
	step := func(kind byte, arg uint16) []byte { return binary.BigEndian.AppendUint16([]byte{kind}, arg) }
	f.Add(slices.Concat(step(0, 3<<8|9), step(1, 4), step(2, 0), step(1, 100), step(0, 5), step(1, 100)))
	f.Add(slices.Concat(step(3, 1), step(0, 3<<8|9), step(1, 100), step(1, 100), step(3, 0), step(0, 3<<8|1), step(1, 9)))
	f.Add(slices.Concat(step(0, 100), step(0, 1<<8), step(1, 70), step(0, 3<<8|70), step(2, 0), step(1, 200), step(1, 3)))
	f.Add(slices.Concat(step(0, 3<<8|5), step(0, 3<<8|5), step(1, 100), step(0, 2<<8), step(0, 0), step(2, 0)))
	f.Add(slices.Concat(step(0, 50), step(4, 3<<8|200), step(2, 0), step(1, 100)))
	f.Fuzz(func(t *testing.T, script []byte) {
		p := newPuppet(capacity, capacity)
		c := p.conn
		var m urgentModel
		expireWhenIdle(c)
		closed := make(chan struct{})
		close(closed)
		for ; len(script) >= 3; script = script[3:] {
			kind, arg := script[0]%5, binary.BigEndian.Uint16(script[1:])
			flags := cdc.ProducerFlags(arg>>8&3) << 5
			if kind == 0 {
				said, _, _ := p.consumed()
				free := capacity - uint64(cdc.Diff(said, at(m.produced, capacity), capacity))
				n := min(uint64(arg&0xff), free)
				for i := range n {
					p.place(m.produced+i, []byte{pattern(m.produced + i)})
				}
				m.produced += n
				m.flags = flags
				p.produceUrgent(m.produced, flags)
				continue
			}
			if kind == 4 { // in another place of the endless stream
				cursor := cdc.Cursor{Wrap: at(m.produced, capacity).Wrap + arg>>12, Count: uint32(arg & 0xff)}
				word(p.element[0], cdc.ProducerOffset).Store(cdc.PackUrgent(cursor, flags))
				c.AtUrgentMark()
				c.lookForUrgent(closed)
				return
			}
			mark, err := c.AtUrgentMark()
			m.look()
			if err != nil || mark != m.atMark() {
				t.Fatalf("AtUrgentMark = %v, %v, want %v", mark, err, m.atMark())
			}
			switch kind {
			case 1:
				b := make([]byte, 1+arg%(2*capacity))
				n, err := c.Read(b)
				c.r.state.And(^uint32(stExpired))
				from, want := m.take(len(b))
				if n != want || err != nil && want > 0 || checkPattern(b[:n], from) != nil {
					t.Fatalf("Read(%d bytes) = %d, %v, %v, want %d", len(b), n, err, checkPattern(b[:n], from), want)
				}
			case 2:
				c.urgent.mu.Lock()
				value, here := c.urgent.value, c.urgent.state == urgentHere
				c.urgent.mu.Unlock()
				if here != m.here || here && value != m.value {
					t.Fatalf("there is %v: %d, want %v: %d", here, value, m.here, m.value)
				}
				if here && !m.inline {
					if got, err := c.ReadUrgent(); err != nil || got != m.value {
						t.Fatalf("ReadUrgent = %d, %v, want %d", got, err, m.value)
					}
					m.here = false
				}
			case 3:
				m.inline = arg&1 == 1
				c.SetUrgentInline(m.inline)
			}
			if read, _ := c.Totals(); read != m.read {
				t.Fatalf("read %d bytes, want %d", read, m.read)
			}
			said, _, _ := p.consumed()
			if behind := cdc.Diff(said, at(m.read, capacity), capacity); behind > capacity {
				t.Fatalf("the peer was told %v of %d bytes", said, m.read)
			}
			if m.marked && m.skipped && said != at(m.read, capacity) {
				t.Fatalf("the peer was told %v, and waits for %v", said, at(m.read, capacity))
			}
		}
		if _, err := c.Read(make([]byte, capacity)); errors.As(err, new(*PeerError)) {
			t.Fatalf("an honest peer: %v", err)
		}
	})
}
