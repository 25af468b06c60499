package link

import (
	"io"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire/cdc"
)

// A drained queue pair does something when it is drained.
type drained struct {
	verbs.QP
	do func()
}

func (d *drained) Drain(limit time.Duration) bool {
	d.do()
	return d.QP.Drain(limit)
}

// TestFollow has a peer move a connection again and again, after failures and in good order. The
// peer's messages come late or are looked at late. It checks which links end, as something may be
// on its way there. It also checks that no gap in the numbers is taken for a loss that was not
// said.
func TestFollow(t *testing.T) {
	watchdog(t)
	type said struct {
		link int
		turn uint64
		seq  uint16 // of a validation message, or of another one, which says as many bytes
		is   byte   // see below
		left []int  // the links that have ended afterwards
	}
	// A validation message is 'v', and another one 'm'. A message that is put aside has to wait
	// after a capital letter. A validation message that is looked at when the links are drained is
	// 'W', and another one, before which they are, 'n'.
	begin := said{0, 1, 1, 'm', nil}
	for name, says := range map[string][]said{
		"the older link is late, and the newer one was left in good order": {
			begin, {1, 2, 1, 'v', nil}, {2, 4, 1, 'v', nil}, {1, 5, 3, 'm', []int{0}}, {3, 6, 7, 'm', []int{0, 1}}, {3, 7, 8, 'm', []int{0, 1}}, {2, 9, 9, 'm', []int{0, 1}},
		},
		"the older link is late, and the newer one goes on": {
			begin, {1, 2, 1, 'v', nil}, {2, 4, 1, 'v', nil}, {1, 5, 3, 'm', []int{0}}, {1, 6, 4, 'm', []int{0}}, {2, 7, 7, 'm', []int{0, 1}}, {2, 8, 8, 'm', []int{0, 1}},
		},
		"a validation message is late, and the other link is left in good order": {
			begin, {1, 2, 1, 'v', nil}, {2, 3, 1, 'v', nil}, {1, 4, 2, 'm', []int{0}}, {1, 5, 3, 'm', []int{0}}, {3, 6, 4, 'm', []int{0}}, {3, 7, 5, 'm', []int{0}},
		},
		"validation messages are looked at in another order": {
			begin, {2, 3, 1, 'v', nil}, {1, 2, 1, 'v', nil}, {2, 4, 3, 'm', []int{0, 1}},
		},
		"one is looked at after what follows another one": {
			begin, {2, 3, 1, 'v', nil}, {2, 4, 3, 'M', nil}, {1, 2, 1, 'v', []int{0, 1}},
		},
		"it moves on in good order before it says anything": {
			begin, {1, 2, 1, 'v', nil}, {2, 3, 4, 'm', []int{0}}, {2, 4, 5, 'm', []int{0}}, {1, 5, 6, 'm', []int{0}},
		},
		"and that link fails, which is heard of first": {
			begin, {1, 2, 1, 'v', nil}, {3, 5, 1, 'v', nil}, {2, 4, 4, 'm', []int{0}}, {3, 6, 7, 'm', []int{0, 2}}, {3, 7, 8, 'm', []int{0, 2}},
		},
		"the same, and that one is left in good order": {
			begin, {1, 2, 1, 'v', nil}, {3, 4, 1, 'v', nil}, {2, 5, 4, 'm', []int{0, 1}}, {4, 6, 7, 'm', []int{0, 1, 2}}, {4, 7, 8, 'm', []int{0, 1, 2}},
		},
		"what comes between is looked at last, and it has come back": {
			begin, {2, 3, 2, 'V', nil}, {0, 4, 5, 'M', nil}, {1, 2, 2, 'm', []int{1}}, {0, 5, 6, 'm', []int{1}},
		},
		"it comes and goes while nobody looks": {
			begin, {1, 2, 1, 'v', nil}, {1, 3, 3, 'M', nil}, {2, 4, 4, 'M', nil}, {1, 5, 5, 'M', nil}, {1, 6, 6, 'm', []int{0}},
		},
		"the same, and what comes over the other link is looked at when the links are drained": {
			begin, {1, 2, 1, 'v', nil}, {1, 3, 3, 'M', nil}, {2, 4, 4, 'N', nil}, {1, 5, 5, 'M', nil}, {1, 6, 6, 'm', []int{0}},
		},
		"it leaves a link that was not heard of, and comes back": {
			begin, {0, 2, 1, 'v', nil}, {1, 4, 2, 'm', nil}, {0, 5, 4, 'm', []int{1}},
		},
		"two wait, and the second one has come first": {
			begin, {2, 3, 1, 'v', nil}, {2, 4, 5, 'M', nil}, {1, 2, 2, 'V', nil}, {0, 1, 2, 'm', []int{0, 1}},
		},
		"the same, and the second one is looked at when the links are drained": {
			begin, {2, 3, 1, 'v', nil}, {2, 4, 5, 'M', nil}, {1, 2, 2, 'W', nil}, {0, 1, 2, 'n', []int{0, 1}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTeller(t, 5)
			group := w.e.carrier.group
			var drains []func()
			looks := make(chan func(), 100) // links that fail have some as well, on other goroutines
			group.overtaken.run = func(f func()) { looks <- f }
			w.attach(4)
			l := w.links[0][3]
			l.qp = &drained{l.qp, func() {
				for _, f := range drains {
					f()
				}
				drains = nil
			}}
			most := 0
			for _, s := range says {
				m := cdc.Message{Seq: s.seq, Producer: cdc.Cursor{Count: uint32(s.seq)}}
				if s.is|' ' == 'v' || s.is == 'W' {
					m = cdc.NewFailoverValidation(s.seq, 0)
				}
				m.AlertToken = w.e.carrier.AlertToken()
				if receive := func() { w.links[0][s.link].receiveCDC(m.Append(nil), s.turn) }; s.is == 'W' || s.is|' ' == 'n' {
					drains = append(drains, receive)
				} else {
					receive()
				}
				for s.is >= 'a' && len(looks) > 0 { // else somebody has no processor
					(<-looks)()
				}
				want := make([]bool, 5)
				for _, k := range s.left {
					want[k] = true
				}
				w.checkLeft(t.Name(), want...)
				if !m.IsFailoverValidation() {
					most = max(most, int(s.seq))
				}
			}
			if n := w.e.carrier.newest(); int(n) != most {
				t.Fatalf("message %d is the newest, want %d", n, most)
			}
			if n, err := io.ReadFull(w.e, make([]byte, most)); err != nil {
				t.Errorf("read %d of %d bytes: %v", n, most, err)
			}
		})
	}
}
