package host

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/config"
)

// TestDisabledByEnvironment sets the environment variable as people do.
func TestDisabledByEnvironment(t *testing.T) {
	for value, want := range map[string]bool{
		"": false, "0": false, "false": false, "FALSE": false, "no": false, "No": false, "off": false, "f": false,
		"1": true, "true": true, "True": true, "TRUE": true, "yes": true, "YES": true, "on": true, "t": true,
		"maybe": true, "2": true, " ": true,
	} {
		t.Setenv(config.EnvDisabled, value)
		var log strings.Builder
		c, err := Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}.withDefaults()
		if err != nil || c.Disabled != want {
			t.Errorf("%s=%s: disabled %t, %v, want %t", config.EnvDisabled, value, c.Disabled, err, want)
		}
		strange := value == "maybe" || value == "2" || value == " "
		if told := strings.Contains(log.String(), config.EnvDisabled+"="+value); told != strange {
			t.Errorf("%s=%s: the log has %q, want a warning: %t", config.EnvDisabled, value, log.String(), strange)
		}
	}
	t.Setenv(config.EnvDisabled, "no")
	if c, err := (Config{Disabled: true}).withDefaults(); err != nil || !c.Disabled {
		t.Errorf("Disabled and %s=no: %t, %v, want what the program says", config.EnvDisabled, c.Disabled, err)
	}
}

// A host without a logger writes to standard error if the environment says so.
func TestLogsToStderr(t *testing.T) {
	for value, want := range map[string]bool{"": false, "stderr": true} {
		t.Setenv("GOSMC_LOG", value)
		c, err := Config{}.withDefaults()
		if err != nil || c.Logger.Enabled(t.Context(), slog.LevelWarn) != want {
			t.Errorf("with GOSMC_LOG=%s the logger writes: %t, %v; want %t", value, !want, err, want)
		}
	}
}

// An exception for a name that nobody has is told, and admits nobody, in the environment and in the
// program's own list.
func TestUsersUnknown(t *testing.T) {
	const typo = "!nobody-has-this-name"
	for _, own := range []bool{false, true} {
		var log strings.Builder
		c := Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}
		t.Setenv("GOSMC_USERS", typo)
		if own {
			t.Setenv("GOSMC_USERS", "any")
			c.Users = []string{typo}
		}
		c, err := c.withDefaults()
		if err != nil || c.users.Admits(4242, true) {
			t.Errorf("own list %t: admits others, %v", own, err)
		}
		if n := strings.Count(log.String(), "nobody-has-this-name"); n == 0 || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("own list %t: the log is %q, want one line with the name", own, log.String())
		}
	}
}
