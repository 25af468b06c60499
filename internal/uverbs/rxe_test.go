package uverbs

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestWorkRequests compares places of queues with structures that were laid out by hand from rdma_user_rxe.h. Each
// place is full of old bytes before.
func TestWorkRequests(t *testing.T) {
	m := &MR{lkey: 0x77, addr: 0x5000, mem: make([]byte, 100)}
	place := bytes.Repeat([]byte{0xee}, 256)
	putSendWQE(place, 0x1122334455667788, &SendWR{
		Op: OpWriteImm, Signaled: true, Solicited: true, Remote: 0x9000, RKey: 0x55, Imm: 0x01020304,
		Local: [MaxSGE]SGE{{}, {MR: m, Addr: 0x5001, Len: 9}},
	})
	want := words(uint64(0x1122334455667788), uint32(0), uint32(1), uint32(6), "\x01\x02\x03\x04", uint64(0x9000), uint32(0x55),
		zeros(116), uint64(0x9000), zeros(24), uint32(9), uint32(9), uint32(0), uint32(1), uint64(0),
		uint64(0x5001), uint32(9), uint32(0x77), zeros(16))
	if !bytes.Equal(place[:sendElement], want) {
		t.Errorf("WRITE with immediate:\n%x, want\n%x", place[:sendElement], want)
	}
	putSendWQE(place, 2, &SendWR{
		Op: OpSend, Remote: 0x9000, RKey: 0x55, Imm: 7, // of other operations
		Local: [MaxSGE]SGE{{MR: m, Addr: 0x5000, Len: 1}, {MR: m, Addr: 0x5010, Len: 2}},
	})
	want = words(uint64(2), uint32(0), uint32(2), uint32(0), zeros(132), zeros(32), uint32(3), uint32(3), uint32(0), uint32(2),
		uint64(0), uint64(0x5000), uint32(1), uint32(0x77), uint64(0x5010), uint32(2), uint32(0x77))
	if !bytes.Equal(place[:sendElement], want) {
		t.Errorf("SEND:\n%x, want\n%x", place[:sendElement], want)
	}
	putRecvWQE(place, 3, &RecvWR{Local: [MaxSGE]SGE{{MR: m, Addr: 0x5000, Len: 4}}})
	want = words(uint64(3), uint64(0), uint32(4), uint32(4), uint32(0), uint32(1), uint64(0),
		uint64(0x5000), uint32(4), uint32(0x77), zeros(16))
	if !bytes.Equal(place[:recvElement], want) {
		t.Errorf("receive:\n%x, want\n%x", place[:recvElement], want)
	}
}

// TestCompletions decodes a completion that was laid out by hand.
func TestCompletions(t *testing.T) {
	got := parseCQE(words(uint64(9), uint32(10), uint32(129), uint32(0), uint32(64), "\x01\x02\x03\x04", uint32(0x11), uint32(0x12),
		uint32(2), zeros(8)))
	want := cqe{id: 9, status: StatusRemoteAccess, opcode: wcRecvImm, len: 64, imm: 0x01020304, qpn: 0x11, flags: wcWithImm}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(cqe{})); diff != "" {
		t.Error(diff)
	}
}

// TestRing refuses queues whose header does not fit their memory, or the owner's needs.
func TestRing(t *testing.T) {
	for _, test := range []struct {
		name        string
		log2, mask  uint32
		memory      int
		depth, size int
		valid       bool
	}{
		{"exact", 6, 7, 8 << 6, 7, 48, true},
		{"larger memory", 6, 7, 4096, 4, 48, true},
		{"elements too small", 5, 7, 4096, 4, 48, false},
		{"elements of 2^17 bytes", 17, 0, 1 << 18, 0, 48, false},
		{"elements of 2^32 bytes", 32, 7, 4096, 4, 48, false},
		{"elements of 2^64 bytes", 64, 7, 4096, 4, 48, false},
		{"no power of two", 6, 5, 4096, 4, 48, false},
		{"one place too few", 6, 7, 4096, 8, 48, false},
		{"no place", 6, 0, 4096, 1, 48, false},
		{"one byte too few", 6, 7, 8<<6 - 1, 7, 48, false},
		{"all places", 6, 1<<32 - 1, 4096, 7, 48, false},
		{"many places", 16, 1<<31 - 1, 4096, 7, 48, false},
	} {
		mem := zeros(ringHeaderLen + test.memory)
		host.PutUint32(mem, test.log2)
		host.PutUint32(mem[4:], test.mask)
		r, err := newRing(mem, test.depth, test.size)
		if test.valid != (err == nil) || err != nil && !errors.Is(err, ErrKernel) {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if err == nil && (len(r.place(test.mask)) != 1<<test.log2 || len(r.place(1<<32-1)) != 1<<test.log2) {
			t.Errorf("%s: a place of other size", test.name)
		}
	}
	for n := range ringHeaderLen {
		if _, err := newRing(zeros(n), 1, 48); !errors.Is(err, ErrKernel) {
			t.Errorf("header of %d bytes: %v", n, err)
		}
	}
}
