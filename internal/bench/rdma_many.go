package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
)

const (
	// manyOutstanding is how many writes each queue pair has under way, each with its message.
	manyOutstanding = 2

	// manyReceives is how many messages of a queue pair may come before the first has been looked at.
	manyReceives = 2 * manyOutstanding

	// distributionBuffer is net.core.rmem_max of most distributions: the largest buffer for a
	// process without privilege.
	distributionBuffer = 212992
)

// rdmaMany is many queue pairs between two hosts, all of which always have writes to send: each a WRITE
// into memory of its own, and a message behind it. The receiver counts a write when its message has come,
// for each queue pair. A queue pair that fails is an error.
func rdmaMany(n int) *workload {
	return &workload{
		server: func(m *meter, l net.Listener) error {
			peer, err := m.acceptControl(l)
			if err != nil {
				return err
			}
			defer peer.Close()
			return receiveMany(m, peer, n)
		},
		client: func(m *meter, dial dialFunc) error {
			peer, err := dialControl(dial)
			if err != nil {
				return err
			}
			defer peer.Close()
			return sendMany(m, peer, n)
		},
	}
}

// manyEnds are the queue pairs of one worker. Their completions are handled on the goroutine of the
// device.
type manyEnds struct {
	dev    *rdma.Device
	meter  *meter
	size   int // bytes of a write
	data   *rdma.MR
	boxes  *rdma.MR // messages
	ends   []*manyEnd
	byQP   map[verbs.QP]*manyEnd
	busy   int // of the client: ends with writes under way
	once   sync.Once
	result chan error // cap 1

	completions [rdmaBatch]rdma.Completion
}

type manyEnd struct {
	index  int
	qp     *rdma.QP
	psn    wire.PSN
	remote rdmaHello
	number uint64 // of the last message
	posted int    // writes under way
}

// openMany makes n queue pairs with boxes messages each, and memory of places writes for all together.
func openMany(m *meter, peer *controlConn, n, places, boxes int,
	handle func(*manyEnds, []rdma.Completion) error) (*manyEnds, error) {
	ip, err := peer.localIP()
	if err != nil {
		return nil, err
	}
	dev, err := rdma.Open(ip, &rdma.Config{ReadBuffer: m.settings.Buffer, WriteBuffer: m.settings.Buffer})
	if err != nil {
		return nil, err
	}
	e := &manyEnds{dev: dev, meter: m, size: m.settings.Size, byQP: make(map[verbs.QP]*manyEnd),
		result: make(chan error, 1)}
	if err := e.setUp(n, places, boxes, handle); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *manyEnds) setUp(n, places, boxes int, handle func(*manyEnds, []rdma.Completion) error) error {
	pd, err := e.dev.NewPD()
	if err != nil {
		return err
	}
	const access = rdma.LocalWrite | rdma.RemoteWrite
	if e.data, err = pd.AllocMR(places*e.size, access); err != nil {
		return err
	}
	if e.boxes, err = pd.AllocMR(n*boxes*cdc.MessageLen, access); err != nil {
		return err
	}
	const sends = 2 * manyOutstanding
	cq, err := e.dev.NewCQ(n*(sends+boxes), func(cq verbs.CQ) {
		for k := cq.Poll(e.completions[:]); k > 0; k = cq.Poll(e.completions[:]) {
			if err := e.check(e.completions[:k]); err != nil {
				e.end(err)
			} else if err := handle(e, e.completions[:k]); err != nil {
				e.end(err)
			}
		}
	})
	if err != nil {
		return err
	}
	for i := range n {
		qp, err := pd.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: sends, MaxRecv: boxes})
		if err != nil {
			return err
		}
		end := &manyEnd{index: i, qp: qp, psn: rdma.RandomPSN()}
		e.ends = append(e.ends, end)
		e.byQP[qp] = end
	}
	return nil
}

