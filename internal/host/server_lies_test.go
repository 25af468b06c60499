package host

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/smcd"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// Offsets in the Proposal of a client with one Emulated-ISM device, and in its Confirm. The
// layouts are at clc.Proposal, clc.ProposalV2, clc.ProposalDv2 and clc.Accept.
const (
	inProposalV2  = 80
	inProposalDv2 = 120
	inProposalGID = 168
	proposalLen   = 192

	inConfirmGID    = 8
	inConfirmToken  = 16
	inConfirmSize   = 25
	inConfirmCHID   = 32
	inConfirmEID    = 34
	inConfirmGIDLow = 66
)

func TestServerLies(t *testing.T) {
	r := newServerRig(t)
	// ends: the connection is reset, and the log says why. Otherwise the server declines.
	for _, tt := range []struct {
		name   string
		at     step
		change func([]byte) []byte
		ends   string
		reason clc.Diagnosis
	}{
		{"application bytes", atProposal, func([]byte) []byte { return []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n") }, "eyecatcher", 0},
		{"zeros", atProposal, func(m []byte) []byte { return make([]byte, len(m)) }, "eyecatcher", 0},
		{"TLS", atProposal, func([]byte) []byte { return []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03") }, "eyecatcher", 0},
		{"first eyecatcher", atProposal, put(3, 0xc5), "eyecatcher", 0},
		{"last eyecatcher", atProposal, put(proposalLen-1, 0xc5), "eyecatcher", 0},
		{"type 0", atProposal, put(4, 0), "type", 0},
		{"type 5", atProposal, put(4, 5), "type", 0},
		{"type 255", atProposal, put(4, 255), "type", 0},
		{"version 0", atProposal, put(7, 0x06), "version", 0},
		{"version 1", atProposal, put(7, 0x16), "clc.Proposal", 0},
		{"nothing offered", atProposal, put(7, 0x2a), "", clc.DiagPeerNoSMC},
		{"length 0", atProposal, put(5, 0, 0), "length", 0},
		{"length 11", atProposal, put(5, 0, 11), "length", 0},
		{"length one less", atProposal, put(5, 0, proposalLen-1), "eyecatcher", 0},
		{"length 65535", atProposal, put(5, 0xff, 0xff), "length", 0},
		{"cut to the base", atProposal, resized(84), "v2 offset", 0},
		{"cut in the extension", atProposal, resized(inProposalV2 + 24), "v2 offset", 0},
		{"cut in the ISM entries", atProposal, resized(proposalLen - 10), "ISM", 0},
		{"v2 offset 65535", atProposal, put(50, 0xff, 0xff), "v2 offset", 0},
		{"v2 offset into the base", atProposal, put(50, 0, 1), "v2 offset", 0},
		{"v2 offset at the end", atProposal, put(50, 0, proposalLen-4-52), "v2 offset", 0},
		{"no v2 extension", atProposal, put(50, 0, 0), "", clc.DiagNoV2Extension},
		{"255 UEIDs", atProposal, put(inProposalV2, 255), "number of UEIDs", 0},
		{"9 UEIDs", atProposal, put(inProposalV2, 9), "number of UEIDs", 0},
		{"one UEID too many", atProposal, put(inProposalV2, 1), "SMC-Dv2 offset", 0},
		{"255 ISM entries", atProposal, put(inProposalV2+1, 255), "number of ISM entries", 0},
		{"3 ISM entries", atProposal, put(inProposalV2+1, 3), "number of ISM entries", 0},
		{"half an Extended GID", atProposal, put(inProposalV2+1, 1), "ISM entry", 0},
		{"SMC-Dv2 offset 65535", atProposal, put(inProposalV2+6, 0xff, 0xff), "SMC-Dv2 offset", 0},
		{"SMC-Dv2 offset into the extension", atProposal, put(inProposalV2+6, 0, 1), "SMC-Dv2 offset", 0},
		{"no SMC-Dv2 extension", atProposal, put(inProposalV2+6, 0, 0, 0), "number of ISM entries", 0},
		{"other CHID in the second half", atProposal, put(inProposalGID+18, 0xff, 0xfe), "ISM entry", 0},
		{"somebody else's GID", atProposal, put(inProposalGID, 1, 2, 3), "", clc.DiagNoSMCDv2Device},
		{"SMC-R only", atProposal, put(7, 0x22), "", clc.DiagNoUEID},
		{"other SEID", atProposal, put(inProposalDv2, 'X'), "", clc.DiagNoUEID},
		{"no SEID", atProposal, put(inProposalV2+3, 0x10), "", clc.DiagNoUEID},
		{"an Accept", atProposal, func([]byte) []byte { return acceptBytes(r.a) }, "CLC Accept in state AwaitProposal", 0},

		{"application bytes for a Confirm", atConfirm, func([]byte) []byte { return []byte("EHLO example.org\r\n") }, "eyecatcher", 0},
		{"eyecatcher of a Confirm", atConfirm, put(0, 0), "eyecatcher", 0},
		{"another Proposal", atConfirm, func([]byte) []byte { return proposalBytes(r.a) }, "CLC Proposal in state AwaitConfirm", 0},
		{"an Accept for a Confirm", atConfirm, func([]byte) []byte { return acceptBytes(r.a) }, "CLC Accept in state AwaitConfirm", 0},
		{"version 1 Confirm", atConfirm, put(7, 0x18), "clc.Confirm", 0},
		{"SMC-R Confirm", atConfirm, put(7, 0x20), "another SMC type", 0},
		{"Confirm without type", atConfirm, put(7, 0x2a), "SMC type", 0},
		{"length 0 of a Confirm", atConfirm, put(5, 0, 0), "length", 0},
		{"length 65535 of a Confirm", atConfirm, put(5, 0xff, 0xff), "length", 0},
		{"short Confirm", atConfirm, resized(48), "length", 0},
		{"GID of another device", atConfirm, put(inConfirmGID, 1, 2, 3), "GID differs", 0},
		{"low half of the GID", atConfirm, put(inConfirmGIDLow, 1, 2, 3), "GID differs", 0},
		{"another CHID", atConfirm, put(inConfirmCHID, 0xff, 0xfe), "CHID", 0},
		{"another EID", atConfirm, put(inConfirmEID, 'X'), "EID", 0},
		{"token of nothing", atConfirm, put(inConfirmToken, 1, 2, 3, 4, 5, 6, 7, 8), "attach the client's buffer", 0},
		{"token 0", atConfirm, put(inConfirmToken, 0, 0, 0, 0, 0, 0, 0, 0), "attach the client's buffer", 0},
		{"another size", atConfirm, put(inConfirmSize, 0x40), "attach the client's buffer", 0},
		{"largest size", atConfirm, put(inConfirmSize, 0xf0), "attach the client's buffer", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := r.in(t)
			c := r.begin(tt.at)
			defer c.tcp.Close()
			c.write(tt.change(c.encoded()))
			if tt.ends != "" {
				c.tcp.CloseWrite() // in case it waits for more bytes
				r.checkFailed(c, tt.ends)
			} else {
				m, err := readCLC(c.tcp)
				d, ok := m.(clc.Decline)
				if err != nil || !ok || d.Diagnosis != tt.reason {
					t.Fatalf("the server answered %v, %v, want a Decline with %v", m, err, tt.reason)
				}
				r.checkFallback(c, tt.reason, false)
			}
			checkServes(t, r.client, r.l)
		})
	}
}

// in returns the rig for a subtest.
func (r *serverRig) in(tb testing.TB) *serverRig {
	sub := *r
	sub.tb = tb
	return &sub
}

func proposalBytes(a *adversary) []byte {
	h := core.NewHandshake(core.RoleClient, a.capabilities())
	return h.Start(time.Now(), nil)[0].(core.SendCLC).Message.Append(nil)
}

func acceptBytes(a *adversary) []byte {
	seid := a.capabilities().SEID
	return clc.Accept{Version: clc.V2, EID: seid, D: &clc.ParamsD{
		GID: a.device.GID(), CHID: wire.CHIDLoopback, Token: 1, DMBESize: wire.SizeCodeFor(adversaryBuffer), LinkID: 1,
	}}.Append(nil)
}

// TestServerEveryByte puts other values into every byte of the client's messages. The server may
// take the message or not; it must end, and lose nothing.
func TestServerEveryByte(t *testing.T) {
	r := newServerRig(t)
	for _, tt := range everyMessage {
		for offset, length := 0, 1; offset < length; offset++ {
			for i := 0; i < 7; i++ {
				if testing.Short() && i != 6 {
					continue
				}
				c := r.beginAs(tt.at, tt.strangers)
				b := c.encoded()
				length = len(b)
				b[offset] = [...]byte{0, 1, 0x7f, 0x80, 0xff, b[offset] + 1, b[offset] ^ 0xff}[i]
				c.write(b)
				if err := r.end(c); err != nil {
					t.Fatalf("%s, byte %d = %#x: the server does not end: %v", tt.name, offset, b[offset], err)
				}
			}
		}
		checkServes(t, r.client, r.l)
	}
	r.checkIdle()
}

// everyMessage lists the messages that a client can send in a handshake.
var everyMessage = []struct {
	name      string
	at        step
	strangers bool // make a new peering for each connection, so that each is a first contact
}{
	{"Proposal", atProposal, false},
	{"Confirm of a first contact", atConfirm, true},
	{"Confirm in a link group", atConfirm, false},
}

// beginAs is begin, on a new peering if the two are to be strangers.
func (r *serverRig) beginAs(at step, strangers bool) *clcPeer {
	r.tb.Helper()
	if strangers {
		r.p.Close()
		smctest.Eventually(r.tb, patience, "the end of the peering", func() bool {
			r.server.mu.Lock()
			defer r.server.mu.Unlock()
			for p := range r.server.ends {
				if p.(smcd.Peering).GID() == r.a.device.GID() {
					return false
				}
			}
			return true
		})
	}
	return r.begin(at)
}

// TestServerEveryTruncation ends the connection after each byte of the client's messages.
func TestServerEveryTruncation(t *testing.T) {
	r := newServerRig(t)
	for _, tt := range everyMessage {
		for n, total := 0, 1; n < total; n++ {
			c := r.beginAs(tt.at, tt.strangers)
			total = len(c.encoded())
			c.write(c.encoded()[:n])
			c.tcp.CloseWrite()
			c.checkEnded()
			c.tcp.Close()
		}
		checkServes(t, r.client, r.l)
	}
	r.checkIdle()
}

// end ends the client's side, and waits for the server to do the same, in any mode of the
// connection.
func (r *serverRig) end(c *clcPeer) error {
	c.tcp.CloseWrite()
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, c.tcp)
		done <- err
	}()
	for {
		select {
		case a := <-r.l.ready:
			a.conn.Close()
		case err := <-done:
			c.tcp.Close()
			if isReset(err) {
				return nil
			}
			return err
		}
	}
}

// drain closes the connections that Accept has ready.
func (r *serverRig) drain() {
	r.tb.Helper()
	for {
		select {
		case a := <-r.l.ready:
			a.conn.Close()
		default:
			return
		}
	}
}

// checkIdle waits until nothing is left of all connections.
func (r *serverRig) checkIdle() {
	r.tb.Helper()
	r.a.close()
	smctest.Eventually(r.tb, patience, "the end of all connections", func() bool {
		r.drain()
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return len(r.server.conns) == 0 && r.server.meeting.Expected() == 0 && len(r.l.busy) == 0
	})
	f, _, err := r.server.open()
	if err != nil {
		r.tb.Fatal(err)
	}
	smctest.Eventually(r.tb, patience, "the release of all buffers", func() bool {
		s := f.device.Stats()
		return s.DMBs == 0 && s.Windows == 0
	})
}

// TestServerByteByByte sends every message in pieces of one byte.
func TestServerByteByByte(t *testing.T) {
	r := newServerRig(t)
	c := r.a.start(core.RoleClient, r.a.connect(r.p, r.l), r.p)
	c.tcp.SetNoDelay(true)
	for at := atProposal; at <= atConfirm; at++ {
		for _, b := range c.encoded() {
			c.write([]byte{b})
		}
		if at == atProposal {
			if _, err := c.read(); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := mustAccept(t, r.l)
	if s.Mode() != conn.ModeSMCD {
		t.Errorf("mode = %v (%v), want SMC-D", s.Mode(), s.Reason())
	}
	s.Close()
}

// TestServerDeclined plays a client that declines, and goes on with the application's bytes in
// the same segment.
func TestServerDeclined(t *testing.T) {
	r := newServerRig(t)
	for _, tt := range []struct {
		name string
		at   step
		m    clc.Decline
	}{
		{"for a Proposal", atProposal, clc.Decline{Version: clc.V2, Diagnosis: clc.DiagConfig, OS: clc.OSLinux}},
		{"for a Proposal, version 1", atProposal, clc.Decline{Version: clc.V1, Diagnosis: clc.DiagMemory}},
		{"for a Confirm", atConfirm, clc.Decline{Version: clc.V2, Diagnosis: clc.DiagMemory, OS: clc.OSLinux}},
		{"out of sync for a Proposal", atProposal, clc.Decline{Version: clc.V2, OutOfSync: true, Diagnosis: clc.DiagSync, OS: clc.OSLinux}},
		{"out of sync for a Confirm", atConfirm, clc.Decline{Version: clc.V2, OutOfSync: true, Diagnosis: clc.DiagSync, OS: clc.OSLinux}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := r.in(t)
			c := r.begin(tt.at)
			defer c.tcp.Close()
			// The application's bytes look like CLC, which they may.
			payload := append(clc.Decline{Version: clc.V2}.Append(nil), proposalBytes(r.a)...)
			c.write(append(tt.m.Append(nil), payload...))
			s := mustAccept(t, r.l)
			defer s.Close()
			if s.Mode() != conn.ModeTCP || s.Reason().Code != tt.m.Diagnosis || !s.ByPeer() {
				t.Errorf("accepted: mode %v, reason %v, by peer %v; want TCP, %v, true", s.Mode(), s.Reason(), s.ByPeer(), tt.m.Diagnosis)
			}
			got := make([]byte, len(payload))
			if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, payload) {
				t.Errorf("Read = %x, %v; want %x", got, err, payload)
			}
			checkExchange(t, s, c.tcp)
			checkServes(t, r.client, r.l)
		})
	}
	// A Decline with reserved bits set is one all the same.
	c := r.begin(atProposal)
	b := clc.Decline{Version: clc.V2, Diagnosis: clc.DiagConfig, OS: clc.OSLinux}.Append(nil)
	b[7] |= 7
	copy(b[21:24], "\xff\xff\xff")
	c.write(b)
	r.checkFallback(c, clc.DiagConfig, true)
}

// TestServerTrailingBytes sends bytes behind the Confirm, where nothing may come: they are not
// data, so the connection cannot be used.
func TestServerTrailingBytes(t *testing.T) {
	r := newServerRig(t)
	for _, together := range []bool{true, false} {
		c := r.begin(atConfirm)
		b := c.encoded()
		if together {
			b = append(b, "too early"...)
		}
		c.write(b)
		s := mustAccept(t, r.l)
		if !together {
			c.write([]byte("too late"))
		}
		if n, err := s.Read(make([]byte, 8)); n != 0 || err == nil || err == io.EOF {
			t.Errorf("together %v: Read = %d, %v; want an error", together, n, err)
		}
		s.Close()
		c.tcp.Close()
	}
	if text := r.log.String(); !strings.Contains(text, "bytes on the idle TCP connection") {
		t.Errorf("the log does not say what happened:\n%s", text)
	}
	checkServes(t, r.client, r.l)
}

// TestServerPassesBytesThrough sends CLC messages on connections that nobody has asked to be
// SMC: they are the application's bytes.
func TestServerPassesBytesThrough(t *testing.T) {
	r := newServerRig(t)
	for _, payload := range [][]byte{
		proposalBytes(r.a), acceptBytes(r.a), clc.Decline{Version: clc.V2, Diagnosis: clc.DiagConfig}.Append(nil), {0xe2, 0xd4, 0xc3},
	} {
		c := dialPlain(t, r.l)
		c.Write(payload)
		s := mustAccept(t, r.l)
		got := make([]byte, len(payload))
		if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, payload) {
			t.Errorf("Read = %x, %v; want %x", got, err, payload)
		}
		if s.Mode() != conn.ModeTCP || s.Reason().Code != clc.DiagPeerNoSMC {
			t.Errorf("mode %v, reason %v; want TCP, %v", s.Mode(), s.Reason(), clc.DiagPeerNoSMC)
		}
		checkExchange(t, s, c)
		c.Close()
		s.Close()
	}
}

