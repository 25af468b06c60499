package link

import (
	"errors"
	"io"
	"testing"

	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire/cdc"
)

// An unsaid is a peer that moves a connection to another link without a validation message.
type unsaid struct {
	*twins
	t     *testing.T
	e     *end
	other *end
}

// newUnsaid has said and placed 5 bytes over the first link, as message 1.
func newUnsaid(t *testing.T, eyecatcher bool) *unsaid {
	w := newTwins(t, 3)
	u := &unsaid{twins: w, t: t}
	u.e, u.other = w.connect(settings{eyecatcher: [2]bool{eyecatcher, false}})
	u.place(0, 0, 5)
	u.say(0, 1, 5, 0)
	return u
}

// place writes bytes to our RMB, over link k.
func (u *unsaid) place(k, at, n int) {
	u.t.Helper()
	l := u.links[1][k]
	token, ok := u.e.rmb.Token(u.links[0][k])
	if !ok {
		u.t.Fatal("no token")
	}
	base := int(u.e.carrier.in.base)
	err := l.qp.PostSend(verbs.SendWR{
		Op: verbs.OpWrite, Remote: token.Addr + uint64(base+at), RKey: token.RKey,
		Local: [2]verbs.SGE{{MR: l.mr, Addr: l.mr.Addr(), Len: uint32(n)}},
	})
	if err != nil {
		u.t.Fatal(err)
	}
}

// say sends a message over link k.
func (u *unsaid) say(k int, seq uint16, produced int, flags cdc.ProducerFlags) {
	u.t.Helper()
	before := u.links[0][k].Heard()
	m := cdc.Message{
		Seq: seq, AlertToken: u.e.carrier.AlertToken(), ProducerFlags: flags,
		Producer: cdc.Cursor{Count: uint32(produced) + u.e.carrier.in.base}, Consumer: cdc.Cursor{Count: u.e.carrier.base},
	}
	if err := u.links[1][k].SendLLC(m.Append(nil), 0); err != nil {
		u.t.Fatal(err)
	}
	eventually(u.t, "the message", func() bool { return u.links[0][k].Heard() > before })
	u.e.carrier.group.overtaken.wait(u.t)
}

// announced is the number of bytes that the connection knows to be there.
func (u *unsaid) announced() int { return int(u.e.PeerHeader().Producer.Count) }

// TestMoveUnsaid has a peer move without a validation message, as Linux does with connections one half of which has ended. Bytes that were
// lost on the way are never taken for zeroes.
func TestMoveUnsaid(t *testing.T) {
	watchdog(t)
	for _, eyecatcher := range []bool{false, true} {
		for _, tt := range []struct {
			name string
			do   func(u *unsaid)
			want int // bytes that are there in the end; -1: the connection has ended
		}{
			{"nothing is missing", func(u *unsaid) {
				u.place(1, 5, 3)
				u.say(1, 2, 8, 0)
			}, 8},
			{"a message is missing, and no bytes", func(u *unsaid) { u.say(1, 3, 5, 0) }, 5},
			{"the bytes have come, their message has not", func(u *unsaid) {
				u.place(0, 5, 3)
				u.say(0, 1, 5, 0) // as the first link is another queue pair
				u.place(1, 8, 2)
				u.say(1, 3, 10, 0)
				u.links[0][0].Fail(io.ErrClosedPipe)
			}, 10},
			{"the first link may still bring them", func(u *unsaid) { u.say(1, 3, 8, 0) }, 5},
			{"the first link brings them", func(u *unsaid) {
				u.say(1, 3, 8, 0)
				u.place(0, 5, 3)
				u.say(0, 2, 8, 0)
				u.links[0][0].Fail(io.ErrClosedPipe)
			}, 8},
			{"more is said until it does", func(u *unsaid) {
				u.say(1, 3, 8, 0)
				u.place(1, 8, 2)
				u.say(1, 4, 10, 0)
				u.place(0, 5, 3)
				u.say(0, 2, 8, 0)
				u.place(1, 10, 1)
				u.say(1, 5, 11, 0)
			}, 11},
			{"the first link fails afterwards", func(u *unsaid) {
				u.say(1, 3, 8, 0)
				u.links[0][0].Fail(io.ErrClosedPipe)
			}, -1},
			{"the first link has failed", func(u *unsaid) {
				u.links[0][0].Fail(io.ErrClosedPipe)
				u.say(1, 3, 8, 0)
			}, -1},
			{"some of them have come", func(u *unsaid) {
				u.place(0, 5, 2)
				u.say(0, 1, 5, 0)
				u.links[0][0].Fail(io.ErrClosedPipe)
				u.say(1, 3, 8, 0)
			}, -1},
			{"bytes were placed twice before", func(u *unsaid) {
				u.say(1, 1, 0, cdc.FailoverValidation)
				u.place(1, 0, 5)
				u.say(1, 3, 5, 0)
				u.say(2, 5, 8, 0)
				u.links[0][1].Fail(io.ErrClosedPipe)
			}, -1},
			{"it says so later", func(u *unsaid) {
				u.say(1, 3, 8, 0)
				u.say(1, 1, 0, cdc.FailoverValidation)
				u.place(1, 5, 3)
				u.say(1, 4, 8, 0)
			}, 8},
		} {
			t.Run(tt.name, func(t *testing.T) {
				u := newUnsaid(t, eyecatcher)
				tt.do(u)
				if tt.want >= 0 {
					if _, err := io.ReadFull(u.e, make([]byte, tt.want)); err != nil || u.announced() != tt.want {
						t.Errorf("read to %d of %d bytes: %v", u.announced(), tt.want, err)
					}
					return
				}
				if n, err := io.ReadFull(u.e, make([]byte, 6)); n > 5 || !errors.As(err, new(*stream.PeerError)) {
					t.Errorf("read %d bytes, %v; want at most 5, and a broken rule", n, err)
				}
			})
		}
	}
}

