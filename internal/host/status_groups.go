package host

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// Link groups, links, devices and messages, as tools show them. Names are those that operators know from smcr and smcd.

// fabrics returns all fabrics of the host.
func (h *Host) fabrics() []transport.Fabric {
	list := []transport.Fabric{h.smcd}
	for _, n := range h.networks {
		list = append(list, n)
	}
	return list
}

// groupStatus describes the link groups, in the order of their IDs.
func (h *Host) groupStatus() []control.StatusGroup {
	var list []control.StatusGroup
	for _, f := range h.fabrics() {
		list = f.Status(list)
	}
	slices.SortStableFunc(list, func(a, b control.StatusGroup) int { return cmp.Compare(a.ID, b.ID) })
	return list[:min(len(list), control.MaxGroups)]
}

// messageCounters count CLC and LLC messages by type: index 0 is for what is none.
type messageCounters struct {
	clc [clc.TypeDecline + 1]twoWays
	llc [llc.TypeDeleteRKey + 1]twoWays
}

// twoWays counts what was received, and what was sent.
type twoWays [2]atomic.Uint64

func (w *twoWays) add(sent bool) {
	if sent {
		w[1].Add(1)
	} else {
		w[0].Add(1)
	}
}

// countCLC counts a message as it is on the wire.
func (m *messageCounters) countCLC(b []byte, sent bool) {
	typ := clc.Type(0)
	if len(b) > 4 && b[0] == 0xe2 && b[1] == 0xd4 && b[2] == 0xc3 && clc.Type(b[4]) <= clc.TypeDecline {
		typ = clc.Type(b[4])
	}
	m.clc[typ].add(sent)
}

// countLLC counts one as it is on the wire.
func (m *messageCounters) countLLC(b []byte, sent bool) {
	typ := llc.Type(0)
	if len(b) > 0 && llc.Type(b[0]&0x0f) <= llc.TypeDeleteRKey { // the upper half is the version
		typ = llc.Type(b[0] & 0x0f)
	}
	m.llc[typ].add(sent)
}

// status lists the types that there were.
func (m *messageCounters) status() (ofCLC, ofLLC []control.MessageCount) {
	list := func(list []control.MessageCount, index int, name string, w *twoWays) []control.MessageCount {
		c := control.MessageCount{Type: name, Sent: w[1].Load(), Rcvd: w[0].Load()}
		if index == 0 {
			c.Type = "malformed"
		}
		if c.Sent+c.Rcvd > 0 {
			list = append(list, c)
		}
		return list
	}
	for i := range m.clc {
		ofCLC = list(ofCLC, i, clc.Type(i).String(), &m.clc[i])
	}
	for i := range m.llc {
		ofLLC = list(ofLLC, i, llc.Type(i).String(), &m.llc[i])
	}
	return ofCLC, ofLLC
}
