package user

import (
	"os"
	"testing"
)

func TestOurs(t *testing.T) {
	us := os.Geteuid()
	if !Ours(us) || Ours(us+1) {
		t.Errorf("we are %d: Ours(%d) = %t, Ours(%d) = %t", us, us, Ours(us), us+1, Ours(us+1))
	}
}

// TestIsWhole has maps as user_namespaces(7) shows them.
func TestIsWhole(t *testing.T) {
	for text, want := range map[string]bool{
		"         0          0 4294967295\n": true,
		"":                                   false, // not mapped yet
		"         0       1000          1\n": false,
		"         0     100000      65536\n": false,
		"         0          0      65536\n": false,
		"         0       1000          1\n         1     100000      65536\n": false,
	} {
		if got := isWhole([]byte(text)); got != want {
			t.Errorf("isWhole(%q) = %t, want %t", text, got, want)
		}
	}
}
