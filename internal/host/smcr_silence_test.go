package host

import (
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/link"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// TestSMCRSilence has clients that begin something and do not go on. Their connection, or their
// link group, ends when its time is up, and says why. Meanwhile they hold up only their own
// connections.
func TestSMCRSilence(t *testing.T) {
	smctest.CheckLeaks(t)
	var all sync.WaitGroup // their times run out together
	for _, tt := range []struct {
		name string
		what string // that ends
		why  string
		run  func(x *smcrLiar)
	}{
		{"no Proposal", endOfHandshake, "timeout waiting for CLC Proposal", func(x *smcrLiar) { x.dial() }},
		{"half a Proposal", endOfHandshake, "timeout waiting for CLC Proposal", func(x *smcrLiar) {
			x.dial()
			x.tcp.Write([]byte{0xe2, 0xd4, 0xc3, 0xd9, 1, 0, 200})
		}},
		{"no Confirm", endOfHandshake, "timeout waiting for CLC Confirm", func(x *smcrLiar) { x.propose() }},
		{"no reply to CONFIRM LINK", endOfHandshake, "timeout waiting for CONFIRM LINK reply", func(x *smcrLiar) {
			x.propose()
			x.confirm(nil)
		}},
		{"no reply to ADD LINK", endOfHandshake, "core: link failed after CONFIRM LINK", func(x *smcrLiar) {
			x.propose()
			x.confirm(nil)
			x.send(x.confirmLink(x.next()).Append(nil))
		}},
		{"ADD LINK accepted, and no reply to DELETE LINK", endOfHandshake, "core: link failed after CONFIRM LINK", func(x *smcrLiar) {
			x.propose()
			x.confirm(nil)
			x.send(x.confirmLink(x.next()).Append(nil))
			add := x.next().(llc.AddLink)
			add.Header.Reply = true
			x.send(add.Append(nil))
			if m, ok := x.next().(llc.DeleteLink); !ok || m.Link != 2 {
				x.t.Errorf("the server said %v, want DELETE LINK of the second link", m)
			}
		}},
		{"no acknowledgement of CONFIRM LINK", endOfLinkGroup, "fell back", func(x *smcrLiar) {
			x.propose()
			x.confirmGID(func(*clc.ParamsR) {}) // its queue pair takes nothing
		}},
		{"no reply to TEST LINK", endOfLinkGroup, "peer silent", func(x *smcrLiar) {
			s := x.connect()
			x.tcp.CloseWrite() // as of a process that was killed
			if m, ok := x.next().(llc.TestLink); !ok || m.Reply {
				x.t.Errorf("the server said %v, want TEST LINK", m)
			}
			s.Close()
		}},
		{"no reply to CONFIRM RKEY", endOfLinkGroup, "peer silent", func(x *smcrLiar) {
			s := x.connect()
			x.declined(clc.DiagBufferRegistration)
			s.Close()
		}},
		{"CONFIRM RKEY refused, and again, for ever", "", "", func(x *smcrLiar) {
			s := x.connect()
			done := make(chan struct{})
			go func() {
				defer close(done)
				x.declined(clc.DiagBufferRegistration)
			}()
			for n := 0; ; n++ {
				select {
				case <-done:
					if n < 2 {
						x.t.Errorf("the server has asked %d times", n)
					}
					if isOver(s) {
						x.t.Error("the link group has ended")
					}
					s.Close()
					return
				case <-x.net.News():
				}
				for ev, ok := x.net.Poll(); ok; ev, ok = x.net.Poll() {
					if m, err := llc.Parse(ev.Message); err == nil && ev.Kind == link.EventLLC && m.Type() == llc.TypeConfirmRKey {
						r := m.(llc.ConfirmRKey)
						r.Reply, r.Negative, r.Retry = true, true, true
						x.send(r.Append(nil))
					}
				}
			}
		}},
	} {
		all.Go(func() {
			t.Run(tt.name, func(t *testing.T) {
				r := makeSMCRRig(t, nil)
				x := newSMCRLiar(t, r)
				tt.run(x)
				c, s := r.connect() // others are served meanwhile
				x.checkOthers(c, s)
				checkEnd(t, r.server, tt.what, tt.why)
				if tt.what == endOfHandshake {
					if n, err := x.tcp.Read(make([]byte, 1)); err == nil || isTimeout(err) {
						t.Errorf("read %d bytes, %v from a connection that should have ended", n, err)
					}
				}
				if tt.what != "" {
					smctest.Eventually(t, patience, "the group is gone", func() bool { return len(groupsOf(r.server)) == 1 })
				}
				x.checkOthers(c, s)
				c.Close()
				s.Close()
			})
		})
	}
	all.Wait()
}

// declined proposes another connection, which the server declines for a reason.
func (x *smcrLiar) declined(why clc.Diagnosis) {
	x.t.Helper()
	x.dial()
	x.write(x.proposal())
	m, err := readCLC(x.tcp)
	if d, ok := m.(clc.Decline); err != nil || !ok || d.Diagnosis != why {
		x.t.Errorf("the server answered %v, %v; want a Decline for %v", m, err, why)
		return
	}
	s, err := x.r.l.Accept()
	if err != nil {
		x.t.Error(err)
		return
	}
	defer s.Close()
	if s.Mode() != conn.ModeTCP {
		x.t.Errorf("accepted: mode %v, want TCP", s.Mode())
	}
}

// TestSMCRCloseInHandshake closes the server while a handshake waits for its client: Close does not wait for it, and nothing is left.
func TestSMCRCloseInHandshake(t *testing.T) {
	for _, tt := range []struct {
		name string
		run  func(x *smcrLiar) conn.Conn // that there is already
	}{
		{"for the Proposal", func(x *smcrLiar) conn.Conn { x.dial(); return nil }},
		{"for the Confirm", func(x *smcrLiar) conn.Conn { x.propose(); return nil }},
		{"for the reply to CONFIRM LINK", func(x *smcrLiar) conn.Conn { x.propose(); x.confirm(nil); x.next(); return nil }},
		{"for the reply to ADD LINK", func(x *smcrLiar) conn.Conn {
			x.propose()
			x.confirm(nil)
			x.send(x.confirmLink(x.next()).Append(nil))
			x.next()
			return nil
		}},
		{"for the reply to CONFIRM RKEY", func(x *smcrLiar) conn.Conn {
			s := x.connect()
			x.dial()
			x.write(x.proposal())
			if m, ok := x.next().(llc.ConfirmRKey); !ok {
				x.t.Errorf("the server said %v, want CONFIRM RKEY", m)
			}
			return s
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newSMCRRig(t, nil)
			x := newSMCRLiar(t, r)
			s := tt.run(x)
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				r.server.Close()
			}()
			if n, err := x.tcp.Read(make([]byte, 100)); n == 0 && isTimeout(err) {
				t.Errorf("read %d bytes, %v from a server that has closed", n, err)
			}
			select {
			case <-closed:
			case <-time.After(patience):
				t.Error("Close waits for the client")
			}
			if s != nil {
				s.Close()
				r.server.mu.Lock()
				if _, live := r.server.conns[s]; live {
					t.Error("the connection is not over, but nothing can come any more")
				}
				r.server.mu.Unlock()
			}
			smctest.Eventually(t, patience, "no RMB is left", func() bool { return rmbsOf(r.server) == 0 })
		})
	}
}
