package ism

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

const hostileToken wire.Token = 0x1122334455667788

// newVictim returns a device, its peer, and the script that is the peer's other end.
func newVictim(t testing.TB) (*Device, *recorder, *Peer, *script) {
	t.Helper()
	checkLeaks(t)
	d, r := openDevice(t, Config{Dir: t.TempDir()})
	s := dialScript(t, d)
	t.Cleanup(s.close)
	s.hello()
	return d, r, await(t, "PeerUp", r.ups), s
}

// rawMemfd returns a memfd with exactly these seals.
func (s *script) rawMemfd(size int64, flags, seals int) int {
	fd, err := unix.MemfdCreate("gosmc-test", unix.MFD_CLOEXEC|flags)
	s.check(err)
	s.own(fd)
	s.check(unix.Ftruncate(fd, size))
	if seals != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		s.check(err)
	}
	return fd
}

// The answers of a hostile owner to an Attach. Whatever the answer is, Attach fails, nothing is
// mapped, and the peering ends if the peer broke a rule.
func TestHostileAttachReply(t *testing.T) {
	const size = 64 << 10
	good := message{kind: kindAttachReply, token: hostileToken, size: size, slot: 5}
	with := func(change func(m *message)) message {
		m := good
		change(&m)
		return m
	}
	for _, tt := range []struct {
		name   string
		answer func(s *script)
		want   error
		stands bool // the peering goes on
	}{
		{"unknown", func(s *script) {
			s.sendMessage(with(func(m *message) { m.status, m.size, m.slot = attachUnknown, 0, 0 }))
		}, ErrToken, true},
		{"taken", func(s *script) { s.sendMessage(with(func(m *message) { m.status = attachTaken })) }, ErrToken, true},
		{"refused with a descriptor", func(s *script) {
			s.sendMessage(with(func(m *message) { m.status = attachTaken }), s.memory(size))
		}, ErrPeerGone, false},
		{"no descriptor", func(s *script) { s.sendMessage(good) }, ErrPeerGone, false},
		{"two descriptors", func(s *script) { s.sendMessage(good, s.memory(size), s.memory(size)) }, ErrPeerGone, false},
		{"ten descriptors", func(s *script) {
			var fds []int
			for range 10 {
				fds = append(fds, s.memory(size))
			}
			s.sendMessage(good, fds...)
		}, ErrPeerGone, false},
		{"two hundred descriptors", func(s *script) {
			fd := s.memory(size)
			var fds []int
			for range 200 {
				fds = append(fds, fd)
			}
			s.sendMessage(good, fds...)
		}, ErrPeerGone, false},
		{"another size announced", func(s *script) {
			s.sendMessage(with(func(m *message) { m.size = 2 * size }), s.memory(2*size))
		}, ErrProtocol, false},
		{"smaller memory", func(s *script) { s.sendMessage(good, s.memory(size/2)) }, ErrProtocol, false},
		{"larger memory", func(s *script) { s.sendMessage(good, s.memory(2*size)) }, ErrProtocol, false},
		{"empty memory", func(s *script) { s.sendMessage(good, s.rawMemfd(0, unix.MFD_ALLOW_SEALING, requiredSeals)) }, ErrProtocol, false},
		{"another token", func(s *script) {
			s.sendMessage(with(func(m *message) { m.token++ }), s.memory(size))
		}, ErrPeerGone, false},
		{"slot out of range", func(s *script) {
			b := good.append(nil)
			b[20] = 0x80
			s.send(b, s.memory(size))
		}, ErrPeerGone, false},
		{"pipe", func(s *script) {
			var p [2]int
			s.check(unix.Pipe2(p[:], unix.O_CLOEXEC))
			s.own(p[0])
			s.sendMessage(good, s.own(p[1]))
		}, ErrProtocol, false},
		{"socket", func(s *script) { s.sendMessage(good, s.chime()) }, ErrProtocol, false},
		{"plain file", func(s *script) {
			f, err := os.CreateTemp(s.t.TempDir(), "")
			s.check(err)
			defer f.Close()
			s.check(f.Truncate(size))
			s.sendMessage(good, int(f.Fd()))
		}, ErrProtocol, false},
		{"file on tmpfs", func(s *script) {
			f, err := os.CreateTemp("/dev/shm", "gosmc-test")
			if err != nil {
				s.t.Skip("needs /dev/shm")
			}
			os.Remove(f.Name())
			defer f.Close()
			s.check(f.Truncate(size))
			s.sendMessage(good, int(f.Fd()))
		}, ErrProtocol, false},
		{"device that has no size", func(s *script) {
			f, err := os.OpenFile("/dev/zero", os.O_RDWR, 0)
			s.check(err)
			defer f.Close()
			s.sendMessage(good, int(f.Fd()))
		}, ErrProtocol, false},
		{"no sealing allowed", func(s *script) { s.sendMessage(good, s.rawMemfd(size, 0, 0)) }, ErrProtocol, false},
		{"not sealed", func(s *script) {
			s.sendMessage(good, s.rawMemfd(size, unix.MFD_ALLOW_SEALING, 0))
		}, ErrProtocol, false},
		{"may shrink", func(s *script) {
			s.sendMessage(good, s.rawMemfd(size, unix.MFD_ALLOW_SEALING, unix.F_SEAL_GROW|unix.F_SEAL_SEAL))
		}, ErrProtocol, false},
		{"may grow", func(s *script) {
			s.sendMessage(good, s.rawMemfd(size, unix.MFD_ALLOW_SEALING, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL))
		}, ErrProtocol, false},
		{"may be sealed further", func(s *script) {
			s.sendMessage(good, s.rawMemfd(size, unix.MFD_ALLOW_SEALING, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW))
		}, ErrProtocol, false},
		{"sealed against writing", func(s *script) {
			s.sendMessage(good, s.rawMemfd(size, unix.MFD_ALLOW_SEALING, requiredSeals|unix.F_SEAL_WRITE))
		}, ErrProtocol, false},
		{"sealed against future writing", func(s *script) {
			s.sendMessage(good, s.rawMemfd(size, unix.MFD_ALLOW_SEALING, requiredSeals|unix.F_SEAL_FUTURE_WRITE))
		}, ErrProtocol, false},
		{"read-only", func(s *script) {
			fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(s.memory(size)), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			s.check(err)
			s.sendMessage(good, s.own(fd))
		}, ErrProtocol, false},
		{"path only", func(s *script) {
			fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(s.memory(size)), unix.O_PATH|unix.O_CLOEXEC, 0)
			s.check(err)
			s.sendMessage(good, s.own(fd))
		}, ErrProtocol, false},
		{"huge pages that are not there", func(s *script) {
			fd, err := unix.MemfdCreate("gosmc-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB)
			if err != nil {
				s.t.Skip("needs hugetlbfs")
			}
			s.own(fd)
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, requiredSeals)
			s.check(err)
			s.sendMessage(good, fd)
		}, ErrProtocol, false},
		{"the end", func(s *script) { unix.Shutdown(s.fd, unix.SHUT_RDWR) }, ErrPeerGone, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, r, p, s := newVictim(t)
			maps := countMaps(t)
			result := make(chan error, 1)
			go func() {
				w, err := p.Attach(testContext(t), hostileToken, size)
				if w != nil {
					w.Release(false)
				}
				result <- err
			}()
			m, err := s.recv()
			if err != nil || m.kind != kindAttach || m.token != hostileToken || m.size != size {
				t.Fatalf("received %+v, %v; want Attach", m, err)
			}
			s.t = t // a Skip belongs to this test
			tt.answer(s)
			if err := await(t, "Attach", result); !errors.Is(err, tt.want) {
				t.Errorf("Attach = %v, want %v", err, tt.want)
			}
			if tt.stands {
				if err := p.Send([]byte("hello")); err != nil {
					t.Errorf("Send = %v, want that the peering stands", err)
				}
				return
			}
			e := await(t, "PeerGone", r.gone)
			if tt.name != "the end" && (!errors.Is(e.err, ErrProtocol) || d.Stats().Violations != 1) {
				t.Errorf("PeerGone(%v), %d violations; want ErrProtocol, 1", e.err, d.Stats().Violations)
			}
			if got := countMaps(t); got > maps {
				t.Errorf("%d mappings more than before", got-maps)
			}
		})
	}
}

