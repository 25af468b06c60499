package agent

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
)

// TestRooms has an account ask in one network namespace after another. Others get rooms all the same.
func TestRooms(t *testing.T) {
	i := &introducer{own: 1, rooms: map[uint64]*room{1: {}}}
	eve := account{user: 60001}
	for n := uint64(2); n < 2+maxAccountRooms; n++ {
		if !i.hasRoom(n, eve, true) {
			t.Fatalf("namespace %d of %d is refused", n, maxAccountRooms)
		}
		i.rooms[n] = &room{account: eve}
	}
	if i.hasRoom(5000, eve, true) {
		t.Error("a namespace too many has a room")
	}
	if i.hasRoom(2, account{}, false) {
		t.Error("a namespace has two rooms")
	}
	if !i.hasRoom(5000, account{user: 60002}, true) || !i.hasRoom(5000, account{}, false) {
		t.Error("others get none")
	}
	for n := uint64(10_000); len(i.rooms) < maxRooms; n++ {
		i.rooms[n] = &room{account: account{user: uint32(n)}}
	}
	if i.hasRoom(5000, account{}, false) {
		t.Error("there are more rooms than there may be")
	}
}

// TestBootID reads what the agent tells processes about the kernel.
func TestBootID(t *testing.T) {
	id, err := bootID()
	if err != nil || id == ([16]byte{}) {
		t.Errorf("boot ID %x, %v", id, err)
	}
	if o := overcommit(); o > 2 {
		t.Errorf("overcommit mode %d", o)
	}
}

// TestPace has an account whose reports take long and lead nowhere. Others are served meanwhile.
func TestPace(t *testing.T) {
	var p pace
	eve, alice := account{user: 60001}, account{user: 60002}
	now := time.Now()
	if !p.mayGo(eve, now) {
		t.Error("the first report is not looked at")
	}
	p.failed(eve, time.Second, now)
	if p.mayGo(eve, now.Add((paceShare-2)*time.Second)) || !p.mayGo(alice, now) {
		t.Error("the next report is looked at, or another account's is not")
	}
	if now = now.Add(paceShare * time.Second); !p.mayGo(eve, now) {
		t.Error("no report is looked at any more")
	}
	p.failed(alice, time.Second, now)
	if len(p.until) != 1 {
		t.Errorf("%d accounts are remembered", len(p.until))
	}
}

// TestManyNamespaces has a process report a network namespace in which none of its threads is, and has threads in others.
func TestManyNamespaces(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	for range 2 * maxThreadNamespaces {
		smctest.EnterNamespace(t)
	}
	tried := 0
	enter := func(string, uint64, uint64, func() error) error { tried++; return errOtherNamespace }
	_, err := lookThrough(uint32(os.Getpid()), 1, func() error { return nil }, enter)
	if !errors.Is(err, errOtherNamespace) || tried != maxThreadNamespaces {
		t.Errorf("%d namespaces were tried, %v; want %d", tried, err, maxThreadNamespaces)
	}
}
