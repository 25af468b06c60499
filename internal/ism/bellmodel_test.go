package ism

import "testing"

// This file proves the argument at ringer.ring for a small case by trying every order of the
// steps: ringers that ring the same or different slots, against one sleeper.

// A model is one state. Steps are named as in the comment at ringer.ring.
type model struct {
	l0, l1   uint8 // bits of slots; each slot has its own word of L0, so L1 has a bit for each, too
	sleeping bool
	stroke   bool     // a stroke that the sleeper has not heard
	sleeper  uint8    // next step, see below
	taken    uint8    // the bits that s1 took
	ringers  [2]uint8 // next step: 0 R1, 1 R2, 2 read of R3, 3 swap of R3, 4 R4, 5 finished
	owed     uint8    // slots that were rung, with R1 done, and not called since
}

const (
	s1 = iota
	s2
	s3
	s4
	forget // S5: RawConn.Read forgets strokes,
	look   // calls chimeWaiter.look,
	wait   // and waits for a stroke
	clearSleeping
)

// A variant is a faulty protocol, to see that the search finds faults.
type variant struct {
	l1First     bool // R2 before R1
	noStrike    bool // the second ringer does not strike
	waitBlindly bool // S5 does not look before it waits
	lookAtBits  bool // S5 looks at L1 and not at the flag
	s2First     bool // S2 before S1
}

// ringerSteps returns the successor if ringer i can move.
func (m model) ringerStep(i int, slot uint8, v variant) (model, bool) {
	step := m.ringers[i]
	if step == 5 {
		return m, false
	}
	m.ringers[i]++
	orL0 := step == 0
	if v.l1First {
		orL0 = step == 1
	}
	switch {
	case step <= 1 && orL0:
		m.l0 |= slot
		m.owed |= slot
	case step <= 1:
		m.l1 |= slot
	case step == 2 && !m.sleeping:
		m.ringers[i] = 5
	case step == 3 && !m.sleeping:
		m.ringers[i] = 5
	case step == 3:
		m.sleeping = false
	case step == 4 && !(v.noStrike && i == 1):
		m.stroke = true
	}
	return m, true
}

func (m model) sleeperStep(v variant) (model, bool) {
	takeBits := func() {
		m.owed &^= m.l0 & m.taken
		m.l0 &^= m.taken
	}
	switch m.sleeper {
	case s1:
		if v.s2First {
			m.taken = m.l1
			takeBits()
		} else {
			m.taken, m.l1 = m.l1, 0
		}
		m.sleeper = s2
	case s2:
		if v.s2First {
			m.l1 = 0
		} else {
			takeBits()
		}
		m.taken = 0
		m.sleeper = s3
	case s3:
		m.sleeping = true
		m.sleeper = s4
	case s4:
		m.sleeper = forget
		if m.l1 != 0 || !m.sleeping {
			m.sleeper = clearSleeping
		}
	case forget:
		m.stroke = false
		m.sleeper = look
		if v.waitBlindly {
			m.sleeper = wait
		}
	case look:
		m.sleeper = wait
		if m.l1 != 0 || !m.sleeping && !v.lookAtBits {
			m.sleeper = clearSleeping
		}
	case wait:
		if !m.stroke {
			return m, false
		}
		m.stroke = false
		m.sleeper = look
	case clearSleeping:
		m.sleeping = false
		m.sleeper = s1
	}
	return m, true
}

// search returns how many states there are, and one in which nothing moves any more and a ring
// was not delivered.
func search(slots [2]uint8, v variant) (states int, lost *model) {
	seen := map[model]bool{{}: true}
	todo := []model{{}}
	for len(todo) > 0 {
		m := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		stuck := true
		visit := func(next model, ok bool) {
			if !ok {
				return
			}
			stuck = false
			if !seen[next] {
				seen[next] = true
				todo = append(todo, next)
			}
		}
		for i := range m.ringers {
			visit(m.ringerStep(i, slots[i], v))
		}
		// With all ringers finished the sleeper cannot go round for ever: it ends in wait.
		visit(m.sleeperStep(v))
		if stuck && m.owed != 0 {
			return len(seen), &m
		}
	}
	return len(seen), nil
}

func TestBellModel(t *testing.T) {
	for _, slots := range [][2]uint8{{1, 1}, {1, 2}} {
		states, lost := search(slots, variant{})
		if lost != nil {
			t.Errorf("slots %v: wakeup lost in %+v", slots, *lost)
		}
		if states < 400 {
			t.Errorf("slots %v: search saw %d states, too few to mean anything", slots, states)
		}
	}
	for _, v := range []variant{{l1First: true}, {noStrike: true}, {waitBlindly: true}, {lookAtBits: true}, {s2First: true}} {
		_, lost := search([2]uint8{1, 1}, v)
		if lost == nil {
			_, lost = search([2]uint8{1, 2}, v)
		}
		if lost == nil {
			t.Errorf("search did not find the fault of %+v", v)
		}
	}
}
