package usage

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
)

type passingError struct{ error }

func (passingError) Transient() {}

// TestRepeat goes on after an error whose cause may pass, which it shows, and ends with another one.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, stderr strings.Builder
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetOut(&out)
		cmd.SetErr(&stderr)
		final, calls := errors.New("no disk"), 0
		err := Repeat(cmd, 3*time.Second, false, func(watched bool) error {
			if calls++; !watched {
				t.Error("the output is not said to be watched")
			}
			if calls == 3 {
				return final
			}
			fmt.Fprintln(&out, "view", calls)
			return passingError{fmt.Errorf("no\x1b place yet")}
		})
		if !errors.Is(err, final) || calls != 3 {
			t.Errorf("Repeat = %v after %d calls, want %v after 3", err, calls, final)
		}
		if got, want := stderr.String(), strings.Repeat("gosmc: no? place yet\n", 2); got != want {
			t.Errorf("standard error %q, want %q", got, want)
		}
		times := regexp.MustCompile(`(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$`)
		if got := times.FindAllString(out.String(), -1); len(got) != 3 {
			t.Errorf("%d times above views:\n%s", len(got), out.String())
		}
	})
	once := 0
	if err := Repeat(&cobra.Command{}, 0, false, func(watched bool) error { once++; return nil }); err != nil || once != 1 {
		t.Errorf("without --watch: %v, %d calls", err, once)
	}
	for _, every := range []time.Duration{-time.Second, time.Millisecond, 25 * time.Hour} {
		if err := Repeat(&cobra.Command{}, every, false, nil); err == nil {
			t.Errorf("--watch %v is accepted", every)
		}
	}
}
