package main

import (
	"fmt"
	"strings"
)

// A job is work that has the same output however the two programs are run.
type job struct {
	name   string
	port   int
	server program
	client func(w way) program
	check  func(out string) string // has what has to be equal; nil: all of it

	powerless bool // its programs need no capability
}

// output runs the client of a job, and returns what has to be equal.
func (l *lab) output(j job, p program) (string, error) {
	out, err := l.ask(p)
	if err == nil && j.check != nil {
		out = j.check(out)
	}
	return out, err
}

// compare does a job with bare programs, and then under 'gosmc run' with each profile and on each way: the output has to
// be equal, and all connections moved.
func (l *lab) compare(j job) error {
	j.server.at = atServer
	want, err := l.bare(j)
	if err != nil {
		return err
	}
	for _, p := range []struct {
		name      string
		profile   *profile
		powerless bool
	}{
		{"podman's profile", l.podman, false}, {"the stricter profile", l.strict, false},
		{"the stricter profile without a capability", l.strict, true},
	} {
		if p.powerless && !j.powerless {
			continue
		}
		j.server.run, j.server.profile, j.server.powerless = true, p.profile, p.powerless
		c, err := l.serve(j.port, j.server)
		if err != nil {
			return err
		}
		for _, w := range ways(j.port) {
			client := j.client(w)
			client.at, client.run, client.profile, client.powerless = atClient, true, p.profile, p.powerless
			if err := l.moved(fmt.Sprintf("%s under gosmc run, %s, %s", j.name, w.name, p.name), c, j, client, want); err != nil {
				return err
			}
		}
		c.delete()
	}
	return nil
}

// bare does a job without gosmc.
func (l *lab) bare(j job) (string, error) {
	j.server.run = false
	c, err := l.serve(j.port, j.server)
	if err != nil {
		return "", err
	}
	defer c.delete()
	client := j.client(ways(j.port)[0])
	client.at = atClient
	want, err := l.output(j, client)
	if err == nil && want == "" {
		err = fmt.Errorf("%s: the bare program prints nothing", j.name)
	}
	return want, err
}

// moved has a client do its work until all of its connections to a server were moved. Its output has to be right each time.
func (l *lab) moved(what string, c *container, j job, client program, want string) error {
	return l.counted(what, c, j, client, want, func(accepted, moved int) bool { return accepted > 0 && moved == accepted })
}

// stays has a client do its work, whose connections have to stay TCP.
func (l *lab) stays(what string, c *container, j job, client program, want string) error {
	return l.counted(what, c, j, client, want, func(accepted, moved int) bool { return accepted > 0 && moved == 0 })
}

func (l *lab) counted(what string, c *container, j job, client program, want string, good func(accepted, moved int) bool) error {
	return l.eventually(what, func() (string, bool, error) {
		before, err := c.tally()
		if err != nil {
			return "", false, err
		}
		out, err := l.output(j, client)
		if err != nil {
			return "", false, err
		}
		if out != want {
			return "", false, fmt.Errorf("prints %.300q, want %.300q", out, want)
		}
		after, err := c.tally()
		if err != nil {
			return "", false, err
		}
		accepted, moved := after.accepted-before.accepted, after.moved-before.moved
		return fmt.Sprintf("%d connections, %d moved; all of TCP so far %s", accepted, moved, after.tcp), good(accepted, moved), nil
	})
}

// library has two static programs of package smc talk.
func (l *lab) library() error {
	for _, p := range []struct {
		name      string
		profile   *profile
		powerless bool
	}{
		{"podman's profile", l.podman, false}, {"the stricter profile", l.strict, false},
		{"the stricter profile without a capability", l.strict, true},
	} {
		where := fmt.Sprintf(":%d", portTalk)
		c, err := l.serve(portTalk, program{
			at: atServer, root: "empty", profile: p.profile, powerless: p.powerless, args: []string{"/talk", "serve", where},
		})
		if err != nil {
			return err
		}
		for _, w := range ways(portTalk) {
			client := program{
				at: atClient, root: "empty", profile: p.profile, powerless: p.powerless,
				args: []string{"/talk", "echo", w.host + ":" + w.port, "100"},
			}
			j := job{check: func(out string) string { return out }}
			if err := l.moved("package smc, "+w.name+", "+p.name, c, j, client, "map[SMC-D:100]\n"); err != nil {
				return err
			}
			from := address(atClient)
			if w.host != address(atServer) {
				from = router // as masqueraded
			}
			client.args = []string{"/talk", "from", w.host + ":" + w.port}
			if err := l.moved("the server sees "+from, c, j, client, from+"\n"); err != nil {
				return err
			}
		}
		c.delete()
	}
	return nil
}