// The messages that end a peering that stands, and the ones that do not.
func TestHostileMessages(t *testing.T) {
	for _, tt := range []struct {
		name string
		send func(s *script)
		want error // why the peering ends; nil if it stands
	}{
		{"empty message", func(s *script) { s.send(nil) }, io.EOF},
		{"one byte", func(s *script) { s.send([]byte{7}) }, ErrProtocol},
		{"truncated", func(s *script) { s.send([]byte{3, 1, 0, 24, 0, 0, 0, 0, 1, 2, 3}) }, ErrProtocol},
		{"too long", func(s *script) { s.send(make([]byte, 300)) }, ErrProtocol},
		{"very long", func(s *script) { s.send(make([]byte, 60000)) }, ErrProtocol},
		{"unknown kind", func(s *script) { s.send([]byte{99, 1, 0, 8, 0, 0, 0, 0}) }, ErrProtocol},
		{"another version", func(s *script) { s.send([]byte{7, 2, 0, 8, 0, 0, 0, 0}) }, ErrProtocol},
		{"second Hello", func(s *script) {
			s.sendHello(message{kind: kindHello, gid: otherGID, peerGID: s.gid, nonce: testNonce, slots: SlotCount})
		}, ErrProtocol},
		{"late Refuse", func(s *script) { s.sendMessage(message{kind: kindRefuse, reason: refuseUser}) }, ErrProtocol},
		{"signal with a descriptor", func(s *script) {
			s.sendMessage(message{kind: kindSignal}, s.memory(16<<10))
		}, ErrProtocol},
		{"Attach with a descriptor", func(s *script) {
			s.sendMessage(message{kind: kindAttach, token: 1, size: 16 << 10}, s.memory(16<<10))
		}, ErrProtocol},
		{"unsolicited answer", func(s *script) {
			s.sendMessage(message{kind: kindAttachReply, token: 1, size: 16 << 10}, s.memory(16<<10))
		}, ErrProtocol},
		{"unsolicited refusal", func(s *script) {
			s.sendMessage(message{kind: kindAttachReply, token: 1, status: attachUnknown})
		}, ErrProtocol},
		{"Revoke of nothing", func(s *script) { s.sendMessage(message{kind: kindRevoke, token: 1}) }, nil},
		{"Drop of nothing", func(s *script) { s.sendMessage(message{kind: kindDrop, token: 1}) }, nil},
		{"eight guesses", func(s *script) {
			for i := range maxBadTokens {
				s.sendMessage(message{kind: kindAttach, token: wire.Token(i), size: 16 << 10})
				if m, err := s.recv(); err != nil || m.kind != kindAttachReply || m.status != attachUnknown || len(s.got) != 0 {
					s.t.Errorf("received %+v, %v; want a refusal", m, err)
				}
			}
		}, nil},
		{"nine guesses", func(s *script) {
			for i := range maxBadTokens + 1 {
				s.sendMessage(message{kind: kindAttach, token: wire.Token(i), size: 16 << 10})
			}
		}, ErrProtocol},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, r, p, s := newVictim(t)
			tt.send(s)
			if tt.want == nil {
				s.sendMessage(message{kind: kindSignal, payload: []byte("still here")})
				r.next(t, 0)
				if err := p.Err(); err != nil {
					t.Errorf("Err() = %v, want nil", err)
				}
			} else if e := await(t, "PeerGone", r.gone); !errors.Is(e.err, tt.want) || !errors.Is(p.Err(), tt.want) {
				t.Errorf("PeerGone(%v), want %v", e.err, tt.want)
			}
			if s := d.Stats(); s.DMBs != 0 || s.Bytes != 0 {
				t.Errorf("Stats() = %+v, want nothing", s)
			}
		})
	}
}

