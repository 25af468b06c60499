package dump

import (
	"slices"

	"github.com/gosmc/smc/internal/capture"
	"github.com/gosmc/smc/internal/dissect"
)

// A packetChoice chooses the packets that go to PacketOptions.Write: the packets of the chosen messages, all
// TCP segments of the chosen connections, and the packets without which such a connection cannot be
// understood.
type packetChoice struct {
	filter *dissect.Filter
	// Of connections chosen by number: their link groups, and the connections by which those came
	// to be. Those that are not known beforehand are learned.
	groups map[int]bool
	firsts dissect.Filter

	now     bool // a message of the current packet was chosen
	written []uint64
}

// writtenPackets is of how many packets is remembered whether they were written: copies from another input
// come up to so many later.
const writtenPackets = 1 << 20

func newPacketChoice(f *dissect.Filter) *packetChoice {
	return &packetChoice{filter: f, groups: make(map[int]bool), written: make([]uint64, writtenPackets/64)}
}

// needsGroup reports whether connections are chosen, and with them the messages of their link
// groups. It is false if messages are chosen, too.
func (c *packetChoice) needsGroup() bool {
	return len(c.filter.Conns) > 0 && len(c.filter.Types) == 0 && !c.filter.Problems
}

// learn takes from a message which link group a chosen connection belongs to.
func (c *packetChoice) learn(e *dissect.Event) {
	if !c.needsGroup() || e.Conn == nil || e.Conn.Group == nil {
		return
	}
	if !slices.Contains(c.filter.Conns, e.Conn.ID) {
		return
	}
	g := e.Conn.Group
	if c.groups[g.ID] {
		return
	}
	c.groups[g.ID] = true
	if g.FirstConn != 0 {
		c.firsts.Conns = append(c.firsts.Conns, g.FirstConn)
	}
}

// event takes a message, and whether the filter has chosen it.
func (c *packetChoice) event(e *dissect.Event, chosen bool) {
	c.learn(e)
	c.now = c.now || chosen || c.accompanies(e)
}

// accompanies reports whether a message is of a chosen connection's link group, and of no connection: LLC
// messages, acknowledgements and refusals.
func (c *packetChoice) accompanies(e *dissect.Event) bool {
	return c.needsGroup() && e.Conn == nil &&
		e.Link != nil && e.Link.Group != nil && c.groups[e.Link.Group.ID]
}

// packet reports whether to write the packet that the tracker took last.
func (c *packetChoice) packet(p *capture.Packet, t *dissect.Tracker) bool {
	write := c.now || c.filter.MatchPacket(t) || len(c.firsts.Conns) > 0 && c.firsts.MatchPacket(t)
	if first := t.FirstSeen(); first != 0 && p.Number-first < writtenPackets {
		write = write || c.written[first%writtenPackets/64]&(1<<(first%64)) != 0
	}
	c.now = false
	word, bit := &c.written[p.Number%writtenPackets/64], uint64(1)<<(p.Number%64)
	if *word &^= bit; write {
		*word |= bit
	}
	return write
}