// many makes connections of package smc, each with words of its own.
func (l *lab) many() error {
	c, err := l.serve(portTalk, program{at: atServer, root: "empty", args: []string{"/talk", "serve", fmt.Sprintf(":%d", portTalk)}})
	if err != nil {
		return err
	}
	w := ways(portTalk)[1]
	client := program{at: atClient, root: "empty", args: []string{"/talk", "echo", w.host + ":" + w.port, "10000"}}
	return l.moved("package smc, "+w.name, c, job{}, client, "map[SMC-D:10000]\n")
}

// redisCommands are those of the trials with redis.
var redisCommands = []string{"PING", "SET key some-words", "GET key", "INCR count", "GET count", "GET nothing"}

func (l *lab) redis() error {
	server := program{root: "debian", args: []string{
		"/usr/bin/redis-server", "--port", fmt.Sprint(portRedis), "--protected-mode", "no", "--save", "", "--dir", "/tmp"}}
	cli := func(w way) program {
		return program{root: "debian", args: []string{"/bin/sh", "-c",
			"printf 'FLUSHALL\n" + strings.Join(redisCommands, "\\n") + "\n' | redis-cli -h " + w.host + " -p " + w.port}}
	}
	if err := l.compare(job{name: "redis-cli", port: portRedis, server: server, client: cli, powerless: true}); err != nil {
		return err
	}
	bench := job{name: "redis-benchmark", port: portRedis, server: server,
		client: func(w way) program {
			return program{root: "debian", args: []string{"/usr/bin/redis-benchmark", "-h", w.host, "-p", w.port, "-c", "20", "-n", "2000",
				"-q", "-t", "set,get,lpush,lrange_100", "--csv"}}
		},
		check: func(out string) string { // the tests, without their times
			var tests []string
			for line := range strings.Lines(out) {
				tests = append(tests, strings.SplitN(line, ",", 2)[0])
			}
			return strings.Join(tests, " ")
		}}
	if err := l.compare(bench); err != nil {
		return err
	}
	talk := program{root: "empty", args: []string{"/talk", "redis-serve", fmt.Sprintf(":%d", portRedis)}}
	return l.mixed(mixture{
		port: portRedis, bareServer: server, server: talk,
		bareClient: func(w way) program {
			return program{root: "debian", args: []string{"/bin/sh", "-c",
				"printf '" + strings.Join(redisCommands, "\\n") + "\n' | redis-cli -h " + w.host + " -p " + w.port}}
		},
		client: func(w way) program {
			return program{root: "empty", args: append([]string{"/talk", "redis", w.host + ":" + w.port}, redisCommands...)}
		},
	})
}

// A mixture is a job with package smc at one end or at both.
type mixture struct {
	port       int
	bareServer program // knows nothing of gosmc
	server     program // has package smc
	bareClient func(way) program
	client     func(way) program
}

// mixed compares the output. All connections have to be moved: those with package smc at both ends, and those with
// 'gosmc run' at the other one.
func (l *lab) mixed(m mixture) error {
	want, err := l.bare(job{name: "redis-cli", port: m.port, server: m.bareServer, client: m.bareClient})
	if err != nil {
		return err
	}
	for _, pair := range []struct {
		name      string
		run       bool // the server
		server    program
		clientRun bool
		client    func(way) program
	}{
		{"package smc at both ends", false, m.server, false, m.client},
		{"package smc at the client", true, m.bareServer, false, m.client},
		{"package smc at the server", false, m.server, true, m.bareClient},
	} {
		pair.server.at, pair.server.run = atServer, pair.run
		for _, w := range ways(m.port)[:2] {
			c, err := l.serve(m.port, pair.server) // anew, so that it has the same data
			if err != nil {
				return err
			}
			client := pair.client(w)
			client.at, client.run = atClient, pair.clientRun
			if err := l.moved(fmt.Sprintf("%s, %s", pair.name, w.name), c, job{}, client, want); err != nil {
				return err
			}
			c.delete()
		}
	}
	return nil
}
