package inventory

import (
	"math"
	"os"
	"testing"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/survey"
)

// TestTallied adds up the numbers of supervisors for an end. Strangers are not heard, and bytes that a program may have moved
// which counts nothing are not known.
func TestTallied(t *testing.T) {
	me := uint32(os.Geteuid())
	stranger := me + 1000
	host := func(uid uint32, list ...control.StatusTally) control.Status {
		return control.Status{UID: uid, Tallies: list}
	}
	one := control.StatusTally{Cookie: 5, In: 10, Out: 20}
	given, taken := one, one
	given.Lent, taken.Lent = 1, -1
	huge := control.StatusTally{Cookie: 5, In: math.MaxUint64, Out: 1}
	for _, tt := range []struct {
		name    string
		pid     int
		hosts   []control.Status
		in, out uint64
		known   bool
	}{
		{"none", os.Getpid(), nil, 0, 0, false},
		{"of another end", os.Getpid(), []control.Status{host(me, control.StatusTally{Cookie: 6, In: 1})}, 0, 0, false},
		{"one", os.Getpid(), []control.Status{host(me, one)}, 10, 20, true},
		{"nothing yet", os.Getpid(), []control.Status{host(me, control.StatusTally{Cookie: 5})}, 0, 0, true},
		{"two", os.Getpid(), []control.Status{host(me, one), host(me, control.StatusTally{Cookie: 5, In: 1, Out: 2})}, 11, 22, true},
		{"root's", os.Getpid(), []control.Status{host(0, one)}, 10, 20, true},
		{"a stranger's", os.Getpid(), []control.Status{host(stranger, one)}, 0, 0, false},
		{"a stranger's, too", os.Getpid(), []control.Status{host(stranger, huge), host(me, one)}, 10, 20, true},
		{"of a process that has gone", math.MaxInt32, []control.Status{host(stranger, one)}, 0, 0, false},
		{"lent", os.Getpid(), []control.Status{host(me, given)}, 0, 0, false},
		{"lent and found", os.Getpid(), []control.Status{host(me, given), host(me, taken)}, 20, 40, true},
		{"found alone", os.Getpid(), []control.Status{host(me, taken)}, 0, 0, false},
		{"too many", os.Getpid(), []control.Status{host(me, huge), host(me, one)}, math.MaxUint64, 21, true},
	} {
		r := New(&survey.Answers{Hosts: tt.hosts}, true, false)
		in, out := r.tallies.bytes(&inspect.Connection{Cookie: 5, PID: tt.pid})
		if (in != nil) != tt.known || (out != nil) != tt.known {
			t.Errorf("%s: bytes are known: %v, %v; want %v", tt.name, in != nil, out != nil, tt.known)
			continue
		}
		if tt.known && (*in != tt.in || *out != tt.out) {
			t.Errorf("%s: %d and %d bytes, want %d and %d", tt.name, *in, *out, tt.in, tt.out)
		}
	}
}
