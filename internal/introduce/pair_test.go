package introduce

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
)

func askPair(t testing.TB, c *Client, role Role, f *os.File, wait time.Duration) *Question {
	t.Helper()
	q, err := c.AskPair(role, f.Fd(), wait)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// lent waits for the client's end of a pair.
func lent(t testing.TB, q *Question) Answer {
	t.Helper()
	a := await(t, q)
	if !a.Lent || a.Socket < 0 {
		t.Fatalf("%+v, want an end of a pair", a)
	}
	return a
}

// areEnds writes into one end and reads from the other one.
func areEnds(t testing.TB, what string, from, to int) {
	t.Helper()
	if _, err := unix.Write(from, []byte("word")); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	var b [8]byte
	if n, _, err := unix.Recvfrom(to, b[:], unix.MSG_DONTWAIT); err != nil || string(b[:n]) != "word" {
		t.Errorf("%s: %q, %v", what, b[:n], err)
	}
}

// TestPairs has a client and a server ask for a pair, in both orders, and with all the reasons for
// which the server gets nothing: then the client has both ends.
func TestPairs(t *testing.T) {
	b := newBureau(t)
	alice := b.dial(t, 1, anyone, Identity{UID: 1001})
	bob := b.dial(t, 2, anyone, Identity{UID: 1002})
	for _, first := range []Role{RoleClient, RoleServer} {
		c := b.kernel.connect(t)
		var a, o Answer
		if first == RoleClient {
			q := askPair(t, alice, RoleClient, c.client, MaxWait)
			a = lent(t, q)
			if _, err := unix.Write(a.Socket, []byte("early ")); err != nil {
				t.Fatal(err)
			}
			o = await(t, askPair(t, bob, RoleServer, c.server, MaxWait))
			if fate := await(t, q); !fate.Taken {
				t.Errorf("the client hears %+v, want that its server has the other end", fate)
			}
			var early [6]byte
			if n, err := unix.Read(o.Socket, early[:]); err != nil || string(early[:n]) != "early " {
				t.Errorf("the server reads %q, %v", early[:n], err)
			}
		} else {
			q := askPair(t, bob, RoleServer, c.server, MaxWait)
			a = await(t, askPair(t, alice, RoleClient, c.client, MaxWait))
			o = await(t, q)
		}
		if o.Socket < 0 || a.Socket < 0 || o.UID != 1001 {
			t.Fatalf("%d first: client %+v, server %+v", first, a, o)
		}
		areEnds(t, "from the client", a.Socket, o.Socket)
		areEnds(t, "from the server", o.Socket, a.Socket)
	}
	same := b.dial(t, 3, Users{}, Identity{UID: 1003})
	for _, tt := range []struct {
		name string
		end  func(c connection, q *Question)
		want Refusal
	}{
		{"nobody asks", func(connection, *Question) {}, RefusedAlone},
		{"recalled", func(_ connection, q *Question) { q.Recall() }, RefusedAlone},
		{"declined", func(c connection, _ *Question) {
			bob.Decline(RoleServer, c.server.Fd(), time.Second)
		}, RefusedDeclined},
		{"an SMC-D server", func(c connection, _ *Question) {
			wantRefused(t, "an SMC-D server", await(t, ask(t, bob, RoleServer, c.server)), RefusedDeclined)
		}, RefusedDeclined},
		{"a policy", func(c connection, _ *Question) {
			wantRefused(t, "a policy", await(t, askPair(t, same, RoleServer, c.server, time.Second)), RefusedUsers)
		}, RefusedUsers},
	} {
		c := b.kernel.connect(t)
		q := askPair(t, alice, RoleClient, c.client, 100*time.Millisecond)
		a := lent(t, q)
		tt.end(c, q)
		fate := await(t, q)
		if !fate.Returned || fate.Socket < 0 || fate.Reason != tt.want {
			t.Fatalf("%s: %+v, want the end back: %v", tt.name, fate, tt.want)
		}
		areEnds(t, tt.name, a.Socket, fate.Socket)
	}
	c := b.kernel.connect(t)
	bob.Decline(RoleServer, c.server.Fd(), MaxWait)
	smctest.Eventually(t, patience, "the server's word", func() bool { return b.Status().Waiting == 1 })
	wantRefused(t, "declined before", await(t, askPair(t, alice, RoleClient, c.client, MaxWait)), RefusedDeclined)
	if n := b.Status(); n.Introduced != 2 || n.Waiting != 0 || b.table.held != 0 {
		t.Errorf("status %+v, %d ends held", n, b.table.held)
	}
}

// TestPairsEnd has a client's conversation end before its server asks: the end that the agent has
// is closed.
func TestPairsEnd(t *testing.T) {
	b := newBureau(t)
	alice, bob := b.dial(t, 1, anyone), b.dial(t, 2, anyone)
	c := b.kernel.connect(t)
	a := lent(t, askPair(t, alice, RoleClient, c.client, MaxWait))
	alice.Close()
	var buf [1]byte
	if n, err := unix.Read(a.Socket, buf[:]); n != 0 || err != nil {
		t.Errorf("the end reads %d, %v; want the end of the stream", n, err)
	}
	wantRefused(t, "afterwards", await(t, askPair(t, bob, RoleServer, c.server, time.Millisecond)), RefusedAlone)
	if b.table.held != 0 {
		t.Errorf("%d ends held", b.table.held)
	}
}

// TestPairsReturned closes the agent: the clients whose servers have not asked get the ends back.
func TestPairsReturned(t *testing.T) {
	b := newBureau(t)
	alice := b.dial(t, 1, anyone)
	c := b.kernel.connect(t)
	q := askPair(t, alice, RoleClient, c.client, MaxWait)
	a := lent(t, q)
	b.Close()
	if fate := await(t, q); !fate.Returned || fate.Socket < 0 {
		t.Errorf("%+v, want the end back", fate)
	} else {
		areEnds(t, "returned", a.Socket, fate.Socket)
	}
}

// TestPairQuotas has one user ask for as many pairs as it may, and another one for one more.
func TestPairQuotas(t *testing.T) {
	b := newBureau(t)
	greedy := Identity{UID: 1001, Account: Account{User: 1001}, Limited: true}
	alice := b.dial(t, 1, anyone, greedy)
	b.table.mu.Lock()
	b.table.accounts[greedy.Account].held = maxAccountHeld - 1
	b.table.mu.Unlock()
	first, second, third := b.kernel.connect(t), b.kernel.connect(t), b.kernel.connect(t)
	q := askPair(t, alice, RoleClient, first.client, MaxWait)
	lent(t, q)
	wantRefused(t, "one too many", await(t, askPair(t, alice, RoleClient, second.client, MaxWait)), RefusedBusy)
	bob := b.dial(t, 2, anyone, Identity{UID: 1002, Account: Account{User: 1002}, Limited: true})
	lent(t, askPair(t, bob, RoleClient, third.client, MaxWait))
	q.Recall()
	if fate := await(t, q); !fate.Returned {
		t.Errorf("recalled: %+v", fate)
	}
	lent(t, askPair(t, alice, RoleClient, second.client, MaxWait))
}