// TestServerPeerVanishes ends the adversary's device at each step of the handshake. After a good Confirm
// there is a connection all the same.
func TestServerPeerVanishes(t *testing.T) {
	for _, at := range []step{atProposal, atConfirm, afterAll} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			r := newServerRig(t)
			c := r.begin(at)
			r.p.Close()
			smctest.Eventually(t, patience, "the end of the peering", func() bool {
				r.server.mu.Lock()
				defer r.server.mu.Unlock()
				return len(r.server.ends) == 0
			})
			if at < afterAll {
				c.write(c.encoded())
			}
			if at >= atConfirm { // the connection was established for the client, and ends like one
				s := mustAccept(t, r.l)
				if n, err := s.Read(make([]byte, 1)); n != 0 || err != io.EOF {
					t.Errorf("Read = %d, %v, want EOF", n, err)
				}
				for _, want := range []error{nil, syscall.EPIPE} {
					if _, err := s.Write([]byte("x")); !errors.Is(err, want) {
						t.Errorf("Write: %v, want %v", err, want)
					}
				}
				s.Close()
			}
			if err := r.end(c); err != nil {
				t.Errorf("the server does not end: %v", err)
			}
			checkServes(t, r.client, r.l)
			r.checkIdle()
		})
	}
}

// TestServerAbortedAtOnce has a client that says Abort, or anything else, in the server's buffer
// before it sends its Confirm: the connection has ended when it begins.
func TestServerAbortedAtOnce(t *testing.T) {
	for _, flags := range []cdc.ConnFlags{
		cdc.DoneWriting, cdc.Closed, cdc.DoneWriting | cdc.Closed,
		cdc.Abort, cdc.DoneWriting | cdc.Abort, cdc.Closed | cdc.Abort, cdc.DoneWriting | cdc.Closed | cdc.Abort,
	} {
		t.Run(flags.String(), func(t *testing.T) {
			r := newServerRig(t)
			c := r.a.start(core.RoleClient, r.a.connect(r.p, r.l), r.p)
			c.write(c.encoded())
			m, err := c.read()
			accept, ok := m.(clc.Accept)
			if err != nil || !ok {
				t.Fatalf("the server answered %v, %v, want an Accept", m, err)
			}
			w, err := r.p.Attach(boundedContext(t), accept.D.Token, accept.D.DMBESize.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			defer w.Release(false)
			word := (*atomic.Uint64)(unsafe.Pointer(&w.Mem()[cdc.ConsumerOffset]))
			word.Store(cdc.PackConsumer(cdc.Cursor{}, 0, flags))
			c.write(c.encoded())
			s := mustAccept(t, r.l)
			if _, err := s.Read(make([]byte, 1)); err == nil {
				t.Error("Read has read something")
			}
			s.Write([]byte("a"))
			s.CloseWrite()
			s.Close()
			c.tcp.Close()
			checkServes(t, r.client, r.l)
			r.checkIdle()
		})
	}
}

// TestServerClosedInWrite has a client that closes while the server waits for room in its buffer. The
// server's write fails, and the client is told by Abort and a reset that there was more: RFC 7609
// p.84, 4A.
func TestServerClosedInWrite(t *testing.T) {
	r := newServerRig(t)
	c := r.a.start(core.RoleClient, r.a.connect(r.p, r.l), r.p)
	c.write(c.encoded())
	m, err := c.read()
	accept, ok := m.(clc.Accept)
	if err != nil || !ok {
		t.Fatalf("the server answered %v, %v, want an Accept", m, err)
	}
	w, err := r.p.Attach(boundedContext(t), accept.D.Token, accept.D.DMBESize.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Release(false)
	half := func(element []byte) *atomic.Uint64 {
		return (*atomic.Uint64)(unsafe.Pointer(&element[cdc.ConsumerOffset]))
	}
	c.write(c.encoded())
	s := mustAccept(t, r.l)
	defer s.Close()
	failed := make(chan error, 1)
	go func() {
		_, err := s.Write(make([]byte, 2*adversaryBuffer))
		failed <- err
	}()
	smctest.Eventually(t, patience, "a writer that waits", func() bool {
		_, flags, _ := cdc.UnpackConsumer(half(c.dmb.Mem()).Load())
		return flags&cdc.WriterBlocked != 0
	})
	half(w.Mem()).Store(cdc.PackConsumer(cdc.Cursor{}, 0, cdc.Closed))
	w.Ring()
	if err := <-failed; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Write = %v, want ECONNRESET", err)
	}
	if n, err := s.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("Read = %d, %v, want EOF", n, err)
	}
	if _, _, flags := cdc.UnpackConsumer(half(c.dmb.Mem()).Load()); flags&cdc.Abort == 0 {
		t.Errorf("the server has set %v, want Abort", flags)
	}
	if _, err := c.tcp.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("TCP: %v, want a reset", err)
	}
}
