package host

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/llc"
)

// checkFlooded fails if a link group has ended for the content of messages, and not because either
// end could take no more.
func checkFlooded(t testing.TB, h *Host) {
	t.Helper()
	for _, e := range h.Status().Counters.Ends {
		if e.What == endOfLinkGroup && strings.HasPrefix(e.Reason, "protocol violation") {
			t.Errorf("a link group has ended: %s", e.Reason)
		}
	}
}

// TestSMCRFloods has a client that sends without end, and does not wait for answers. Its link group may end; an honest
// client's bytes go on meanwhile.
func TestSMCRFloods(t *testing.T) {
	const count = 1000
	for _, tt := range []struct {
		name    string
		message func(x *smcrLiar, i int) []byte
		dropped bool // each is dropped or answered, and nothing ends for it
	}{
		{"TEST LINK", func(_ *smcrLiar, i int) []byte {
			return llc.TestLink{Header: liarForm, UserData: [16]byte{byte(i)}}.Append(nil)
		}, true},
		{"CONFIRM RKEY", func(_ *smcrLiar, i int) []byte {
			return llc.ConfirmRKey{Header: liarForm, RToken: llc.RToken{RKey: wire.RKey(1000 + i), VA: uint64(i) << 20}}.Append(nil)
		}, true},
		{"CONFIRM RKEY and DELETE RKEY", func(_ *smcrLiar, i int) []byte {
			if i%2 == 0 {
				return llc.ConfirmRKey{Header: liarForm, RToken: llc.RToken{RKey: 1000}}.Append(nil)
			}
			return llc.DeleteRKey{Header: liarForm, RKeys: []wire.RKey{1000}}.Append(nil)
		}, false},
		{"REQUEST ADD LINK", func(x *smcrLiar, _ int) []byte {
			return llc.RequestAddLink{Header: liarForm, GIDs: []wire.GID{x.gid}}.Append(nil)
		}, false},
		{"ADD LINK", func(x *smcrLiar, _ int) []byte { return x.addLink().Append(nil) }, false},
		{"DELETE LINK of another link", func(*smcrLiar, int) []byte { return llc.DeleteLink{Header: liarForm, Link: 9}.Append(nil) }, true},
		{"replies", func(_ *smcrLiar, i int) []byte {
			return llc.ConfirmRKey{Header: llc.Header{Form: llc.V2, Reply: true}, RToken: llc.RToken{RKey: wire.RKey(i)}}.Append(nil)
		}, true},
		{"messages of an optional type", func(*smcrLiar, int) []byte {
			b := llc.TestLink{Header: liarForm}.Append(nil)
			b[0] = 0x8f
			return b
		}, true},
		{"CDC that says nothing new", func(x *smcrLiar, i int) []byte {
			return cdc.Message{Seq: uint16(i), AlertToken: x.accept.R.AlertToken}.Append(nil)
		}, true},
		{"CDC with flags that come and go", func(x *smcrLiar, i int) []byte {
			m := cdc.Message{Seq: uint16(i), AlertToken: x.accept.R.AlertToken, ProducerFlags: cdc.ProducerFlags(i)}
			if i%2 == 0 {
				m.ConnFlags = cdc.DoneWriting
			}
			return m.Append(nil)
		}, false},
		{"CDC of tokens that there are not", func(x *smcrLiar, i int) []byte {
			return cdc.Message{Seq: uint16(i), AlertToken: x.accept.R.AlertToken + wire.AlertToken(i) + 1}.Append(nil)
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newSMCRRig(t, nil)
			honest, other := r.connect()
			x := newSMCRLiar(t, r)
			s := x.connect()
			over := make(chan struct{})
			go func() { // the answers are of no interest
				defer close(over)
				for range x.net.News() {
					for ev, ok := x.net.Poll(); ok; ev, ok = x.net.Poll() {
						if ev.Kind == link.EventFailed {
							return
						}
					}
				}
			}()
			flooded, stop := make(chan struct{}), make(chan struct{})
			var sent atomic.Int64
			go func() {
				defer close(flooded)
				tick := time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for i := 1; x.link.Err() == nil; {
					select {
					case <-stop:
						return
					default:
					}
					switch err := x.link.SendLLC(tt.message(x, i), 0); {
					case errors.Is(err, link.ErrTooMany):
						<-tick.C
					default:
						i++
						sent.Add(1)
					}
				}
			}()
			for done := false; !done && sent.Load() < count; {
				honest.SetDeadline(time.Now().Add(patience))
				other.SetDeadline(time.Now().Add(patience))
				x.checkOthers(honest, other)
				select {
				case <-flooded:
					done = true
				default:
				}
			}
			close(stop)
			<-flooded
			x.checkOthers(honest, other)
			if tt.dropped {
				checkFlooded(t, r.server)
			}
			s.Abort()
			s.Close()
			x.link.Fail(nil)
			<-over
			honest.Close()
			other.Close()
		})
	}
}
