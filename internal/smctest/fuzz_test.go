package smctest

import (
	"flag"
	"testing"
)

func TestLimitMinimizing(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, fuzzMinimize},
		{[]string{"-" + fuzzMinimizeFlag, "7x"}, "7x"},
	} {
		flags := flag.NewFlagSet("", flag.ContinueOnError)
		flags.String(fuzzMinimizeFlag, "60s", "")
		if err := flags.Parse(tt.args); err != nil {
			t.Fatal(err)
		}
		if err := limitMinimizing(flags); err != nil {
			t.Fatal(err)
		}
		if got := flags.Lookup(fuzzMinimizeFlag).Value.String(); got != tt.want {
			t.Errorf("limitMinimizing with %q: %s, want %s", tt.args, got, tt.want)
		}
	}
	if flag.Lookup(fuzzMinimizeFlag) == nil {
		t.Errorf("package testing has no flag %s", fuzzMinimizeFlag)
	}
}
