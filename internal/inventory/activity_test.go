package inventory

import (
	"testing"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/wire/clc"
)

// conn is one end; in and out are counted unless in is negative.
func conn(pid int, command, role, local, peer, mode string, in, out int) Conn {
	c := Conn{StatusConn: control.StatusConn{Role: role, Local: local, Peer: peer, Mode: mode, PeerCommand: "other"}, PID: pid, Command: command}
	if in >= 0 {
		i, o := uint64(in), uint64(out)
		c.BytesIn, c.BytesOut = &i, &o
	}
	if mode == "TCP" {
		c.ReasonCode = control.ReasonCode(clc.DiagPeerNoSMC)
	}
	return c
}

func sampleAt(second int64, counters control.StatusCounters, list ...Conn) *Sample {
	s := NewSample(&survey.Answers{Hosts: []control.Status{{PID: 1, Counters: counters}}}, list)
	s.Time = time.Unix(second, 0)
	return s
}

// TestActivities compares two samples that are ten seconds apart.
func TestActivities(t *testing.T) {
	const a, b, c, d = "127.0.0.1:80", "127.0.0.1:4000", "127.0.0.1:4001", "127.0.0.1:4002"
	before := sampleAt(100, control.StatusCounters{BuffersFull: 5, Sleeps: 100},
		conn(1, "web", "server", a, b, "SMC-D", 1000, 2000), conn(2, "curl", "client", b, a, "SMC-D", 2000, 1000),
		conn(1, "web", "server", a, c, "TCP", 50, 50))
	after := sampleAt(110, control.StatusCounters{BuffersFull: 25, Sleeps: 90},
		conn(1, "web", "server", a, b, "SMC-D", 1500, 3000), conn(2, "curl", "client", b, a, "SMC-D", 3000, 1500),
		conn(1, "web", "server", a, c, "TCP", 40, 60), // less than before: not believed
		conn(1, "web", "server", a, d, "SMC-D", 100, 0), conn(3, "redis-cli", "client", "127.0.0.1:5000", "127.0.0.1:6379", "Unix", -1, 0))
	services := Activities(before, after, false)
	if len(services) != 2 {
		t.Fatalf("%d services: %+v", len(services), services)
	}
	web, redis := services[0], services[1]
	if web.Port != 80 || web.Command != "web" || web.Connections() != 3 || web.Modes["SMC-D"] != 2 || web.Modes["TCP"] != 1 {
		t.Errorf("web: %+v", web)
	}
	if *web.In != 60 || *web.Out != 101 || web.New != 0.1 || *web.Full != 2 || *web.Wakeups != 0 {
		t.Errorf("web: in %v, out %v, new %v, full %v, wakeups %v; want 60, 101, 0.1, 2, 0", *web.In, *web.Out, web.New, *web.Full, *web.Wakeups)
	}
	if len(web.Reasons) != 1 || web.Reasons[0] != (ReasonCount{"PEER_NO_SMC", 1}) {
		t.Errorf("web: reasons %+v", web.Reasons)
	}
	if redis.Port != 6379 || redis.Command != "other" || redis.In != nil || redis.Full != nil || redis.New != 0.1 {
		t.Errorf("redis: %+v", redis)
	}
	programs := Activities(before, after, true)
	if len(programs) != 3 || programs[1].PID != 2 || programs[1].Command != "curl" || *programs[1].In != 100 || programs[1].New != 0 {
		t.Errorf("programs: %+v", programs)
	}
}
