package rdma

import (
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/rdma/polling"
)

// One goroutine at a time has the turn to receive. That is the device's own, unless a goroutine
// that waits for the result of completions takes the turn, see [Device.Lead]. Then a packet wakes
// the goroutine that it is for, and not another one that wakes it.
//
// The device's goroutine gives the turn away when that is worth it: one goroutine has waited at a
// time, several times in a row, for little and not for long, or for much unless trials have shown
// that less is moved then. Then it stands by. In between nobody may have the turn while nobody
// waits: a goroutine that computes between two waits would only be disturbed. If that takes long,
// or somebody asks for it, the device's goroutine takes the turn again.
//
// Nobody is forgotten. A goroutine that parks raises parked, and then tries to take the turn. A
// goroutine that gives the turn up looks at parked afterwards, and calls the device's goroutine if
// another one is parked.
type lead struct {
	receiver *receiver // of the goroutine that has the turn
	turn     atomic.Bool
	parked   atomic.Int32
	wanted   atomic.Bool   // somebody would have led
	shared   atomic.Bool   // the device's goroutine stands by
	dozing   atomic.Bool   // and waits to be called, however long that takes
	count    atomic.Uint32 // times that somebody led
	relief   chan struct{} // has room for one call of the device's goroutine

	// Of the device's goroutine, while it has the turn.
	shorts int           // waits in a row that were worth to be led
	since  time.Duration // when the last one began
	before uint64        // packets at that time

	bulk polling.Trials // of leading where a wait is for much; belongs to the goroutine that has the turn

	// prompt is for how many leads more pending packets are sent before the lead ends. It belongs
	// to the goroutine that has the turn.
	prompt int
}

const (
	// leadAfter is how many waits in a row have to be worth leading for the device's goroutine to
	// give the turn away.
	leadAfter = 8
	// leadTime is how long a wait for few packets may take to be worth leading, and leadPackets are
	// not few any more.
	leadTime    = 500 * time.Microsecond
	leadPackets = 12

	// standTick is how long nobody may have the turn, while nobody waits.
	standTick = time.Millisecond

	// promptLeads is how many leads send acknowledgements themselves, after one has been late for
	// want of data that it could have gone with.
	promptLeads = 64
)

func (l *lead) init(d *Device) {
	l.receiver = newReceiver(d)
	l.bulk = polling.NewTrials(true) // rarely worse, and then it shows
	l.relief = make(chan struct{}, 1)
}

// receiveLoop is the device's goroutine.
func (d *Device) receiveLoop() {
	defer close(d.stopped)
	l := &d.lead
	for {
		if l.turn.CompareAndSwap(false, true) {
			l.begin(d)
			l.receiver.lazy = false
			closed := l.receiver.serve(func() bool { return l.gives(d) })
			l.turn.Store(false)
			if closed {
				return
			}
		}
		if l.parked.Load() > 0 && !l.turn.Load() {
			continue
		}
		l.standBy(d)
	}
}

// begin begins to count waits.
func (l *lead) begin(d *Device) {
	l.shared.Store(false)
	l.shorts, l.since, l.before = 0, d.now(), l.receiver.packets
}

// gives reports whether the device's goroutine is to give the turn away.
func (l *lead) gives(d *Device) bool {
	if !l.wanted.Load() {
		return false
	}
	if packets := l.receiver.packets; packets != l.before {
		now := d.now()
		if l.worth(now, now-l.since, packets-l.before) {
			l.shorts++
		} else {
			l.shorts = 0
		}
		l.since, l.before = now, packets
		l.wanted.Store(false)
	}
	if l.shorts < leadAfter || l.parked.Load() > 0 || d.sched.hasWork() {
		return false
	}
	l.shared.Store(true)
	return true
}

// worth reports whether a wait that has ended at now, after took and with packets, was worth
// leading. The caller has the turn.
func (l *lead) worth(now, took time.Duration, packets uint64) bool {
	if packets < leadPackets {
		return took < leadTime
	}
	l.bulk.Waited(now, took, l.receiver.packets)
	return l.bulk.Second() // rule: TestLeadBulk: l.bulk.Second() -> false
}

// standBy waits until the device's goroutine is needed.
func (l *lead) standBy(d *Device) {
	tick := time.NewTimer(standTick)
	defer tick.Stop()
	for count := l.count.Load(); ; {
		select {
		case <-l.relief:
			return
		case <-tick.C:
		}
		switch now := l.count.Load(); {
		case now != count:
			count = now
			tick.Reset(standTick)
		case l.turn.Load(): // somebody leads for long, or is about to count
			l.dozing.Store(true)
			if l.turn.Load() { // and looks at dozing after having given it up
				<-l.relief
			}
			l.dozing.Store(false)
			return
		default:
			if d.sched.hasWork() && l.turn.CompareAndSwap(false, true) {
				l.prompt = promptLeads
				l.turn.Store(false)
			}
			return
		}
	}
}

// call calls the device's goroutine.
func (l *lead) call() {
	select {
	case l.relief <- struct{}{}:
	default: // it has been called
	}
}

// Parked counts goroutines that wait for the result of completions and that nobody has woken yet.
// They count themselves, before [Device.Lead]; the goroutine that wakes one takes it off.
func (d *Device) Parked() *atomic.Int32 { return &d.lead.parked }

// Lead has the calling goroutine receive for the device, and call handlers, until until reports
// true. It returns at once if that is not worth it, or somebody else receives, and when the device
// is closed. until is called often, and must not block. Handlers must not wait for anything that
// the caller holds.
//
// An acknowledgement that is due when it ends may be left to the caller's next send.
func (d *Device) Lead(until func() bool) {
	l := &d.lead
	l.wanted.Store(true)
	if !l.shared.Load() {
		return // the device's goroutine has the turn, or is about to
	}
	if !l.turn.CompareAndSwap(false, true) {
		return
	}
	l.count.Add(1)
	r := l.receiver
	if r.lazy = l.prompt == 0; !r.lazy {
		l.prompt--
	}
	start, before := d.now(), r.packets
	closed := r.serve(until)
	now := d.now()
	worth := l.worth(now, now-start, r.packets-before)
	l.turn.Store(false)
	if closed || !worth || l.parked.Load() > 0 || l.dozing.Load() {
		l.shared.Store(false)
		l.call()
	}
}

// Interrupt makes the goroutine that leads ask until again.
func (d *Device) Interrupt() {
	if d.asleep.Load() {
		_ = d.sock.SetReadDeadline(time.Unix(0, 1)) // the error is that it is closed
	}
}
