package rnic

import "testing"

func TestHasWildcard(t *testing.T) {
	const head = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n"
	for _, tt := range []struct {
		table string
		want  bool
	}{
		{head, false},
		{head + " 1: 00000000:12B7 00000000:0000 07 0:0 00:0 0 0 0 1 2 0 0\n", true},
		{head + " 1: 0100007F:12B7 00000000:0000 07 0:0 00:0 0 0 0 1 2 0 0\n", false},
		{head + " 1: 00000000:12B8 00000000:0000 07 0:0 00:0 0 0 0 1 2 0 0\n", false},
		{head + " 1: 00000000000000000000000000000000:12B7 00000000000000000000000000000000:0000 07\n", true},
	} {
		if got := hasWildcard(tt.table); got != tt.want {
			t.Errorf("hasWildcard(%q) = %v", tt.table, got)
		}
	}
}
