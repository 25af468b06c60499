package ism

import (
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

func TestRefusals(t *testing.T) {
	hello := func(g wire.ISMGID) message {
		return message{kind: kindHello, gid: otherGID, peerGID: g, nonce: testNonce, slots: SlotCount}
	}
	for _, tt := range []struct {
		name string
		send func(s *script, d *Device)
		want refusal
	}{
		{"wrong GID", func(s *script, d *Device) { s.sendHello(hello(testGID)) }, refuseGID},
		{"version", func(s *script, d *Device) {
			m := hello(d.GID())
			b := m.append(nil)
			b[1] = 2
			s.send(b)
		}, refuseVersion},
		{"not a Hello", func(s *script, d *Device) { s.sendMessage(message{kind: kindSignal}) }, refuseMalformed},
		{"noise", func(s *script, d *Device) { s.send([]byte("GET / HTTP/1.1\r\n\r\n")) }, refuseVersion},
		{"no descriptors", func(s *script, d *Device) { s.sendMessage(hello(d.GID())) }, refuseMalformed},
		{"one descriptor", func(s *script, d *Device) { s.sendMessage(hello(d.GID()), s.memory(bellSize)) }, refuseMalformed},
		{"three descriptors", func(s *script, d *Device) {
			s.sendMessage(hello(d.GID()), s.memory(bellSize), s.memory(bellSize), s.memory(bellSize))
		}, refuseMalformed},
		{"ten descriptors", func(s *script, d *Device) {
			var fds []int
			for range 10 {
				fds = append(fds, s.memory(16<<10))
			}
			s.sendMessage(hello(d.GID()), fds...)
		}, refuseMalformed},
		{"bell of another size", func(s *script, d *Device) {
			s.sendMessage(hello(d.GID()), s.memory(bellSize/2), s.chime())
		}, refuseMalformed},
		{"bell without header", func(s *script, d *Device) {
			s.sendMessage(hello(d.GID()), s.memory(bellSize), s.chime())
		}, refuseMalformed},
		{"bell with another nonce", func(s *script, d *Device) {
			m := hello(d.GID())
			m.nonce[3]++
			s.sendHello(m)
		}, refuseMalformed},
		{"chime is an eventfd", func(s *script, d *Device) {
			fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
			s.check(err)
			s.sendMessage(hello(d.GID()), s.bellMemory(testNonce), s.own(fd))
		}, refuseMalformed},
		{"chime is a datagram socket", func(s *script, d *Device) {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			s.check(err)
			s.sendMessage(hello(d.GID()), s.bellMemory(testNonce), s.own(fd))
		}, refuseMalformed},
		{"chime is a TCP socket", func(s *script, d *Device) {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			s.check(err)
			s.sendMessage(hello(d.GID()), s.bellMemory(testNonce), s.own(fd))
		}, refuseMalformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			checkLeaks(t)
			d, r := openDevice(t, Config{Dir: t.TempDir()})
			s := dialScript(t, d)
			defer s.close()
			tt.send(s, d)
			m, err := s.recv()
			if err != nil || m.kind != kindRefuse || m.reason != tt.want {
				t.Errorf("received %v reason %d, %v; want Refuse reason %d", m.kind, m.reason, err, tt.want)
			}
			if _, err := s.recv(); err != io.EOF {
				t.Errorf("after Refuse: %v, want EOF", err)
			}
			if len(r.ups) != 0 || d.Stats().Refused != 1 {
				t.Errorf("%d peers up, %d refused; want 0, 1", len(r.ups), d.Stats().Refused)
			}
		})
	}
}

