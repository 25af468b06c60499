package bench

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
)

// The parameters of the connection, as Linux has them for SMC-R.
const (
	rdmaTimeout  = 15 // 4.096 µs × 2^15 = 134 ms
	rdmaRetries  = 7
	rdmaRNRTimer = 5 // 0.06 ms
)

// rdmaBatch is how many completions are taken at a time.
const rdmaBatch = 32

// An rdmaEnd is one worker's end of a reliable connection: a queue pair, the memory that the other
// worker writes to, and messages, as long as SMC-R's, that tell of the writes.
//
// All completions are handled on the goroutines of the device. The worker's own goroutine sets up,
// posts the first work, and waits.
type rdmaEnd struct {
	dev    *rdma.Device
	qp     *rdma.QP
	source *rdma.MR // we write from here
	target *rdma.MR // the other worker writes here
	outbox *rdma.MR // messages to send
	inbox  *rdma.MR // messages received
	remote rdmaHello

	completions [rdmaBatch]rdma.Completion
	receives    []rdma.RecvWR
	handle      func([]rdma.Completion) error // all of them went well
	over        bool                          // handle has ended with an error, or is done
	result      chan error                    // cap 1
	once        sync.Once
}

// rdmaHello has the values that each end has to know of the other; in SMC-R the CLC messages have
// them.
type rdmaHello struct {
	QPN  wire.QPN  `json:"qpn"`
	PSN  wire.PSN  `json:"psn"`
	Addr uint64    `json:"addr"` // of the target
	RKey wire.RKey `json:"rkey"`
}

// rdmaSizes says how much an end needs.
type rdmaSizes struct {
	source, target int // bytes
	sends          int // work requests
	outbox, inbox  int // messages
}

// openRDMA opens an end at a local address. loss is nil for none.
func openRDMA(local netip.Addr, size rdmaSizes, loss *loss) (*rdmaEnd, error) {
	var config rdma.Config
	if loss != nil {
		config.Drop = loss.drop
	}
	dev, err := rdma.Open(local, &config)
	if err != nil {
		return nil, err
	}
	e := &rdmaEnd{dev: dev, result: make(chan error, 1)}
	if err := e.setUp(size); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

// setUp makes all that the end has on its device, up to a queue pair with its receives posted.
func (e *rdmaEnd) setUp(size rdmaSizes) error {
	pd, err := e.dev.NewPD()
	if err != nil {
		return err
	}
	for _, r := range []struct {
		mr     **rdma.MR
		size   int
		access rdma.Access
	}{
		{&e.source, size.source, 0},
		{&e.target, size.target, rdma.LocalWrite | rdma.RemoteWrite},
		{&e.outbox, size.outbox * cdc.MessageLen, 0},
		{&e.inbox, size.inbox * cdc.MessageLen, rdma.LocalWrite},
	} {
		if *r.mr, err = pd.AllocMR(r.size, r.access); err != nil {
			return err
		}
	}
	cq, err := e.dev.NewCQ(size.sends+size.inbox, e.take)
	if err != nil {
		return err
	}
	if e.qp, err = pd.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: size.sends, MaxRecv: size.inbox}); err != nil {
		return err
	}
	if err := e.qp.Init(rdma.RemoteWrite); err != nil {
		return err
	}
	for i := range size.inbox {
		e.receives = append(e.receives, e.receiveInto(i))
	}
	return e.qp.PostRecv(e.receives...)
}

// connect exchanges the values that the two ends have to know, and joins them. The server is ready
// before the client is.
func (e *rdmaEnd) connect(peer *controlConn, role string, packet int) error {
	psn := rdma.RandomPSN()
	hello := rdmaHello{QPN: e.qp.QPN(), PSN: psn, Addr: e.target.Addr(), RKey: e.target.RKey()}
	if role == roleClient {
		if err := peer.tell(hello); err != nil {
			return err
		}
	}
	if err := peer.hear(&e.remote); err != nil {
		return err
	}
	mtu, err := pathMTU(packet)
	if err != nil {
		return err
	}
	ip, err := peer.remoteIP()
	if err != nil {
		return err
	}
	err = e.qp.ReadyToReceive(rdma.RTR{
		RemoteGID: wire.GIDFromAddr(ip), RemoteQPN: e.remote.QPN, PathMTU: mtu, RecvPSN: e.remote.PSN, MinRNRTimer: rdmaRNRTimer,
	})
	if err != nil {
		return err
	}
	if err := e.qp.ReadyToSend(rdma.RTS{SendPSN: psn, Timeout: rdmaTimeout, RetryCount: rdmaRetries, RNRRetry: rdmaRetries}); err != nil {
		return err
	}
	if role == roleServer {
		return peer.tell(hello)
	}
	return nil
}

// pathMTU is the code for packets with so many bytes of payload.
func pathMTU(packet int) (wire.MTU, error) {
	for m := wire.MTU256; m <= wire.MTU4096; m++ {
		if m.Bytes() == packet {
			return m, nil
		}
	}
	return 0, fmt.Errorf("no path MTU is %d bytes", packet)
}

func (e *rdmaEnd) close() {
	e.dev.Close()
	if e.qp != nil {
		e.qp.Close()
	}
	for _, mr := range []*rdma.MR{e.source, e.target, e.outbox, e.inbox} {
		if mr != nil {
			mr.Deregister()
		}
	}
}

