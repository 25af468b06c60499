package introduce

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
)

func askEither(t testing.TB, c *Client, role Role, f *os.File, wait time.Duration) *Question {
	t.Helper()
	q, err := c.AskEither(role, f.Fd(), wait)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// waits waits until so many connections have questions at the agent.
func (b *bureau) waits(t testing.TB, count int) {
	t.Helper()
	smctest.Eventually(t, patience, "the questions", func() bool { return b.Status().Waiting == count })
}

// hearsReady waits until the agent knows of a client that its program has its end.
func (b *bureau) hearsReady(t testing.TB) {
	t.Helper()
	smctest.Eventually(t, patience, "the client's word", func() bool {
		b.table.mu.Lock()
		defer b.table.mu.Unlock()
		for _, w := range b.table.byPair {
			if w.ready {
				return true
			}
		}
		return false
	})
}

// holdsNothing checks that no question and no end is left at the agent.
func (b *bureau) holdsNothing(t testing.TB) {
	t.Helper()
	b.waits(t, 0)
	smctest.Eventually(t, patience, "no ends at the agent", func() bool {
		b.table.mu.Lock()
		defer b.table.mu.Unlock()
		for _, a := range b.table.accounts {
			if a.held != 0 || a.waiting != 0 || a.given != 0 {
				return false
			}
		}
		return b.table.held == 0 && len(b.table.given) == 0
	})
}

// TestEither has one end or both take either a peering or a pair, in both orders: two of them, and one
// with a device, have a peering; with a pair the client has its end as soon as both have asked, and no
// sooner.
func TestEither(t *testing.T) {
	b := newBureau(t)
	alice, bob := b.dial(t, 1, anyone, Identity{UID: 1001}), b.dial(t, 2, anyone, Identity{UID: 1002})
	ask := map[uint8]func(c *Client, role Role, f *os.File) *Question{
		offerDevice: func(c *Client, role Role, f *os.File) *Question { return ask(t, c, role, f) },
		offerPair:   func(c *Client, role Role, f *os.File) *Question { return askPair(t, c, role, f, MaxWait) },
		offerEither: func(c *Client, role Role, f *os.File) *Question { return askEither(t, c, role, f, MaxWait) },
	}
	for _, offers := range [][2]uint8{
		{offerEither, offerEither}, {offerEither, offerDevice}, {offerDevice, offerEither},
		{offerEither, offerPair}, {offerPair, offerEither},
	} {
		for _, serverFirst := range []bool{false, true} {
			c := b.kernel.connect(t)
			var q, asks *Question
			if serverFirst {
				asks = ask[offers[1]](bob, RoleServer, c.server)
				b.waits(t, 1)
				q = ask[offers[0]](alice, RoleClient, c.client)
			} else {
				q = ask[offers[0]](alice, RoleClient, c.client)
				b.waits(t, 1)
				if offers[0] == offerEither && (b.held() != 0 || len(q.answer) != 0) {
					t.Errorf("offers %v: a client that waits has %d answers, %d ends held", offers, len(q.answer), b.held())
				}
				asks = ask[offers[1]](bob, RoleServer, c.server)
			}
			if offers[0] != offerPair && offers[1] != offerPair {
				for _, a := range []Answer{await(t, q), await(t, asks)} {
					if a.Socket < 0 || a.Pair || a.Lent || a.GID.IsZero() {
						t.Errorf("offers %v: %+v, want a device", offers, a)
					}
				}
				continue
			}
			a := lent(t, q)
			if next := await(t, q); !next.Wanted {
				t.Errorf("offers %v: the client hears %+v, want that its server waits", offers, next)
			}
			if len(asks.answer) != 0 {
				t.Errorf("offers %v: the server hears something before the client has its end", offers)
			}
			if !q.Ready() {
				t.Error("the agent does not hear that the client has its end")
			}
			o := await(t, asks)
			if o.Socket < 0 || !o.Pair || o.Memory >= 0 || o.UID != 1001 {
				t.Fatalf("offers %v: the server hears %+v, want its end", offers, o)
			}
			asks.Took()
			wantTaken(t, q)
			areEnds(t, "from the client", a.Socket, o.Socket)
			areEnds(t, "from the server", o.Socket, a.Socket)
		}
	}
	b.holdsNothing(t)
}

// TestEitherReady has a client of a pair whose program has its end before the server asks, which would take a
// peering, too.
func TestEitherReady(t *testing.T) {
	b := newBureau(t)
	alice, bob := b.dial(t, 1, anyone), b.dial(t, 2, anyone)
	c := b.kernel.connect(t)
	q := askPair(t, alice, RoleClient, c.client, MaxWait)
	a := lent(t, q)
	q.Ready()
	asks := askEither(t, bob, RoleServer, c.server, MaxWait)
	o := await(t, asks)
	if o.Socket < 0 || !o.Pair {
		t.Fatalf("the server hears %+v, want its end", o)
	}
	asks.Took()
	wantTaken(t, q)
	areEnds(t, "from the client", a.Socket, o.Socket)
	b.holdsNothing(t)
}

// TestEitherRefused has everything come between a client that would take a peering or a pair and a server
// that wants a pair: both are told, and nothing stays at the agent.
func TestEitherRefused(t *testing.T) {
	b := newBureau(t)
	greedy := Identity{UID: 1001, Account: Account{User: 1001}, Limited: true}
	alice := b.dial(t, 1, anyone, greedy)
	bob := b.dial(t, 2, anyone, Identity{UID: 1002, Account: Account{User: 1002}, Limited: true})
	quota := func(set func(a *account)) {
		b.table.mu.Lock()
		defer b.table.mu.Unlock()
		set(b.table.accounts[greedy.Account])
	}
	for _, serverFirst := range []bool{false, true} {
		c := b.kernel.connect(t)
		quota(func(a *account) { a.held = maxAccountHeld })
		var q, asks *Question
		if serverFirst {
			asks = askPair(t, bob, RoleServer, c.server, MaxWait)
			b.waits(t, 1)
			q = askEither(t, alice, RoleClient, c.client, MaxWait)
		} else {
			q = askEither(t, alice, RoleClient, c.client, MaxWait)
			b.waits(t, 1)
			asks = askPair(t, bob, RoleServer, c.server, MaxWait)
		}
		wantRefused(t, "the client with too many ends", await(t, q), RefusedBusy)
		wantRefused(t, "its server", await(t, asks), RefusedBusy)
		quota(func(a *account) { a.held = 0 })
	}
	for _, tt := range []struct {
		name   string
		end    func(c connection, q, asks *Question)
		client Refusal
		server Refusal
	}{
		{"too late", func(connection, *Question, *Question) {}, RefusedAlone, RefusedAlone},
		{"recalled", func(_ connection, q, _ *Question) { q.Recall() }, RefusedAlone, RefusedAlone},
		{"no server any more", func(c connection, _, asks *Question) {
			asks.Withdraw()
			bob.Decline(RoleServer, c.server.Fd(), time.Second)
		}, RefusedDeclined, 0},
	} {
		c := b.kernel.connect(t)
		q := askEither(t, alice, RoleClient, c.client, 500*time.Millisecond)
		b.waits(t, 1)
		asks := askPair(t, bob, RoleServer, c.server, MaxWait)
		lent(t, q)
		tt.end(c, q, asks)
		if fate := fateOf(t, q); !fate.Returned || fate.Socket < 0 || fate.Reason != tt.client {
			t.Errorf("%s: the client hears %+v, want its server's end: %v", tt.name, fate, tt.client)
		}
		if tt.server != 0 {
			wantRefused(t, tt.name, await(t, asks), tt.server)
		}
	}
	c := b.kernel.connect(t)
	bob.Decline(RoleServer, c.server.Fd(), MaxWait)
	b.waits(t, 1)
	wantRefused(t, "declined", await(t, askEither(t, alice, RoleClient, c.client, MaxWait)), RefusedDeclined)
	b.apart = false
	for _, offers := range []bool{true, false} { // of the server: a pair, or either
		c := b.kernel.connect(t)
		q := askEither(t, alice, RoleClient, c.client, MaxWait)
		b.waits(t, 1)
		if !offers {
			if o := await(t, askEither(t, bob, RoleServer, c.server, MaxWait)); o.Socket < 0 || o.Pair {
				t.Errorf("where the kernel keeps no descriptors out: %+v, want a device", o)
			}
			await(t, q)
			continue
		}
		wantRefused(t, "the server", await(t, askPair(t, bob, RoleServer, c.server, MaxWait)), RefusedUsers)
		wantRefused(t, "the client", await(t, q), RefusedUsers)
	}
	b.holdsNothing(t)
}

// TestEitherEnds has the client's conversation end when it has been lent its end: the server is told.
func TestEitherEnds(t *testing.T) {
	b := newBureau(t)
	alice, bob := b.dial(t, 1, anyone), b.dial(t, 2, anyone)
	c := b.kernel.connect(t)
	q := askEither(t, alice, RoleClient, c.client, MaxWait)
	b.waits(t, 1)
	asks := askPair(t, bob, RoleServer, c.server, MaxWait)
	lent(t, q)
	alice.Close()
	wantRefused(t, "the server", await(t, asks), RefusedAlone)
	if q.Ready() {
		t.Error("the agent hears of an end without a conversation")
	}
	b.holdsNothing(t)
}

// TestEitherWithdrawn has a server that would take either wait no more when its answer comes: the end of a
// pair goes back to its client, and the socket of a peering is closed.
func TestEitherWithdrawn(t *testing.T) {
	b := newBureau(t)
	alice, bob := b.dial(t, 1, anyone), b.dial(t, 2, anyone)
	for _, pair := range []bool{true, false} {
		for _, late := range []bool{false, true} {
			c := b.kernel.connect(t)
			var q *Question
			if pair {
				q = askPair(t, alice, RoleClient, c.client, MaxWait)
				lent(t, q)
				q.Ready()
				b.hearsReady(t)
			} else {
				q = askEither(t, alice, RoleClient, c.client, MaxWait)
				b.waits(t, 1)
			}
			b.kernel.mu.Lock() // the agent answers when it may ask
			asks := askEither(t, bob, RoleServer, c.server, MaxWait)
			if late {
				asks.Withdraw()
			}
			b.kernel.mu.Unlock()
			if !late {
				smctest.Eventually(t, patience, "the answer", func() bool { return len(asks.answer) == 1 })
				asks.Withdraw()
			}
			fate := fateOf(t, q)
			if fate.Returned != pair || fate.Socket < 0 {
				t.Errorf("pair %v, late %v: the client hears %+v", pair, late, fate)
			}
			smctest.Eventually(t, patience, "the answers", func() bool {
				bob.mu.Lock()
				defer bob.mu.Unlock()
				return len(bob.asked) == 0
			})
		}
	}
	b.holdsNothing(t)
}

// TestEitherOldAgent has an agent that does not say that it knows of either: it is asked for a device.
func TestEitherOldAgent(t *testing.T) {
	b := newBureau(t)
	alice, bob := b.dial(t, 1, anyone), b.dial(t, 2, anyone)
	alice.welcome.Either = false
	c := b.kernel.connect(t)
	q := askEither(t, alice, RoleClient, c.client, MaxWait)
	wantRefused(t, "a pair", await(t, askPair(t, bob, RoleServer, c.server, MaxWait)), RefusedDeclined)
	wantRefused(t, "an old agent's client", await(t, q), RefusedDeclined)
	c = b.kernel.connect(t)
	q = askEither(t, alice, RoleClient, c.client, MaxWait)
	if o := await(t, askEither(t, bob, RoleServer, c.server, MaxWait)); o.Socket < 0 || o.Pair {
		t.Errorf("a newer server: %+v, want a device", o)
	}
	await(t, q)
	q, err := alice.ask(RoleClient, offerEither+1, c.client.Fd(), MaxWait, false)
	if err != nil {
		t.Fatal(err)
	}
	wantRefused(t, "an offer that this agent does not know", await(t, q), RefusedOffer)
}

// TestEitherBroke has a server whose user has asked too often, and which would take either: as with a
// server that wants a pair, a client that waits has paid for both.
func TestEitherBroke(t *testing.T) {
	b := newBureau(t)
	alice := b.dial(t, 1, anyone)
	poor := Identity{UID: 1001, Account: Account{User: 1001}, Limited: true}
	bob := b.dial(t, 2, anyone, poor)
	b.table.mu.Lock()
	b.table.accounts[poor.Account].credit = -requestBurst / 2 // more than comes back in the test's time
	b.table.mu.Unlock()
	first, second := b.kernel.connect(t), b.kernel.connect(t)
	q := askPair(t, alice, RoleClient, first.client, MaxWait)
	a := lent(t, q)
	q.Ready()
	asks := askEither(t, bob, RoleServer, first.server, MaxWait)
	o := await(t, asks)
	if o.Socket < 0 || !o.Pair {
		t.Fatalf("the server hears %+v, want its end", o)
	}
	asks.Took()
	wantTaken(t, q)
	areEnds(t, "from the client", a.Socket, o.Socket)
	wantRefused(t, "before the client", await(t, askEither(t, bob, RoleServer, second.server, MaxWait)), RefusedBusy)
	wantRefused(t, "the client", await(t, askEither(t, alice, RoleClient, second.client, MaxWait)), RefusedDeclined)
}

// TestEitherClosed closes the agent when it has lent an end to a client that would have taken a peering,
// too: it gets the other one back, and the server is told.
func TestEitherClosed(t *testing.T) {
	b := newBureau(t)
	alice, bob := b.dial(t, 1, anyone), b.dial(t, 2, anyone)
	c := b.kernel.connect(t)
	q := askEither(t, alice, RoleClient, c.client, MaxWait)
	b.waits(t, 1)
	asks := askPair(t, bob, RoleServer, c.server, MaxWait)
	a := lent(t, q)
	b.Close()
	if fate := fateOf(t, q); !fate.Returned || fate.Socket < 0 {
		t.Errorf("the client of an agent that is closed hears %+v, want the end back", fate)
	} else {
		areEnds(t, "returned", a.Socket, fate.Socket)
	}
	if o := await(t, asks); o.Socket >= 0 {
		t.Errorf("its server hears %+v", o)
	}
	if _, err := alice.AskEither(RoleClient, c.client.Fd(), MaxWait); err == nil || errors.Is(err, errCongested) {
		t.Errorf("an agent that is closed is asked: %v", err)
	}
}
