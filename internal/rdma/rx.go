package rdma

import (
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rdma/orphan"
	"github.com/gosmc/smc/internal/rdma/polling"
	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

const (
	// batchMessages is how many super-packets are received at a time. They are 64 KiB each, and
	// more of them do not stay in a core's cache until they are copied.
	batchMessages = 4
	// errorPause is how long the device waits after a failed receive, so as not to spin.
	errorPause = time.Millisecond
	// looksPerTurn is after how many looks for packets other goroutines get this thread, if no handler
	// has woken one. Each [runtime.Gosched] has the runtime wake a thread that looks for work, with a
	// system call, and mostly for nothing.
	looksPerTurn = 16
	// ownSegments is more than the identification that stacks like this one can send.
	ownSegments = 128
)

// A receiver holds the state of the receiving goroutine of a device.
type receiver struct {
	dev     *Device
	batch   *udp.RxBatch
	tx      *sender
	relay   relay
	orphans orphan.List
	packet  roce.Packet
	qp      *QP // the last packet's; its lock is held
	qpn     wire.QPN
	news    []*CQ // with completions since the batch began
	now     time.Duration

	looks   polling.Looks // for packets before a sleep
	woke    bool          // handlers were called since it slept
	hurry   bool          // a queue pair of the last batch expects a packet
	packets uint64        // received and sent

	until func() bool // of serve
	lazy  bool        // see Device.Lead
}

func newReceiver(d *Device) *receiver {
	return &receiver{dev: d, batch: udp.NewRxBatch(batchMessages), tx: newSender(),
		looks: polling.NewLooks(d.spin == 0)}
}

// serve receives batches, has queue pairs take them, calls handlers, and sends the packets that may
// go now, one batch between two looks at the socket. It returns when until reports true, and true
// itself once the socket is closed. The caller has the turn.
func (r *receiver) serve(until func() bool) (closed bool) {
	d := r.dev
	r.until = until
	for !until() {
		var err error
		if d.sched.hasWork() {
			_, err = d.sock.TryRecv(r.batch)
		} else {
			err = r.wait()
		}
		switch {
		case errors.Is(err, net.ErrClosed):
			return true
		case err != nil:
			d.stats.receiveErrors.Add(1)
			time.Sleep(errorPause)
		case r.batch.Len() > 0:
			r.take()
			if r.lazy && until() {
				return false // the pending packets go with the caller's next ones
			}
		}
		r.send()
	}
	return false
}

// send sends one batch of packets that may be sent.
func (r *receiver) send() {
	var sent int
	r.tx, sent = r.dev.round(r.tx)
	r.packets += uint64(sent)
}

// wait receives a batch, and may look for one for a while before it goes to sleep.
func (r *receiver) wait() (err error) {
	start, got := r.dev.now(), false
	if r.looks.Pays() || r.hurry && r.dev.spin > 0 {
		end := start + r.dev.spin
		for n := 1; !got && err == nil && r.dev.now() < end && !r.dev.sched.hasWork() && !r.until(); n++ {
			if got, err = r.dev.sock.TryRecv(r.batch); !got {
				if r.woke || n%looksPerTurn == 0 {
					r.woke = false
					runtime.Gosched()
				}
				// The peer may be waiting for this very processor.
				unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
			}
		}
		r.looks.Looked(r.dev.now() - start)
	}
	if !got && err == nil && r.woke {
		// The goroutine that was woken runs here and now: a thread that sleeps in the kernel keeps
		// its share of the runtime for a while, and takes packets one by one.
		runtime.Gosched()
		got, err = r.dev.sock.TryRecv(r.batch)
	}
	r.woke = false
	if !got && err == nil {
		err = r.sleep()
	}
	r.looks.Waited(r.dev.now()-start, polling.Near*r.dev.spin)
	return err
}

// sleep receives a batch, and waits for it, unless there is something to send or it is enough: see
// [Device.kick] and [Device.Interrupt].
func (r *receiver) sleep() error {
	d := r.dev
	d.asleep.Store(true)
	defer d.asleep.Store(false)
	if d.sched.hasWork() || r.until() {
		_, err := d.sock.TryRecv(r.batch)
		return err
	}
	err := d.sock.Recv(r.batch)
	if errors.Is(err, os.ErrDeadlineExceeded) { // kicked
		err = d.sock.SetReadDeadline(time.Time{})
	}
	return err
}

// take hands the packets of the batch to their queue pairs, and calls the handlers.
func (r *receiver) take() {
	r.now = r.dev.now()
	r.hurry = false
	packets := 0
	for i := range r.batch.Len() {
		m := r.batch.Message(i)
		if m.Truncated {
			r.dev.stats.truncated.Add(1)
		}
		for k := range m.Segments() {
			packets++
			b, id := m.Segment(k)
			r.datagram(m, b, id)
		}
		if r.qp != nil && r.qp.c.answer == answerNak {
			// the sooner the peer knows, the less it sends for nothing
			r.release()
			r.send()
		}
	}
	r.release()
	r.handOnRest()
	r.packets += uint64(packets)
	r.dev.stats.packets.Add(uint64(packets))
	if len(r.news) > 0 {
		r.callHandlers()
		r.woke = true
	}
}

// callHandlers tells the completion queues that have news. Queue pairs on which handlers post send
// afterwards.
func (r *receiver) callHandlers() {
	r.dev.inHandlers.Store(true)
	for _, c := range r.news {
		c.notify()
	}
	clear(r.news)
	r.news = r.news[:0]
	r.dev.inHandlers.Store(false)
}

// datagram takes datagram b of message m, which should have the IPv4 identification id. It goes
// through the checks of IBTA 9.6.1, and of those that fail nobody is told.
func (r *receiver) datagram(m *udp.Message, b []byte, id uint16) {
	s := &r.dev.stats
	p := &r.packet
	if p.Parse(b) != nil {
		if r.dev.share != nil && isHandedOn(b) {
			r.takeOver(m, b)
			return
		}
		if len(b) < roce.MinPacketLen {
			s.truncated.Add(1)
		} else {
			s.malformed.Add(1)
		}
		return
	}
	if p.Opcode == roce.CNP {
		s.congestion.Add(1) // the window knows no more from it than from losses
		return
	}
	if p.PKey&pkeyBits != roce.DefaultPKey&pkeyBits { // rule: TestDropped
		s.wrongPKey.Add(1)
		return
	}
	if r.qp == nil || r.qpn != p.DestQPN {
		r.release()
		q := r.dev.lookup(p.DestQPN)
		if q == nil {
			if r.dev.share.ofOthers(p.DestQPN) && !r.relay.taking {
				r.handOn(m, b, id)
				return
			}
			s.unknownQP.Add(1)
			r.answerOrphan(m, b, id)
			return
		}
		r.qp, r.qpn = q, p.DestQPN
		q.mu.Lock()
	}
	q := r.qp
	switch {
	case q.closed || q.c.state == StateReset || q.c.state == StateInit || q.path == nil:
		q.c.stats.Dropped++
	case m.From.Addr() != q.remote.Addr(): // rule: TestDropped
		s.wrongPeer.Add(1)
	case !q.verify(m, b, id, s): // rule: TestDropped
		s.badICRC.Add(1)
	default:
		q.c.receive(r.now, p)
	}
}

// verify checks the ICRC of datagram b of message m, whose IPv4 identification should be id.
//
// The ICRC covers the identification, which a UDP socket does not show. The guess is mostly right for
// peers like this one. Otherwise the identification is taken to be the one with which the ICRC is
// right, if there is one: of damaged packets that lets one in 2^16 pass, or one in 2^25 where the
// source port says that the peer is like this one and identifications are below 128. The UDP
// checksum, which rxe does not send, comes on top. With a packet socket, and with IPv6, nothing is
// guessed.
func (q *QP) verify(m *udp.Message, b []byte, id uint16, s *deviceStats) bool {
	if port := m.From.Port(); port != q.rxPort {
		q.rxFlow, q.rxPort = roce.NewFlow(m.From, q.dev.addr), port
	}
	got, v := q.rxFlow.Verify(id, b)
	switch {
	case v == roce.Exact:
		return true
	case v != roce.Solved:
		return false
	case m.HasID:
		return got == m.FirstID // joined on their way, by a device that does not count up
	}
	s.solvedICRC.Add(1)
	return q.rxPort != q.dev.addr.Port() || got < ownSegments
}

// release lets go of the queue pair whose lock is held, if there is one, and notes its completions
// and its wish to send.
func (r *receiver) release() {
	q := r.qp
	if q == nil {
		return
	}
	r.qp = nil
	r.hurry = r.hurry || q.c.expects()
	send, recv := q.deliver()
	q.arm(r.now)
	q.settle(r.now)
	q.requeue(r.now)
	q.mu.Unlock()
	if recv && !slices.Contains(r.news, q.recvCQ) {
		r.news = append(r.news, q.recvCQ)
	}
	if send && !slices.Contains(r.news, q.sendCQ) {
		r.news = append(r.news, q.sendCQ)
	}
}

// answerOrphan takes the packet at hand, datagram b of message m, which is for no queue pair.
func (r *receiver) answerOrphan(m *udp.Message, b []byte, id uint16) {
	d := r.dev
	x := r.orphans.Look(r.now, m.From, d.addr.Addr(), &r.packet, func() bool { return r.intact(m, b, id) })
	if x == nil {
		return
	}
	if err := r.orphans.Refuse(x, d.sock, d.addr.Port()); err != nil {
		d.stats.sendErrors.Add(1)
	}
}

// intact reports whether the ICRC of a packet that is for no queue pair is right, and counts it if not.
func (r *receiver) intact(m *udp.Message, b []byte, id uint16) bool {
	flow := roce.NewFlow(m.From, r.dev.addr)
	if _, v := flow.Verify(id, b); v != roce.Exact && v != roce.Solved {
		r.dev.stats.badICRC.Add(1)
		return false
	}
	return true
}
