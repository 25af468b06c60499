package host

import (
	"maps"
	"slices"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/transport"
)

// addEnd makes sure that the host knows an end. It reports false for one that has come.
func (h *Host) addEnd(e transport.Association) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-e.Done():
		return false // endGone was called, or will be and find the connection that we add
	default:
	}
	if h.ends[e] == nil {
		h.ends[e] = make(map[conn.Conn]struct{})
	}
	return true
}

// endGone tells the connections of an end that it has come, after tell was told how many they are. To be
// called once, after Done was closed. It returns these connections.
func (h *Host) endGone(e transport.Association, tell func(count int)) []conn.Conn {
	h.mu.Lock()
	conns := slices.Collect(maps.Keys(h.ends[e]))
	delete(h.ends, e)
	h.mu.Unlock()
	tell(len(conns))
	for _, c := range conns {
		c.AssociationEnded()
	}
	return conns
}
