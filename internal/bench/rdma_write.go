package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"

	"github.com/gosmc/smc/internal/rdma"
)

const (
	// rdmaRing is the memory on both sides, a ring as large as a receive buffer for bulk data.
	rdmaRing = 4 << 20

	// rdmaOutstanding is how many writes are under way, each with its message.
	rdmaOutstanding = 16

	// rdmaReceives is how many messages may come before the first has been looked at; Linux posts
	// as many for SMC-R. With these and those under way, no place in the ring is written to again
	// before its message has been looked at.
	rdmaReceives = 48
)

// rdmaWrite sends writes one way, as SMC-R does: RDMA WRITEs around a ring, and a message behind
// each. The receiver counts a write when its message has come. share of all packets are lost.
func rdmaWrite(share float64) *workload {
	return &workload{
		server: func(m *meter, l net.Listener) error {
			peer, err := m.acceptControl(l)
			if err != nil {
				return err
			}
			defer peer.Close()
			return receiveWrites(m, peer, share)
		},
		client: func(m *meter, dial dialFunc) error {
			peer, err := dialControl(dial)
			if err != nil {
				return err
			}
			defer peer.Close()
			return sendWrites(m, peer, share)
		},
	}
}

// openFor opens an end for a control connection, with losses if there are to be any. seed is
// different on both sides.
func openFor(m *meter, peer *controlConn, size rdmaSizes, share float64, seed uint64) (*rdmaEnd, error) {
	ip, err := peer.localIP()
	if err != nil {
		return nil, err
	}
	var l *loss
	if share > 0 {
		l = newLoss(m, share, seed)
	}
	return openRDMA(ip, size, l)
}

// A writeReceiver is the server of rdmaWrite.
type writeReceiver struct {
	*rdmaEnd
	meter *meter
	size  int // bytes of a write
	count uint64
}

// writeVerdict is the server's message at the end about the data that it has received.
type writeVerdict struct {
	Problem string `json:"problem,omitempty"`
}

func receiveWrites(m *meter, peer *controlConn, share float64) error {
	// The outbox and the source are unused.
	end, err := openFor(m, peer, rdmaSizes{source: 1, target: rdmaRing, sends: 1, outbox: 1,
		inbox: rdmaReceives}, share, 1)
	if err != nil {
		return err
	}
	defer end.close()
	r := &writeReceiver{rdmaEnd: end, meter: m, size: m.settings.Size}
	r.handle = r.takeMessages
	m.note(end.describe(m.settings.Packet), rdmaRing)
	if err := end.connect(peer, roleServer, m.settings.Packet); err != nil {
		return err
	}
	clientEnded := end.watch(peer)
	err = r.wait()
	if gone(err) {
		return nil
	}
	if err == nil {
		err = checkRing(r.target.Bytes(), r.size, r.count)
	}
	var v writeVerdict
	if err != nil {
		v.Problem = err.Error()
	}
	if err := errors.Join(err, peer.tell(v)); err != nil {
		return err
	}
	<-clientEnded // until then the last acknowledgement may have to be repeated
	return nil
}

// takeMessages is the handler.
func (r *writeReceiver) takeMessages(batch []rdma.Completion) error {
	r.receives = r.receives[:0]
	done := false
	for i := range batch {
		c := &batch[i]
		number, err := r.received(c)
		if err != nil {
			return err
		}
		if number == lastMessage {
			done = true
			continue
		}
		if number != r.count+1 {
			return fmt.Errorf("message %d came after %d", number, r.count)
		}
		place := int(r.count) % (rdmaRing / r.size)
		if err := checkStamp(r.target.Bytes()[place*r.size:][:r.size], number); err != nil {
			return err
		}
		r.count = number
		r.receives = append(r.receives, r.receiveInto(int(c.ID)))
	}
	r.meter.count(len(r.receives), len(r.receives)*r.size)
	if done {
		r.end(nil)
		return nil
	}
	return r.qp.PostRecv(r.receives...)
}

// lastMessage is the number in the message behind the last write.
const lastMessage = 0

// A writeSender is the client of rdmaWrite.
type writeSender struct {
	*rdmaEnd
	meter   *meter
	size    int // bytes of a write
	posted  uint64
	done    uint64
	closing bool // the last message is on its way
	wrs     []rdma.SendWR
}

func sendWrites(m *meter, peer *controlConn, share float64) error {
	size := rdmaSizes{source: rdmaRing, target: 1, sends: 2 * rdmaOutstanding,
		outbox: rdmaOutstanding, inbox: 1}
	end, err := openFor(m, peer, size, share, 2)
	if err != nil {
		return err
	}
	defer end.close()
	w := &writeSender{rdmaEnd: end, meter: m, size: m.settings.Size}
	w.handle = w.refill
	fillPattern(w.source.Bytes())
	if err := end.connect(peer, roleClient, m.settings.Packet); err != nil {
		return err
	}
	m.start()
	if err := w.post(rdmaOutstanding); err != nil {
		return err
	}
	err = w.wait()
	mode := end.describe(m.settings.Packet)
	if st := end.qp.Stats(); st.SentPackets > 0 {
		mode += fmt.Sprintf(", %.3g %% of the packets sent again",
			100*float64(st.Retransmitted)/float64(st.SentPackets))
	}
	m.note(mode, rdmaRing)
	if err != nil {
		return err
	}
	var v writeVerdict
	if err := peer.hear(&v); err != nil {
		return err
	}
	if v.Problem != "" {
		return errors.New(v.Problem)
	}
	return nil
}

// post posts the next n writes, each with its message. Only the message is signaled: earlier work
// requests have completed when it has.
func (w *writeSender) post(n int) error {
	w.wrs = w.wrs[:0]
	for range n {
		place := int(w.posted) % (rdmaRing / w.size)
		box := int(w.posted) % rdmaOutstanding
		w.posted++
		w.wrs = w.appendWrite(w.wrs, w.posted, place, w.size, box, true)
	}
	return w.qp.PostSend(w.wrs...)
}

// refill posts as many writes as have completed. In the end it waits for all of them, and tells
// the server.
func (w *writeSender) refill(batch []rdma.Completion) error {
	if w.closing {
		w.end(nil)
		return nil
	}
	w.done += uint64(len(batch))
	if !w.meter.stopped() {
		return w.post(len(batch))
	}
	if w.done < w.posted {
		return nil
	}
	w.closing = true
	binary.LittleEndian.PutUint64(message(w.outbox, 0), lastMessage)
	last := rdma.SendWR{Op: rdma.OpSend, Signaled: true}
	last.Local[0] = rdma.SGE{MR: w.outbox, Addr: w.outbox.Addr(), Len: uint32(len(message(w.outbox, 0)))}
	return w.qp.PostSend(last)
}

// fillPattern fills a ring with bytes that are everywhere different, and the same each time.
func fillPattern(b []byte) { rand.NewChaCha8([32]byte{'R', 'M', 'B'}).Read(b) }

// checkRing checks a ring after count writes of size bytes have gone around it: each place has the
// pattern, with the number of the last write to it at both ends. Places that were never written to
// are zero.
func checkRing(got []byte, size int, count uint64) error {
	want := make([]byte, len(got))
	fillPattern(want)
	places := uint64(len(got) / size)
	for place := range places {
		b := want[place*uint64(size):][:size]
		if place >= count {
			clear(b)
			continue
		}
		// The last number n up to count with (n-1) % places == place.
		stamp(b, count-(count-1-place)%places)
	}
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("after %d writes byte %d of the ring is %#x, want %#x", count, i,
				got[i], want[i])
		}
	}
	panic("bench: impossible difference")
}
