package sockdiag

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// smcMessage is a message about an SMC-R connection, laid out by hand from linux/smc_diag.h.
func smcMessage() []byte {
	put16, put32 := binary.NativeEndian.PutUint16, binary.NativeEndian.PutUint32
	msg := make([]byte, smcMessageLen)
	msg[0], msg[1], msg[2] = unix.AF_SMC, TCPEstablished, byte(SMCModeR)
	binary.BigEndian.PutUint16(msg[4:], 5000)
	binary.BigEndian.PutUint16(msg[6:], 40000)
	copy(msg[8:], []byte{192, 0, 2, 1})
	copy(msg[24:], []byte{192, 0, 2, 7})
	put32(msg[52:], 102)
	binary.NativeEndian.PutUint64(msg[56:], 4711)
	attribute := func(kind uint16, v []byte) {
		head := make([]byte, 4)
		put16(head, uint16(4+len(v)))
		put16(head[2:], kind)
		msg = append(append(msg, head...), v...)
		msg = append(msg, make([]byte, align(len(v))-len(v))...)
	}
	info := make([]byte, smcConnLen)
	cursor := func(at int, wrap uint16, count uint32) {
		put16(info[at+2:], wrap)
		put32(info[at+4:], count)
	}
	put32(info[4:], 65536)   // send buffer
	put32(info[8:], 131072)  // RMB element
	put32(info[12:], 262144) // the peer's
	cursor(16, 3, 100)       // received: producer, consumer
	cursor(24, 1, 500)
	cursor(32, 1, 777) // sent
	cursor(40, 2, 131000)
	cursor(52, 3, 5) // prepared, and sent
	cursor(60, 2, 65530)
	cursor(68, 2, 65000)
	attribute(smcConnInfo, info)
	attribute(smcLGRInfo, append([]byte{2}, make([]byte, 146)...))
	fallback := make([]byte, smcReasonLen)
	put32(fallback, 0x03030000)
	put32(fallback[4:], 0x03010000)
	attribute(smcFallback, fallback)
	return msg
}

// TestParseSMC reads a message, whole and cut off anywhere, and with cursors that are none.
func TestParseSMC(t *testing.T) {
	msg := smcMessage()
	got, ok := parseSMC(msg)
	want := SMCSocket{
		Local: netip.MustParseAddrPort("192.0.2.1:5000"), Peer: netip.MustParseAddrPort("192.0.2.7:40000"),
		State: TCPEstablished, Mode: SMCModeR, UID: 102, Inode: 4711,
		RecvQ: 172, SendQ: 277 + 11, RcvBuf: 131072, SndBuf: 65536, Link: 2, Reason: 0x03030000, PeerReason: 0x03010000,
	}
	if !ok || got != want {
		t.Errorf("parseSMC = %+v, %t; want %+v", got, ok, want)
	}
	for n := range msg {
		s, ok := parseSMC(msg[:n])
		if n < smcMessageLen && ok {
			t.Errorf("parseSMC of %d bytes = %+v, want false", n, s)
		}
		if ok && s.Reason != 0 {
			t.Errorf("parseSMC of %d bytes has a reason, which is at the end", n)
		}
	}
	for at := smcMessageLen; at < len(msg); at++ { // lengths, kinds and cursors that lie
		bad := append([]byte{}, msg...)
		bad[at] ^= 0xff
		if s, ok := parseSMC(bad); ok && (s.RecvQ > s.RcvBuf && s.RcvBuf > 0 || s.RecvQ > 1<<32) {
			t.Errorf("with byte %d changed: %+v", at, s)
		}
	}
	six := netip.MustParseAddr("2001:db8::7").As16()
	copy(msg[8:], six[:])
	if s, _ := parseSMC(msg); s.Local.Addr() != netip.MustParseAddr("2001:db8::7") {
		t.Errorf("the address is %v", s.Local)
	}
	loop := netip.IPv6Loopback().As16()
	copy(msg[8:], loop[:])
	if s, _ := parseSMC(msg); s.Local.Addr() != netip.IPv6Loopback() {
		t.Errorf("the address is %v", s.Local)
	}
}

// FuzzParseSMC has any message read without a panic, and queues within their buffers.
func FuzzParseSMC(f *testing.F) {
	f.Add(smcMessage())
	f.Add(smcMessage()[:smcMessageLen])
	f.Fuzz(func(t *testing.T, msg []byte) {
		if s, ok := parseSMC(msg); ok && s.RecvQ > s.RcvBuf {
			t.Errorf("%d bytes wait in a buffer of %d", s.RecvQ, s.RcvBuf)
		}
	})
}

// TestSMCLoaded asks a kernel without the module nothing: the question could load it.
func TestSMCLoaded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "protocols")
	for text, want := range map[string]bool{
		"protocol  size sockets\nTCP 2432 10\n": false, "protocol  size\nSMC6     1000      0\nSMC      1000      2\n": true, "SMCX 1\n": false,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := smcLoaded(path); got != want {
			t.Errorf("smcLoaded of %q = %t", text, got)
		}
	}
	if smcLoaded(path + "-none") {
		t.Error("smcLoaded of no file = true")
	}
	if list, err := SMC(); err != nil || !smcLoaded("/proc/net/protocols") && len(list) > 0 {
		t.Errorf("SMC = %v, %v", list, err)
	}
}

// TestParseSMCOfKernel reads the answer of Linux 6.12 in the interop case smcr/sockets: a socket of
// IPPROTO_SMC, one that fell back as its peer has no SMC, an SMC-R connection with bytes that wait both
// ways, and a listener.
func TestParseSMCOfKernel(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "smc_diag.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var got []SMCSocket
	for line := range strings.Lines(string(text)) {
		msg, err := hex.DecodeString(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		s, ok := parseSMC(msg)
		if !ok {
			t.Errorf("the kernel's message is not understood: %x", msg)
		}
		got = append(got, s)
	}
	guest, host := netip.MustParseAddr("192.168.76.2"), netip.MustParseAddr("192.168.76.1")
	none := netip.IPv4Unspecified()
	want := []SMCSocket{
		{
			Local: netip.AddrPortFrom(none, 60938), Peer: netip.AddrPortFrom(none, 40197),
			State: TCPEstablished, Mode: SMCModeR, Inode: 664, RcvBuf: 65536, SndBuf: 65536, Link: 1,
		},
		{
			Local: netip.AddrPortFrom(guest, 48152), Peer: netip.AddrPortFrom(host, 36429),
			State: TCPEstablished, Mode: SMCModeTCP, Inode: 662, Reason: 0x03010000,
		},
		{
			Local: netip.AddrPortFrom(guest, 60922), Peer: netip.AddrPortFrom(host, 40197),
			State: TCPEstablished, Mode: SMCModeR, Inode: 659, RecvQ: 3000, SendQ: 65536, RcvBuf: 65536,
			SndBuf: 65536, Link: 1,
		},
		{Local: netip.AddrPortFrom(none, 37037), Peer: netip.AddrPortFrom(none, 0), State: TCPListen, Inode: 657},
	}
	if !slices.Equal(got, want) {
		t.Errorf("the kernel's sockets are\n%+v, want\n%+v", got, want)
	}
}
