package main

import (
	"fmt"
	"strings"
)

// stranger is the account of attackers: none of the users that they attack.
const stranger = 16

// attacker is a container with the program that attacks, in the network of an end, as a stranger.
func attacker(at int, args ...string) program {
	return program{at: at, account: stranger, root: "empty", args: append([]string{"/attack"}, args...)}
}

// begun starts an attacker, and waits until it attacks.
func (l *lab) begun(p program) (*container, error) {
	c, err := l.start(p)
	if err != nil {
		return nil, err
	}
	err = l.await(fmt.Sprintf("%v attacks", p.args), func() bool { return c.says("attacking") || c.ended() })
	if err == nil && c.ended() {
		err = fmt.Errorf("%v ends: %v: %s", p.args, c.err, c.log.String())
	}
	if err != nil {
		c.delete()
	}
	return c, err
}

// says reports whether a container has printed something.
func (c *container) says(text string) bool { return strings.Contains(c.out.String(), text) }

// over ends an attacker, which has to be at it still, and must not have had success.
func (c *container) over() error {
	ended := c.ended()
	c.delete()
	out := c.out.String()
	switch i := strings.Index(out, "beaten"); {
	case i >= 0:
		return fmt.Errorf("the attacker has had success: %.300s", out[i:])
	case ended:
		return fmt.Errorf("the attacker has ended: %v: %s", c.err, c.log.String())
	}
	return nil
}

// A victim is a couple that goes on while somebody attacks.
type victim struct {
	couple
	at *container // the server
}

// victims starts the servers of couples.
func (l *lab) victims() (all []victim, err error) {
	for _, c := range couples() {
		c.server.at = atServer
		server, err := l.serve(c.port, c.server)
		if err != nil {
			return nil, err
		}
		all = append(all, victim{c, server})
	}
	return all, nil
}

// goOn has clients that nobody knows yet get files: all bytes come each time, and the connection is moved in one of the tries.
func (l *lab) goOn(when string, victims []victim) error {
	for _, v := range victims {
		w := ways(v.port)[1]
		client := v.client(w)
		client.at = atClient
		err := l.eventually(v.name+" "+when, func() (string, bool, error) {
			before, err := v.at.tally()
			if err != nil {
				return "", false, err
			}
			out, err := l.ask(client)
			if err != nil {
				return "", false, err
			}
			if got, want := sum(out), sum(string(pattern(bigSize))); got != want {
				return "", false, fmt.Errorf("gets %s, want %s", got, want)
			}
			after, err := v.at.tally()
			moved := after.moved - before.moved // an attacker's connections are not among these
			return fmt.Sprintf("%d moved", moved), moved == 1, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// attacked has an attack, during which and after which the victims go on. The attacker has to have printed a text.
func (l *lab) attacked(p program, text string) error {
	victims, err := l.victims()
	if err != nil {
		return err
	}
	if err := l.goOn("before the attack", victims); err != nil {
		return err
	}
	c, err := l.begun(p)
	if err != nil {
		return err
	}
	err = l.goOn("during the attack", victims)
	if err == nil {
		err = l.await(fmt.Sprintf("the attacker says %q", text), func() bool { return c.says(text) || c.ended() })
	}
	lines := strings.Split(strings.TrimSpace(c.out.String()), "\n")
	if bad := c.over(); err == nil {
		err = bad
	}
	if err != nil {
		return err
	}
	fmt.Printf("  the attacker: %s\n", lines[len(lines)-1])
	return l.goOn("after the attack", victims)
}

// forger replays and invents tokens. The root of a private network has raw sockets, and the segments of a host that does not exist.
func (l *lab) forger() error {
	p := attacker(atClient, "forge")
	p.root, p.private = "busybox", true
	p.args = []string{"/bin/sh", "-c", "ip link set lo up && ip route add 10.9.9.9 dev lo && exec /attack forge"}
	return l.attacked(p, "round 20: ")
}

// proofs passes sockets to the agent that prove nothing.
func (l *lab) proofs() error {
	return l.attacked(attacker(atClient, "proofs", address(atServer)+":"+fmt.Sprint(portTalk)), "round 50\n")
}

// filler fills tables, also the server's of somebody else.
func (l *lab) filler() error {
	return l.attacked(attacker(atClient, "fill", address(atServer)+":"+fmt.Sprint(portTalk)), "attacking")
}

// liar has clients of package smc connect to a server that lies once it is introduced to them. All bytes of theirs come by TCP.
func (l *lab) liar() error {
	victims, err := l.victims()
	if err != nil {
		return err
	}
	where := fmt.Sprintf("%s:%d", address(atMiddle), portLiar)
	c, err := l.begun(attacker(atMiddle, "lie", where))
	if err != nil {
		return err
	}
	err = l.eventually("connections to the liar", func() (string, bool, error) {
		out, err := l.ask(program{at: atClient, root: "empty", args: []string{"/talk", "echo", where, "12"}})
		if err == nil && strings.Contains(out, "SMC-D") {
			err = fmt.Errorf("a connection to the liar was moved: %s", out)
		}
		return strings.TrimSpace(out), c.says("introduced"), err
	})
	if err == nil {
		err = l.goOn("during the attack", victims)
	}
	if bad := c.over(); err == nil {
		err = bad
	}
	if err != nil {
		return err
	}
	return l.goOn("after the attack", victims)
}

// impostor takes the agent's name in the network of clients when the agent was killed. The kernel still tells it to programs. None
// may pass a socket to the impostor. The next agent serves while the impostor is still there.
func (l *lab) impostor() error {
	victims, err := l.victims()
	if err != nil {
		return err
	}
	if err := l.goOn("before the attack", victims); err != nil {
		return err
	}
	c, err := l.start(attacker(atClient, "impostor"))
	if err != nil {
		return err
	}
	l.agent.Process.Kill()
	l.agent.Wait()
	err = l.await("the impostor has the name", func() bool { return c.says("attacking") || c.ended() })
	if err != nil || c.ended() {
		return fmt.Errorf("the impostor: %v: %s", err, c.log.String())
	}
	for _, v := range victims {
		p := v.client(ways(v.port)[0])
		p.at = atClient
		if err := l.stays(v.name+" with an impostor, TCP", v.at, job{check: sum}, p, sum(string(pattern(bigSize)))); err != nil {
			return err
		}
	}
	heard := strings.Count(c.out.String(), "heard")
	if heard == 0 {
		return fmt.Errorf("no program has come to the impostor: nothing was tried")
	}
	if err := l.startAgent(); err != nil {
		return err
	}
	if err := l.goOn("with an agent beside the impostor", victims); err != nil {
		return err
	}
	fmt.Printf("  the impostor has heard %d messages, without a descriptor\n", heard)
	return c.over()
}
