package uverbs

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

// words lays out a structure by hand: a string is bytes, numbers have the kernel's byte order and the size of their type.
func words(fields ...any) (b []byte) {
	for _, f := range fields {
		switch f := f.(type) {
		case string:
			b = append(b, f...)
		case []byte:
			b = append(b, f...)
		case uint8:
			b = append(b, f)
		case uint16:
			b = host.AppendUint16(b, f)
		case uint32:
			b = host.AppendUint32(b, f)
		case uint64:
			b = host.AppendUint64(b, f)
		default:
			panic("words: impossible type")
		}
	}
	return b
}

func zeros(n int) []byte { return make([]byte, n) }

// TestCommands compares the commands with structures that were laid out by hand from ib_user_verbs.h.
func TestCommands(t *testing.T) {
	gid := wire.GID{0: 0xfd, 15: 9}
	for _, test := range []struct {
		name      string
		got, want []byte
	}{
		{
			"command with a response", appendCommand(nil, cmdAllocPD, 0x11223344, 4, nil),
			words(uint32(3), uint16(4), uint16(1), uint64(0x11223344)),
		},
		{
			"command without", appendCommand(nil, cmdDeallocPD, 7, 0, appendHandle(nil, 9)),
			words(uint32(4), uint16(3), uint16(0), uint32(9)),
		},
		{"destroy", appendDestroy(nil, 5), words(uint32(5), uint32(0))},
		{"QUERY_PORT", appendQueryPort(nil, 2), words(uint8(2), zeros(7))},
		{
			"REG_MR", regMR{0x1000, 0x2000, 0x7000, 3, LocalWrite | RemoteWrite}.append(nil),
			words(uint64(0x1000), uint64(0x2000), uint64(0x7000), uint32(3), uint32(3)),
		},
		{
			"CREATE_CQ", appendCreateCQ(nil, 100, 12),
			words(uint64(0), uint32(100), uint32(0), uint32(12), uint32(0)),
		},
		{"REQ_NOTIFY_CQ", appendReqNotify(nil, 6, false), words(uint32(6), uint32(0))},
		{"REQ_NOTIFY_CQ solicited", appendReqNotify(nil, 6, true), words(uint32(6), uint32(1))},
		{
			"CREATE_QP", createQP{user: 77, pd: 1, sendCQ: 2, recvCQ: 3, maxSend: 16, maxRecv: 32}.append(nil),
			words(uint64(77), uint32(1), uint32(2), uint32(3), uint32(0), uint32(16), uint32(32), uint32(2), uint32(2),
				uint32(0), uint8(0), uint8(2), uint8(0), uint8(0)),
		},
		{
			"MODIFY_QP", modifyQP{
				handle: 4, mask: maskRTR, state: StateRTR, port: 1, access: 3, gidIndex: 5, hopLimit: 64, global: 1,
				rtr: RTR{RemoteGID: gid, RemoteQPN: 0x11, PathMTU: wire.MTU1024, RecvPSN: 0x22, MinRNRTimer: 12},
				rts: RTS{SendPSN: 0x33, Timeout: 17, RetryCount: 6, RNRRetry: 7},
			}.append(nil),
			words(gid[:], zeros(8), uint8(5), uint8(64), zeros(4), uint8(1), uint8(1), zeros(32),
				uint32(4), uint32(maskRTR), uint32(0), uint32(0x22), uint32(0x33), uint32(0x11), uint32(3),
				zeros(4), uint8(2), uint8(0), uint8(3), zeros(4), uint8(12), uint8(1), uint8(17), uint8(6), uint8(7), zeros(4)),
		},
		{
			"ioctl", appendIoctl(nil, objectDevice, methodQueryGIDTable, driverRXE, []attribute{{2, 640, 0x1234}}),
			words(uint16(40), uint16(0), uint16(5), uint16(1), uint64(0), uint32(14), uint32(0),
				uint16(2), uint16(640), uint16(1), uint16(0), uint64(0x1234)),
		},
	} {
		if !bytes.Equal(test.got, test.want) {
			t.Errorf("%s:\n%x, want\n%x", test.name, test.got, test.want)
		}
	}
	if uint32(ioctlVerbs) != 3222805249 { // as the header of the kernel computes it
		t.Errorf("number of the ioctl = %d", uint32(ioctlVerbs))
	}
	if got := host.AppendUint64(nil, inline32(0x01020304)); !bytes.Equal(got[:4], host.AppendUint32(nil, 0x01020304)) {
		t.Errorf("inline data = %x", got)
	}
}

