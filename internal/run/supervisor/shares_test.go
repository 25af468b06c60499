package supervisor

import (
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
)

// TestShares has everybody get something, and all not more than there is, however little that is.
func TestShares(t *testing.T) {
	for _, limit := range []uint64{64, 100, 256, 512, 1024, 20000, 1 << 20, 1 << 40} {
		s := sharesOf(limit)
		if s.offers < 1 || s.relays < 1 || s.programs < ownDescriptors || s.offers > broker.MaxOffers || s.relays > broker.MaxRelays {
			t.Errorf("%d descriptors: %+v", limit, s)
		}
		if all := s.programs + 2*s.offers + 2*s.relays + 2*introducedBring*s.introduced; uint64(all) > limit || uint64(s.talks) > limit || s.talks <= all {
			t.Errorf("%d descriptors: %+v are %d, and talks begin there", limit, s, all)
		}
	}
}

// leaveDescriptors has this process have no more than n descriptors besides those that it has, until the function that it returns is called.
func leaveDescriptors(t *testing.T, n int) (restore func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	var have []int
	for range n { // also where numbers between others are free
		fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		have = append(have, fd)
	}
	top, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(top)
	few := before
	few.Cur = uint64(top)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	proto.CloseAll(have)
	return func() { unix.Setrlimit(unix.RLIMIT_NOFILE, &before) }
}

// TestLetterDescriptors leaves a letter where it is when there are no descriptors left for those
// that it brings. It used to be lost, and its connection with it.
func TestLetterDescriptors(t *testing.T) {
	s, _ := stillSupervisor(t)
	c := s.sendLetter(t)
	for n := range 2 {
		restore := leaveDescriptors(t, n)
		s.readUntil(broker.KeyOf(c.socket, c.server))
		restore()
		if len(s.ByKey) != 0 {
			t.Fatalf("there are %d offers where %d descriptors were left", len(s.ByKey), n)
		}
	}
	s.readUntil(broker.KeyOf(c.socket, c.server))
	if len(s.ByKey) != 1 {
		t.Errorf("there are %d offers, want 1", len(s.ByKey))
	}
}

// TestProgramsLeaveDescriptors has programs not take the descriptors of other uses; one is always
// watched.
func TestProgramsLeaveDescriptors(t *testing.T) {
	poll, err := broker.NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer poll.Close()
	p := newPrograms(poll, "/nowhere", 3)
	defer p.close()
	if err := p.add(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	other := exec.Command("sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Wait()
	defer other.Process.Kill()
	if err := p.add(other.Process.Pid); err == nil || len(p.pids) != 1 {
		t.Errorf("a second program: %v, and there are %d", err, len(p.pids))
	}
	p.most = 1 << 20
	if err := p.add(other.Process.Pid); err != nil || len(p.pids) != 2 {
		t.Errorf("a second program: %v, and there are %d", err, len(p.pids))
	}
}

// TestRelayHurries has connections to a port looked at soon once a program that does not claim has
// accepted one of them.
func TestRelayHurries(t *testing.T) {
	s, _ := stillSupervisor(t)
	first := s.sendLetter(t)
	s.readUntil(broker.KeyOf(first.socket, first.server))
	other := s.sendLetter(t) // to another port
	s.readUntil(broker.KeyOf(other.socket, other.server))
	o := s.ByKey[broker.KeyOf(first.socket, first.server)]
	second := *o
	second.Key.Client = other.server // a connection that there is not
	second.TCP = -1
	s.Held[-1] = &second
	defer delete(s.Held, -1)
	late := time.Now().Add(time.Hour)
	for _, held := range s.Held {
		held.Due, held.Wait = late, broker.LastLook
	}
	s.Relay(o)
	if !second.Due.Before(late) || second.Wait != s.Patience {
		t.Errorf("an offer for the port is due in %v, and then in %v", time.Until(second.Due), second.Wait)
	}
	if left := s.ByKey[broker.KeyOf(other.socket, other.server)]; left == nil || left.Due != late {
		t.Errorf("an offer for another port is %+v", left)
	}
}

// TestRelayLater has a connection wait for its relay, and lose nothing, while there are as many as there may be.
func TestRelayLater(t *testing.T) {
	s, start := stillSupervisor(t)
	stop := start()
	c := s.offer(t)
	c.connect()
	conn := c.accept()
	p := s.program(t) // its message is heard after that
	p.send(testMessage(proto.Message{Kind: proto.KindBoard}))
	_, board := p.reply()
	unix.Close(board)
	stop()
	key := broker.KeyOf(c.socket, c.server)
	o := s.ByKey[key]
	s.Relays = make(chan struct{}, 1)
	s.Relays <- struct{}{}
	s.Relay(o)
	if s.ByKey[key] != o {
		t.Fatal("the offer was given up")
	}
	<-s.Relays
	if _, err := io.WriteString(conn, "220 hello"); err != nil {
		t.Fatal(err)
	}
	defer start()()
	end := broker.Stream(c.end)
	c.end = -1
	defer end.Close()
	end.SetDeadline(time.Now().Add(30 * time.Second))
	b := make([]byte, len("220 hello"))
	if _, err := io.ReadFull(end, b); err != nil || string(b) != "220 hello" {
		t.Errorf("the client has read %q, %v", b, err)
	}
}
