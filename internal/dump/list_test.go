package dump

import (
	"testing"

	"github.com/gosmc/smc/internal/dissect"
)

// A capture with too many connections fills no memory: those beyond the bound are counted.
func TestConnListBound(t *testing.T) {
	l := newConnList(nil, nil)
	const more = 10
	for i := range maxListed + more {
		c := &dissect.Conn{ID: i + 1}
		for range 2 {
			l.add(&dissect.Event{Conn: c, Problems: make([]dissect.Problem, 1)})
		}
	}
	if r := l.result(); len(r.Conns) != maxListed || r.Omitted != more || r.Conns[7].Problems != 2 {
		t.Errorf("%d connections are kept, %d left out, with %d problems; want %d, %d and 2",
			len(r.Conns), r.Omitted, r.Conns[7].Problems, maxListed, more)
	}
	l.conns = []int{maxListed}
	if r := l.result(); len(r.Conns) != 1 || r.Conns[0].ID != maxListed || r.Omitted != more {
		t.Errorf("of one connection the list is %+v", r)
	}
}
