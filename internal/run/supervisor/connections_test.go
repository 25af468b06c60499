package supervisor

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/run/proto"
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
			if st != proto.StatusOK {
				t.Fatalf("Claim: status %d", st)
			}
			defer unix.Close(end)
			if _, err := unix.Write(c.end, make([]byte, 77)); err != nil {
				t.Fatal(err)
			}
			list, err := inspect.Connections()
			if err != nil {
				t.Skipf("needs unix_diag: %v", err)
			}
			for _, want := range []inspect.Connection{
				{Local: c.socket, Peer: c.server, SendQ: 77, UID: uint32(os.Geteuid()), PID: os.Getpid(), PeerPID: os.Getpid()},
				{Local: c.server, Peer: c.socket, Server: true, RecvQ: 77, UID: uint32(os.Geteuid()), PID: os.Getpid(), PeerPID: os.Getpid()},
			} {
				i := slices.IndexFunc(list, func(c inspect.Connection) bool { return c.Local == want.Local && c.Peer == want.Peer })
				if i < 0 {
					t.Errorf("%v to %v is not among %+v", want.Local, want.Peer, list)
					continue
				}
				got := list[i]
				if got.Inode == 0 || got.Cookie == 0 || got.Command == "" || got.PeerCommand != got.Command {
					t.Errorf("inode %d, command %q, the command of the peer %q", got.Inode, got.Command, got.PeerCommand)
				}
				want.Inode, want.Cookie, want.Command, want.PeerCommand = got.Inode, got.Cookie, got.Command, got.PeerCommand
				if !cmp.Equal(got, want, cmpopts.IgnoreUnexported(inspect.Connection{}), cmpopts.EquateComparable(netip.AddrPort{})) {
					t.Errorf("Connections = %+v, want %+v", got, want)
				}
			}
		})
	}
}
