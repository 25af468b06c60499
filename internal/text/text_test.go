package text

import (
	"errors"
	"math"
	"testing"
)

func TestNumber(t *testing.T) {
	for _, tt := range []struct {
		v    float64
		want string
	}{
		{0, "0.00"}, {1, "1.00"}, {1.234, "1.23"}, {-1.5, "-1.50"}, {12.34, "12.3"}, {123.4, "123"},
		{1234.5, "1 234"}, {-1234567, "-1 234 567"}, {0.5, "0.500"}, {0.01234, "0.0123"}, {0.00099, "0.000990"},
		{1e-20, "0.000000000"}, {math.Inf(1), "n/a"}, {math.NaN(), "n/a"},
	} {
		if got := Number(tt.v); got != tt.want {
			t.Errorf("Number(%v) = %q, want %q", tt.v, got, tt.want)
		}
	}
}

func TestByteSize(t *testing.T) {
	for _, tt := range []struct {
		text string
		want ByteSize
	}{
		{"0", 0}, {"1", 1}, {"4096", 4096}, {"64KiB", 64 << 10}, {"1GiB", 1 << 30}, {"1g", 1 << 30}, {"2M", 2 << 20},
		{"1GB", 1e9}, {"1.5 MiB", 3 << 19}, {"7b", 7}, {"1TiB", 1 << 40},
	} {
		var got ByteSize
		if err := got.Set(tt.text); err != nil || got != tt.want {
			t.Errorf("Set(%q) = %d, %v, want %d", tt.text, got, err, tt.want)
		}
	}
	for _, text := range []string{"", "x", "-1", "1 lightyear", "GiB", "1e30", "NaN", "1iB", "0x10", "1KiBKiB"} {
		var got ByteSize
		if err := got.Set(text); err == nil {
			t.Errorf("Set(%q) = %d, want an error", text, got)
		}
	}
	for _, tt := range []struct {
		n    int64
		want string
	}{{0, "0 B"}, {1023, "1023 B"}, {1024, "1 KiB"}, {1536, "1.5 KiB"}, {1 << 30, "1 GiB"}, {1<<62 + 1, "4096 PiB"}, {-2048, "-2 KiB"}} {
		if got := Bytes(tt.n); got != tt.want {
			t.Errorf("Bytes(%d) = %q, want %q", tt.n, got, tt.want)
		}
	}
	size := ByteSize(1 << 30)
	if got := size.String(); got != "1GiB" {
		t.Errorf("String() = %q, want 1GiB", got)
	}
}

// The name that a process of another user gives itself must not reach the terminal as it is.
func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain é 漢": "plain é 漢", "\x1b]0;title\a": "?]0;title?", "a\nb": "a?b", "\xff": "?", "\u202e": "?", "": "",
	} {
		if got := Printable(in); got != want {
			t.Errorf("Printable(%q) = %q, want %q", in, got, want)
		}
	}
}

// Several errors are one line, without characters that a terminal could take for a command.
func TestError(t *testing.T) {
	err := errors.Join(errors.New("one"), errors.Join(errors.New("two\x1b"), errors.New("three\n")))
	if got, want := Error(err), "one; two?; three"; got != want {
		t.Errorf("Error = %q, want %q", got, want)
	}
}

func TestSize(t *testing.T) {
	for _, tt := range []struct {
		n    uint64
		want string
	}{
		{0, "0 B"}, {100, "100 B"}, {1000, "1000 B"}, {1024, "1 KiB"}, {4500, "4500 B"}, {9999, "9999 B"}, {10000, "9.8 KiB"},
		{65536, "64 KiB"}, {65535, "64.0 KiB"}, {200_000, "195 KiB"}, {1 << 20, "1 MiB"}, {1<<20 + 1<<19, "1.5 MiB"}, {1 << 62, "4194304 TiB"},
	} {
		if got := Size(tt.n); got != tt.want {
			t.Errorf("Size(%d) = %q, want %q", tt.n, got, tt.want)
		}
	}
}
