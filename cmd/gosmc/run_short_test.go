package main

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hopProgram is a process that starts another one and ends, and so on. The last one stays.
const hopProgram = `
exec 3<&0
hop() {
	if [ $1 -gt 0 ]; then hop $(($1 - 1)) & exit; fi
	echo $GOSMC_RUN
	read x <&3
	echo end
}
hop 12
`

// TestRunGenerations has a supervisor stay for the last of processes that start each other and end at once, as daemons do.
func TestRunGenerations(t *testing.T) {
	environ := runEnviron(t)
	for range 6 {
		p := startTalker(t, runCommand(t, environ, "sh", "-c", hopProgram))
		socket := p.hear(t)
		pidfd, err := unix.PidfdOpen(supervisorOf(t, socket), 0)
		if err != nil {
			t.Fatal(err)
		}
		// If it overlooks the last one it does so now.
		if ended, err := readable(pidfd, 300*time.Millisecond); ended || err != nil {
			t.Errorf("the supervisor has ended: %t, %v", ended, err)
		}
		if got := p.say(t, "x"); !strings.HasPrefix(got, "end") {
			t.Errorf("the last process says %q", got)
		}
		if ended, err := readable(pidfd, killPatience); !ended {
			t.Errorf("the supervisor has not ended: %v", err)
		}
		unix.Close(pidfd)
	}
}
