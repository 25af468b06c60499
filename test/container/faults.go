package main

import (
	"fmt"
	"strings"
	"time"
)

// A transfer is a client that gets a pattern. It is stopped in the middle, until its output is released.
type transfer struct {
	name   string
	client *container
}

// A couple is a server and its clients: of package smc, or under 'gosmc run'.
type couple struct {
	name   string
	port   int
	server program
	client func(way) program
}

// couples are those of the trials in which something fails.
func couples() []couple {
	return []couple{
		{"package smc", portTalk, program{root: "empty", args: []string{"/talk", "serve", fmt.Sprintf(":%d", portTalk)}},
			func(w way) program {
				return program{root: "empty", args: []string{"/talk", "fetch", w.host + ":" + w.port, fmt.Sprint(bigSize)}}
			}},
		{"gosmc run", portNginx, program{root: nginxServer.root, args: nginxServer.args, run: true},
			func(w way) program {
				return program{root: "debian", run: true, args: []string{"/usr/bin/curl", "-sS", "--fail", "http://" + w.host + ":" + w.port + "/big"}}
			}},
	}
}

// holdAfter is where a transfer is stopped, in bytes.
const holdAfter = 1 << 20

// transfers starts a client on each way to a server, until all of their connections were moved, and data has come to each.
func (l *lab) transfers(c couple, server *container) (running []transfer, err error) {
	err = l.eventually("transfers of "+c.name, func() (string, bool, error) {
		for _, t := range running { // of the try before
			t.client.delete()
		}
		running = nil
		before, err := server.tally()
		if err != nil {
			return "", false, err
		}
		for _, w := range ways(c.port) {
			p := c.client(w)
			p.at, p.holds = atClient, holdAfter
			client, err := l.start(p)
			if err != nil {
				return "", false, err
			}
			running = append(running, transfer{c.name + ", " + w.name, client})
		}
		for _, t := range running {
			err := l.await(t.name+" gets data", func() bool { return t.client.out.Len() >= holdAfter || t.client.ended() })
			if err != nil {
				return "", false, err
			}
			if t.client.ended() {
				return "", false, fmt.Errorf("%s ends: %v: %s", t.name, t.client.err, t.client.log.String())
			}
		}
		after, err := server.tally()
		if err != nil {
			return "", false, err
		}
		moved := after.moved - before.moved
		return fmt.Sprintf("%d of %d moved", moved, len(running)), moved == len(running), nil
	})
	return running, err
}

// ended reports whether a container has ended.
func (c *container) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// whole waits for transfers, which have to get everything.
func whole(transfers []transfer) error {
	for _, t := range transfers {
		t.client.out.release()
		if err := t.client.wait(); err != nil {
			return fmt.Errorf("%s: %w: %s", t.name, err, t.client.log.String())
		}
		if got := t.client.out.String(); got != string(pattern(bigSize)) {
			return fmt.Errorf("%s: %d bytes, which are not the file", t.name, len(got))
		}
		t.client.delete()
	}
	return nil
}

// cut waits for transfers whose server is gone. Each has to end with what there was of the file.
func cut(transfers []transfer) error {
	for _, t := range transfers {
		t.client.out.release()
		t.client.wait()
		got := t.client.out.String()
		if !t.client.ended() || !strings.HasPrefix(string(pattern(bigSize)), got) || len(got) == bigSize {
			return fmt.Errorf("%s: %d bytes, %v: want a beginning of the file, and an end", t.name, len(got), t.client.err)
		}
		t.client.delete()
	}
	return nil
}

// agentKilled kills the agent while bytes go. They all come. Connections without an agent are TCP, and leave it again with
// the next one.
func (l *lab) agentKilled() error {
	for _, c := range couples() {
		c.server.at = atServer
		server, err := l.serve(c.port, c.server)
		if err != nil {
			return err
		}
		running, err := l.transfers(c, server)
		if err != nil {
			return err
		}
		l.agent.Process.Kill()
		l.agent.Wait()
		if err := whole(running); err != nil {
			return err
		}
		p := c.client(ways(c.port)[0])
		p.at = atClient
		if err := l.stays(c.name+" without an agent, TCP", server, job{check: sum}, p, sum(string(pattern(bigSize)))); err != nil {
			return err
		}
		if err := l.startAgent(); err != nil {
			return err
		}
		if running, err = l.transfers(c, server); err != nil {
			return err
		}
		if err := whole(running); err != nil {
			return err
		}
		server.delete()
	}
	return nil
}

// containerKilled kills the server's container while bytes go, and a client's.
func (l *lab) containerKilled() error {
	for _, c := range couples() {
		c.server.at = atServer
		server, err := l.serve(c.port, c.server)
		if err != nil {
			return err
		}
		running, err := l.transfers(c, server)
		if err != nil {
			return err
		}
		if err := running[0].client.kill(); err != nil {
			return err
		}
		running[0].client.delete()
		if err := whole(running[1:]); err != nil {
			return fmt.Errorf("beside a client that was killed: %w", err)
		}
		if running, err = l.transfers(c, server); err != nil {
			return err
		}
		killed := time.Now()
		if err := server.kill(); err != nil {
			return err
		}
		if err := cut(running); err != nil {
			return err
		}
		fmt.Printf("  %s: clients of a killed container ended within %v\n", c.name, time.Since(killed).Round(time.Millisecond))
		server.delete()
	}
	return nil
}

// networkRemoved removes the network of a client while bytes go, and ends its processes: nothing changes for others, and
// a new network of the same name and address is served as well.
func (l *lab) networkRemoved() error {
	for _, c := range couples() {
		c.server.at = atServer
		server, err := l.serve(c.port, c.server)
		if err != nil {
			return err
		}
		for range 2 {
			if err := l.addEnd(atShort); err != nil {
				return err
			}
			running, err := l.transfers(c, server)
			if err != nil {
				return err
			}
			p := c.client(ways(c.port)[0])
			p.at, p.holds = atShort, holdAfter
			gone, err := l.start(p)
			if err != nil {
				return err
			}
			if err := l.await("data comes", func() bool { return gone.out.Len() >= holdAfter || gone.ended() }); err != nil {
				return err
			}
			if err := l.removeEnd(atShort); err != nil {
				return err
			}
			if err := gone.kill(); err != nil {
				return err
			}
			gone.delete()
			if err := whole(running); err != nil {
				return fmt.Errorf("beside a network that was removed: %w", err)
			}
		}
		server.delete()
	}
	return nil
}
