package main

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// noticeTime bounds the time in which a death is noticed, the best of noticeTries. It is noticed within 100 ms where the machine
// has nothing else to do.
const (
	noticeTime  = 5 * time.Second
	noticeTries = 3
)

// noticed kills programs whose peers wait for them.
func (l *lab) noticed() error {
	if err := l.accepted(); err != nil {
		return err
	}
	talk := program{at: atServer, root: "empty", args: []string{"/talk", "serve", fmt.Sprintf(":%d", portTalk)}}
	redis := program{at: atServer, root: "debian", run: true, args: []string{
		"/usr/bin/redis-server", "--port", fmt.Sprint(portRedis), "--protected-mode", "no", "--save", "", "--dir", "/tmp"}}
	for _, t := range []struct {
		name   string
		port   int
		server program
		client func(way) program
		killed int // 0: the server, 1: the client
	}{
		{"the server's, package smc", portTalk, talk, waiter, 0},
		{"the client's, package smc", portTalk, talk, waiter, 1},
		{"the server's, gosmc run", portRedis, redis, func(w way) program {
			return program{root: "debian", run: true, args: []string{"/usr/bin/redis-cli", "-h", w.host, "-p", w.port, "BLPOP", "nothing", "0"}}
		}, 0},
	} {
		best := time.Hour
		for range noticeTries {
			took, err := l.notice(t.port, t.server, t.client(ways(t.port)[1]), t.killed)
			if err != nil {
				return fmt.Errorf("death of %s: %w", t.name, err)
			}
			best = min(best, took)
		}
		fmt.Printf("  death of %s: noticed within %v\n", t.name, best.Round(time.Millisecond))
		if best > noticeTime {
			return fmt.Errorf("death of %s: noticed after %v", t.name, best)
		}
	}
	return nil
}

// waiter waits for its server for ever.
func waiter(w way) program {
	return program{root: "empty", args: []string{"/talk", "wait", w.host + ":" + w.port}}
}

// notice returns how long it takes until the death of one end of a moved connection is noticed by the other, with the end of a
// container where that is the client.
func (l *lab) notice(port int, server, client program, killed int) (took time.Duration, err error) {
	s, err := l.serve(port, server)
	if err != nil {
		return 0, err
	}
	defer s.delete()
	client.at = atClient
	var c *container
	for end := time.Now().Add(patience); ; c.delete() { // a busy machine can be too late for it, and TCP is right then
		before, err := s.tally()
		if err != nil {
			return 0, err
		}
		if c, err = l.start(client); err != nil {
			return 0, err
		}
		moved := false
		err = l.await("a connection", func() bool {
			after, err := s.tally()
			moved = err == nil && after.moved > before.moved
			return moved || c.ended() || err == nil && after.accepted > before.accepted
		})
		if err == nil && !moved { // its mode may be told a moment later
			after, err := s.tally()
			moved = err == nil && after.moved > before.moved
		}
		if moved {
			break
		}
		if err != nil || c.ended() || time.Now().After(end) {
			return 0, fmt.Errorf("no connection was moved: %v: %s", err, c.log.String())
		}
	}
	defer c.delete()
	victim := s
	if killed == 1 {
		victim = c
		if err := l.await("the server knows the client", func() bool { return c.says("waiting") }); err != nil {
			return 0, err
		}
	}
	pid, err := victim.pid()
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return 0, err
	}
	err = l.await("the other end notices", func() bool { return killed == 0 && c.ended() || killed == 1 && s.says("gone") })
	return time.Since(begin), err
}

// accepted kills a server while it sends. Its client, which has not read, gets all bytes that the server's Write has taken.
func (l *lab) accepted() error {
	server, err := l.serve(portTalk, program{at: atServer, root: "empty", args: []string{"/talk", "serve", fmt.Sprintf(":%d", portTalk)}})
	if err != nil {
		return err
	}
	for _, w := range ways(portTalk)[:2] {
		var client *container
		err := l.eventually("a server that sends, "+w.name, func() (string, bool, error) {
			if client != nil {
				client.delete()
			}
			before, err := server.tally()
			if err != nil {
				return "", false, err
			}
			p := program{at: atClient, root: "empty", holds: holdAfter, args: []string{"/talk", "pour", w.host + ":" + w.port}}
			if client, err = l.start(p); err != nil {
				return "", false, err
			}
			err = l.await("data comes", func() bool { return client.out.Len() >= holdAfter || client.ended() })
			if err != nil || client.ended() {
				return "", false, fmt.Errorf("no data: %v: %s", err, client.log.String())
			}
			after, err := server.tally()
			moved := after.moved - before.moved
			return fmt.Sprintf("%d moved", moved), moved == 1, err
		})
		if err != nil {
			return err
		}
		last := func() (n int) {
			lines := strings.Split(strings.TrimSpace(server.out.String()), "\n")
			fmt.Sscanf(lines[len(lines)-1], "sent %d", &n)
			return n
		}
		for seen := -1; seen != last(); time.Sleep(time.Second) { // until it has no more room, if it may
			seen = last()
		}
		if err := server.kill(); err != nil {
			return err
		}
		sent := last()
		client.out.release()
		client.wait()
		got := client.out.String()
		if len(got) < sent || got != string(pattern(len(got))) || sent <= holdAfter {
			return fmt.Errorf("the server has sent %d bytes, and the client has %d, or other ones", sent, len(got))
		}
		fmt.Printf("  a killed server's Write had taken %d bytes, and its client got %d\n", sent, len(got))
		client.delete()
		server.delete()
		if server, err = l.serve(portTalk, program{at: atServer, root: "empty", args: []string{"/talk", "serve", fmt.Sprintf(":%d", portTalk)}}); err != nil {
			return err
		}
	}
	server.delete()
	return nil
}
