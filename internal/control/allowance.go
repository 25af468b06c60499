package control

import (
	"fmt"
	"io"
	"sync"
)

// An Allowance bounds the bytes of the answers of hosts, for each user and for all: users make as
// many hosts as they like, and what they like of them. The zero value is a whole one. Goroutines
// may share it.
type Allowance struct {
	mu    sync.Mutex
	spent map[int]int64
	total int64
}

// spend takes n bytes for a host that a user pays for.
func (a *Allowance) spend(payer, n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.spent == nil {
		a.spent = make(map[int]int64)
	}
	a.spent[payer] += int64(n)
	a.total += int64(n)
	switch {
	case a.spent[payer] > maxUserBytes: // rule: TestAllowance: a.spent[payer] > maxUserBytes -> false
		return fmt.Errorf("not read: the answers of user %d's programs exceed %d MiB",
			payer, maxUserBytes>>20)
	case a.total > maxBytes: // rule: TestAllowance: a.total > maxBytes -> false
		return fmt.Errorf("not read: the answers of all programs exceed %d MiB", maxBytes>>20)
	}
	return nil
}

// A paidReader reads what a user pays for.
type paidReader struct {
	io.Reader
	allowance *Allowance
	payer     int
}

func (r paidReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if spent := r.allowance.spend(r.payer, n); spent != nil {
		return 0, spent
	}
	return n, err
}
