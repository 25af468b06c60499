package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// programs is the table, in the order in which they are tried. The versions are fixed, so that a
// difference is ours.
var programs = []*program{loaders, inherited, redcon, nats}

// Sources that several programs use.
var (
	heySource  = source{pkg: "github.com/rakyll/hey", version: "v0.1.5"}
	natsSource = source{pkg: "github.com/nats-io/nats-server/v2", version: "v2.15.3"}
	webSource  = source{client: "web.go.txt"}
)

// hey sends HTTP requests by the load generator of that name, over 10 connections, and notes the
// statuses that it has counted.
func (l *lab) hey(what, url string, n int, more ...string) {
	args := append([]string{"-n", fmt.Sprint(n), "-c", "10"}, more...)
	out := l.client("hey", append(args, url)...)
	l.result(what, heyStatuses(out))
}

var (
	heyStatus = regexp.MustCompile(`(?m)^\s+\[(\d+)\]\s+(\d+) responses$`)
	heyErrors = regexp.MustCompile(`(?s)Error distribution:.*`)
)

// heyStatuses returns the statuses and errors in the output of hey, with their numbers.
func heyStatuses(out string) string {
	var list []string
	for _, m := range heyStatus.FindAllStringSubmatch(out, -1) {
		list = append(list, m[1]+": "+m[2])
	}
	return strings.Join(append(list, heyErrors.FindAllString(out, -1)...), ", ")
}

var loaders = &program{
	name: "loaders", what: "hey and vegeta against a server of package net/http",
	sources: map[string]source{
		"hey": heySource, "web": webSource,
		"vegeta": {pkg: "github.com/tsenart/vegeta/v12", version: "v12.13.0"},
	},
	small: true, share: 1, least: 20,
	run: func(l *lab) {
		port := l.port()
		url := fmt.Sprintf("http://127.0.0.1:%d/", port)
		l.serve([]int{port}, "web", fmt.Sprintf("127.0.0.1:%d", port))
		l.hey("hey", url+"100", 5000)
		l.hey("hey, 100 kB", url+"100000", 1000)
		l.hey("hey, posts", url+"7", 1000, "-m", "POST", "-D", l.file("body", strings.Repeat("body ", 20000)))
		results := l.dir + "/results"
		attack := l.command("vegeta", "attack", "-rate", "500", "-duration", "2s", "-output", results)
		attack.Stdin = strings.NewReader("GET " + url + "1000\n")
		l.finish(attack)
		var r struct {
			Requests int
			BytesIn  struct{ Total int } `json:"bytes_in"`
			Statuses map[string]int      `json:"status_codes"`
		}
		l.must(json.Unmarshal([]byte(l.client("vegeta", "report", "-type", "json", results)), &r))
		// On a busy machine it sends fewer than it is told to.
		good := r.Requests > 0 && r.Statuses["200"] == r.Requests && r.BytesIn.Total == 1000*r.Requests
		l.result("vegeta has all answers", good)
	},
}

// A process that inherits a listener accepts over TCP, beside its parent, which accepts over SMC.
// The client cannot know which of them it will meet, so some of the connections that the parent
// accepts stay TCP.
var inherited = &program{
	name: "inherited", what: "a server of package net/http beside a process that has its listener, with hey",
	sources: map[string]source{"hey": heySource, "web": webSource},
	small:   true, share: 0.8, least: 5,
	run: func(l *lab) {
		port := l.port()
		l.serve([]int{port}, "web", fmt.Sprintf("127.0.0.1:%d", port), "with an heir")
		l.hey("short", fmt.Sprintf("http://127.0.0.1:%d/1000", port), 200, "-disable-keepalive")
		l.hey("kept", fmt.Sprintf("http://127.0.0.1:%d/1000", port), 500)
	},
}

var redcon = &program{
	name: "redcon", what: "a server of package redcon, with redis-benchmark and redis-cli under gosmc run",
	sources: map[string]source{
		"redcon-server": {pkg: "github.com/tidwall/redcon", version: "v1.6.4", client: "redcon.go.txt"},
	},
	needs: []string{"redis-benchmark", "redis-cli"},
	small: true, share: 1, least: 50,
	run: func(l *lab) {
		port := fmt.Sprint(l.port())
		l.serve([]int{number(port)}, "redcon-server", "127.0.0.1:"+port)
		for _, args := range []string{
			"-t set,get -n 20000 -c 20",
			"-t set,get -n 50000 -c 10 -P 16",
			"-t set -n 2000 -c 5 -d 20000",
		} {
			all := append([]string{"-p", port, "--csv"}, strings.Fields(args)...)
			out := l.client("redis-benchmark", all...)
			l.result(args, regexp.MustCompile(`(?m)^"[A-Z]+"`).FindAllString(out, -1))
		}
		l.client("redis-cli", "-p", port, "set", "large", strings.Repeat("0123456789", 10000))
		l.result("a value", l.client("redis-cli", "-p", port, "get", "large"))
		l.result("no value", l.client("redis-cli", "-p", port, "get", "none"))
	},
}

var nats = &program{
	name: "nats", what: "nats-server with messages and requests, and hey at its monitoring port",
	sources: map[string]source{
		"nats-server": natsSource, "hey": heySource,
		"nats-client": {pkg: "github.com/nats-io/nats.go", version: "v1.55.0", client: "nats.go.txt"},
	},
	small: true, share: 1, least: 16,
	run: func(l *lab) {
		port, monitor := l.port(), l.port()
		l.serve([]int{port, monitor}, "nats-server", "-a", "127.0.0.1", "-p", fmt.Sprint(port),
			"-m", fmt.Sprint(monitor), "-js", "-sd", l.dir)
		l.result("client", l.client("nats-client", fmt.Sprintf("nats://127.0.0.1:%d", port)))
		l.hey("monitoring", fmt.Sprintf("http://127.0.0.1:%d/varz", monitor), 2000)
	},
}

// number returns the value of a decimal text.
func number(text string) (n int) {
	fmt.Sscan(text, &n)
	return n
}
