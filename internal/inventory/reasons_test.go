package inventory

import "testing"

// TestCommandWord checks that no name of a program does more in a shell than be a word.
func TestCommandWord(t *testing.T) {
	for name, want := range map[string]string{
		"redis-server": "redis-server", "python3.11": "python3.11", "": "PROGRAM", "-rf": "PROGRAM", "a b": "PROGRAM",
		"';reboot;'": "PROGRAM", "$(reboot)": "PROGRAM", "a`b`": "PROGRAM", "a\nb": "PROGRAM", "a\x1b[m": "PROGRAM", "é": "PROGRAM",
		"a;b": "PROGRAM", "a$b": "PROGRAM",
	} {
		if got := CommandWord(name); got != want {
			t.Errorf("CommandWord(%q) = %q, want %q", name, got, want)
		}
	}
}
