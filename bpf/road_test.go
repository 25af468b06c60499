package bpf

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/option"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

// A road leads from a client's network namespace to a server's. The test sees each packet on it, and decides about it.
type road struct {
	client, server *place

	mu   sync.Mutex
	seen []segment
	pass func(s segment, toServer bool) bool // nil for all
	edit func(packet []byte)                 // changes a segment to the server; nil for none
}

// newRoad makes two namespaces whose sockets have the programs of p, and a road between them.
func newRoad(t *testing.T, p *place) *road {
	t.Helper()
	r := &road{}
	var fds [2]int
	for i, end := range []**place{&r.client, &r.server} {
		own := *p
		own.run, own.netns = smctest.EnterNamespace(t)
		var err error
		own.run(func() { err = smctest.Up("lo") })
		if err != nil {
			t.Fatal(err)
		}
		fds[i] = own.tunnel(t, []string{"192.0.2.1", "192.0.2.2"}[i])
		*end = &own
	}
	stop, done := make(chan bool), make(chan bool)
	go r.carry(fds, stop, done)
	t.Cleanup(func() { close(stop); <-done })
	return r
}

// carry passes packets on until stop is closed.
func (r *road) carry(fds [2]int, stop, done chan bool) {
	defer close(done)
	b := make([]byte, 65536)
	for {
		select {
		case <-stop:
			return
		default:
		}
		polled := []unix.PollFd{{Fd: int32(fds[0]), Events: unix.POLLIN}, {Fd: int32(fds[1]), Events: unix.POLLIN}}
		unix.Poll(polled, 50)
		for from := range fds {
			n, err := unix.Read(fds[from], b)
			if err != nil {
				continue
			}
			if r.decide(b[:n], from == 0) {
				unix.Write(fds[1-from], b[:n]) // a packet that is lost is sent again
			}
		}
	}
}

func (r *road) decide(packet []byte, toServer bool) bool {
	s, ok := parseSegment(packet)
	if !ok {
		return true
	}
	r.mu.Lock()
	if r.edit != nil && toServer {
		r.edit(packet)
		s, _ = parseSegment(packet)
	}
	r.seen = append(r.seen, s)
	pass := r.pass
	r.mu.Unlock()
	return pass == nil || pass(s, toServer)
}

// segments returns the segments that have come by so far.
func (r *road) segments() []segment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

// lose is a pass that loses the first n segments with the flags.
func lose(flags byte, n int) func(segment, bool) bool {
	return func(s segment, _ bool) bool {
		if s.flags&(flagSYN|flagACK) == flags && n > 0 {
			n--
			return false
		}
		return true
	}
}

// connect makes a connection over the road. Both ends ask; also has other options of the listening and the connecting socket.
func (r *road) connect(t *testing.T, server, client func(fd uintptr)) pair {
	t.Helper()
	var l net.Listener
	var err error
	r.server.run(func() {
		lc := net.ListenConfig{Control: func(network, address string, c syscall.RawConn) error {
			if server != nil {
				c.Control(server)
			}
			return asking(true)(network, address, c)
		}}
		lc.SetMultipathTCP(false)
		l, err = lc.Listen(context.Background(), "tcp", "192.0.2.2:0")
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if client == nil {
		client = func(uintptr) {}
	}
	return r.client.connect(t, l.(*net.TCPListener), l.Addr().String(), true, client)
}

// checkOption checks which segments so far have the SMC option.
func (r *road) checkOption(t *testing.T, syn, synack bool) {
	t.Helper()
	for i, s := range r.segments() {
		want := false
		switch s.flags & (flagSYN | flagACK) {
		case flagSYN:
			want = syn
		case flagSYN | flagACK:
			want = synack
		}
		if s.smc() != want {
			t.Errorf("segment %d, flags %#x, options %x: SMC option %v, want %v", i, s.flags, s.options, s.smc(), want)
		}
	}
}

// md5Key has a socket sign the segments that it exchanges with an address.
func md5Key(t *testing.T, addr [4]byte) func(fd uintptr) {
	return func(fd uintptr) {
		sig := &unix.TCPMD5Sig{Keylen: 1, Key: [80]byte{'k'}}
		sa := (*unix.RawSockaddrInet4)(pointer(&sig.Addr))
		sa.Family, sa.Addr = unix.AF_INET, addr
		if err := unix.SetsockoptTCPMD5Sig(int(fd), unix.SOL_TCP, unix.TCP_MD5SIG, sig); err != nil {
			t.Skipf("TCP_MD5SIG: %v", err)
		}
	}
}

func setTCP(t *testing.T, name, value int) func(fd uintptr) {
	return func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), unix.SOL_TCP, name, value); err != nil {
			t.Errorf("option %d of TCP: %v", name, err)
		}
	}
}

