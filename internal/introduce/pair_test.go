package introduce

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
)

func askPair(t testing.TB, c *Client, role Role, f *os.File, wait time.Duration) *Question {
	t.Helper()
	q, err := c.AskPair(role, f.Fd(), wait, false)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// fateOf waits for the fate of the end that the agent has. The word of a server that waits may come
// before, if it was faster than the client's.
func fateOf(t testing.TB, q *Question) Answer {
	t.Helper()
	a := await(t, q)
	if a.Wanted {
		a = await(t, q)
	}
	return a
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
			q.Ready()
			asks := askPair(t, bob, RoleServer, c.server, MaxWait)
			o = await(t, asks)
			asks.Took()
			wantTaken(t, q)
			var early [6]byte
			if n, err := unix.Read(o.Socket, early[:]); err != nil || string(early[:n]) != "early " {
				t.Errorf("the server reads %q, %v", early[:n], err)
			}
		} else {
			asks := askPair(t, bob, RoleServer, c.server, MaxWait)
			smctest.Eventually(t, patience, "the server's question", func() bool { return b.Status().Waiting == 1 })
			q := askPair(t, alice, RoleClient, c.client, MaxWait)
			a = lent(t, q)
			if next := await(t, q); !next.Wanted {
				t.Errorf("the client hears %+v, want that its server waits", next)
			}
			select {
			case o := <-asks.Answer():
				t.Errorf("the server hears %+v before the client has its end", o)
			default:
			}
			q.Ready()
			o = await(t, asks)
			asks.Took()
			wantTaken(t, q)
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
		q.Ready()
		tt.end(c, q)
		fate := fateOf(t, q)
		if !fate.Returned || fate.Socket < 0 || fate.Reason != tt.want {
			t.Fatalf("%s: %+v, want the end back: %v", tt.name, fate, tt.want)
		}
		areEnds(t, tt.name, a.Socket, fate.Socket)
	}
	c := b.kernel.connect(t)
	bob.Decline(RoleServer, c.server.Fd(), MaxWait)
	smctest.Eventually(t, patience, "the server's word", func() bool { return b.Status().Waiting == 1 })
	wantRefused(t, "declined before", await(t, askPair(t, alice, RoleClient, c.client, MaxWait)), RefusedDeclined)
	if n := b.Status(); n.Introduced != 2 || n.Waiting != 0 || b.held() != 0 {
		t.Errorf("status %+v, %d ends held", n, b.held())
	}
}

