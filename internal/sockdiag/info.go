package sockdiag

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// From linux/inet_diag.h and linux/sock_diag.h.
const (
	attrInfo       = 2 // INET_DIAG_INFO: struct tcp_info, as far as the kernel has it
	groupDestroy   = 1 // SKNLGRP_INET_TCP_DESTROY
	groupDestroyV6 = 3 // SKNLGRP_INET6_TCP_DESTROY
	extensions     = 2 // offset in a request of the set of wanted attributes, the first one being 1
)

// endsBuffer is the receive buffer for news of ended sockets, in bytes: some ten thousand of them.
const endsBuffer = 8 << 20

// An Info has the counters of a connection. Bytes include one for SYN and one for FIN, but for
// Written.
type Info struct {
	Known       bool   // false: the kernel sent none
	MSS         uint32 // bytes of a full segment that the socket sends
	RTT         time.Duration
	Sent        uint64 // bytes that the peer has acknowledged
	Received    uint64 // bytes
	Written     uint64 // bytes of payload that were sent, each once; before Linux 4.19 it is Sent
	SegmentsOut uint32 // with data
	SegmentsIn  uint32
}

// Offsets of struct tcp_info, linux/tcp.h.
const (
	infoMSS         = 16
	infoRTT         = 68
	infoBytesAcked  = 120
	infoBytesIn     = 128
	infoDataSegsIn  = 152
	infoDataSegsOut = 156
	infoLen         = 160
	infoBytesSent   = 200
	infoBytesAgain  = 208
	infoLenSent     = 216
)

// parseInfo reads the counters of a message about a TCP socket.
func parseInfo(msg []byte) (i Info) {
	attributes(msg[messageLen:], func(kind uint16, b []byte) {
		if kind != attrInfo || len(b) < infoLen { // rule: TestInfoTruncated
			return
		}
		n := binary.NativeEndian
		i = Info{
			Known: true, MSS: n.Uint32(b[infoMSS:]),
			RTT:  time.Duration(n.Uint32(b[infoRTT:])) * time.Microsecond,
			Sent: n.Uint64(b[infoBytesAcked:]), Received: n.Uint64(b[infoBytesIn:]),
			SegmentsOut: n.Uint32(b[infoDataSegsOut:]), SegmentsIn: n.Uint32(b[infoDataSegsIn:]),
		}
		i.Written = i.Sent
		if len(b) >= infoLenSent {
			i.Written = n.Uint64(b[infoBytesSent:]) - n.Uint64(b[infoBytesAgain:])
		}
	})
	return i
}

// EachTCP calls found for each TCP connection that has been made and has not ended, with its
// counters. Sockets in TIME_WAIT, which no program has, are left out. The kernel's list may have a
// connection twice, or lack one, if connections come and go meanwhile.
func EachTCP(found func(Socket, Info)) error {
	return eachInfo(1<<TCPEstablished|1<<4|1<<5|1<<8|1<<9|1<<11, found) // FIN_WAIT to CLOSING
}

// EachEstablished is [EachTCP] for established connections, of which neither side has ended sending.
func EachEstablished(found func(Socket, Info)) error {
	return eachInfo(1<<TCPEstablished, found)
}

// eachInfo calls found for each TCP socket in one of a set of states.
func eachInfo(states uint32, found func(Socket, Info)) error {
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		q := query{
			flags: unix.NLM_F_REQUEST | unix.NLM_F_DUMP, family: family(a), states: states,
			local: netip.AddrPortFrom(a, 0), peer: netip.AddrPortFrom(a, 0),
		}
		request, body := q.request()
		body[extensions] = 1 << (attrInfo - 1)
		err := ask(request, func(msg []byte) {
			if len(msg) >= messageLen {
				found(parseTCP(msg), parseInfo(msg))
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Ends tells of TCP sockets of a network namespace whose end has come, with their last counters. It
// takes CAP_NET_ADMIN there. One goroutine reads; Close may come from another one.
type Ends struct {
	file *os.File
	buf  []byte
}

// WatchEnds begins to listen for ends, in the network namespace of the calling thread.
func WatchEnds() (*Ends, error) {
	const kind = unix.SOCK_RAW | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	fd, err := unix.Socket(unix.AF_NETLINK, kind, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, endsBuffer) // else the default
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for _, group := range []int{groupDestroy, groupDestroyV6} {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("watch ends of sockets", err)
	}
	return &Ends{os.NewFile(uintptr(fd), "sock_diag"), make([]byte, bufferLen)}, nil
}

// Read waits for news and calls found for each connection that has ended. It reports whether news
// were lost before, because they came too fast. After Close it returns [os.ErrClosed].
func (e *Ends) Read(found func(Socket, Info)) (lost bool, err error) {
	n, err := e.file.Read(e.buf)
	if errors.Is(err, unix.ENOBUFS) { // rule: TestEndsLost
		return true, nil
	}
	if err != nil {
		return false, err
	}
	_, err = parse(e.buf[:n], unix.SOCK_DIAG_BY_FAMILY, func(msg []byte) {
		if len(msg) < messageLen {
			return
		}
		if s := parseTCP(msg); s.Peer.Port() != 0 { // else it has listened, or never connected
			found(s, parseInfo(msg))
		}
	})
	return false, err
}

// Close ends a Read.
func (e *Ends) Close() error { return e.file.Close() }
