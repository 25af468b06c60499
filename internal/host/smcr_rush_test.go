package host

import (
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/handshake"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// again is another connection of the same client, with a link and an RMB of its own.
func (x *smcrLiar) again() *smcrLiar {
	x.t.Helper()
	y := x.another()
	y.peerID = x.peerID
	return y
}

// awaitAccept reads the Accept.
func (x *smcrLiar) awaitAccept(first bool) {
	x.t.Helper()
	m, err := readCLC(x.tcp)
	a, ok := m.(clc.Accept)
	if err != nil || !ok || a.FirstContact != first {
		x.t.Fatalf("the server answered %v, %v; want an Accept, first contact: %t", m, err, first)
	}
	x.accept = a
}

// goOn sends the Confirm of a first contact, and does the rest of the first contact.
func (x *smcrLiar) goOn() {
	x.t.Helper()
	x.confirm(nil)
	x.send(x.confirmLink(x.next()).Append(nil))
	x.reject(x.next())
	x.accepted()
}

// accepted has the server accept a connection, which is SMC-R.
func (x *smcrLiar) accepted() {
	x.t.Helper()
	s := mustAccept(x.t, x.r.l)
	checkSMCR(x.t, s)
}

// TestSMCRRush has a client that has its connections take turns between Accept and Confirm, as Linux does, and slowly: they wait for longer than
// a Confirm may take otherwise. All of them become SMC-R.
func TestSMCRRush(t *testing.T) {
	smctest.CheckLeaks(t)
	var all sync.WaitGroup // their times run out together
	for _, tt := range []struct {
		name string
		run  func(x *smcrLiar)
	}{
		{"first contacts", func(x *smcrLiar) {
			start := time.Now()
			at := func(d time.Duration) { time.Sleep(time.Until(start.Add(d))) }
			x.propose()
			second, third := x.again(), x.again()
			for _, y := range []*smcrLiar{second, third} {
				y.dial()
				y.write(y.proposal())
			}
			at(500 * time.Millisecond)
			x.confirm(nil)
			request := x.next()
			second.awaitAccept(true) // after core.FirstContactWait
			third.awaitAccept(true)
			at(4500 * time.Millisecond)
			x.send(x.confirmLink(request).Append(nil))
			request = x.next()
			at(9 * time.Second) // two seconds more than the others may wait for nothing
			x.reject(request)
			x.accepted()
			at(10 * time.Second)
			second.goOn()
			at(15 * time.Second) // likewise
			third.goOn()
		}},
		{"in a link group", func(x *smcrLiar) {
			s := x.connect()
			others := x.obey()
			s.Abort()
			s.Close()
			x.propose()
			if x.accept.FirstContact {
				x.t.Fatal("another first contact")
			}
			time.Sleep(handshake.CLCTimeout + 2*time.Second)
			x.confirm(nil)
			x.accepted()
			x.link.Fail(nil)
			for range others {
			}
		}},
	} {
		all.Go(func() {
			t.Run(tt.name, func(t *testing.T) {
				r := makeSMCRRig(t, nil)
				tt.run(newSMCRLiar(t, r))
			})
		})
	}
	all.Wait()
}

// TestSMCRLastLook has the Confirm of a connection of a link group be there when the server gives its handshake up. For a client of Linux the
// connection is established then, and a reset of TCP ends nothing. It is used where somebody accepts it, else aborted by CDC.
func TestSMCRLastLook(t *testing.T) {
	for _, tt := range []struct {
		name   string
		giveUp func(x *smcrLiar)
		check  func(x *smcrLiar)
	}{
		{"for the place of another client", func(x *smcrLiar) {
			x.r.l.backlog.Evict(time.Now().Add(time.Hour))
		}, func(x *smcrLiar) { x.accepted() }},
		{"with its listener", func(x *smcrLiar) {
			go x.r.l.Close()
			<-x.r.l.ctx.Done()
		}, func(x *smcrLiar) {
			smctest.Eventually(x.t, patience, "a message of CDC", func() bool { return x.link.Stats().UnknownToken > 0 })
			checkEnd(x.t, x.r.server, endOfConnection, "aborted")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newSMCRRig(t, nil)
			x := newSMCRLiar(t, r)
			s := x.connect()
			x.dial()
			x.write(x.proposal())
			request, ok := x.next().(llc.ConfirmRKey)
			if !ok {
				t.Fatalf("the server said %v, want CONFIRM RKEY", request)
			}
			others := x.obey()
			request.Reply = true
			x.send(request.Append(nil))
			x.awaitAccept(false)
			x.confirm(nil)
			tt.giveUp(x)
			tt.check(x)
			s.Abort()
			s.Close()
			x.link.Fail(nil)
			for range others {
			}
		})
	}
}

// TestSMCRTurnEnds has the link group of a client end that was named it and has not confirmed: nobody waits for that Confirm any more.
func TestSMCRTurnEnds(t *testing.T) {
	r := newSMCRRig(t, nil)
	x := newSMCRLiar(t, r)
	s := x.connect()
	others := x.obey()
	x.propose()
	if x.accept.FirstContact {
		t.Fatal("another first contact")
	}
	failLinks(r.server, loop2)
	if n, err := x.tcp.Read(make([]byte, 1)); n != 0 || err == nil || isTimeout(err) {
		t.Errorf("read %d bytes, %v; want the end", n, err)
	}
	s.Close()
	x.link.Fail(nil)
	for range others {
	}
}
