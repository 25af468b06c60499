package main

import "time"

// shrinkTime is the time that making a script smaller may take.
const shrinkTime = 90 * time.Second

// shrink leaves steps of a script out as long as it fails. fails is asked about each attempt.
func shrink(s *script, fails func(*script) bool) *script {
	until := time.Now().Add(shrinkTime)
	for size := (len(s.steps) + 1) / 2; size > 0; {
		smaller := false
		for from := 0; from < len(s.steps) && time.Now().Before(until); {
			t := s.without(from, min(from+size, len(s.steps)))
			if len(t.steps) > 0 && fails(t) {
				s, smaller = t, true
			} else {
				from += size
			}
		}
		if time.Now().After(until) {
			break
		}
		if size > 1 {
			size = (size + 1) / 2
			if size == 1 || smaller {
				continue
			}
		} else if !smaller {
			break
		}
	}
	return s
}
