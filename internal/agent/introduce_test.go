package agent

import "testing"

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