// connect joins the ends with the ends of the other worker, in order. The server is ready before
// the client is.
func (e *manyEnds) connect(peer *controlConn, role string, targets func(i int) uint64) error {
	hellos := make([]rdmaHello, len(e.ends))
	for i, end := range e.ends {
		hellos[i] = rdmaHello{QPN: end.qp.QPN(), PSN: end.psn, Addr: targets(i), RKey: e.data.RKey()}
	}
	if role == roleClient {
		if err := peer.tell(hellos); err != nil {
			return err
		}
	}
	var others []rdmaHello
	if err := peer.hear(&others); err != nil {
		return err
	}
	if len(others) != len(e.ends) {
		return fmt.Errorf("the other worker has %d queue pairs, want %d", len(others), len(e.ends))
	}
	mtu, err := pathMTU(e.meter.settings.Packet)
	if err != nil {
		return err
	}
	ip, err := peer.remoteIP()
	if err != nil {
		return err
	}
	for i, end := range e.ends {
		end.remote = others[i]
		if err := end.qp.Init(rdma.RemoteWrite); err != nil {
			return err
		}
		for k := range manyReceives {
			if role == roleServer {
				if err := end.qp.PostRecv(e.receive(end, k)); err != nil {
					return err
				}
			}
		}
		err := end.qp.ReadyToReceive(rdma.RTR{
			RemoteGID: wire.GIDFromAddr(ip), RemoteQPN: end.remote.QPN, PathMTU: mtu, RecvPSN: end.remote.PSN, MinRNRTimer: rdmaRNRTimer,
		})
		if err != nil {
			return err
		}
		if err := end.qp.ReadyToSend(rdma.RTS{SendPSN: end.psn, Timeout: rdmaTimeout, RetryCount: rdmaRetries, RNRRetry: rdmaRetries}); err != nil {
			return err
		}
	}
	if role == roleServer {
		return peer.tell(hellos)
	}
	return nil
}

func (e *manyEnds) close() {
	e.dev.Close()
	for _, end := range e.ends {
		end.qp.Close()
	}
	for _, mr := range []*rdma.MR{e.data, e.boxes} {
		if mr != nil {
			mr.Deregister()
		}
	}
}

func (e *manyEnds) end(err error) { e.once.Do(func() { e.result <- err }) }

// check says which queue pair has failed.
func (e *manyEnds) check(batch []rdma.Completion) error {
	for i := range batch {
		if c := &batch[i]; c.Status != rdma.StatusOK {
			return fmt.Errorf("queue pair %d of %d: %v: %v", e.byQP[c.QP].index+1, len(e.ends),
				c.Op, c.Status)
		}
	}
	return nil
}

// box is message k of an end, of boxes that each has.
func (e *manyEnds) box(end *manyEnd, k, boxes int) rdma.SGE {
	offset := (end.index*boxes + k) * cdc.MessageLen
	return rdma.SGE{MR: e.boxes, Addr: e.boxes.Addr() + uint64(offset), Len: cdc.MessageLen}
}

func (e *manyEnds) bytesOf(s rdma.SGE) []byte {
	return e.boxes.Bytes()[s.Addr-e.boxes.Addr():][:s.Len]
}

func (e *manyEnds) receive(end *manyEnd, k int) rdma.RecvWR {
	return rdma.RecvWR{ID: uint64(k), Local: [2]rdma.SGE{e.box(end, k, manyReceives)}}
}

func receiveMany(m *meter, peer *controlConn, n int) error {
	e, err := openMany(m, peer, n, n, manyReceives, (*manyEnds).takeMany)
	if err != nil {
		return err
	}
	defer e.close()
	clear(e.data.Bytes()) // has the kernel find the pages now
	m.shareAmong(n)
	m.note(fmt.Sprintf("%d queue pairs, path MTU %d%s", n, m.settings.Packet,
		describeSocket(e.dev.Capabilities())), 0)
	if err := e.connect(peer, roleServer,
		func(i int) uint64 { return e.data.Addr() + uint64(i*e.size) }); err != nil {
		return err
	}
	heard := make(chan error, 1)
	go func() {
		var done struct{}
		heard <- peer.hearWithin(0, &done)
	}()
	select {
	case err = <-e.result:
	case err = <-heard: // the client has all acknowledged
		if gone(err) {
			return nil
		}
		if err == nil {
			e.dev.Close() // ends its goroutine, so that nobody writes any more
			err = e.checkData()
		}
	}
	var v writeVerdict
	if err != nil {
		v.Problem = err.Error()
	}
	return errors.Join(err, peer.tell(v))
}