// TestBothEndsAgree makes connections whose handshake is disturbed. Both ends say that the option was on both segments,
// or neither does.
func TestBothEndsAgree(t *testing.T) {
	p := newPlace(t)
	fastOpen := fate{option.Alone, option.FastOpen}
	signed := fate{option.Alone, option.Signed}
	aoKey := func(fd uintptr) {
		const addAOKey = 38 // TCP_AO_ADD_KEY; that this one is no key does not matter
		unix.SetsockoptInt(int(fd), unix.SOL_TCP, addAOKey, 0)
	}
	for _, tt := range []struct {
		name           string
		sysctls        map[string]string // at both ends
		pass           func(segment, bool) bool
		server, client func(t *testing.T) func(uintptr)
		syn, synack    bool
		atClient       fate
		atServer       fate
	}{
		{name: "undisturbed", syn: true, synack: true, atClient: both, atServer: both},
		{name: "SYN lost", pass: lose(flagSYN, 1), syn: true, synack: true, atClient: both, atServer: both},
		{name: "SYN-ACK lost", pass: lose(flagSYN|flagACK, 2), syn: true, synack: true, atClient: both, atServer: both},
		{name: "ACK lost", pass: lose(flagACK, 2), syn: true, synack: true, atClient: both, atServer: both},
		{name: "no timestamps", sysctls: map[string]string{"net.ipv4.tcp_timestamps": "0"}, syn: true, synack: true, atClient: both, atServer: both},
		{name: "no SACK", sysctls: map[string]string{"net.ipv4.tcp_sack": "0"}, syn: true, synack: true, atClient: both, atServer: both},
		{name: "no window scale", sysctls: map[string]string{"net.ipv4.tcp_window_scaling": "0"}, syn: true, synack: true, atClient: both, atServer: both},
		{name: "ECN", sysctls: map[string]string{"net.ipv4.tcp_ecn": "1"}, syn: true, synack: true, atClient: both, atServer: both},
		{name: "deferred accept", server: func(t *testing.T) func(uintptr) { return setTCP(t, unix.TCP_DEFER_ACCEPT, 10) },
			syn: true, synack: true, atClient: both, atServer: both},
		{name: "SYN cookie", sysctls: map[string]string{"net.ipv4.tcp_syncookies": "2"}, syn: true, atClient: silent, atServer: silent},
		{name: "SYN cookie lost", sysctls: map[string]string{"net.ipv4.tcp_syncookies": "2"}, pass: lose(flagSYN|flagACK, 1),
			syn: true, atClient: silent, atServer: silent},
		{name: "SYN cookie without timestamps", sysctls: map[string]string{"net.ipv4.tcp_syncookies": "2", "net.ipv4.tcp_timestamps": "0"},
			syn: true, atClient: silent, atServer: silent},
		{name: "Fast Open", sysctls: map[string]string{"net.ipv4.tcp_fastopen": "3"},
			server:   func(t *testing.T) func(uintptr) { return setTCP(t, unix.TCP_FASTOPEN, 16) },
			client:   func(t *testing.T) func(uintptr) { return setTCP(t, unix.TCP_FASTOPEN_CONNECT, 1) },
			atClient: fastOpen, atServer: silent},
		{name: "Fast Open without cookies", sysctls: map[string]string{"net.ipv4.tcp_fastopen": "519"}, // 0x207
			server:   func(t *testing.T) func(uintptr) { return setTCP(t, unix.TCP_FASTOPEN, 16) },
			client:   func(t *testing.T) func(uintptr) { return setTCP(t, unix.TCP_FASTOPEN_CONNECT, 1) },
			atClient: fastOpen, atServer: silent},
		{name: "MD5", server: func(t *testing.T) func(uintptr) { return md5Key(t, [4]byte{192, 0, 2, 1}) },
			client:   func(t *testing.T) func(uintptr) { return md5Key(t, [4]byte{192, 0, 2, 2}) },
			atClient: signed, atServer: silent},
		{name: "AO", client: func(*testing.T) func(uintptr) { return aoKey }, atClient: signed, atServer: silent},
		{name: "saved SYNs of the program", server: func(t *testing.T) func(uintptr) { return setTCP(t, unix.TCP_SAVE_SYN, 1) },
			syn: true, synack: true, atClient: both, atServer: both},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRoad(t, p)
			for name, value := range tt.sysctls {
				r.client.sysctl(t, name, value)
				r.server.sysctl(t, name, value)
			}
			r.pass = tt.pass
			var server, client func(uintptr)
			if tt.server != nil {
				server = tt.server(t)
			}
			if tt.client != nil {
				client = tt.client(t)
			}
			r.connect(t, server, client).want(t, tt.atClient, tt.atServer)
			r.checkOption(t, tt.syn, tt.synack)
			checkTables(t, p)
		})
	}
}