// TestDoorbell compares the doorbell with one that was laid out by hand.
func TestDoorbell(t *testing.T) {
	var b [doorbellLen]byte
	putDoorbell(b[:], 0x1000, 9)
	want := words(uint32(28), uint16(8), uint16(1), uint64(0x1000), uint32(9), uint32(0), uint32(0), uint32(56))
	if !bytes.Equal(b[:], want) {
		t.Errorf("doorbell = %x, want %x", b, want)
	}
}

// place is the place of a queue, as answers have it.
func place(offset uint64, size uint32) []byte { return words(offset, size, uint32(0)) }

// TestAnswers decodes each answer of the kernel: the values, and an error for every truncation.
func TestAnswers(t *testing.T) {
	page := uint64(unix.Getpagesize())
	device := words(uint64(1), zeros(16), uint64(1<<40), zeros(8), uint32(0x5678), zeros(8), uint32(10), uint32(20),
		zeros(4), uint32(32), zeros(4), uint32(40), uint32(50), uint32(60), uint32(70), zeros(80), zeros(3), uint8(1), zeros(4))
	port := words(zeros(4), uint32(1<<23), zeros(8), uint32(1024), zeros(6), uint8(4), uint8(5), uint8(3), zeros(8), uint8(2), zeros(2))
	type two struct{ A, B any }
	for _, test := range []struct {
		name   string
		answer []byte
		want   any
		parse  func([]byte) (any, error)
	}{
		{"GET_CONTEXT", words(uint32(7), uint32(2)), two{uint32(7), uint32(2)}, func(b []byte) (any, error) {
			fd, vectors, err := parseGetContext(b)
			return two{fd, vectors}, err
		}},
		{"ALLOC_PD", words(uint32(3)), uint32(3), func(b []byte) (any, error) { return parseAllocPD(b) }},
		{"REG_MR", words(uint32(1), uint32(2), uint32(3)), two{uint32(1), two{uint32(2), wire.RKey(3)}}, func(b []byte) (any, error) {
			handle, lkey, rkey, err := parseRegMR(b)
			return two{handle, two{lkey, rkey}}, err
		}},
		{"CREATE_COMP_CHANNEL", words(uint32(8)), uint32(8), func(b []byte) (any, error) { return parseCreateCompChannel(b) }},
		{
			"CREATE_CQ", words(uint32(2), uint32(63), place(2*page, 8192)),
			two{two{uint32(2), uint32(63)}, mmInfo{2 * page, 8192}},
			func(b []byte) (any, error) {
				handle, depth, at, err := parseCreateCQ(b)
				return two{two{handle, depth}, at}, err
			},
		},
		{
			"CREATE_QP", words(uint32(2), uint32(0x11), zeros(24), place(page, 4096), place(3*page, 8192)),
			createdQP{2, 0x11, mmInfo{page, 4096}, mmInfo{3 * page, 8192}},
			func(b []byte) (any, error) { return parseCreateQP(b) },
		},
		{"QUERY_DEVICE", device, Limits{
			MaxMRSize: 1 << 40, MaxQP: 10, MaxQPWR: 20, MaxSGE: 32, MaxCQ: 40, MaxCQE: 50, MaxMR: 60, MaxPD: 70, Ports: 1,
			VendorID: 0x5678, FirmwareVer: 1,
		}, func(b []byte) (any, error) { return parseQueryDevice(b) }},
		{"QUERY_PORT", port, PortAttr{
			State: PortActive, MaxMTU: wire.MTU4096, ActiveMTU: wire.MTU1024, GIDs: 1024, MaxMessage: 1 << 23, Ethernet: true,
		}, func(b []byte) (any, error) { return parseQueryPort(b) }},
		{"event", words(uint64(1), uint32(10), uint32(0)), two{uint64(1), EventPortDown}, func(b []byte) (any, error) {
			element, kind, err := parseAsyncEvent(b)
			return two{element, kind}, err
		}},
		{"place", place(page, 8192), mmInfo{page, 8192}, func(b []byte) (any, error) { return parseMMInfo(b) }},
	} {
		got, err := test.parse(test.answer)
		if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(createdQP{}, mmInfo{})); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", test.name, err, diff)
		}
		for n := range test.answer {
			if _, err := test.parse(test.answer[:n]); !errors.Is(err, ErrKernel) {
				t.Errorf("%s of %d bytes: %v, want %v", test.name, n, err, ErrKernel)
			}
		}
	}
}

