package inspect

import (
	"os"
	"testing"
)

// The library of a package that was replaced is told from one that is there, and from a copy.
func TestPackagedAndGone(t *testing.T) {
	for line, want := range map[string]bool{
		"7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/gosmc/lib/x86_64-linux-gnu/libgosmc-run.so\n":           false,
		"7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/gosmc/lib/x86_64-linux-gnu/libgosmc-run.so (deleted)\n": true,
		"7f00-7f01 r-xp 00000000 08:01 1 /home/u/.cache/gosmc/libgosmc-0123.so (deleted)\n":               false,
		"": false,
	} {
		if got := packagedAndGone([]byte("7e00-7e01 r-xp 0 08:01 1 /bin/cat (deleted)\n" + line)); got != want {
			t.Errorf("packagedAndGone(%q) = %t, want %t", line, got, want)
		}
	}
}

// A process that was not started by 'gosmc run' is told why, and one that is not there is an error.
func TestWhyNotRun(t *testing.T) {
	if why, err := WhyNotRun(os.Getpid()); err != nil || why == "" {
		t.Errorf("WhyNotRun of this test = %q, %v", why, err)
	}
	if why, err := WhyNotRun(1 << 30); err == nil {
		t.Errorf("WhyNotRun of no process = %q", why)
	}
}

// A process is below those that have started it, and they are not below it.
func TestIsOrIsBelow(t *testing.T) {
	for _, tt := range []struct {
		pid, ancestor int
		want          bool
	}{{os.Getpid(), os.Getpid(), true}, {os.Getpid(), os.Getppid(), true}, {os.Getppid(), os.Getpid(), false}, {1 << 30, os.Getpid(), false}, {1, 0, false}} {
		if got := IsOrIsBelow(tt.pid, tt.ancestor); got != tt.want {
			t.Errorf("IsOrIsBelow(%d, %d) = %t, want %t", tt.pid, tt.ancestor, got, tt.want)
		}
	}
}