// checkTables checks that no request or connection has left something in the tables of the programs.
func checkTables(t *testing.T, p *place) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(p.pins+"/crowded", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var key uint64
	var value uint8
	for it := m.Iterate(); it.Next(&key, &value); {
		t.Errorf("crowded has %#x", key)
	}
}

// attachForeign attaches a program of somebody else to the group: behind ours, or in front of them.
func attachForeign(t *testing.T, p *place, inFront bool, instructions asm.Instructions) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SockOps, AttachType: ebpf.AttachCGroupSockOps, License: "Apache-2.0", Instructions: instructions,
	})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { program.Close() })
	if inFront {
		if err := DetachOption(p.pins); err != nil {
			t.Fatal(err)
		}
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: p.group, Attach: ebpf.AttachCGroupSockOps, Program: program})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if inFront {
		p.attach(t)
	}
}

// Offsets in struct bpf_sock_ops, and numbers of its operations: Linux include/uapi/linux/bpf.h.
const (
	sockOpsOp, sockOpsTCPFlags = 0, 212
	opListen, opOptionLength   = 11, 14
)

// TestForeignProgramsAgree has programs of others in the way: one that leaves no room on the SYN-ACK, and one that turns
// our callbacks off when a socket listens. Both ends are plain TCP.
func TestForeignProgramsAgree(t *testing.T) {
	notSent := fate{option.Alone, option.NotSent}
	t.Run("no room", func(t *testing.T) {
		p := newPlace(t)
		attachForeign(t, p, true, asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadMem(asm.R0, asm.R6, sockOpsOp, asm.Word),
			asm.JNE.Imm(asm.R0, opOptionLength, "end"),
			asm.LoadMem(asm.R0, asm.R6, sockOpsTCPFlags, asm.Word),
			asm.And.Imm(asm.R0, flagSYN|flagACK),
			asm.JNE.Imm(asm.R0, flagSYN|flagACK, "end"),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Imm(asm.R2, 16),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnReserveHdrOpt.Call(),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("end"),
			asm.Return(),
		})
		r := newRoad(t, p)
		r.pass = lose(flagSYN|flagACK, 1)
		r.connect(t, nil, nil).want(t, silent, notSent)
		r.checkOption(t, true, false)
		checkTables(t, p)
		if c, err := p.option.Counters(); err != nil || c.SYNACKNoRoom == 0 {
			t.Errorf("counters %+v, %v: no SYN-ACK without room", c, err)
		}
	})
	t.Run("callbacks off", func(t *testing.T) {
		p := newPlace(t)
		attachForeign(t, p, false, asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadMem(asm.R0, asm.R6, sockOpsOp, asm.Word),
			asm.JNE.Imm(asm.R0, opListen, "end"),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Imm(asm.R2, 0),
			asm.FnSockOpsCbFlagsSet.Call(),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("end"),
			asm.Return(),
		})
		r := newRoad(t, p)
		r.connect(t, nil, nil).want(t, silent, notSent)
		r.checkOption(t, true, false)
	})
}

