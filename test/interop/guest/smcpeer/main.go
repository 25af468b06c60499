// Command smcpeer runs in the guest, on AF_SMC sockets of its kernel.
//
//	smcpeer ueid add|del NAME                  a user-defined EID of this kernel
//	smcpeer groups                             the link groups of this kernel, and their links
//	smcpeer sockets ADDR:PORT TCP:PORT         sockets of this kernel as internal/sockdiag sees them
//	smcpeer counts                             what this kernel has counted, as internal/sockdiag reads it
//	smcpeer echo PORT COUNT                    send back what arrives on COUNT connections, one at a time
//	smcpeer serve PORT COUNT                   serve COUNT connections, of any kind
//	smcpeer dial ADDR:PORT KIND N ROUNDS CONNS  be the client of CONNS connections at a time
//
// serve and dial print a line for each connection, which begins with "ok" or "fail", and name the
// mode that the kernel has given it: mode=smc-r, mode=tcp with the reasons of the fallback,
// mode=smc-d. They exit with 1 if one has failed.
package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"

	"github.com/gosmc/smc/internal/sockdiag"
	"github.com/gosmc/smc/test/interop/talk"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Println("smcpeer:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 3 && args[0] == "ueid" {
		return changeUEID(args[1], args[2])
	}
	if len(args) == 1 && args[0] == "groups" {
		return showGroups(os.Stdout)
	}
	if len(args) == 1 && args[0] == "counts" {
		counts, err := sockdiag.Stats()
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(counts)
	}
	if len(args) == 3 && args[0] == "sockets" {
		return showSockets(os.Stdout, args[1], args[2])
	}
	if len(args) == 3 && args[0] == "echo" {
		return echo(os.Stdout, args[1], args[2])
	}
	return talk.Network{
		Dial: func(dest netip.AddrPort) (talk.Conn, error) { return connect(dest) },
		Listen: func(port uint16) (func() (talk.Conn, error), error) {
			l, err := listen(port)
			if err != nil {
				return nil, err
			}
			return func() (talk.Conn, error) { return l.accept() }, nil
		},
		Mode: func(c talk.Conn) string { return c.(*socket).mode() },
	}.Run(os.Stdout, args)
}
