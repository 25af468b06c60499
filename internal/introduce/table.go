package introduce

import (
	"sync"
	"sync/atomic"
	"time"
)

// A waiting is a question whose other end has not asked yet.
type waiting struct {
	who    *client
	id     uint64
	role   Role
	end    end
	offer  uint8 // offerPair, too, once the other end's question has made it that
	expiry *time.Timer
	rings  bool  // the process takes the memory of rings
	held   int   // the server's end of a pair, of which the client has the other one; -1: none. Owned
	theirs int   // a copy of that one, until the server's account is known; -1: none. Owned
	memory int   // of rings, which the client has, too; -1: none. Owned
	safe   *safe // with a copy of held; nil: none. Of the goroutine that has taken the question out

	// These are about pairs, and guarded by the table's lock.
	cookie  uint64   // of the server's end
	ready   bool     // the client's program has its end
	dropped bool     // it waits no more
	handing bool     // the server is about to get the end
	other   *waiting // of the same connection, while both wait for that; the client is in byPair
}

// isClientOfPair reports whether a question is one for a pair, of which the client's program has to have
// its end before the server gets the other one.
func (w *waiting) isClientOfPair() bool { return w.offer == offerPair && w.role == RoleClient }

// A table has the questions that wait, and the quotas of accounts.
type table struct {
	mu       sync.Mutex
	byPair   map[pair]*waiting
	byClient map[*client]map[uint64]*waiting
	given    map[*client]map[uint64]*waiting // by the servers that have their ends, but not their programs
	accounts map[Account]*account
	clients  int
	held     int // ends of pairs
	closed   bool
	rules    rules
}

// rules are called with the table's lock, except for expired. They do not wait.
type rules interface {
	fit(a, b *waiting) Refusal // why two questions do not go together
	unkeep(client *waiting)    // throws the copy of its end away
	lend(client *waiting) bool // makes a pair for a client, who gets its end, and keeps the other one
	want(client *waiting)      // tells a client that its server waits
	expired(w *waiting)        // the question has waited in vain, and was taken out
}

// An account counts the things that its processes use.
type account struct {
	clients int
	waiting int
	held    int          // ends of pairs
	given   int          // ends of pairs that its servers have, but not their programs
	closing atomic.Int32 // descriptors
	credit  float64      // messages that may come now
	filled  time.Time    // when credit was last reckoned
}

