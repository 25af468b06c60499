package conn

import (
	"time"

	"golang.org/x/sys/unix"
)

// bubbleEnds is the year from which on a clock does not belong to a bubble of testing/synctest. The
// clock of a bubble begins in 2000. bubbleEnds spares most calls a look at the clock of the system.
const bubbleEnds = 2020

// InBubble reports whether the caller is in a bubble of testing/synctest. Channels and timers of a
// bubble can only be used inside, so a host and its users have to be on the same side. The clock
// tells: the clock of a bubble begins at the first day of 2000. Two bubbles at the same time are
// not told apart.
func InBubble() bool { return bubbleAt(time.Now()) }

// bubbleAt is InBubble for a caller that has just read its clock.
func bubbleAt(now time.Time) bool {
	if now.Year() >= bubbleEnds {
		return false
	}
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME, &ts) != nil {
		return false
	}
	return time.Unix(ts.Unix()).Sub(now).Abs() > time.Hour
}
