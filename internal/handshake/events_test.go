package handshake

import (
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// TestLinkEndsBeforeDecline has our side decline when its link has failed: the link is given up before the Decline is sent, so that
// the peer does not find it good after it has read that.
func TestLinkEndsBeforeDecline(t *testing.T) {
	smctest.CheckLeaks(t)
	r := newLinkRig(t, core.RoleServer)
	ended := make(chan error, 1)
	r.path.released = func() {
		r.tcp.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // where it came before this sees it
		_, err := r.tcp.Read(make([]byte, 1))
		ended <- err
	}
	r.tell(linkFailed(clc.DiagLink))
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("when the link is given up the peer reads %v, want nothing yet", err)
	}
	if m, ok := r.read().(clc.Decline); !ok {
		t.Errorf("the peer reads %v, want a Decline", m)
	}
	r.checkMode(conn.ModeTCP, clc.DiagLink, false)
}

var fallBackDecline = clc.Decline{Version: clc.V2, PeerID: wire.PeerID{9}, Diagnosis: clc.DiagTimeoutConfirmLink, OS: clc.OSLinux}

// TestLinkEvents lets a handshake learn of its link while it waits for a message of CLC, and of a message while
// the link is under way.
func TestLinkEvents(t *testing.T) {
	smctest.CheckLeaks(t)
	requested, up := core.LinkStep{Kind: core.StepRequested}, core.LinkStep{Kind: core.StepUp}
	replied, confirmed := core.LinkStep{Kind: core.StepReplied}, core.LinkStep{Kind: core.StepConfirmed}
	for _, role := range []core.Role{core.RoleClient, core.RoleServer} {
		t.Run(role.String()+", link up", func(t *testing.T) {
			r := newLinkRig(t, role)
			r.tell(requested)
			r.tell(replied) // a server's handshake has no use for it
			r.tell(confirmed)
			r.tell(up)
			told := time.Now()
			r.checkMode(conn.ModeSMCR, 0, false)
			if took := time.Since(told); took > core.LinkTurnTimeout { // then core would have given up
				t.Errorf("the events took %v", took)
			}
			r.conn.Close()
		})
		t.Run(role.String()+", Decline in pieces", func(t *testing.T) {
			r := newLinkRig(t, role)
			b := fallBackDecline.Append(nil)
			for i := range b[1:] {
				r.write(b[i : i+1])
				r.tell(core.LinkStep{}) // interrupts
			}
			r.write(append(b[len(b)-1:len(b):len(b)], "and the application"...))
			r.checkMode(conn.ModeTCP, clc.DiagTimeoutConfirmLink, true)
			got := make([]byte, len("and the application"))
			if _, err := io.ReadFull(r.conn, got); err != nil || string(got) != "and the application" {
				t.Errorf("read %q, %v after the Decline", got, err)
			}
			checkExchange(t, r.conn, r.tcp)
		})
		for _, crossing := range []string{"no Decline", "Decline before", "Decline after", "half before"} {
			t.Run(role.String()+", link fails, "+crossing, func(t *testing.T) {
				r := newLinkRig(t, role)
				b := fallBackDecline.Append(nil)
				switch crossing {
				case "half before":
					r.write(b[:20])
					b = b[20:]
				case "no Decline":
					b = nil
				}
				if role == core.RoleClient {
					r.tell(requested)
				}
				r.tell(linkFailed(clc.DiagMemory))
				if m := r.read(); m.Type() != clc.TypeDecline {
					t.Fatalf("the peer got %v, want a Decline", m)
				}
				if crossing == "Decline before" {
					r.write(b)
					b = nil
				}
				r.checkMode(conn.ModeTCP, clc.DiagMemory, false)
				r.tell(up) // too late: the deadlines are the application's
				r.write(b)
				checkExchange(t, r.tcp, r.conn)
			})
		}
	}
	t.Run("server, link fails after CONFIRM LINK", func(t *testing.T) {
		r := newLinkRig(t, core.RoleServer)
		r.tell(requested)
		r.tell(linkFailed(clc.DiagMemory))
		if err := <-r.err; err == nil || !strings.Contains(err.Error(), "link failed after CONFIRM LINK") {
			t.Errorf("the handshake ended with %v", err)
		}
	})
}

// TestLinkEventsEOF has a peer that closes before we know that the connection is established: its
// FIN overtakes the messages that come over the link.
func TestLinkEventsEOF(t *testing.T) {
	smctest.CheckLeaks(t)
	nothing := core.LinkStep{}
	for _, role := range []core.Role{core.RoleClient, core.RoleServer} {
		t.Run(role.String(), func(t *testing.T) {
			r := newLinkRig(t, role)
			r.tcp.CloseWrite()
			for _, kind := range []core.LinkStepKind{0, core.StepRequested, 0, core.StepReplied, core.StepConfirmed, core.StepUp} {
				r.tell(core.LinkStep{Kind: kind})
			}
			r.checkMode(conn.ModeSMCR, 0, false)
		})
		t.Run(role.String()+", reset", func(t *testing.T) {
			r := newLinkRig(t, role)
			r.tcp.SetLinger(0)
			r.tcp.Close()
			if err := <-r.err; !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the handshake ended with %v, want a reset", err)
			}
		})
	}
	t.Run("client, link ends", func(t *testing.T) { // the peer's process has, before it has said anything over the link
		r := newLinkRig(t, core.RoleClient)
		r.tcp.CloseWrite()
		close(r.path.done)
		if err := <-r.err; !errors.Is(err, io.EOF) {
			t.Errorf("the handshake ended with %v, want EOF", err)
		}
	})
	t.Run("server, link fails", func(t *testing.T) {
		r := newLinkRig(t, core.RoleServer)
		r.tcp.CloseWrite()
		r.tell(nothing, linkFailed(clc.DiagMemory))
		r.checkMode(conn.ModeTCP, clc.DiagMemory, false)
	})
}
