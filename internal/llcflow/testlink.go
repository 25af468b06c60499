package llcflow

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// This file has TEST LINK, which finds out that the other side is gone.

// A linkTest is a TEST LINK under way.
type linkTest struct {
	due  time.Time // when the answer has to be there; zero: none is awaited
	sent time.Time
	n    uint64 // which it is: the user data
}

// hear notes that something arrived.
func (l *controlLink) hear(now time.Time) {
	if now.After(l.lastHeard) {
		l.lastHeard = now
	}
}

// Heard says that something else than an LLC message has arrived on a link at the given time. It need not
// be told each time: when Advance is due is early enough.
func (lc *LinkControl) Heard(num llc.LinkNum, at time.Time) {
	if link := lc.link(num); link != nil {
		link.hear(at)
	}
}

// Suspect asks the peer with TEST LINK at once, since something says that it may be gone: the TCP
// connection of one that has not closed has ended, as the kernel does it for a process that was
// killed. A link of SMC-R notices nothing of that while it has nothing to send.
func (lc *LinkControl) Suspect(now time.Time, num llc.LinkNum, out []Output) []Output {
	link := lc.link(num)
	if lc.state != StateActive || link == nil { // rule: TestControlSuspect
		return out
	}
	return lc.arm(lc.probe(now, link, out))
}

// SetTestInterval changes how long a link may be silent, see [Config].
func (lc *LinkControl) SetTestInterval(d time.Duration, out []Output) []Output {
	lc.cfg.TestInterval = d
	return lc.arm(out)
}

// TestInterval returns how long a link may be silent, 0 for ever.
func (lc *LinkControl) TestInterval() time.Duration {
	switch {
	case lc.cfg.TestInterval < 0:
		return 0
	case lc.cfg.TestInterval == 0:
		return TestLinkInterval
	}
	return lc.cfg.TestInterval
}

// testsDue returns when advanceTests is due.
func (lc *LinkControl) testsDue() (next time.Time) {
	if lc.state != StateActive {
		return next
	}
	for _, l := range lc.links {
		switch {
		case l.state != linkActive:
		case !l.test.due.IsZero():
			next = earliest(next, l.test.due)
		case lc.TestInterval() > 0:
			next = earliest(next, l.lastHeard.Add(lc.TestInterval()))
		}
	}
	return next
}

// advanceTests asks on links that have been silent, and ends those that stay so. Another message in
// place of the answer shows as well that the peer is there.
func (lc *LinkControl) advanceTests(now time.Time, out []Output) []Output {
	if due := lc.testsDue(); due.IsZero() || now.Before(due) {
		return out
	}
	for _, l := range slices.Clone(lc.links) {
		switch {
		case l.state != linkActive || lc.state != StateActive:
		case l.test.due.IsZero():
			if lc.TestInterval() > 0 && !now.Before(l.lastHeard.Add(lc.TestInterval())) { // rule: TestControlKeepalive
				out = lc.probe(now, l, out)
			}
		case now.Before(l.test.due):
		case l.lastHeard.After(l.test.sent): // rule: TestControlKeepalive
			l.test.due = time.Time{}
		default:
			out = lc.lose(now, l, GroupEnd{Kind: EndSilent}, clc.DiagNone, out) // rule: TestControlMutePeer
		}
	}
	return out
}

// probe sends TEST LINK, unless one is under way.
func (lc *LinkControl) probe(now time.Time, l *controlLink, out []Output) []Output {
	if !l.test.due.IsZero() || l.state != linkActive {
		return out
	}
	l.test = linkTest{due: now.Add(TestLinkTimeout), sent: now, n: l.test.n + 1}
	return append(out, SendLLC{Link: l.num,
		Message: llc.TestLink{Header: llc.Header{Form: lc.form}, UserData: l.test.data()}})
}

// data returns the bytes that the answer has to repeat.
func (t linkTest) data() (d [16]byte) {
	binary.LittleEndian.PutUint64(d[:], t.n)
	return d
}

// before reports whether data belongs to a test before this one.
func (t linkTest) before(data [16]byte) bool {
	n := binary.LittleEndian.Uint64(data[:])
	return n != 0 && n < t.n && linkTest{n: n}.data() == data // rule: TestControlLateAnswer: linkTest{n: n}.data() == data -> true
}

// handleTestLink answers TEST LINK, at once even if an exchange is under way, and takes the answer
// to ours. A wrong one is "as if detected that the link has gone down" (RFC 7609 C.7.1).
func (lc *LinkControl) handleTestLink(now time.Time, link *controlLink, m llc.TestLink,
	out []Output) []Output {
	switch {
	case !m.Reply:
		return append(out, SendLLC{Link: link.num,
			Message: llc.TestLink{Header: llc.Header{Form: m.Form, Reply: true}, UserData: m.UserData}})
	case link.test.due.IsZero():
		return out // nobody has asked, or the answer is late
	case link.test.before(m.UserData): // rule: TestControlLateAnswer
		return out // to one that was given up, as something else has arrived in place of the answer
	case m.UserData != link.test.data(): // rule: TestControlKeepalive
		return lc.outOfSync(now, link, m.Type().String(), errTestData, out)
	}
	link.test.due = time.Time{}
	return out
}

// errTestData is the cause of a wrong answer to TEST LINK.
var errTestData = errors.New("not the data that was sent")