// TestLies decodes answers with values that no kernel has.
func TestLies(t *testing.T) {
	device := zeros(queryDeviceLen)
	if _, err := parseQueryDevice(device); !errors.Is(err, ErrKernel) {
		t.Errorf("device without ports: %v", err)
	}
	for _, mtu := range []uint8{0, 6, 255} {
		port := zeros(queryPortLen)
		port[27], port[28] = 5, mtu
		if _, err := parseQueryPort(port); !errors.Is(err, ErrKernel) {
			t.Errorf("port with MTU %d: %v", mtu, err)
		}
	}
	for _, fd := range []uint32{0, 2, 1<<32 - 1, 1 << 20} {
		if f, err := openAnswer(fd, "test"); !errors.Is(err, ErrKernel) {
			t.Errorf("descriptor %d: %v, %v", fd, f, err)
		}
	}
	if _, _, err := parseAsyncEvent(words(uint64(0), uint32(1<<32-1), uint32(0))); !errors.Is(err, ErrKernel) {
		t.Errorf("event of a kind of ours: %v", err)
	}
}

// TestCreateQP refuses numbers that no queue pair of a program has.
func TestCreateQP(t *testing.T) {
	page := uint64(unix.Getpagesize())
	for qpn, valid := range map[uint32]bool{0: false, 1: false, 2: true, 1<<24 - 1: true, 1 << 24: false, 1<<32 - 1: false} {
		_, err := parseCreateQP(words(uint32(2), qpn, zeros(24), place(page, 4096), place(page, 4096)))
		if valid != (err == nil) || err != nil && !errors.Is(err, ErrKernel) {
			t.Errorf("number %#x: %v", qpn, err)
		}
	}
}

// TestMMInfo refuses places of queues that cannot be.
func TestMMInfo(t *testing.T) {
	page := uint64(unix.Getpagesize())
	for _, test := range []struct {
		offset uint64
		size   uint32
		valid  bool
	}{
		{0, 4096, true},
		{page, maxRing, true},
		{1, 4096, false},
		{page + 8, 4096, false},
		{1 << 63, 4096, false},
		{page, 0, false},
		{page, ringHeaderLen - 1, false},
		{page, maxRing + 1, false},
		{page, 1<<32 - 1, false},
	} {
		_, err := parseMMInfo(place(test.offset, test.size))
		if test.valid != (err == nil) || err != nil && !errors.Is(err, ErrKernel) {
			t.Errorf("offset %#x, %d bytes: %v", test.offset, test.size, err)
		}
	}
}

// TestGIDTable decodes a table, and refuses one that is longer than its memory.
func TestGIDTable(t *testing.T) {
	gid := wire.GID{10: 0xff, 11: 0xff, 12: 192, 13: 168, 14: 76, 15: 2}
	entry := words(gid[:], uint32(1), uint32(1), uint32(2), uint32(3))
	got, err := parseGIDTable(append(entry, zeros(gidEntryLen)...), 1)
	want := []GIDEntry{{Port: 1, Index: 1, GID: gid, Type: GIDTypeRoCEv2, Ifindex: 3}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("table: %v\n%s", err, diff)
	}
	for n := range entry {
		if _, err := parseGIDTable(entry[:n], 1); !errors.Is(err, ErrKernel) {
			t.Errorf("table of %d bytes: %v", n, err)
		}
	}
	for _, n := range []uint64{2, 1 << 32, 1<<64 - 1} {
		if _, err := parseGIDTable(entry, n); !errors.Is(err, ErrKernel) {
			t.Errorf("%d entries: %v", n, err)
		}
	}
	host.PutUint32(entry[20:], 0)
	if _, err := parseGIDTable(entry, 1); !errors.Is(err, ErrKernel) {
		t.Errorf("entry of port 0: %v", err)
	}
}

// TestCommandErrors checks what errors of the kernel mean.
func TestCommandErrors(t *testing.T) {
	for _, errno := range []error{unix.EIO, unix.ENODEV} {
		if err := commandError("ALLOC_PD", errno); !errors.Is(err, ErrRemoved) || !errors.Is(err, errno) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	err := commandError(nameRegMR, unix.ENOMEM)
	if errors.Is(err, ErrRemoved) || !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "locked memory") {
		t.Errorf("no memory: %v", err)
	}
}

// TestNames has every name, and one for a value that is unknown.
func TestNames(t *testing.T) {
	for name, got := range map[string]string{
		"RTS": StateRTS.String(), "state?": State(9).String(), "RDMA WRITE": OpWrite.String(), "op(9)": Op(9).String(),
		"RECV": Received.String(), "remote access error": StatusRemoteAccess.String(), "status(99)": Status(99).String(),
		"port down": EventPortDown.String(), "device removed": EventRemoved.String(), "event(99)": EventKind(99).String(),
		"RoCE v2": GIDTypeRoCEv2.String(), "GID type 7": GIDType(7).String(),
	} {
		if got != name {
			t.Errorf("String() = %q, want %q", got, name)
		}
	}
}
