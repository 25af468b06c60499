package program

import (
	"fmt"
	"regexp"
	"strconv"
)

var memcslapTime = regexp.MustCompile(`Time to get +(\d+) keys by +\d+ threads: +([0-9.]+) seconds`)

// Memcached is memcslap with so many clients, each a thread, to memcached with two threads. perSecond is
// some number of operations that takes about a second.
func Memcached(clients, perSecond int) *Work {
	return &Work{
		needs: []string{"memcached", "memcslap"}, packages: "memcached libmemcached-tools",
		run: func(l *lab, _ string) (r Result, err error) {
			port, err := freePort()
			if err != nil {
				return r, err
			}
			p := strconv.Itoa(port)
			server := l.asNobody(l.command("memcached", "-l", "127.0.0.1", "-p", p, "-U", "0", "-t", "2"))
			if err := l.serve(port, server); err != nil {
				return r, err
			}
			a, err := l.client(port, l.asNobody(l.command("memcslap", "--servers=127.0.0.1:"+p, "--test=get",
				"--concurrency="+strconv.Itoa(clients), "--execute-number="+strconv.Itoa(l.scale(perSecond/clients)))))
			if err != nil {
				return r, err
			}
			m := memcslapTime.FindStringSubmatch(a.output)
			if m == nil {
				return r, fmt.Errorf("memcslap: %w: %s", errOutput, a.output)
			}
			ops, _ := strconv.ParseFloat(m[1], 64)
			seconds, _ := strconv.ParseFloat(m[2], 64)
			return a.result(ops, seconds)
		},
	}
}
