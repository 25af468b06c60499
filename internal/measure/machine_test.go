package measure

import "testing"

func TestMachine(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"processor\t: 0\nmodel name\t: AMD EPYC 9\nflags\t: a b\n", "AMD EPYC 9"},
		{"processor : 0\nBogoMIPS : 50\nModel : Board 4\n", "Board 4"},
		{"", ""},
	} {
		if got := cpuModel(tt.in); got != tt.want {
			t.Errorf("cpuModel(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
	for _, tt := range []struct{ in, want string }{{"max 100000", ""}, {"150000 100000", "1.5"}, {"", ""}, {"x y", ""}, {"1 0", ""}} {
		if got := cpuQuota(tt.in); got != tt.want {
			t.Errorf("cpuQuota(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
	if m := ReadMachine(); m.Kernel == "" || m.CPUs < 1 || m.GOMAXPROCS < 1 || m.Go == "" || m.Commit == "" || m.Caches == nil {
		t.Errorf("ReadMachine() = %+v, want at least kernel, CPUs and Go", m)
	}
}
