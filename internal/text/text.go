// Package text has the words and numbers that tools print for people: text of other programs made
// safe for a terminal, sizes, numbers with few digits, tables, and JSON in one form.
//
// Functions do not keep what they are given, and goroutines may call them at the same time.
package text

import (
	"encoding/json"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Schema is the version of everything that --json prints. Fields may be added within a version; their
// names and meaning do not change.
const Schema = 1

// JSON prints v as one JSON object, indented, for a verb that prints one. Errors are those of
// encoding/json and of w.
func JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// JSONLine prints v as one JSON object on a line, for a verb that prints several. Errors are as for
// [JSON].
func JSONLine(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// Printable makes text from elsewhere safe for a terminal: a control character, which could
// move the cursor or change the title, becomes a question mark.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// Error is an error in one line: joined errors have a line each, and Printable would turn the end of a
// line into a question mark.
func Error(err error) string {
	return Printable(strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; "))
}

// OrNA returns s made printable, or "n/a" for an empty s.
func OrNA(s string) string {
	if s == "" {
		return "n/a"
	}
	return Printable(s)
}

// YesNo returns "Yes" or "No".
func YesNo(b bool) string {
	if b {
		return "Yes"
	}
	return "No"
}

// Process names a process as gosmc ss does: PID/COMMAND, or the command alone if pid is not
// positive. The result is printable.
func Process(pid int, command string) string {
	if pid <= 0 {
		return OrNA(command)
	}
	return strconv.Itoa(pid) + "/" + OrNA(command)
}

// Container returns the name of the container that a process of a user is in, "-" if it is in none. An
// empty user is not known.
func Container(user, name string) string {
	if user != "" && name == "" {
		return "-"
	}
	return OrNA(name)
}

// Count returns a number that not everybody knows, "n/a" for nil.
func Count(n *uint64) string {
	if n == nil {
		return "n/a"
	}
	return strconv.FormatUint(*n, 10)
}

// Number returns v with three significant digits, or all digits before the point; "n/a" for
// infinity and NaN.
func Number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "n/a"
	case a >= 100:
		return GroupDigits(strconv.FormatFloat(v, 'f', 0, 64))
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 1 || a == 0:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		// Three significant digits: one more place for each zero after the point.
		return strconv.FormatFloat(v, 'f', min(2-int(math.Floor(math.Log10(a))), 9), 64)
	}
}

// GroupDigits puts a space between groups of three digits of a whole number: 1234567 becomes
// 1 234 567.
func GroupDigits(s string) string {
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return sign + s
}