// A DMB is handed out once, with the size it has, and to nobody but its peer.
func TestHostileAttach(t *testing.T) {
	d, r, p, s := newVictim(t)
	dmb := mustDMB(t, p, 64<<10, nil)
	defer dmb.Release(true)
	s2 := dialScript(t, d)
	defer s2.close()
	s2.hello()
	await(t, "PeerUp", r.ups)

	for _, tt := range []struct {
		name string
		from *script
		size uint32
		want attachStatus
		fds  int
	}{
		{"another peer", s2, 64 << 10, attachUnknown, 0},
		{"size 0", s, 0, attachSize, 0},
		{"smaller", s, 32 << 10, attachSize, 0},
		{"larger", s, 128 << 10, attachSize, 0},
		{"right", s, 64 << 10, attachOK, 1},
		{"again", s, 64 << 10, attachTaken, 0},
		{"another peer later", s2, 64 << 10, attachUnknown, 0},
	} {
		tt.from.sendMessage(message{kind: kindAttach, token: dmb.Token(), size: tt.size})
		m, err := tt.from.recv()
		if err != nil || m.kind != kindAttachReply || m.token != dmb.Token() || m.status != tt.want || len(tt.from.got) != tt.fds {
			t.Errorf("%s: received %+v with %d descriptors, %v; want status %d with %d", tt.name, m, len(tt.from.got), err, tt.want, tt.fds)
		}
		if tt.want == attachOK {
			if int(m.slot) != dmb.Slot() || int(m.size) != len(dmb.Mem()) {
				t.Errorf("%s: slot %d, size %d; want %d, %d", tt.name, m.slot, m.size, dmb.Slot(), len(dmb.Mem()))
			}
			mem, err := mapReceived(s.got[0], 64<<10)
			if err != nil {
				t.Fatalf("%s: mapReceived = %v", tt.name, err)
			}
			mem[40] = 9
			if dmb.Mem()[40] != 9 {
				t.Errorf("%s: not the memory of the DMB", tt.name)
			}
			unmap(mem)
			if err := unix.Ftruncate(s.got[0], 0); err == nil {
				t.Errorf("%s: the peer can truncate the memory", tt.name)
			}
		}
	}
	if got := d.Stats().BadTokens; got != 6 {
		t.Errorf("BadTokens = %d, want 6", got)
	}
}

