package sockdiag

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// pair makes a TCP connection within this machine.
func pair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func addrOf(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }

// TestEachTCP counts bytes and segments of a connection, at both ends.
func TestEachTCP(t *testing.T) {
	client, server := pair(t)
	for range 3 {
		if _, err := client.Write(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		if n, err := server.Read(make([]byte, 1000)); n != 100 || err != nil {
			t.Fatal(n, err)
		}
	}
	var in, out Info
	err := EachTCP(func(s Socket, i Info) {
		switch {
		case s.Local == addrOf(server.LocalAddr()) && s.Peer == addrOf(client.LocalAddr()):
			in = i
		case s.Local == addrOf(client.LocalAddr()) && s.Peer == addrOf(server.LocalAddr()):
			out = i
		}
	})
	if err != nil || !in.Known || in.Received != 300 || in.SegmentsIn != 3 {
		t.Errorf("the server's end: %+v, %v", in, err)
	}
	if !out.Known || out.Sent != 301 || out.SegmentsOut != 3 || out.MSS < 1000 || out.RTT <= 0 { // and the SYN
		t.Errorf("the client's end: %+v", out)
	}
}

// TestEnds hears of both ends of a connection, with their bytes.
func TestEnds(t *testing.T) {
	e, err := WatchEnds()
	if errors.Is(err, unix.EPERM) {
		t.Skip("needs CAP_NET_ADMIN")
	}
	if err != nil {
		t.Fatal(err)
	}
	client, server := pair(t)
	ours, theirs := addrOf(client.LocalAddr()), addrOf(server.LocalAddr())
	client.Write(make([]byte, 100))
	server.Read(make([]byte, 1000))
	client.Close()
	server.Close()
	for heard := 0; heard < 2; {
		_, err := e.Read(func(s Socket, i Info) {
			switch {
			case s.Local == ours && s.Peer == theirs && i.SegmentsOut == 1,
				s.Local == theirs && s.Peer == ours && i.SegmentsIn == 1 && i.Received == 101: // and the FIN
				heard++
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error)
	go func() {
		for {
			if _, err := e.Read(func(Socket, Info) {}); err != nil {
				done <- err
				return
			}
		}
	}()
	e.Close()
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Read after Close = %v", err)
	}
}

// TestEndsLost has more ends come than there is room for: that is told, and is no error.
func TestEndsLost(t *testing.T) {
	e, err := WatchEnds()
	if errors.Is(err, unix.EPERM) {
		t.Skip("needs CAP_NET_ADMIN")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	raw, err := e.file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) })
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		client, server := pair(t)
		client.Close()
		server.Close()
	}
	for lost := false; !lost; {
		if lost, err = e.Read(func(Socket, Info) {}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestInfoTruncated takes no counters of a structure that is too short.
func TestInfoTruncated(t *testing.T) {
	for n := range infoLen + 5 {
		msg := make([]byte, messageLen+unix.SizeofNlAttr+n)
		msg[messageLen] = byte(unix.SizeofNlAttr + n)
		msg[messageLen+2] = attrInfo
		if got := parseInfo(msg); got.Known != (n >= infoLen) {
			t.Errorf("of %d bytes: %+v", n, got)
		}
	}
}
