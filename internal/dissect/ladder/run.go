package ladder

import (
	"strconv"
	"time"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/render"
	"github.com/gosmc/smc/internal/text"
	"github.com/gosmc/smc/wire/cdc"
)

// A runSide has the traffic of one direction in a run.
type runSide struct {
	writes, writeBytes uint64
	sends, sendBytes   uint64
	messages           uint64 // of CDC
	blocked            uint64 // of those, with the flag WriterBlocked
	retransmissions    uint64
	producer, consumer cdc.Cursor // of the last message
	window             int        // after the last message; -1 if it is not known
}

func (r *runSide) empty() bool {
	return r.writes|r.sends|r.messages|r.retransmissions|r.writeBytes|r.sendBytes == 0
}

func (r *runSide) add(e *dissect.Event) {
	if e.RoCE != nil && e.RoCE.Retransmission {
		r.retransmissions++
		return
	}
	switch {
	case e.Family == dissect.CDC:
		r.messages++
		m := e.Message.(*cdc.Message)
		if m.ProducerFlags&cdc.WriterBlocked != 0 {
			r.blocked++
		}
		r.producer, r.consumer, r.window = m.Producer, m.Consumer, -1
		if e.Progress != nil {
			r.window = e.Progress.Window
		}
	case e.Write != nil:
		if e.Write.Start {
			r.writes++
		}
		r.writeBytes += uint64(e.Write.Bytes)
	default:
		if e.RoCE.Packet.Opcode.Starts() {
			r.sends++
		}
		r.sendBytes += uint64(e.RoCE.PayloadLen)
	}
}

// text describes the traffic of one direction in a run, in words.
func (r *runSide) text() string {
	var b []byte
	part := func(n uint64, what string) {
		if n > 0 {
			if len(b) > 0 {
				b = append(b, ", "...)
			}
			b = append(strconv.AppendUint(b, n, 10), what...)
		}
	}
	switch {
	case r.writes == 1:
		b = append(b, "RDMA WRITE "+text.Size(r.writeBytes)...)
	case r.writes > 0:
		part(r.writes, " WRITEs, "+text.Size(r.writeBytes))
	case r.writeBytes > 0:
		b = append(b, "part of a WRITE, "+text.Size(r.writeBytes)...)
	}
	switch {
	case r.sends == 1:
		part(1, " SEND, "+text.Size(r.sendBytes))
	case r.sends > 0:
		part(r.sends, " SENDs, "+text.Size(r.sendBytes))
	case r.sendBytes > 0:
		b = append(b, "part of a SEND, "+text.Size(r.sendBytes)...)
	}
	if r.messages > 0 {
		part(r.messages, " CDC")
		part(r.blocked, " writer-blocked")
		b = render.AppendCursors(append(b, " to"...), r.producer, r.consumer)
		if r.window >= 0 {
			b = strconv.AppendInt(append(b, " window="...), int64(r.window), 10)
		}
	}
	part(r.retransmissions, " sent again")
	return string(b)
}

// A plot is how cursors and window have changed in one direction of a connection: at most
// maxPlotPoints moments, which lie further apart the longer the connection lasts.
type plot struct {
	points   []plotPoint
	stride   int // how many messages make a point
	skipped  int
	last     plotPoint
	flags    cdc.ConnFlags // of the sender's last message
	repeated bool          // those were in a message before it
}

// A plotPoint is one moment.
type plotPoint struct {
	at                 time.Time
	produced, consumed uint64
	window             int // -1 if it is not known
}

const maxPlotPoints = 512

// plot adds the changes of a CDC message: the producer cursor of one direction, and the consumer
// cursor of the other.
func (l *ladder) plot(e *dissect.Event) {
	m, ok := e.Message.(*cdc.Message)
	if !ok {
		return
	}
	p := &l.plots[side(e.Dir)]
	p.repeated = p.flags == m.ConnFlags
	p.flags = m.ConnFlags
	for _, ring := range []*dissect.Ring{e.Progress.Out, e.Progress.In} {
		if ring == nil {
			continue
		}
		point := plotPoint{e.Packet.Time, ring.Produced, ring.Consumed, ring.Window()}
		if point.window >= 0 {
			// The cursors may be known since different moments, their difference is certain.
			point.consumed = ring.Produced - min(ring.Produced, uint64(ring.Capacity-point.window))
		}
		l.plots[side(ring.Dir)].add(point)
	}
}

func (p *plot) add(point plotPoint) {
	if n := len(p.points); n > 0 && p.last.produced == point.produced && p.last.consumed == point.consumed &&
		p.last.window == point.window {
		return
	}
	p.last = point
	if p.skipped++; p.skipped < p.stride {
		return
	}
	p.skipped = 0
	if len(p.points) == maxPlotPoints { // every other one, from the first on
		for i := range maxPlotPoints / 2 {
			p.points[i] = p.points[2*i]
		}
		p.points = p.points[:maxPlotPoints/2]
		p.stride = max(2*p.stride, 2)
	}
	p.points = append(p.points, point)
}

// all returns the points with the last moment.
func (p *plot) all() []plotPoint {
	if n := len(p.points); n == 0 || p.points[n-1] == p.last {
		return p.points
	}
	return append(p.points[:len(p.points):len(p.points)], p.last)
}
