package ism

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

// secret is that of the introductions in tests.
var secret = [16]byte{1, 2, 3}

// introductions are the two sides of an introduction, of the dialler and of the accepter.
func introductions(t testing.TB, dials, accepts *Device, key byte) (dialler, accepter Introduction) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	in := func(fd int, other *Device, half byte) Introduction {
		return Introduction{
			Socket: fd, Key: wire.ISMGIDFromUUID([16]byte{0: half, 15: key}), GID: other.GID(), Secret: secret,
			Cred: Cred{UID: 60001, GID: 60002},
		}
	}
	return in(ends[0], accepts, 1), in(ends[1], dials, 2)
}

// TestIntroduced has two devices without a directory meet by an introduction, and move bytes.
func TestIntroduced(t *testing.T) {
	checkLeaks(t)
	a, _ := openDevice(t, Config{})
	b, rb := openDevice(t, Config{})
	if !a.IsThere() || a.Renew() != nil {
		t.Error("a device that nobody looks for is missing")
	}
	dialler, accepter := introductions(t, a, b, 1)
	b.AcceptBy(accepter)
	p, err := a.PeerBy(testContext(t), dialler)
	if err != nil {
		t.Fatal(err)
	}
	q := await(t, "PeerUp", rb.ups)
	if s, ok := p.Secret(); !ok || s != secret || q.introduced == nil || q.Cred().UID != 60001 ||
		p.Key() != dialler.Key || q.Key() != accepter.Key {
		t.Errorf("peers %+v %+v", p.introduced, q.introduced)
	}
	d := mustDMB(t, q, 16<<10, nil)
	w := mustAttach(t, p, d)
	copy(w.Mem(), "word")
	if string(d.Mem()[:4]) != "word" {
		t.Error("the memory is another one")
	}
	if err := p.Send([]byte("signal")); err != nil {
		t.Fatal(err)
	}
	if got := rb.next(t, 0); got != "signal" {
		t.Errorf("signal %q", got)
	}
	w.Release(true)
	d.Release(true)
	if _, err := a.Peer(testContext(t), b.GID()); !errors.Is(err, ErrDead) {
		t.Errorf("without a directory: %v, want ErrDead", err)
	}
}

// TestIntroducedTwice introduces two processes a second time: the peering that stands is used. A
// process that says that it has the GID of another one does not take its place.
func TestIntroducedTwice(t *testing.T) {
	checkLeaks(t)
	a, _ := openDevice(t, Config{})
	b, rb := openDevice(t, Config{})
	dialler, accepter := introductions(t, a, b, 1)
	b.AcceptBy(accepter)
	p, err := a.PeerBy(testContext(t), dialler)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "PeerUp", rb.ups)
	dialler, accepter = introductions(t, a, b, 1)
	b.AcceptBy(accepter)
	if again, err := a.PeerBy(testContext(t), dialler); err != nil || again != p {
		t.Errorf("the second time: %p, %v; want %p", again, err, p)
	}
	dialler, accepter = introductions(t, a, b, 2)
	b.AcceptBy(accepter)
	if other, err := a.PeerBy(testContext(t), dialler); err != nil || other == p {
		t.Errorf("another process of the same GID: %p, %v; want another peering than %p", other, err, p)
	}
}

// TestIntroducedRefusals has processes that are not those that were introduced, or that say nothing.
func TestIntroducedRefusals(t *testing.T) {
	checkLeaks(t)
	a, _ := openDevice(t, Config{})
	b, _ := openDevice(t, Config{})
	dialler, accepter := introductions(t, a, b, 1)
	accepter.GID = b.GID() // of another process
	b.AcceptBy(accepter)
	if _, err := a.PeerBy(testContext(t), dialler); !errors.Is(err, ErrWrongGID) {
		t.Errorf("another GID: %v, want ErrWrongGID", err)
	}
	dialler, accepter = introductions(t, a, b, 2)
	unix.Close(accepter.Socket)
	if _, err := a.PeerBy(testContext(t), dialler); !errors.Is(err, ErrPeerGone) {
		t.Errorf("nobody: %v, want ErrPeerGone", err)
	}
	eventually(t, "the end of Hellos", func() bool { return b.Stats().Refused >= 1 })
}

// TestIntroducedStrict introduces a process of another user where the kernel may refuse pages. A
// process that cannot read the setting believes the agent.
func TestIntroducedStrict(t *testing.T) {
	checkLeaks(t)
	a, _ := openDevice(t, Config{})
	b, rb := openDevice(t, Config{})
	dialler, accepter := introductions(t, a, b, 1)
	dialler.Strict = true
	b.AcceptBy(accepter)
	if _, err := a.PeerBy(testContext(t), dialler); !errors.Is(err, ErrOtherUser) {
		t.Errorf("strict: %v, want ErrOtherUser", err)
	}
	dialler, accepter = introductions(t, a, b, 2)
	dialler.Strict, dialler.Own = true, true
	b.AcceptBy(accepter)
	if _, err := a.PeerBy(testContext(t), dialler); err != nil {
		t.Errorf("strict, the same user: %v", err)
	}
	await(t, "PeerUp", rb.ups)
	o := overcommitMode{file: t.TempDir() + "/none"}
	if !o.isStrict() {
		t.Error("a setting that cannot be read is not the strict one")
	}
	o.learn(false)
	if o.isStrict() {
		t.Error("the agent is not believed")
	}
	o.read = time.Time{}
	if o.isStrict() {
		t.Error("the agent is not believed the second time")
	}
	if err := os.WriteFile(o.file, []byte("2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.read = time.Time{}
	o.learn(false)
	if !o.isStrict() {
		t.Error("the agent is believed, and not the kernel")
	}
}

// TestStrangerShare has another user take peerings and memory. A part is left for others.
func TestStrangerShare(t *testing.T) {
	checkLeaks(t)
	const budget = 1 << 20
	a, _ := openDevice(t, Config{})
	b, rb := openDevice(t, Config{Budget: budget})
	dialler, accepter := introductions(t, a, b, 1)
	b.AcceptBy(accepter)
	if _, err := a.PeerBy(testContext(t), dialler); err != nil {
		t.Fatal(err)
	}
	q := await(t, "PeerUp", rb.ups)
	for range budget / strangerShare / (16 << 10) {
		d := mustDMB(t, q, 16<<10, nil)
		defer d.Release(true)
	}
	if _, err := q.NewDMB(16<<10, nil); !errors.Is(err, ErrBudget) {
		t.Errorf("beyond the part: %v, want ErrBudget", err)
	}
	for i := range maxStrangerPeers - 1 {
		dialler, accepter = introductions(t, a, b, byte(i+2))
		b.AcceptBy(accepter)
		if _, err := a.PeerBy(testContext(t), dialler); err != nil {
			t.Fatalf("peering %d: %v", i, err)
		}
	}
	dialler, accepter = introductions(t, a, b, 255)
	b.AcceptBy(accepter)
	if _, err := a.PeerBy(testContext(t), dialler); !errors.Is(err, ErrLimit) {
		t.Errorf("a peering too many: %v, want ErrLimit", err)
	}
	dialler, accepter = introductions(t, a, b, 254)
	accepter.Cred.UID = 60009
	b.AcceptBy(accepter)
	if _, err := a.PeerBy(testContext(t), dialler); err != nil {
		t.Fatalf("another user: %v", err)
	}
	for other := range rb.ups {
		if other.Cred().UID == 60009 {
			d := mustDMB(t, other, 16<<10, nil)
			d.Release(true)
			break
		}
	}
}
