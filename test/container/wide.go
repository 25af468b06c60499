package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ipv6 has programs talk by IPv6, directly and through the translation of destination and source.
func (l *lab) ipv6() error {
	c, err := l.serve(portTalk, program{at: atServer, root: "empty", args: []string{"/talk", "serve", fmt.Sprintf(":%d", portTalk)}})
	if err != nil {
		return err
	}
	for _, w := range ways6(portTalk) {
		client := program{at: atClient, root: "empty", args: []string{"/talk", "from", w.host + ":" + w.port}}
		from := address6(atClient)
		if w.host != "["+address6(atServer)+"]" {
			from = router6 // as masqueraded
		}
		if err := l.moved("package smc, "+w.name+", the server sees "+from, c, job{}, client, from+"\n"); err != nil {
			return err
		}
	}
	c.delete()
	talk := program{root: "debian", args: []string{"/talk", "http", fmt.Sprintf(":%d", portNginx), "/srv"}}
	want := sum(string(pattern(bigSize)))
	for _, pair := range []struct {
		name                 string
		server               program
		serverRun, clientRun bool
	}{
		{"gosmc run at both ends", nginxServer, true, true},
		{"package smc at the client", nginxServer, true, false},
		{"package smc at the server", talk, false, true},
	} {
		pair.server.at, pair.server.run = atServer, pair.serverRun
		if c, err = l.serve(portNginx, pair.server); err != nil {
			return err
		}
		for _, w := range ways6(portNginx) {
			url := "http://" + w.host + ":" + w.port + "/big"
			client := program{at: atClient, root: "empty", args: []string{"/talk", "get", url}}
			if pair.clientRun {
				client = program{at: atClient, root: "debian", run: true, args: []string{"/usr/bin/curl", "-gsS", "--fail", url}}
			}
			if err := l.moved(pair.name+", "+w.name, c, job{check: sum}, client, want); err != nil {
				return err
			}
		}
		c.delete()
	}
	return nil
}

// withCrun has containers of another runtime, with both profiles.
func (l *lab) withCrun() error {
	l.runtime = crun
	defer func() { l.runtime = runc }()
	if err := l.library(); err != nil {
		return err
	}
	return l.compare(job{name: "curl", port: portNginx, server: nginxServer, check: sum, client: func(w way) program {
		return program{root: "debian", args: []string{"/usr/bin/curl", "-sS", "--fail",
			fmt.Sprintf("http://%s:%s/{1k,1m,empty,1k}", w.host, w.port)}}
	}})
}

// socat has each connection closed in one direction before data comes in the other. Each of the server's has a process of its own.
func (l *lab) socat() error {
	return l.compare(job{
		name: "socat", port: portSocat, check: sum,
		server: program{root: "debian", args: []string{"/usr/bin/socat", fmt.Sprintf("TCP-LISTEN:%d,fork,reuseaddr", portSocat), "EXEC:/bin/cat"}},
		client: func(w way) program {
			return program{root: "debian", args: []string{"/bin/sh", "-c", "for i in 1k big empty 1m; do " +
				"/usr/bin/socat -t 60 - TCP:" + w.host + ":" + w.port + " </srv/$i; done"}}
		},
	})
}

// nettest has one end of each connection in another container.
func (l *lab) nettest() error {
	c, err := l.serve(portRelay+1, program{at: atServer, root: "empty",
		args: []string{"/across", "relay", fmt.Sprintf(":%d", portRelay), fmt.Sprintf(":%d", portRelay+1)}})
	if err != nil {
		return err
	}
	client, err := l.start(program{at: atClient, root: "empty", args: []string{"/across", "-test.v"},
		env: []string{fmt.Sprintf("GOSMC_RELAY=%s:%d %[1]s:%d", service, portRelay, portRelay+1)}})
	if err != nil {
		return err
	}
	err = client.waitFor(longPatience)
	out := client.out.String()
	client.delete()
	c.delete()
	i := strings.Index(out, "modes")
	if err != nil || i < 0 {
		return fmt.Errorf("nettest: %v: %s", err, out)
	}
	modes, _, _ := strings.Cut(out[i:], "\n")
	fmt.Printf("  nettest in two containers: %d tests, %s\n", strings.Count(out, "--- PASS"), modes)
	if !strings.Contains(modes, "SMC-D") {
		return errors.New("no connection was moved")
	}
	return nil
}

// rangeCount is over how many ports connections are spread.
const rangeCount = 50

// ranged has clients die at every point. Each connection names itself, and none may get another's bytes.
func (l *lab) ranged() error {
	count := 1_000_000
	if l.small {
		count = 3000
	}
	server, err := l.serve(portRange, program{at: atServer, root: "empty",
		args: []string{"/talk", "range", fmt.Sprint(portRange), fmt.Sprint(rangeCount)}})
	if err != nil {
		return err
	}
	client, err := l.start(program{at: atClient, root: "empty",
		args: []string{"/talk", "visit", service, fmt.Sprint(portRange), fmt.Sprint(rangeCount), fmt.Sprint(count)}})
	if err != nil {
		return err
	}
	for end := time.Now().Add(totalTimeout); !client.ended() && !server.ended() && l.ctx.Err() == nil && time.Now().Before(end); {
		time.Sleep(pollTime)
	}
	if server.ended() {
		return fmt.Errorf("the server: %v: %s%s", server.err, server.out.String(), server.log.String())
	}
	if err := client.wait(); err != nil {
		return fmt.Errorf("the client: %w: %s%s", err, client.out.String(), client.log.String())
	}
	var made, moved, killed int
	if _, err := fmt.Sscanf(client.out.String(), "%d connections, %d moved, %d processes killed", &made, &moved, &killed); err != nil {
		return fmt.Errorf("the client prints %q: %w", client.out.String(), err)
	}
	fmt.Printf("  %d connections to %d ports, %d moved, %d clients killed\n", made, rangeCount, moved, killed)
	client.delete()
	server.delete()
	if made < count || killed < 10 || moved < made/10 { // a busy machine can be too late for many
		return fmt.Errorf("too few: want %d connections, 10 deaths, and a tenth of the connections moved", count)
	}
	return nil
}