// takeMany is the handler of the server.
func (e *manyEnds) takeMany(batch []rdma.Completion) error {
	for i := range batch {
		c := &batch[i]
		end := e.byQP[c.QP]
		number := binary.LittleEndian.Uint64(e.bytesOf(e.box(end, int(c.ID), manyReceives)))
		if c.Len != cdc.MessageLen || number != end.number+1 {
			return fmt.Errorf("queue pair %d: message %d of %d bytes came after %d", end.index+1, number,
				c.Len, end.number)
		}
		end.number = number
		if err := end.qp.PostRecv(e.receive(end, int(c.ID))); err != nil {
			return err
		}
		e.meter.countOf(end.index, e.size)
	}
	return nil
}

// checkData compares the written data with the data that was sent.
func (e *manyEnds) checkData() error {
	want := make([]byte, e.size)
	fillPattern(want)
	for i, end := range e.ends {
		if end.number > 0 && !bytes.Equal(e.data.Bytes()[i*e.size:][:e.size], want) {
			return fmt.Errorf("queue pair %d: the bytes have arrived different", i+1)
		}
	}
	return nil
}

func sendMany(m *meter, peer *controlConn, n int) error {
	e, err := openMany(m, peer, n, 1, manyOutstanding, (*manyEnds).refillMany)
	if err != nil {
		return err
	}
	defer e.close()
	fillPattern(e.data.Bytes())
	if err := e.connect(peer, roleClient, func(int) uint64 { return e.data.Addr() }); err != nil {
		return err
	}
	m.start()
	e.busy = n
	for _, end := range e.ends {
		end.posted = manyOutstanding // from now on the handler may look
	}
	for _, end := range e.ends {
		var wrs []rdma.SendWR
		for k := range manyOutstanding {
			wrs = e.appendMany(wrs, end, uint64(k+1))
		}
		if err := end.qp.PostSend(wrs...); err != nil {
			return err
		}
	}
	err = <-e.result
	var sent, again uint64
	for _, end := range e.ends {
		st := end.qp.Stats()
		sent, again = sent+st.SentPackets, again+st.Retransmitted
	}
	mode := fmt.Sprintf("%d queue pairs, path MTU %d%s", n, m.settings.Packet,
		describeSocket(e.dev.Capabilities()))
	if sent > 0 {
		mode += fmt.Sprintf(", %.3g %% of the packets sent again", 100*float64(again)/float64(sent))
	}
	m.note(mode, 0)
	if err != nil {
		return err
	}
	if err := peer.tell(struct{}{}); err != nil {
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

// appendMany appends a write and its message, which alone is signaled. Its ID is the number.
func (e *manyEnds) appendMany(wrs []rdma.SendWR, end *manyEnd, number uint64) []rdma.SendWR {
	write := rdma.SendWR{Op: rdma.OpWrite, Remote: end.remote.Addr, RKey: end.remote.RKey}
	write.Local[0] = rdma.SGE{MR: e.data, Addr: e.data.Addr(), Len: uint32(e.size)}
	box := e.box(end, int(number%manyOutstanding), manyOutstanding)
	binary.LittleEndian.PutUint64(e.bytesOf(box), number)
	return append(wrs, write, rdma.SendWR{ID: number, Op: rdma.OpSend, Signaled: true,
		Local: [2]rdma.SGE{box}})
}

// refillMany is the handler of the client.
func (e *manyEnds) refillMany(batch []rdma.Completion) error {
	stopped := e.meter.stopped()
	var wrs [2]rdma.SendWR
	for i := range batch {
		end := e.byQP[batch[i].QP]
		if !stopped {
			if err := end.qp.PostSend(e.appendMany(wrs[:0], end, batch[i].ID+manyOutstanding)...); err != nil {
				return err
			}
			continue
		}
		if end.posted--; end.posted == 0 {
			if e.busy--; e.busy == 0 {
				e.end(nil)
			}
		}
	}
	return nil
}

// leastShare returns the smallest count as a part of the average count.
func leastShare(counts []uint64) float64 {
	if len(counts) == 0 {
		return 0
	}
	var sum uint64
	for _, n := range counts {
		sum += n
	}
	if sum == 0 {
		return 0
	}
	return float64(slices.Min(counts)) * float64(len(counts)) / float64(sum)
}