// TestPairsEnd has a client's conversation end before its server asks: the end that the agent has
// is closed, unless the client's program has the other one. Then the server gets it, or it is closed
// with its time.
func TestPairsEnd(t *testing.T) {
	b := newBureau(t)
	bob := b.dial(t, 2, anyone)
	for _, tt := range []struct {
		name         string
		ready, taken bool
	}{{"not ready", false, false}, {"ready", true, true}, {"too late", true, false}} {
		alice := b.dial(t, 1, anyone)
		c := b.kernel.connect(t)
		wait := MaxWait
		if !tt.taken {
			wait = 50 * time.Millisecond
		}
		q := askPair(t, alice, RoleClient, c.client, wait)
		a := lent(t, q)
		if tt.ready {
			q.Ready()
		}
		alice.Close()
		smctest.Eventually(t, patience, tt.name+": the client to leave", func() bool { return b.Status().Clients == 1 })
		if tt.taken {
			asks := askPair(t, bob, RoleServer, c.server, MaxWait)
			o := await(t, asks)
			if o.Socket < 0 {
				t.Fatalf("%s: %+v, want the end", tt.name, o)
			}
			asks.Took()
			areEnds(t, tt.name, a.Socket, o.Socket)
			continue
		}
		var buf [1]byte
		tv := unix.NsecToTimeval(patience.Nanoseconds())
		unix.SetsockoptTimeval(a.Socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
		if n, err := unix.Read(a.Socket, buf[:]); n != 0 || err != nil {
			t.Errorf("%s: the end reads %d, %v; want the end of the stream", tt.name, n, err)
		}
		wantRefused(t, tt.name, await(t, askPair(t, bob, RoleServer, c.server, time.Millisecond)), RefusedAlone)
	}
	if n := b.held(); n != 0 {
		t.Errorf("%d ends held", n)
	}
}

// wantTaken waits for the client to hear that its server has the other end.
func wantTaken(t testing.TB, q *Question) {
	t.Helper()
	if fate := fateOf(t, q); !fate.Taken {
		t.Errorf("the client hears %+v, want that its server has the other end", fate)
	}
}

// TestPairsGivenBack has a server that cannot use its end: the client gets it back, unless it is
// another descriptor. A server that ends has used it.
func TestPairsGivenBack(t *testing.T) {
	b := newBureau(t)
	alice := b.dial(t, 1, anyone)
	other := b.kernel.connect(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, tt := range []struct {
		name string
		end  func(bob *Client, asks *Question, o Answer)
		back bool
	}{
		{"given back", func(_ *Client, asks *Question, o Answer) { asks.GiveBack(o.Socket) }, true},
		{"another socket", func(_ *Client, asks *Question, _ Answer) { asks.GiveBack(int(other.client.Fd())) }, false},
		{"no socket", func(_ *Client, asks *Question, _ Answer) { asks.GiveBack(int(null.Fd())) }, false},
		{"the server ends", func(bob *Client, _ *Question, _ Answer) { bob.Close() }, false},
	} {
		bob := b.dial(t, 2, anyone)
		c := b.kernel.connect(t)
		q := askPair(t, alice, RoleClient, c.client, MaxWait)
		a := lent(t, q)
		q.Ready()
		asks := askPair(t, bob, RoleServer, c.server, MaxWait)
		o := await(t, asks)
		tt.end(bob, asks, o)
		if !tt.back {
			wantTaken(t, q)
			continue
		}
		fate := fateOf(t, q)
		if !fate.Returned || fate.Socket < 0 || fate.Reason != RefusedGivenBack {
			t.Fatalf("%s: %+v, want the end", tt.name, fate)
		}
		areEnds(t, tt.name, a.Socket, fate.Socket)
	}
	b.table.mu.Lock()
	defer b.table.mu.Unlock()
	if len(b.table.given) != 0 || b.table.held != 0 {
		t.Errorf("%d servers have ends, %d ends held", len(b.table.given), b.table.held)
	}
}

// TestPairsBroke has a server whose user has asked too often: it gets its end if the client waits,
// and a client that asks later is told.
func TestPairsBroke(t *testing.T) {
	b := newBureau(t)
	alice := b.dial(t, 1, anyone)
	poor := Identity{UID: 1001, Account: Account{User: 1001}, Limited: true}
	bob := b.dial(t, 2, anyone, poor)
	b.table.mu.Lock()
	b.table.accounts[poor.Account].credit = -requestBurst / 2 // more than comes back in the test's time
	b.table.mu.Unlock()
	first, second := b.kernel.connect(t), b.kernel.connect(t)
	q := askPair(t, alice, RoleClient, first.client, MaxWait)
	lent(t, q)
	q.Ready()
	asks := askPair(t, bob, RoleServer, first.server, MaxWait)
	if o := await(t, asks); o.Socket < 0 {
		t.Errorf("the server hears %+v, want its end", o)
	}
	asks.Took()
	wantTaken(t, q)
	wantRefused(t, "before the client", await(t, askPair(t, bob, RoleServer, second.server, MaxWait)), RefusedBusy)
	wantRefused(t, "the client", await(t, askPair(t, alice, RoleClient, second.client, MaxWait)), RefusedDeclined)
}

// TestPairsReturned closes the agent: the clients whose servers have not asked get the ends back,
// and the others hear that their servers have them.
func TestPairsReturned(t *testing.T) {
	b := newBureau(t)
	alice := b.dial(t, 1, anyone)
	c := b.kernel.connect(t)
	q := askPair(t, alice, RoleClient, c.client, MaxWait)
	a := lent(t, q)
	other := b.kernel.connect(t)
	had := askPair(t, alice, RoleClient, other.client, MaxWait)
	lent(t, had)
	had.Ready()
	await(t, askPair(t, b.dial(t, 2, anyone), RoleServer, other.server, MaxWait))
	smctest.Eventually(t, patience, "the agent to have handed the end over", func() bool {
		b.table.mu.Lock()
		defer b.table.mu.Unlock()
		for _, given := range b.table.given {
			for _, w := range given {
				return !w.handing
			}
		}
		return false
	})
	b.Close()
	wantTaken(t, had)
	if fate := fateOf(t, q); !fate.Returned || fate.Socket < 0 {
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
	if fate := fateOf(t, q); !fate.Returned {
		t.Errorf("recalled: %+v", fate)
	}
	lent(t, askPair(t, alice, RoleClient, second.client, MaxWait))

	b.table.mu.Lock()
	b.table.accounts[greedy.Account].given = maxAccountWaiting // of its servers, which do not say that they have them
	b.table.mu.Unlock()
	fourth := b.kernel.connect(t)
	q = askPair(t, bob, RoleClient, fourth.client, MaxWait)
	lent(t, q)
	q.Ready()
	wantRefused(t, "a server with too many", await(t, askPair(t, alice, RoleServer, fourth.server, MaxWait)), RefusedBusy)
	if fate := fateOf(t, q); !fate.Returned {
		t.Errorf("its client: %+v", fate)
	}
}

// TestWithdrawnPair has both programs' supervisors wait no more when the answers come, before or after
// they are read: the client gets the end back that the server was given, and no descriptor is left.
func TestWithdrawnPair(t *testing.T) {
	b := newBureau(t)
	alice, bob := b.dial(t, 1, anyone), b.dial(t, 2, anyone)
	for _, late := range []bool{false, true} {
		c := b.kernel.connect(t)
		q := askPair(t, alice, RoleClient, c.client, MaxWait)
		a := lent(t, q)
		q.Ready()
		b.hearsReady(t)
		b.kernel.mu.Lock() // the agent answers when it may ask
		asks := askPair(t, bob, RoleServer, c.server, MaxWait)
		if late {
			asks.Withdraw()
		}
		b.kernel.mu.Unlock()
		if !late {
			smctest.Eventually(t, patience, "the answer", func() bool { return len(asks.answer) == 1 })
			asks.Withdraw()
		}
		fate := fateOf(t, q)
		if !fate.Returned || fate.Socket < 0 {
			t.Fatalf("late %v: %+v, want the end back", late, fate)
		}
		areEnds(t, "returned", a.Socket, fate.Socket)
	}
	c := b.kernel.connect(t)
	q := askPair(t, alice, RoleClient, c.client, MaxWait)
	smctest.Eventually(t, patience, "the end", func() bool { return len(q.answer) == 1 })
	bob.Decline(RoleServer, c.server.Fd(), MaxWait)
	smctest.Eventually(t, patience, "the end that comes back", func() bool { return len(q.answer) == 2 })
	ends := []Answer{<-q.answer, <-q.answer}
	for _, a := range ends {
		q.answer <- a
	}
	q.Withdraw()
	for _, a := range ends {
		smctest.Eventually(t, patience, "the end to be closed", func() bool {
			_, err := unix.FcntlInt(uintptr(a.Socket), unix.F_GETFD, 0)
			return err == unix.EBADF
		})
	}
}

// TestPairsApart has a client and a server of two accounts: neither can send the other one a descriptor,
// whose close might take as long as it likes. Two of one account can, once the server has its end. Where
// the kernel cannot keep descriptors out there are no pairs between accounts.
func TestPairsApart(t *testing.T) {
	if !passRights() {
		t.Skip("needs Linux 6.16: SO_PASSRIGHTS")
	}
	passes := func(what string, from int, want bool) {
		t.Helper()
		err := unix.Sendmsg(from, []byte{1}, unix.UnixRights(from), nil, unix.MSG_DONTWAIT)
		if got := err == nil; got != want || !got && err != unix.EPERM {
			t.Errorf("%s: a descriptor passes: %v, %v; want %v", what, got, err, want)
		}
	}
	for _, able := range []bool{true, false} {
		b := newBureau(t)
		b.apart = able
		alice := b.dial(t, 1, anyone, Identity{UID: 1001, Account: Account{User: 1001}})
		for _, user := range []uint32{1001, 1002} {
			bob := b.dial(t, 2, anyone, Identity{UID: user, Account: Account{User: user}})
			c := b.kernel.connect(t)
			q := askPair(t, alice, RoleClient, c.client, MaxWait)
			a := lent(t, q)
			passes("before the server", a.Socket, !able)
			q.Ready()
			asks := askPair(t, bob, RoleServer, c.server, MaxWait)
			o := await(t, asks)
			if user != 1001 && !able {
				if fate := fateOf(t, q); o.Reason != RefusedUsers || !fate.Returned {
					t.Errorf("without the kernel: server %+v, client %+v, want other users", o, fate)
				}
				continue
			}
			if o.Socket < 0 {
				t.Fatalf("the server hears %+v, want its end", o)
			}
			asks.Took()
			wantTaken(t, q)
			passes("from the client", a.Socket, user == 1001)
			passes("from the server", o.Socket, user == 1001)
			unix.Close(a.Socket)
			var buf [8]byte
			tv := unix.NsecToTimeval(patience.Nanoseconds())
			unix.SetsockoptTimeval(o.Socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
			n, err := unix.Read(o.Socket, buf[:])
			for n > 0 || err == unix.EINTR { // the bytes of the descriptors
				n, err = unix.Read(o.Socket, buf[:])
			}
			if err != nil && err != unix.ECONNRESET { // for that which the client has not read
				t.Errorf("the server reads %d, %v, want the end of the stream", n, err)
			}
		}
	}
}

// memoryOf returns the memory of rings that has come with an answer: its inode, 0 for none.
func memoryOf(t testing.TB, what string, a Answer) uint64 {
	t.Helper()
	if a.Memory < 0 {
		return 0
	}
	defer unix.Close(a.Memory)
	var st unix.Stat_t
	if err := unix.Fstat(a.Memory, &st); err != nil || st.Size != memoryBytes {
		t.Errorf("%s: memory of %d bytes, %v; want %d", what, st.Size, err, memoryBytes)
	}
	for _, size := range []int64{0, memoryBytes + 4096} {
		if err := unix.Ftruncate(a.Memory, size); err != unix.EPERM {
			t.Errorf("%s: the memory can be made %d bytes long: %v", what, size, err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(a.Memory), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != unix.EPERM {
		t.Errorf("%s: the memory can be sealed: %v", what, err)
	}
	return st.Ino
}

// TestPairsMemoryStrict has memory with all its pages where the kernel overcommits nothing, and elsewhere
// without any.
func TestPairsMemoryStrict(t *testing.T) {
	for _, strict := range []bool{false, true} {
		fd, err := newMemory(strict)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Fatal(err)
		}
		const block = 512
		if has, want := st.Blocks*block, map[bool]int64{true: memoryBytes}[strict]; st.Size != memoryBytes || has != want {
			t.Errorf("strict %t: %d of %d bytes have pages, want %d", strict, has, st.Size, want)
		}
	}
}

// TestPairsMemory has programs get the memory of rings with their ends: the client if it asks for
// that, and the server if it asks, too, and is of another account. Nothing of it stays at the agent.
func TestPairsMemory(t *testing.T) {
	if !passRights() {
		t.Skip("needs Linux 6.16: SO_PASSRIGHTS")
	}
	b := newBureau(t)
	alice := b.dial(t, 1, anyone, Identity{UID: 1001, Account: Account{User: 1001}})
	for _, tt := range []struct {
		name                   string
		user                   uint32
		client, server, shared bool
	}{
		{"two users", 1002, true, true, true},
		{"one user", 1001, true, true, false},
		{"a client without rings", 1002, false, true, false},
		{"a server without rings", 1002, true, false, false},
	} {
		bob := b.dial(t, 2, anyone, Identity{UID: tt.user, Account: Account{User: tt.user}})
		c := b.kernel.connect(t)
		q, err := alice.AskPair(RoleClient, c.client.Fd(), MaxWait, tt.client)
		if err != nil {
			t.Fatal(err)
		}
		at := memoryOf(t, tt.name, lent(t, q))
		if (at != 0) != tt.client {
			t.Errorf("%s: the client's memory is %d", tt.name, at)
		}
		q.Ready()
		asks, err := bob.AskPair(RoleServer, c.server.Fd(), MaxWait, tt.server)
		if err != nil {
			t.Fatal(err)
		}
		o := await(t, asks)
		if o.Socket < 0 {
			t.Fatalf("%s: the server hears %+v, want its end", tt.name, o)
		}
		if to := memoryOf(t, tt.name, o); (to != 0) != tt.shared || tt.shared && to != at {
			t.Errorf("%s: memory of the client %d, of the server %d", tt.name, at, to)
		}
		asks.Took()
		wantTaken(t, q)
	}
	c := b.kernel.connect(t) // and of a client whose server does not ask
	q, err := alice.AskPair(RoleClient, c.client.Fd(), 10*time.Millisecond, true)
	if err != nil {
		t.Fatal(err)
	}
	memoryOf(t, "alone", lent(t, q))
	if fate := fateOf(t, q); !fate.Returned || fate.Memory >= 0 {
		t.Errorf("alone: %+v, want the end back", fate)
	}
	smctest.Eventually(t, patience, "no memory at the agent", func() bool { return ownMemory(t) == 0 })
}

// ownMemory counts the descriptors of this process that are memory of rings.
func ownMemory(t testing.TB) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if to, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.HasPrefix(to, "/memfd:gosmc-rings") {
			n++
		}
	}
	return n
}
