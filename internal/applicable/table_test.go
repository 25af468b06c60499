package applicable

import (
	"strings"
	"testing"
)

// TestReportTable prints pairs with their obstacles below, and the order.
func TestReportTable(t *testing.T) {
	life, size := 0.001, 36.0
	r := &Report{
		Seconds: 60, Connections: 7, Table: Table{Source: "mine"}, Notes: []string{"a note"},
		Pairs: []Pair{
			{Server: "redis", Port: 6379, Client: "app", Where: "local", Connections: 2, Open: 2, BytesIn: 1024, RequestBytes: &size, Class: Few, Can: true, Gain: &Gain{Low: 2, Expected: 3.04, High: 4}, Advice: "switch it on"},
			{Port: 80, Where: "local", Connections: 4, LifetimeSeconds: &life, Class: Short, Obstacle: "a\x1b reason", Advice: "leave it"},
			{Server: "sshd", Port: 22, Class: Idle, Advice: "little"},
		},
		Order: []Step{{Server: "redis", Port: 6379, Clients: []string{"app", "b"}, Gain: 3.04, Saved: 0.5}},
	}
	const head = "7 TCP connections in 60.0 s, 3 pairs of programs; gains: mine\n" +
		"Server      Client  Where  Conns  Open      Life     In  Out  Request            Gain  Advice\n" +
		"6379 redis  app     local      2     2       n/a  1 KiB  0 B     36 B  3.0x (2.0-4.0)  switch it on\n" +
		"80 n/a      n/a     local      4     0  < 0.01 s    0 B  0 B      n/a             n/a  leave it\n        a? reason\n"
	const tail = "1. 6379 redis, for app, b: about 3.0x, 0.50 processors less\n" +
		"In this order, start server and clients by 'gosmc run', and services by 'gosmc service enable NAME'.\nNote: a note\n"
	var b strings.Builder
	if err := r.Write(&b, false); err != nil || b.String() != head+"Pairs with little traffic, which --all shows: 1\n"+tail {
		t.Errorf("%v\n%s", err, b.String())
	}
	b.Reset()
	r.Order = nil
	if err := r.Write(&b, true); err != nil || !strings.Contains(b.String(), "22 sshd") || !strings.Contains(b.String(), "No pair of programs is worth a change.\n") {
		t.Errorf("--all: %v\n%s", err, b.String())
	}
}
