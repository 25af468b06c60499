package text

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

var binaryUnits = []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}

// Bytes returns a number of bytes in binary units: 4 KiB, 1.5 GiB.
func Bytes(n int64) string {
	v, unit := float64(n), 0
	for math.Abs(v) >= 1024 && unit < len(binaryUnits)-1 {
		v /= 1024
		unit++
	}
	return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) + " " + binaryUnits[unit]
}

// A ByteSize is a number of bytes, as the value of a flag: 4096, 64KiB, 1GB. It is not negative
// unless a caller has made it so.
type ByteSize int64

// String returns the size without a space, and "0" for zero, by which pflag knows that there is no
// default to tell.
func (s *ByteSize) String() string {
	if *s == 0 {
		return "0"
	}
	return strings.ReplaceAll(Bytes(int64(*s)), " ", "")
}

// Type names the value in help texts.
func (s *ByteSize) Type() string { return "size" }

// Set takes a number and a unit: B, KiB, MiB, GiB, TiB or K, M, G, T for powers of 1024,
// and KB, MB, GB, TB for powers of 1000. The error says which; the size is unchanged then.
func (s *ByteSize) Set(text string) error {
	digits := strings.TrimRight(text, "BKMGTibkmgt ")
	unit := strings.ToLower(strings.TrimSpace(text[len(digits):]))
	factor, ok := byteUnits[unit]
	v, err := strconv.ParseFloat(digits, 64)
	if !ok || err != nil || math.IsNaN(v) || v < 0 || v*factor >= math.MaxInt64 {
		return errors.New("want a number and B, KiB, MiB, GiB, KB, MB or GB")
	}
	*s = ByteSize(v * factor)
	return nil
}

var byteUnits = map[string]float64{
	"": 1, "b": 1,
	"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
}

// Unit returns a number with its unit. Bytes are as by [Bytes]; an empty unit is none.
func Unit(v int64, unit string) string {
	switch unit {
	case "bytes":
		return Bytes(v)
	case "":
		return GroupDigits(strconv.FormatInt(v, 10))
	}
	return GroupDigits(strconv.FormatInt(v, 10)) + " " + Printable(unit)
}

// Size returns a number of bytes as it is if it is small or a power of two, else in three
// or four digits: "1100 B", "64 KiB", "1.2 MiB".
func Size(n uint64) string {
	if n < 10000 && (n < 1024 || n%1024 != 0) {
		return strconv.FormatUint(n, 10) + " B"
	}
	v := float64(n)
	for _, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v /= 1024; v < 1000 || unit == "TiB" {
			decimals := 1
			if v >= 100 || v == math.Trunc(v) {
				decimals = 0
			}
			return strconv.FormatFloat(v, 'f', decimals, 64) + " " + unit
		}
	}
	panic("text: impossible unit")
}
