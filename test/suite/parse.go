package main

import (
	"fmt"
	"regexp"
	"strings"
)

var tapNone = regexp.MustCompile(`(?im)^1\.\.0 # *skip`)

var tapLine = regexp.MustCompile(`^(not )?ok (\d+)(?: -? ?(.*?))?(?:\s*# *((?i:skip|todo)).*)?$`)

// tap parses the Test Anything Protocol. Tests are known by their names, or by their numbers where
// names depend on the run.
func tap(byName bool) func(string) map[string]string {
	return func(output string) map[string]string {
		results := make(map[string]string)
		if tapNone.MatchString(output) {
			results["all"] = "skip"
		}
		for line := range strings.Lines(output) {
			m := tapLine.FindStringSubmatch(strings.TrimSpace(line))
			if m == nil {
				continue
			}
			name := m[2]
			if byName {
				name = m[3]
			}
			switch {
			case m[4] != "":
				results[name] = strings.ToLower(m[4])
			case m[1] != "":
				results[name] = "failed"
			default:
				results[name] = "ok"
			}
		}
		return results
	}
}

var (
	tinyBegins = regexp.MustCompile(`^([a-z][\w+]*/[\w/+]+): (.*)$`)
	tinyFails  = regexp.MustCompile(`^  \[\S+ FAILED\]$`)
)

// tiny parses the output of tinytest, libevent's runner: a name, perhaps messages, and OK.
func tiny(output string) map[string]string {
	results := make(map[string]string)
	test := ""
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\r\n")
		if m := tinyBegins.FindStringSubmatch(line); m != nil {
			test = m[1]
			results[test] = "began"
		}
		if test == "" {
			continue
		}
		switch {
		case strings.HasSuffix(line, "OK"):
			results[test] = "ok"
		case strings.HasSuffix(line, "SKIPPED"), strings.HasSuffix(line, "DISABLED"):
			results[test] = "skip"
		case tinyFails.MatchString(line):
			results[test] = "failed"
		}
	}
	return results
}

var (
	colours   = regexp.MustCompile(`\x1b\[[0-9;]*m`)
	redisLine = regexp.MustCompile(`^\[(ok|err|exception|ignore|skip|timeout)\]: (.*?)(?: \(\d+ ms\))?$`)
	redisFile = regexp.MustCompile(` in tests/\S+$`)
)

// redisResults parses the output of redis's test_helper.tcl. Some tests of a file have one name.
func redisResults(output string) map[string]string {
	results := make(map[string]string)
	for line := range strings.Lines(colours.ReplaceAllString(output, "")) {
		m := redisLine.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if m == nil {
			continue
		}
		name := redisFile.ReplaceAllString(m[2], "")
		for i := 2; results[name] != ""; i++ {
			name = fmt.Sprintf("%s #%d", redisFile.ReplaceAllString(m[2], ""), i)
		}
		results[name] = m[1]
	}
	return results
}

var abtsLine = regexp.MustCompile(`^(test\w*)\s*:\s+.*?(SUCCESS|FAILED (\d+) of (\d+))`)

// abts parses the output of APR's testall -v: a line for each file of tests.
func abts(output string) map[string]string {
	results := make(map[string]string)
	for line := range strings.Lines(output) {
		if m := abtsLine.FindStringSubmatch(line); m != nil {
			results[m[1]] = strings.ToLower(m[2])
			if m[2] == "SUCCESS" {
				results[m[1]] = "ok"
			}
		}
	}
	return results
}