// TestMoveStraggler has a message come over a link that the peer has left, and has said so, when it
// has gone on over another one. The numbers that follow have a gap, as the lost bytes are announced
// again in fewer messages. No link but the first one ends.
func TestMoveStraggler(t *testing.T) {
	watchdog(t)
	u := newUnsaid(t, false)
	first := u.links[0][0]
	late := cdc.Message{Seq: 2, AlertToken: u.e.carrier.AlertToken(), Producer: cdc.Cursor{Count: 6}}
	u.place(0, 5, 1)
	u.say(0, 1, 5, 0)
	u.say(1, 1, 0, cdc.FailoverValidation)
	first.receiveCDC(late.Append(nil), 1)
	u.place(1, 5, 3)
	u.say(1, 4, 8, 0)
	validation := cdc.NewFailoverValidation(1, u.e.carrier.AlertToken())
	first.receiveCDC(validation.Append(nil), 2)
	if _, err := io.ReadFull(u.e, make([]byte, 8)); err != nil || u.announced() != 8 {
		t.Errorf("read to %d of 8 bytes: %v", u.announced(), err)
	}
	if err := u.links[0][1].Err(); err != nil {
		t.Errorf("the link that is used has failed: %v", err)
	}
}

// TestMoveAsks has a connection whose direction has ended move after a failure: the peer is asked for a message, in which it says how much
// it has sent. Others are not asked.
func TestMoveAsks(t *testing.T) {
	watchdog(t)
	for _, ended := range []bool{false, true} {
		w := newTwins(t, 2)
		a, b := w.connect(settings{})
		a.Write([]byte("x"))
		io.ReadFull(b, make([]byte, 1))
		if ended {
			a.CloseWrite()
			a.SendFlags(cdc.DoneWriting)
		}
		eventually(t, "the end", func() bool { return (b.PeerHeader().ConnFlags&cdc.DoneWriting != 0) == ended })
		eventually(t, "its arrival", func() bool {
			a.carrier.mu.Lock()
			defer a.carrier.mu.Unlock()
			return a.carrier.out == 0
		})
		before := w.links[1][1].Stats().ReceivedCDC
		w.links[0][0].Fail(io.ErrClosedPipe)
		eventually(t, "the validation and a message", func() bool { return w.links[1][1].Stats().ReceivedCDC >= before+2 })
		asks := func() bool { return b.PeerHeader().ProducerFlags&cdc.CursorUpdateRequested != 0 }
		if ended {
			eventually(t, "it asks", asks) // which is counted before it is taken
		} else if asks() {
			t.Error("asks for a message before the end")
		}
	}
}
