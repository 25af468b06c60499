package main

import (
	_ "embed"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

//go:embed pytests.py
var pytests string

// pythonModules are the modules of Python's own tests that make connections or start processes. The
// modules of a line share a process.
var pythonModules = []string{
	"test.test_socket", "test.test_ssl", "test.test_socketserver", "test.test_subprocess",
	"test.test_selectors test.test_select test.test_poll test.test_epoll",
	"test.test_asyncio.test_base_events test.test_asyncio.test_buffered_proto test.test_asyncio.test_events test.test_asyncio.test_protocols " +
		"test.test_asyncio.test_selector_events test.test_asyncio.test_sendfile test.test_asyncio.test_server test.test_asyncio.test_sock_lowlevel",
	"test.test_asyncio.test_ssl test.test_asyncio.test_sslproto test.test_asyncio.test_streams test.test_asyncio.test_subprocess " +
		"test.test_asyncio.test_threads test.test_asyncio.test_transports test.test_asyncio.test_unix_events",
	"test.test_asyncore test.test_asynchat test.test_ftplib test.test_poplib test.test_smtplib",
	"test.test_httplib test.test_httpservers test.test_urllib2_localnet",
}

// pythonDiffers has tests that fail under 'gosmc run' and not bare, with the reason: docs/run.md
// has them as differences to TCP. None does.
var pythonDiffers = map[string]string{}

var python = &program{
	name: "python", what: "Python's own tests: socket, ssl, selectors, epoll, socketserver, subprocess, asyncio, and those of protocols",
	packages: []string{"python3", "^libpython3.[0-9]+-testsuite$"}, // its name has the version, by which apt-get finds it
	needs:    []string{"/usr/bin/python3", "/usr/lib/python3.*/test/test_socket.py"},
	timeout:  15 * time.Minute,
	slow:     true,
	run: func(l *lab) {
		script := l.file("pytests.py", pytests)
		seen := make(map[string]bool)
		for _, module := range pythonModules {
			file := filepath.Join(l.dir, "results.json")
			os.Remove(file)
			cmd := l.command("/usr/bin/python3", append([]string{script, file}, strings.Fields(module)...)...)
			var messages strings.Builder
			cmd.Stdout, cmd.Stderr = &messages, &messages
			cmd.Env = append(cmd.Env, "TMPDIR="+l.dir, "HOME="+l.dir)
			runErr := cmd.Run()
			text, err := os.ReadFile(file)
			if err != nil {
				l.note("%s", lastOf(messages.String(), 1500))
				l.failf("%s: %v%s", module, runErr, l.late())
			}
			var results map[string]string
			l.must(json.Unmarshal(text, &results))
			var failed []string
			for name, outcome := range results {
				if l.way.moves() && outcome == "failed" && pythonDiffers[name] != "" {
					seen[name] = true
					outcome = "ok"
				}
				if outcome == "failed" {
					failed = append(failed, name)
				}
				l.result(name, outcome)
			}
			if len(failed) > 0 {
				slices.Sort(failed)
				l.note("%s: failed: %s", module, strings.Join(failed, ", "))
				os.Stderr.WriteString(messages.String())
			}
			if len(results) == 0 {
				l.failf("%s: no test", module)
			}
		}
		for name := range pythonDiffers {
			if l.way.moves() && !seen[name] {
				l.note("%s passes: take it from the list", name)
			}
		}
	},
}
