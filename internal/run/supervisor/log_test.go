package supervisor

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/smctest"
)

func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){"supervisor-warn": childWarn})
}

// childWarn warns, and says what came to its standard error.
func childWarn(p *smctest.Parent) {
	r, w, err := os.Pipe()
	p.Check(err)
	p.Check(unix.Dup3(int(w.Fd()), 2, 0))
	logWarning("slow")
	b := make([]byte, 64)
	n, err := r.Read(b)
	p.Check(err)
	p.Say("warned %q", b[:n])
}

// With GOSMC_LOG=stderr warnings go to standard error, as in containers, which have no system log.
func TestLogWarning(t *testing.T) {
	t.Setenv(config.EnvLog, "stderr")
	if got, want := smctest.Start(t, "supervisor-warn").Hear("warned"), `"gosmc: slow\n"`; got != want {
		t.Errorf("standard error has %s, want %s", got, want)
	}
}
