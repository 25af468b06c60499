package agent

import "time"

// A pace bounds how much of the time of one goroutine the accounts have whose reports lead nowhere: a process
// with many threads in many network namespaces, which says that it asks in yet another one, takes long to
// look through. The zero value is ready. One goroutine uses it.
type pace struct{ until map[account]time.Time }

// paceShare is the part of the time that the failures of one account may take: one of so many.
const paceShare = 10

// mayGo reports whether a report of an account is looked at. One that is not is made again by the kernel.
func (p *pace) mayGo(whose account, now time.Time) bool {
	return !now.Before(p.until[whose]) // rule: TestPace: !now.Before(p.until[whose]) -> true
}

// failed notes that a report of an account has led nowhere, and how long that took.
func (p *pace) failed(whose account, took time.Duration, now time.Time) {
	if p.until == nil {
		p.until = make(map[account]time.Time)
	}
	for other, until := range p.until {
		if now.After(until) {
			delete(p.until, other)
		}
	}
	p.until[whose] = now.Add((paceShare - 1) * took)
}