// The dialler is as careful, and reports the other side's reason.
func TestDialRefusals(t *testing.T) {
	refuse := func(r refusal) func(s *script, own wire.ISMGID) {
		return func(s *script, own wire.ISMGID) { s.sendMessage(message{kind: kindRefuse, reason: r}) }
	}
	for _, tt := range []struct {
		name   string
		answer func(s *script, own wire.ISMGID)
		want   error
	}{
		{"version", refuse(refuseVersion), ErrVersion},
		{"user", refuse(refuseUser), ErrOtherUser},
		{"GID", refuse(refuseGID), ErrWrongGID},
		{"limit", refuse(refuseLimit), ErrLimit},
		{"malformed", refuse(refuseMalformed), ErrProtocol},
		{"reason of a later version", refuse(99), ErrProtocol},
		{"another GID", func(s *script, own wire.ISMGID) {
			s.sendHello(message{kind: kindHello, gid: testGID, peerGID: own, nonce: testNonce, slots: SlotCount})
		}, ErrWrongGID},
		{"answer for another", func(s *script, own wire.ISMGID) {
			s.sendHello(message{kind: kindHello, gid: otherGID, peerGID: testGID, nonce: testNonce, slots: SlotCount})
		}, ErrWrongGID},
		{"another version", func(s *script, own wire.ISMGID) { s.send([]byte{1, 9, 0, 8, 0, 0, 0, 0}) }, ErrVersion},
		{"noise", func(s *script, own wire.ISMGID) { s.send([]byte{77, 1, 0, 8, 0, 0, 0, 0}) }, ErrProtocol},
		{"no bell", func(s *script, own wire.ISMGID) {
			s.sendMessage(message{kind: kindHello, gid: otherGID, peerGID: own, nonce: testNonce, slots: SlotCount})
		}, ErrProtocol},
	} {
		t.Run(tt.name, func(t *testing.T) {
			checkLeaks(t)
			dir := t.TempDir()
			d, r := openDevice(t, Config{Dir: dir})
			l := listenScript(t, dir, otherGID)
			defer l.close()
			served := make(chan struct{})
			go func() {
				defer close(served)
				s := l.accept()
				defer s.close()
				if m, err := s.recv(); err != nil || m.kind != kindHello || m.gid != d.GID() || m.peerGID != otherGID {
					t.Errorf("received %+v, %v; want a Hello", m, err)
				}
				tt.answer(s, d.GID())
			}()
			if p, err := d.Peer(testContext(t), otherGID); !errors.Is(err, tt.want) {
				t.Errorf("Peer = %v, %v; want %v", p, err, tt.want)
			}
			await(t, "end of the script", served)
			if len(r.gone) != 0 {
				t.Errorf("PeerGone was called for a peer that never was")
			}
		})
	}
}

// A peer that hangs up without a word is dead if nobody listens afterwards, and else only rude.
func TestDialHangup(t *testing.T) {
	for _, tt := range []struct {
		hangups int
		want    error
	}{{1, ErrDead}, {3, ErrDead}, {maxHangups, ErrPeerGone}} {
		checkLeaks(t)
		dir := t.TempDir()
		d, _ := openDevice(t, Config{Dir: dir})
		l := listenScript(t, dir, otherGID)
		served := make(chan struct{})
		go func() {
			defer close(served)
			for i := range tt.hangups {
				s := l.accept()
				if i == tt.hangups-1 {
					l.close()
				}
				s.close()
			}
		}()
		if p, err := d.Peer(testContext(t), otherGID); !errors.Is(err, tt.want) {
			t.Errorf("after %d hangups Peer = %v, %v; want %v", tt.hangups, p, err, tt.want)
		}
		await(t, "end of the script", served)
	}
}

func TestCheckUser(t *testing.T) {
	us := os.Geteuid()
	for _, tt := range []struct {
		any  bool
		peer int
		want error
	}{
		{false, us, nil},
		{false, us + 1, ErrOtherUser},
		{true, us, nil},
		{true, us + 1, nil},
	} {
		d := &Device{anyUser: tt.any}
		if err := d.checkUser(Cred{PID: 1, UID: tt.peer}); !errors.Is(err, tt.want) {
			t.Errorf("any %v, user %d: checkUser(%d) = %v, want %v", tt.any, us, tt.peer, err, tt.want)
		}
	}
}
