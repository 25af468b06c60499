// Command gosmcpeer uses this library as guest/smcpeer uses AF_SMC sockets. It is one of the ends,
// in a process of its own. It uses the default host, which the environment configures.
//
//	gosmcpeer serve PORT COUNT                     serve COUNT connections, of any kind
//	gosmcpeer dial ADDR:PORT KIND N ROUNDS CONNS   be the client of CONNS connections at a time
//
// It ends when it has done that and its standard input ends, and $GOSMCPEER_STAY has passed then.
package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	smc "github.com/gosmc/smc"
	"github.com/gosmc/smc/test/interop/talk"
)

func main() {
	err := talk.Network{Dial: dial, Listen: listen, Mode: mode}.Run(os.Stdout, os.Args[1:])
	if err != nil {
		fmt.Println("gosmcpeer:", err)
		os.Exit(1)
	}
	io.Copy(io.Discard, os.Stdin)
	stay, _ := time.ParseDuration(os.Getenv("GOSMCPEER_STAY")) // 0 if it is not set
	time.Sleep(stay)
}

func dial(dest netip.AddrPort) (talk.Conn, error) { return smc.Dial("tcp4", dest.String()) }

func listen(port uint16) (accept func() (talk.Conn, error), err error) {
	l, err := smc.Listen("tcp4", net.JoinHostPort("", fmt.Sprint(port)))
	if err != nil {
		return nil, err
	}
	return func() (talk.Conn, error) { return l.AcceptSMC() }, nil
}

func mode(c talk.Conn) string {
	s := c.(*smc.Conn).State()
	text := "mode=" + strings.ToLower(s.Mode.String())
	if s.Mode == smc.ModeTCP {
		text += fmt.Sprintf(" reason=%#08x", s.Reason.Code)
	}
	return text
}
