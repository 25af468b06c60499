package supervisor

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/client"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/wire/clc"
)

// dialCall connects to a listener by package net, with a call, and after it was offered a pair calls meanwhile.
func dialCall(t *testing.T, d *broker.Broker, l *net.TCPListener, meanwhile func()) (*client.Call, *net.TCPConn) {
	t.Helper()
	call := client.NewCall(filepath.Dir(filepath.Dir(filepath.Dir(d.Path))))
	nd := net.Dialer{ControlContext: func(ctx context.Context, _, address string, raw syscall.RawConn) error {
		call.Offer(ctx, raw, netip.MustParseAddrPort(address), netip.AddrPort{})
		meanwhile()
		return nil
	}}
	conn, err := nd.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return call, conn.(*net.TCPConn)
}

// TestCall has a call and a desk get the two ends of a pair, before or after the client says that it is connected.
func TestCall(t *testing.T) {
	for _, early := range []bool{true, false} {
		d := newTestDesk(t)
		l, _ := announced(t, d)
		call, tcp := dialCall(t, d, l, func() {})
		accepted, err := l.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		var ours, theirs *net.UnixConn
		if early {
			theirs, _ = d.Claim(accepted)
		}
		ours, reason := call.Connected(tcp)
		if !early {
			theirs, _ = d.Claim(accepted)
		}
		accepted.Close()
		if ours == nil || theirs == nil {
			t.Fatalf("ends are %v and %v, reason %v", ours, theirs, reason)
		}
		ours.Write([]byte("hello"))
		ours.Close()
		b := make([]byte, 10)
		if n, err := theirs.Read(b); err != nil || string(b[:n]) != "hello" {
			t.Errorf("read %q, %v", b[:n], err)
		}
		theirs.Close()
	}
}

// TestCallAlone has the supervisor end between an offer and the connection: that is TCP.
func TestCallAlone(t *testing.T) {
	d := openTestDesk(t)
	l, _ := announced(t, d)
	call, tcp := dialCall(t, d, l, func() { closeTest(t, d) })
	if end, reason := call.Connected(tcp); end != nil || reason != clc.DiagStale {
		t.Errorf("Connected = %v, %v; want no end, as nobody has the other one", end, reason)
	}
}

// TestCallNotSent has a call that cannot show its TCP socket to the supervisor: both sides have the pair
// if the server had its end by then, and none otherwise.
func TestCallNotSent(t *testing.T) {
	for _, early := range []bool{true, false} {
		d := newTestDesk(t)
		l, _ := announced(t, d)
		call, tcp := dialCall(t, d, l, func() {})
		accepted, err := l.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		var theirs *net.UnixConn
		if early {
			if theirs, _ = d.Claim(accepted); theirs == nil {
				t.Fatal("not claimed")
			}
		}
		tcp.Close()
		ours, reason := call.Connected(tcp)
		if !early {
			theirs, _ = d.Claim(accepted)
		}
		if (ours != nil) != early || (theirs != nil) != early || (reason == clc.DiagNone) != early {
			t.Errorf("claimed early %v: ends are %v and %v, reason %v", early, ours, theirs, reason)
		}
		accepted.Close()
		if ours != nil {
			ours.Close()
		}
		if theirs != nil {
			theirs.Close()
		}
	}
}

// TestCallHangsUp has a call hang up after its offer was taken: nobody can claim it, and a server
// that has claimed it finds it closed.
func TestCallHangsUp(t *testing.T) {
	d := newTestDesk(t)
	l, _ := announced(t, d)
	call, _ := dialCall(t, d, l, func() {})
	accepted, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	end, _ := d.Claim(accepted)
	if end == nil {
		t.Fatal("not claimed")
	}
	defer end.Close()
	call.HangUp()
	if n, err := end.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read %d, %v; want the end", n, err)
	}
}

// TestCallHostile has a program in a supervisor's place send an answer that no supervisor sends, or
// none: the connection is TCP.
func TestCallHostile(t *testing.T) {
	for name, answer := range map[string][]byte{
		"another message":    proto.Reply{Kind: proto.KindClaim, Status: proto.StatusOK}.Append(nil),
		"claimed":            proto.Reply{Kind: proto.KindOffer, Status: proto.StatusClaimed}.Append(nil),
		"a reason of others": proto.Reply{Kind: proto.KindOffer, Status: proto.StatusNo, Reason: clc.DiagMemory}.Append(nil),
		"short":              {0x82, 1},
		"long":               make([]byte, 100),
		"nothing":            nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newTestDesk(t)
			l, spot := announced(t, d)
			path := d.Path + "x"
			early := filepath.Join(filepath.Dir(path), ".new") // the desk removes other sockets that do not answer yet
			fake, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: early, Net: "unixpacket"})
			if err != nil {
				t.Fatal(err)
			}
			defer fake.Close()
			fake.SetUnlinkOnClose(false)
			if err := unix.Rename(early, path); err != nil {
				t.Fatal(err)
			}
			defer unix.Unlink(path)
			link := d.Listeners.Link(spot.Port)
			if err := unix.Unlink(link); err != nil {
				t.Fatal(err)
			}
			if err := unix.Symlink(filepath.Base(path), link); err != nil {
				t.Fatal(err)
			}
			defer unix.Unlink(link)
			go func() {
				c, err := fake.AcceptUnix()
				if err != nil {
					return
				}
				defer c.Close()
				c.Read(make([]byte, 100))
				c.Write(answer)
			}()
			call, tcp := dialCall(t, d, l, func() {})
			if end, reason := call.Connected(tcp); end != nil || !reason.IsLocal() {
				t.Errorf("Connected = %v, %v; want no end and a reason", end, reason)
			}
		})
	}
}
