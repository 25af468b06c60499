package attempts

import (
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/gosmc/smc/wire/clc"
)

// TestSet adds attempts from several goroutines while the set is ended: each is either among those that End returns or was not taken.
func TestSet(t *testing.T) {
	for range 100 {
		var s Set[int]
		var wg sync.WaitGroup
		var mu sync.Mutex
		var taken []int
		for i := range 8 {
			wg.Go(func() {
				if s.Add(i) {
					mu.Lock()
					taken = append(taken, i)
					mu.Unlock()
				}
			})
		}
		ended := s.End()
		wg.Wait()
		slices.Sort(taken)
		slices.Sort(ended)
		if !slices.Equal(taken, ended) {
			t.Fatalf("End = %v, but Add has taken %v", ended, taken)
		}
		if !s.Over() || s.Add(9) || len(s.End()) != 0 {
			t.Fatal("a set that was ended takes attempts")
		}
	}
}

func TestReasons(t *testing.T) {
	var s Set[int]
	if got, ok := s.Reason(netip.MustParseAddrPort("127.0.0.1:1")); ok {
		t.Errorf("Reason of nothing = %v", got)
	}
	s.AddReason(netip.MustParseAddrPort("[::ffff:127.0.0.1]:1"), clc.DiagStale)
	s.AddReason(netip.MustParseAddrPort("[fe80::1%lo]:2"), clc.DiagForeign)
	for _, tt := range []struct {
		dest string
		want clc.Diagnosis
		ok   bool
	}{
		{"127.0.0.1:1", clc.DiagStale, true},
		{"[fe80::1]:2", clc.DiagForeign, true},
		{"127.0.0.1:2", clc.DiagNone, false},
	} {
		if got, ok := s.Reason(netip.MustParseAddrPort(tt.dest)); got != tt.want || ok != tt.ok {
			t.Errorf("Reason(%v) = %v, %v, want %v, %v", tt.dest, got, ok, tt.want, tt.ok)
		}
	}
}