// A peer that drops memory that it never had breaks the rules; one that asks for memory that is
// just gone does not.
func TestHostileDrop(t *testing.T) {
	_, r, p, s := newVictim(t)
	for range 3 * maxBadTokens {
		dmb := mustDMB(t, p, 16<<10, nil)
		dmb.Release(true)
		s.sendMessage(message{kind: kindAttach, token: dmb.Token(), size: 16 << 10})
		if m, err := s.recv(); err != nil || m.status != attachUnknown {
			t.Fatalf("received %+v, %v; want that the DMB is unknown", m, err)
		}
	}
	dmb := mustDMB(t, p, 16<<10, nil)
	defer dmb.Release(true)
	s.sendMessage(message{kind: kindDrop, token: dmb.Token()})
	if e := await(t, "PeerGone", r.gone); !errors.Is(e.err, ErrProtocol) {
		t.Errorf("PeerGone(%v), want ErrProtocol", e.err)
	}
}

// A peer that asks for memory and never reads the answers is dropped, before many descriptors
// wait for it.
func TestHostileAttachFlood(t *testing.T) {
	_, r, p, s := newVictim(t)
	var dmbs []*DMB
	for range 1000 {
		dmbs = append(dmbs, mustDMB(t, p, 16<<10, nil))
	}
	for _, d := range dmbs {
		if s.sendMessage(message{kind: kindAttach, token: d.Token(), size: 16 << 10}) != nil {
			break
		}
	}
	if e := await(t, "PeerGone", r.gone); !errors.Is(e.err, ErrProtocol) {
		t.Errorf("PeerGone(%v), want ErrProtocol", e.err)
	}
	for _, d := range dmbs {
		d.Release(true)
	}
}

// Answers without a descriptor take memory as well: a token that is no more can be asked for as often as one likes.
func TestHostileRefusedAttachFlood(t *testing.T) {
	_, r, p, s := newVictim(t)
	d := mustDMB(t, p, 16<<10, nil)
	token := d.Token()
	d.Release(false)
	sent := 0
	for s.sendMessage(message{kind: kindAttach, token: token, size: 16 << 10}) == nil {
		if sent++; sent == maxQueued/4 {
			t.Fatalf("%d requests are waiting for an answer that nobody reads, want the end of the peering", sent)
		}
	}
	if e := await(t, "PeerGone", r.gone); !errors.Is(e.err, ErrProtocol) {
		t.Errorf("PeerGone(%v), want ErrProtocol", e.err)
	}
}

