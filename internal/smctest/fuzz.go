package smctest

import (
	"flag"
	"testing"
)

// fuzzMinimize bounds the executions that a fuzz target spends to make one input shorter.
const (
	fuzzMinimizeFlag = "test.fuzzminimizetime"
	fuzzMinimize     = "20x"
)

// Fuzz is f.Fuzz for targets whose inputs are long. The go command makes each input that reaches
// new code shorter, in a number of executions that grows with the square of its length, for up to a
// minute. A run of half a minute ended before its second input. -fuzzminimizetime on the command
// line counts.
func Fuzz(f *testing.F, target any) {
	f.Helper()
	if err := limitMinimizing(flag.CommandLine); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(target)
}

// limitMinimizing sets the bound unless the command line has one.
func limitMinimizing(flags *flag.FlagSet) error {
	given := false
	flags.Visit(func(x *flag.Flag) { given = given || x.Name == fuzzMinimizeFlag })
	if given {
		return nil
	}
	return flags.Set(fuzzMinimizeFlag, fuzzMinimize)
}
