// Package attempts keeps what one dial tries beside TCP. Package net may connect several sockets at
// once, to different addresses of a name, and use the one that is connected first.
package attempts

import (
	"net/netip"
	"sync"

	"github.com/gosmc/smc/wire/clc"
)

// A Set has the attempts of one dial, each of type A for one socket. The zero value is empty. Its
// methods may be called from several goroutines.
type Set[A any] struct {
	mu      sync.Mutex
	over    bool // it is known which socket won, or that none did
	list    []A
	reasons map[netip.AddrPort]clc.Diagnosis // by destination, where there is no attempt
}

// Over reports whether End was called. What is attempted from then on is of no use to anybody.
func (s *Set[A]) Over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// Add adds an attempt. It reports false if nobody wants to know any more: package net does not wait
// for the sockets that have lost.
func (s *Set[A]) Add(a A) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over { // rule: TestSet: s.over -> false
		return false
	}
	s.list = append(s.list, a)
	return true
}

// AddReason notes why there is no attempt for a destination.
func (s *Set[A]) AddReason(dest netip.AddrPort, reason clc.Diagnosis) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reasons == nil {
		s.reasons = make(map[netip.AddrPort]clc.Diagnosis)
	}
	s.reasons[plain(dest)] = reason
}

// Reason returns what was noted for a destination.
func (s *Set[A]) Reason(dest netip.AddrPort) (reason clc.Diagnosis, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reason, ok = s.reasons[plain(dest)]
	return reason, ok
}

// End keeps later attempts out, and returns those there are. They are the caller's.
func (s *Set[A]) End() []A {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.list
	s.over, s.list = true, nil
	return list
}

// plain is an address as sockets of both families have it, without zone.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
