// Package polling decides how to wait for packets: by looks at the socket or asleep, and on which
// goroutine. It knows no device, and has no clock: it is told of waits, and how long they took.
package polling

import "time"

// Looks decide whether the receiving goroutine looks for packets for a while before it sleeps. To be
// woken can take longer than two busy peers wait for each other, and both have to look for either to
// gain much: the time that one of them saves is lost in the wakeup of the other. So it looks wherever
// the last wait was so short that a look would have seen most of it. A comparison with sleeping, which
// each end could only make for itself, would find no gain.
//
// Looking costs where others want the processor, among them perhaps the peer: it yields after each
// look, and gets the processor back when they have had their time. Such a look takes long. After some
// of them it sleeps for a number of waits, which doubles each time until as many have gone well.
//
// It is a value: it is told of each look and each wait.
type Looks struct {
	barred bool // never

	near  bool // the last wait was short
	long  int  // looks that have taken long, less one for each lookForget waits
	slept int  // waits until it looks again
	pause int  // waits without looks after the next long look
	well  int  // waits since the last pause
}

const (
	// Near is up to which time a wait is short, in times of the longest look.
	Near = 4
	// lookLong is from which time a look says that others have had the processor. A time slice of Linux takes
	// longer. Less is normal where goroutines of one program share processors, and so is a single long look:
	// maxLong within lookForget waits are too many.
	lookLong   = time.Millisecond
	maxLong    = 3
	lookForget = 256

	lookMinPause = 1 << 10 // waits
	lookMaxPause = 1 << 16
)

// NewLooks returns Looks that have seen no wait. barred: never look.
func NewLooks(barred bool) Looks { return Looks{barred: barred, pause: lookMinPause} }

// Pays reports whether to look before the next sleep.
func (l *Looks) Pays() bool { return l.near && l.slept == 0 && !l.barred }

// Looked takes that a look has taken d.
func (l *Looks) Looked(d time.Duration) {
	if d < lookLong {
		return
	}
	if l.long++; l.long < maxLong { // rule: TestLooksLongSeldom: l.long < maxLong -> false
		return
	}
	if l.well >= l.pause { // rule: TestLooksLong: l.well >= l.pause -> false
		l.pause = lookMinPause
	}
	l.slept, l.well, l.long = l.pause, 0, 0 // rule: TestLooksLong: l.pause -> 0
	l.pause = min(2*l.pause, lookMaxPause)
}

// Waited takes that a wait has taken d, with its look, and that it is short up to near: see [Near].
func (l *Looks) Waited(d, near time.Duration) {
	l.near = d <= near // rule: TestLooks: d <= near -> true
	if l.slept > 0 {
		l.slept--
		return
	}
	if l.well++; l.well%lookForget == 0 && l.long > 0 {
		l.long-- // rule: TestLooksLongSeldom: l.long-- -> l.long++
	}
}