// take is the handler of the completion queue.
func (e *rdmaEnd) take(cq verbs.CQ) {
	for {
		n := cq.Poll(e.completions[:])
		if n == 0 {
			return
		}
		if e.over {
			continue // later completions are of no interest
		}
		if err := e.takeBatch(e.completions[:n]); err != nil {
			e.end(err)
		}
	}
}

func (e *rdmaEnd) takeBatch(batch []rdma.Completion) error {
	for i := range batch {
		if c := &batch[i]; c.Status != rdma.StatusOK {
			return fmt.Errorf("%v: %v", c.Op, c.Status)
		}
	}
	return e.handle(batch)
}

// end says that the work is done, or why it cannot be. Only the handler calls it.
func (e *rdmaEnd) end(err error) {
	e.over = true
	e.report(err)
}

// report gives wait its result. The first counts.
func (e *rdmaEnd) report(err error) { e.once.Do(func() { e.result <- err }) }

// wait waits until the handler has called end, and returns its error.
func (e *rdmaEnd) wait() error { return <-e.result }

// watch ends wait with io.EOF when the other worker has ended, and closes the channel then.
func (e *rdmaEnd) watch(peer *controlConn) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var nothing struct{}
		peer.hearWithin(0, &nothing) // it says nothing more
		e.report(io.EOF)
	}()
	return ended
}

// receiveInto is the work request for a message into place i of the inbox.
func (e *rdmaEnd) receiveInto(i int) rdma.RecvWR {
	var wr rdma.RecvWR
	wr.ID = uint64(i)
	wr.Local[0] = rdma.SGE{MR: e.inbox, Addr: e.inbox.Addr() + uint64(i*cdc.MessageLen), Len: cdc.MessageLen}
	return wr
}

// message is place i of the outbox or the inbox. Its first eight bytes are a number, little-endian,
// the others are zero.
func message(box *rdma.MR, i int) []byte {
	return box.Bytes()[i*cdc.MessageLen:][:cdc.MessageLen]
}

// received returns the number in a message that has come.
func (e *rdmaEnd) received(c *rdma.Completion) (uint64, error) {
	if c.Len != cdc.MessageLen {
		return 0, fmt.Errorf("received %d bytes, want a message of %d", c.Len, cdc.MessageLen)
	}
	return binary.LittleEndian.Uint64(message(e.inbox, int(c.ID))), nil
}

// appendWrite appends the work requests for number: size bytes from a place of the source to the
// same place of the other worker's target, and a message behind them from place box of the outbox.
func (e *rdmaEnd) appendWrite(wrs []rdma.SendWR, number uint64, place, size, box int,
	signaled bool) []rdma.SendWR {
	offset := place * size
	stamp(e.source.Bytes()[offset:][:size], number)
	write := rdma.SendWR{Op: rdma.OpWrite, Remote: e.remote.Addr + uint64(offset), RKey: e.remote.RKey}
	write.Local[0] = rdma.SGE{MR: e.source, Addr: e.source.Addr() + uint64(offset), Len: uint32(size)}
	binary.LittleEndian.PutUint64(message(e.outbox, box), number)
	send := rdma.SendWR{ID: number, Op: rdma.OpSend, Signaled: signaled}
	send.Local[0] = rdma.SGE{MR: e.outbox, Addr: e.outbox.Addr() + uint64(box*cdc.MessageLen),
		Len: cdc.MessageLen}
	return append(wrs, write, send)
}

// stamp writes a number to both ends of b, so that the receiver sees at once which write it has
// before it, and that it has it all.
func stamp(b []byte, number uint64) {
	binary.LittleEndian.PutUint64(b, number)
	binary.LittleEndian.PutUint64(b[len(b)-8:], number)
}

// checkStamp returns an error if b is not write number.
func checkStamp(b []byte, number uint64) error {
	first, last := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[len(b)-8:])
	if first != number || last != number {
		return fmt.Errorf("the message for write %d has come, and its place begins with write %d and ends with %d", number, first, last)
	}
	return nil
}

// describe describes the connection, for JSON.
func (e *rdmaEnd) describe(packet int) string {
	return fmt.Sprintf("RoCEv2, path MTU %d%s", packet, describeSocket(e.dev.Capabilities()))
}

// A loss drops a share of the packets that it is asked about, by a generator with a seed: the same
// packets of the same sequence each time. It may be asked by several goroutines.
//
// That is done packet by packet. A lossy interface would lose whole super-packets.
type loss struct {
	meter *meter
	state atomic.Uint64
	below uint64 // a random number below this is a loss
}

func newLoss(m *meter, share float64, seed uint64) *loss {
	l := &loss{meter: m, below: uint64(share * math.MaxUint64)}
	l.state.Store(rand.NewPCG(seed, seed).Uint64())
	return l
}

func (l *loss) drop([]byte) bool {
	// SplitMix64: a counter, made to look random.
	x := l.state.Add(0x9e3779b97f4a7c15)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	if x^x>>31 >= l.below {
		l.meter.countPackets(1, 0)
		return false
	}
	l.meter.countPackets(1, 1)
	return true
}
