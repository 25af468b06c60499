package run

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestConnections finds both ends, with the bytes in their queues, whether their offer was asked
// about or came by letter.
func TestConnections(t *testing.T) {
	for way, offer := range map[string]func(*supervisor) *connection{
		"asked": func(s *supervisor) *connection {
			c := s.offer(t)
			c.connect()
			return c
		},
		"letter": func(s *supervisor) *connection { return s.sendLetter(t) },
	} {
		t.Run(way, func(t *testing.T) {
			s := newTestSupervisor(t)
			c := offer(s)
			st, end := s.claimAs(t, c)
			if st != statusOK {
				t.Fatalf("Claim: status %d", st)
			}
			defer unix.Close(end)
			if _, err := unix.Write(c.end, make([]byte, 77)); err != nil {
				t.Fatal(err)
			}
			list, err := Connections()
			if err != nil {
				t.Skipf("needs unix_diag: %v", err)
			}
			for _, want := range []Connection{
				{Local: c.socket, Peer: c.server, SendQ: 77, UID: uint32(os.Geteuid()), PID: os.Getpid(), PeerPID: os.Getpid(), unique: c.offer.unique},
				{Local: c.server, Peer: c.socket, Server: true, RecvQ: 77, UID: uint32(os.Geteuid()), PID: os.Getpid(), PeerPID: os.Getpid(), unique: c.offer.unique},
			} {
				i := slices.IndexFunc(list, func(c Connection) bool { return c.Local == want.Local && c.Peer == want.Peer })
				if i < 0 {
					t.Errorf("%v to %v is not among %+v", want.Local, want.Peer, list)
					continue
				}
				got := list[i]
				if got.Inode == 0 || got.Command == "" || got.peer == 0 || got.PeerCommand != got.Command {
					t.Errorf("inode %d, command %q, inode of the peer %d, its command %q",
						got.Inode, got.Command, got.peer, got.PeerCommand)
				}
				got.Inode, got.Command, got.PeerCommand, got.peer, got.boxed = 0, "", "", 0, false
				if got != want {
					t.Errorf("Connections = %+v, want %+v", got, want)
				}
			}
		})
	}
}

// TestRingsOfConnection tells the directions of two connections of one process apart.
func TestRingsOfConnection(t *testing.T) {
	const maps = "00000000000000ab.s (deleted)\n00000000000000cd.c (deleted)\n"
	for _, tt := range []struct {
		c               Connection
		sends, receives bool
	}{
		{Connection{unique: 0xab, Server: true}, true, false},
		{Connection{unique: 0xab}, false, true},
		{Connection{unique: 0xcd, Server: true}, false, true},
		{Connection{unique: 0xb}, false, false},
	} {
		if tt.c.rings(maps); tt.c.Sends != tt.sends || tt.c.Receives != tt.receives {
			t.Errorf("%+v, want %v and %v", tt.c, tt.sends, tt.receives)
		}
	}
}