// TestSavedSYNStays has a program take back that SYNs are saved, while its socket listens. The
// answer stays as it was, and the program sees the setting that it has asked for.
func TestSavedSYNStays(t *testing.T) {
	p := newPlace(t)
	l := p.listen(t, "127.0.0.1:0", true)
	raw, _ := l.SyscallConn()
	raw.Control(setTCP(t, unix.TCP_SAVE_SYN, 0))
	p.connect(t, l, l.Addr().String(), true).want(t, both, both)
	raw.Control(setTCP(t, unix.TCP_SAVE_SYN, 1))
	pr := p.connect(t, l, l.Addr().String(), true)
	pr.want(t, both, both)
	raw, _ = pr.server.SyscallConn()
	raw.Control(func(fd uintptr) {
		syn := make([]byte, 200)
		length := uint32(len(syn))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_TCP, unix.TCP_SAVED_SYN,
			uintptr(pointer(&syn[0])), uintptr(pointer(&length)), 0)
		if s, ok := parseSegment(syn[:length]); errno != 0 || !ok || s.flags&flagSYN == 0 || !s.smc() {
			t.Errorf("the saved SYN is %x, %v", syn[:length], errno)
		}
	})
	pr.want(t, both, both) // also when the program has read it
}

// TestOlderKeys has a socket with a key for MD5 that is older than the programs.
func TestOlderKeys(t *testing.T) {
	p := newPlace(t)
	r := newRoad(t, p)
	pr := r.connect(t, md5Key(t, [4]byte{192, 0, 2, 1}), func(fd uintptr) {
		if err := DetachOption(p.pins); err != nil {
			t.Error(err)
		}
		md5Key(t, [4]byte{192, 0, 2, 2})(fd)
		p.attach(t)
	})
	if got := fateOf(t, pr.client); got != (fate{option.Alone, option.Signed}) {
		t.Errorf("client: %v %v", got.state, got.reason)
	}
	r.checkOption(t, false, false)
}

// TestSignedWithOption has a SYN with both the SMC option and a signature of MD5, as some other system may send: the SYN-ACK has no
// option, and the server knows. The signature is over the segment without its options: RFC 2385.
func TestSignedWithOption(t *testing.T) {
	p := newPlace(t)
	r := newRoad(t, p)
	r.edit = func(packet []byte) {
		// NOPs with SACK permitted and with the window scale, which are as long as the option with two NOPs.
		at := bytes.Index(packet, []byte{1, 1, 4, 2, 1, 3, 3})
		if s, _ := parseSegment(packet); s.flags&(flagSYN|flagACK) != flagSYN || at < 0 {
			return
		}
		copy(packet[at:], []byte{clc.OptionKind, 6, 0xe2, 0xd4, 0xc3, 0xd9, 1, 1})
		tcp := packet[int(packet[0]&15)*4:]
		tcp[16], tcp[17] = 0, 0
		pseudo := append(bytes.Clone(packet[12:20]), 0, unix.IPPROTO_TCP, 0, byte(len(tcp)))
		binary.BigEndian.PutUint16(tcp[16:], checksum(append(pseudo, tcp...)))
	}
	r.connect(t, md5Key(t, [4]byte{192, 0, 2, 1}), md5Key(t, [4]byte{192, 0, 2, 2})).
		want(t, fate{option.Alone, option.Signed}, fate{option.Alone, option.NotSent})
	r.checkOption(t, true, false)
}