// A peer that is slow to read gets everything, in order; signals meanwhile are refused, not lost.
func TestSlowPeer(t *testing.T) {
	d, _, p, s := newVictim(t)
	const n = 2000
	var dmbs []*DMB
	for range n {
		dmb := mustDMB(t, p, 16<<10, nil)
		s.sendMessage(message{kind: kindAttach, token: dmb.Token(), size: 16 << 10})
		if m, err := s.recv(); err != nil || m.status != attachOK {
			t.Fatalf("received %+v, %v; want the memory", m, err)
		}
		dmbs = append(dmbs, dmb)
	}
	for _, dmb := range dmbs {
		dmb.Release(false)
	}
	if err := p.Send([]byte("too early")); !errors.Is(err, ErrCongested) {
		t.Errorf("Send to a peer that does not read = %v, want ErrCongested", err)
	}
	for i, dmb := range dmbs {
		if m, err := s.recv(); err != nil || m.kind != kindRevoke || m.token != dmb.Token() {
			t.Fatalf("message %d: %+v, %v; want Revoke of %v", i, m, err, dmb.Token())
		}
	}
	eventually(t, "room for a signal", func() bool { return p.Send([]byte("now")) == nil })
	if m, err := s.recv(); err != nil || string(m.payload) != "now" {
		t.Errorf("received %+v, %v; want the signal", m, err)
	}
	if s := d.Stats(); s.DMBsRevoked != n || s.Bytes != 0 {
		t.Errorf("Stats() = %+v, want %d revoked", s, n)
	}
}

// An owner that never answers holds the attaches of its own peering, and no longer than their
// callers want.
func TestAttachUnanswered(t *testing.T) {
	_, _, p, s := newVictim(t)
	const n = maxAttaching + 10
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := make(chan error, n)
	for i := range n {
		go func() {
			_, err := p.Attach(ctx, wire.Token(i+1), 16<<10)
			errs <- err
		}()
	}
	for range maxAttaching {
		if m, err := s.recv(); err != nil || m.kind != kindAttach {
			t.Fatalf("received %+v, %v; want Attach", m, err)
		}
	}
	cancel()
	for range n {
		if err := await(t, "Attach", errs); !errors.Is(err, ctx.Err()) {
			t.Errorf("Attach = %v, want %v", err, ctx.Err())
		}
	}
	// Now the answers. Nobody wants the memory any more, and the owner is told so.
	maps := countMaps(t)
	answered := 0
	for token := range p.requestsCopy() {
		s.sendMessage(message{kind: kindAttachReply, token: token, size: 16 << 10, slot: 3}, s.memory(16<<10))
		if m, err := s.recv(); err != nil || m.kind != kindDrop || m.token != token {
			t.Errorf("received %+v, %v; want Drop of %v", m, err, token)
		}
		answered++
	}
	if answered != maxAttaching || len(p.attaching) != 0 || countMaps(t) != maps {
		t.Errorf("%d were answered, %d await, %d mappings more; want %d, 0, 0", answered, len(p.attaching), countMaps(t)-maps, maxAttaching)
	}
}

func (p *Peer) requestsCopy() map[wire.Token]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	tokens := make(map[wire.Token]bool)
	for t := range p.requests {
		tokens[t] = true
	}
	return tokens
}

// Signals in a flood do not keep Poll from returning, nor Close.
func TestSignalFlood(t *testing.T) {
	d, r, _, s := newVictim(t)
	stop := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				if s.sendMessage(message{kind: kindSignal, payload: []byte("x")}) != nil {
					return
				}
			}
		}
	}()
	r.next(t, 1000)
	for range 10 {
		d.Poll()
	}
	d.Close()
	close(stop)
	await(t, "end of the flood", ended)
	await(t, "PeerGone", r.gone)
}
