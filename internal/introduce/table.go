package introduce

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A waiting is a question whose other end has not asked yet.
type waiting struct {
	who    *client
	id     uint64
	role   Role
	end    end
	offer  uint8
	expiry *time.Timer
	held   int // the server's end of a pair, of which the client has the other one; -1: none. Owned
}

// A table has the questions that wait, and the quotas of accounts.
type table struct {
	mu       sync.Mutex
	byPair   map[pair]*waiting
	byClient map[*client]map[uint64]*waiting
	accounts map[Account]*account
	clients  int
	held     int // ends of pairs
	closed   bool
}

// An account counts the things that its processes use.
type account struct {
	clients int
	waiting int
	held    int          // ends of pairs
	closing atomic.Int32 // descriptors
	credit  float64      // messages that may come now
	filled  time.Time    // when credit was last reckoned
}

func newTable() *table {
	return &table{
		byPair:   make(map[pair]*waiting),
		byClient: make(map[*client]map[uint64]*waiting),
		accounts: make(map[Account]*account),
	}
}

// enter adds a process that has connected, and reports whether there is room.
func (t *table) enter(c *client) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.accounts[c.who.Account]
	if a == nil {
		t.sweepLocked()
		a = &account{credit: requestBurst, filled: time.Now()}
	}
	// rule: TestQuotas
	if t.closed || t.clients >= MaxClients || c.who.Limited && a.clients >= maxAccountClients {
		return false
	}
	a.refill()
	if c.who.Limited && (a.credit < connectCost || a.closing.Load() >= maxClosing) { // rule: TestConnectAgain
		return false
	}
	t.accounts[c.who.Account] = a
	c.account = a
	a.credit -= connectCost
	a.clients++
	t.clients++
	t.byClient[c] = make(map[uint64]*waiting)
	return true
}

// leave takes a process out, with its questions.
func (t *table) leave(c *client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.byClient[c] {
		t.dropLocked(w)
		w.close()
	}
	delete(t.byClient, c)
	t.clients--
	c.account.clients--
}

// sweepLocked forgets accounts without processes, of which there is nothing to remember.
func (t *table) sweepLocked() {
	for name, a := range t.accounts {
		if a.clients > 0 || a.closing.Load() > 0 {
			continue
		}
		if a.refill(); a.credit >= requestBurst {
			delete(t.accounts, name)
		}
	}
}

// refill reckons the credit for now.
func (a *account) refill() {
	now := time.Now()
	a.credit = min(a.credit+now.Sub(a.filled).Seconds()*requestRate, requestBurst)
	a.filled = now
}

// mayGoOn reports whether the next message of a process may be read without a pause.
func (t *table) mayGoOn(c *client) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.who.Limited && c.account.credit <= -requestBurst { // rule: TestFlood
		return false
	}
	return true
}

// spend reports whether another message of a process may be served now.
func (t *table) spend(c *client) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := c.account
	a.refill()
	a.credit = max(a.credit-1, -requestBurst)
	if c.who.Limited && a.credit < 0 { // rule: TestQuotas
		return false
	}
	return true
}

// match returns the question of the other end, if it waits, and takes it out. Otherwise the
// question waits for at most the time wait, after which expired is called. hold is called before
// it waits, unless that is nil, and says whether the question has got its descriptor.
func (t *table) match(
	w *waiting, wait time.Duration, expired func(), hold func() bool,
) (other *waiting, refused Refusal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.byClient[w.who]
	if own == nil || own[w.id] != nil { // the number is in use
		return nil, RefusedContested
	}
	if other = t.byPair[w.end.key]; other != nil {
		if other.role == w.role || other.end.cookie == w.end.cookie { // rule: TestContested
			return nil, RefusedContested
		}
		t.dropLocked(other)
		return other, 0
	}
	a := w.who.account
	// rule: TestQuotas
	if t.closed || len(t.byPair) >= maxWaiting || len(own) >= maxClientWaiting ||
		w.who.who.Limited && a.waiting >= maxAccountWaiting {
		return nil, RefusedBusy
	}
	if hold != nil {
		// rule: TestPairQuotas
		if t.held >= maxHeld || w.who.who.Limited && a.held >= maxAccountHeld || !hold() {
			return nil, RefusedBusy
		}
		a.held++
		t.held++
	}
	a.waiting++
	t.byPair[w.end.key] = w
	own[w.id] = w
	w.expiry = time.AfterFunc(min(wait, MaxWait), func() {
		t.mu.Lock()
		there := t.byPair[w.end.key] == w
		if there {
			t.dropLocked(w)
		}
		t.mu.Unlock()
		if there {
			expired()
		}
	})
	return nil, 0
}

// withdraw takes a question out, and returns it, nil if it was not there.
func (t *table) withdraw(c *client, id uint64) *waiting {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.byClient[c][id]
	if w != nil {
		t.dropLocked(w)
	}
	return w
}

// dropLocked takes a question that waits out.
func (t *table) dropLocked(w *waiting) {
	w.expiry.Stop()
	delete(t.byPair, w.end.key)
	delete(t.byClient[w.who], w.id)
	a := w.who.account
	a.waiting--
	if w.held >= 0 {
		a.held--
		t.held--
	}
}

// close closes the end that a question holds.
func (w *waiting) close() {
	if w.held >= 0 {
		unix.Close(w.held) // it was made here, so closing does not wait
		w.held = -1
	}
}

// close lets nobody in any more, and returns those who are, and the questions that hold an end,
// which it takes out.
func (t *table) close() (clients []*client, holding []*waiting) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for c, own := range t.byClient {
		clients = append(clients, c)
		for _, w := range own {
			if w.held >= 0 {
				holding = append(holding, w)
			}
		}
	}
	for _, w := range holding {
		t.dropLocked(w)
	}
	return clients, holding
}

// counts returns how many processes are connected, and how many questions wait.
func (t *table) counts() (clients, waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.clients, len(t.byPair)
}