func newTable(r rules) *table {
	return &table{
		rules:    r,
		byPair:   make(map[pair]*waiting),
		byClient: make(map[*client]map[uint64]*waiting),
		given:    make(map[*client]map[uint64]*waiting),
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

// leave takes a process out, with its questions. The end of a pair stays until its time is over if
// the client's program has the other one: bytes may be in it. The caller refuses the questions of
// servers that are left, and tells the clients that are taken that their server has the other end,
// as nobody else can say so any more.
func (t *table) leave(c *client) (left, taken []*waiting) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.byClient[c] {
		if w.held >= 0 && w.ready && !t.closed { // rule: TestPairsEnd
			continue
		}
		if w.isClientOfPair() && w.other != nil {
			left = append(left, w.other)
		}
		t.dropLocked(w)
		w.close()
	}
	for id, w := range t.given[c] {
		if !w.handing {
			t.settleLocked(c, id)
			taken = append(taken, w)
		}
	}
	delete(t.byClient, c)
	t.clients--
	c.account.clients--
	return left, taken
}

// unkeep throws the copies of the ends of a process away, whose conversation is about to end: nobody could be
// given them back.
func (t *table) unkeep(c *client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.byClient[c] {
		t.rules.unkeep(w)
	}
}

// sweepLocked forgets accounts without processes, of which there is nothing to remember.
func (t *table) sweepLocked() {
	for name, a := range t.accounts {
		if a.clients > 0 || a.waiting > 0 || a.closing.Load() > 0 {
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

// match returns the question of the other end, if it waits, and takes it out, also if the two are
// refused. Otherwise, or if the client's program has not got its end yet, the question waits for at
// most the time wait. One that is broke waits for nobody: a client that asks later is told.
func (t *table) match(w *waiting, wait time.Duration, broke bool) (other *waiting, refused Refusal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.byClient[w.who]
	if own == nil || own[w.id] != nil { // the number is in use
		return nil, RefusedContested
	}
	if other = t.byPair[w.end.key]; other != nil {
		if other.role == w.role || other.end.cookie == w.end.cookie || other.other != nil { // rule: TestContested
			return nil, RefusedContested
		}
		refused = t.rules.fit(w, other)
		switch {
		case refused != 0 || common(w.offer, other.offer) != offerPair:
		case other.isClientOfPair() && other.ready:
			w.offer = offerPair
			if !t.giveLocked(other, w) {
				refused = RefusedBusy
			}
		default:
			if refused = t.joinLocked(w, other, wait); refused == 0 {
				return nil, 0
			}
		}
		t.dropLocked(other)
		return other, refused
	}
	if broke {
		w.offer = offerNone
		t.enterLocked(w, MaxWait)
		return nil, RefusedBusy
	}
	return nil, t.enterLocked(w, wait)
}

// joinLocked has a question for a pair wait, together with the one of the other end, until the client's
// program has its end. A client that would have taken a peering gets that end only now.
func (t *table) joinLocked(w, other *waiting, wait time.Duration) Refusal {
	late := other.role == RoleClient && other.offer == offerEither
	w.offer, other.offer = offerPair, offerPair
	if late {
		if refused := t.lendLocked(other); refused != 0 {
			return refused
		}
	}
	if refused := t.enterLocked(w, wait); refused != 0 {
		return refused
	}
	client := other
	if w.isClientOfPair() {
		client = w
	}
	t.byPair[w.end.key] = client
	w.other, other.other = other, w
	t.rules.want(client)
	return 0
}

// lendLocked makes a pair for a client, who gets its end.
func (t *table) lendLocked(client *waiting) Refusal {
	a := client.who.account
	// rule: TestPairQuotas
	if t.held >= maxHeld || client.who.who.Limited && a.held >= maxAccountHeld || !t.rules.lend(client) {
		return RefusedBusy
	}
	a.held++
	t.held++
	return 0
}

// enterLocked has a question wait.
func (t *table) enterLocked(w *waiting, wait time.Duration) Refusal {
	a, own := w.who.account, t.byClient[w.who]
	// rule: TestQuotas
	if t.closed || len(t.byPair) >= maxWaiting || len(own) >= maxClientWaiting ||
		w.who.who.Limited && a.waiting >= maxAccountWaiting {
		return RefusedBusy
	}
	if w.isClientOfPair() {
		if refused := t.lendLocked(w); refused != 0 {
			return refused
		}
	}
	a.waiting++
	t.byPair[w.end.key] = w
	own[w.id] = w
	w.expiry = time.AfterFunc(min(wait, MaxWait), func() {
		t.mu.Lock()
		there := !w.dropped
		if there {
			t.dropLocked(w)
		}
		t.mu.Unlock()
		if there {
			t.rules.expired(w)
		}
	})
	return 0
}

// ready notes that a client's program has its end of a pair. If the server waits for that, both
// questions are returned, and taken out. It reports whether there was such a client.
func (t *table) ready(c *client, id uint64) (client, server *waiting, refused Refusal, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.byClient[c][id]
	if w == nil || !w.isClientOfPair() || w.ready {
		return nil, nil, 0, false
	}
	w.ready = true
	if server = w.other; server == nil {
		return nil, nil, 0, true
	}
	if !t.giveLocked(w, server) {
		refused = RefusedBusy
	}
	t.dropLocked(w)
	return w, server, refused, true
}

// giveLocked notes that a server gets its end of a pair, of which its program does not know yet. It
// reports false if it has too many.
func (t *table) giveLocked(client, server *waiting) bool {
	a := server.who.account
	if server.who.who.Limited && a.given >= maxAccountWaiting { // rule: TestPairQuotas
		return false
	}
	own := t.given[server.who]
	if own == nil {
		own = make(map[uint64]*waiting)
		t.given[server.who] = own
	}
	if own[server.id] != nil {
		return false
	}
	a.given++
	own[server.id] = client
	client.handing = true
	return true
}

// handed notes that a server has got its end, or could not be told. It returns the client's
// question if the server has nothing to say about it any more.
func (t *table) handed(client, server *waiting, got bool) *waiting {
	t.mu.Lock()
	defer t.mu.Unlock()
	client.handing = false
	if got && t.byClient[server.who] != nil {
		return nil
	}
	return t.settleLocked(server.who, server.id)
}

// settle returns the client's question whose server has told of its end. nil: there is none.
func (t *table) settle(c *client, id uint64) *waiting {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.settleLocked(c, id)
}

func (t *table) settleLocked(c *client, id uint64) *waiting {
	w := t.given[c][id]
	if w == nil {
		return nil
	}
	c.account.given--
	delete(t.given[c], id)
	if len(t.given[c]) == 0 {
		delete(t.given, c)
	}
	return w
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

// dropLocked takes a question that waits out, and that of a server which waits for it.
func (t *table) dropLocked(w *waiting) {
	w.expiry.Stop()
	w.dropped = true
	delete(t.byClient[w.who], w.id)
	a := w.who.account
	a.waiting--
	if w.held >= 0 {
		a.held--
		t.held--
	}
	if w.other != nil && w.role == RoleServer { // the client's question is in byPair
		w.other.other, w.other = nil, nil
		return
	}
	delete(t.byPair, w.end.key)
	if server := w.other; server != nil {
		server.other = nil // the client's question still has it, for those who answer both
		server.expiry.Stop()
		server.dropped = true
		delete(t.byClient[server.who], server.id)
		server.who.account.waiting--
	}
}

// close closes the ends that a question holds.
func (w *waiting) close() {
	w.closeTheirs()
	w.closeMemory()
	if w.held >= 0 {
		w.who.line.discard(w.held) // with descriptors in it, perhaps, that nobody has read
		w.held = -1
	}
}

// close lets nobody in any more, and returns those who are, the questions that hold an end, which
// it takes out, and those whose servers have it.
func (t *table) close() (clients []*client, holding, taken []*waiting) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for c := range t.byClient {
		clients = append(clients, c)
	}
	for _, w := range t.byPair {
		if w.held >= 0 {
			holding = append(holding, w)
		}
	}
	for _, w := range holding {
		t.dropLocked(w)
	}
	for c, given := range t.given {
		for id, w := range given {
			if !w.handing {
				t.settleLocked(c, id)
				taken = append(taken, w)
			}
		}
	}
	return clients, holding, taken
}

// counts returns how many processes are connected, and how many questions wait.
func (t *table) counts() (clients, waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.clients, len(t.byPair)
}
