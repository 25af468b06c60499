package program

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// OneShotNGINX is ab without keep-alive to nginx, 8 requests at a time. perSecond is some number of
// requests that takes about a second.
func OneShotNGINX(perSecond int) *Work {
	return &Work{
		needs: []string{"nginx", "ab"}, packages: "nginx-light apache2-utils", short: true,
		run: func(l *lab, _ string) (r Result, err error) {
			port, err := l.nginx(oneShotBytes)
			if err != nil {
				return r, err
			}
			return l.ab(port, perSecond)
		},
	}
}

// OneShotApache is the same to apache2 with workers of another user, which only root can start.
func OneShotApache(perSecond int) *Work {
	return &Work{
		needs: []string{"apache2", "ab"}, packages: "apache2 apache2-utils", short: true,
		run: func(l *lab, _ string) (r Result, err error) {
			if os.Geteuid() != 0 {
				return r, errors.New("only root can start workers of another user")
			}
			port, err := l.apache()
			if err != nil {
				return r, err
			}
			return l.ab(port, perSecond)
		},
	}
}

// oneShotBytes is the size of an answer.
const oneShotBytes = 2000

// apache starts one that has the file of [lab.www], and returns its port.
func (l *lab) apache() (port int, err error) {
	if port, err = freePort(); err != nil {
		return 0, err
	}
	root, err := l.www(oneShotBytes)
	if err != nil {
		return 0, err
	}
	conf := filepath.Join(l.dir, "apache2.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, `ServerRoot %[1]s
ServerName localhost
PidFile %[1]s/pid
DefaultRuntimeDir %[1]s
ErrorLog %[1]s/error.log
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
Listen %[2]s:%[3]d
User #%[4]d
Group #%[4]d
DocumentRoot %[5]s
`, l.dir, l.place.listen(), port, nobody, root), 0o644); err != nil {
		return 0, err
	}
	return port, l.serve(port, l.command("apache2", "-d", l.dir, "-f", conf, "-D", "FOREGROUND"))
}

var (
	abComplete = regexp.MustCompile(`(?m)^Complete requests: +(\d+)$`)
	abTime     = regexp.MustCompile(`(?m)^Time taken for tests: +([0-9.]+) seconds$`)
	abFailed   = regexp.MustCompile(`(?m)^(Failed requests: +[1-9]|Non-2xx responses:)`)
)

// ab measures requests for the file, each by a connection of its own, after a run from which clients
// learn that these are short. The measured one lasts longer, so that what a program costs that starts
// counts for little. Both together use less than half of the ports that a client has for one server.
func (l *lab) ab(port, perSecond int) (r Result, err error) {
	url := fmt.Sprintf("http://%s:%d/file", l.place.connect(), port)
	for _, n := range []int{perSecond, 2 * l.scale(perSecond)} {
		a, err := l.measure(l.command("ab", "-q", "-c", "8", "-n", strconv.Itoa(n), url))
		if err != nil {
			return r, err
		}
		done, took := abComplete.FindStringSubmatch(a.output), abTime.FindStringSubmatch(a.output)
		if done == nil || took == nil || abFailed.MatchString(a.output) {
			return r, fmt.Errorf("ab: %w: %s", errOutput, a.output)
		}
		ops, _ := strconv.ParseFloat(done[1], 64)
		seconds, _ := strconv.ParseFloat(took[1], 64)
		if r, err = a.result(ops, seconds); err != nil {
			return r, err
		}
	}
	return r, l.checkHosts()
}

// hosts returns how many connections the servers' hosts have moved, supervisors and Go programs.
func (l *lab) hosts() (moved int, err error) {
	out, runErr := l.bare(l.home.gosmc, "stats", "--json", "--dir", l.rundirs()[0]).Output()
	var stats struct {
		Hosts []struct {
			Counters struct{ Connections map[string]int }
		}
	}
	if err := json.Unmarshal(out, &stats); err != nil {
		return 0, fmt.Errorf("gosmc stats: %w: %w", err, runErr)
	}
	for _, h := range stats.Hosts {
		for mode, n := range h.Counters.Connections {
			if !strings.HasPrefix(mode, "TCP") {
				moved += n
			}
		}
	}
	return moved, nil
}

// checkHosts returns an error if connections were moved that should not have been, or none where some
// should.
func (l *lab) checkHosts() error {
	moved, err := l.hosts()
	if err == nil && (moved > 0) != (l.under || l.smc) {
		err = fmt.Errorf("%d connections were moved", moved)
	}
	return err
}
