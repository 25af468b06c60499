package terminal

import (
	"strings"
	"testing"
)

func TestProgressIsQuietWithoutTerminal(t *testing.T) {
	var b strings.Builder
	p := NewProgress(&b, false)
	p.Show("round %d", 1)
	p.Done()
	if b.String() != "" {
		t.Errorf("progress wrote %q to something that is no terminal, want nothing", b.String())
	}
}
