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
