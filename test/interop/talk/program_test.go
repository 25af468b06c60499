package talk

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// overTCP is a network that says the address of its listener, so that no port has to be known beforehand.
func overTCP(listening chan<- netip.AddrPort) Network {
	return Network{
		Dial: func(dest netip.AddrPort) (Conn, error) {
			c, err := net.Dial("tcp", dest.String())
			if err != nil {
				return nil, err
			}
			return c.(*net.TCPConn), nil
		},
		Listen: func(port uint16) (func() (Conn, error), error) {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				return nil, err
			}
			listening <- l.Addr().(*net.TCPAddr).AddrPort()
			return func() (Conn, error) { return l.(*net.TCPListener).AcceptTCP() }, nil
		},
		Mode: func(Conn) string { return "mode=tcp" },
	}
}

// Two programs talk, and each prints a line for each connection.
func TestRun(t *testing.T) {
	listening, served := make(chan netip.AddrPort, 1), make(chan error, 1)
	n := overTCP(listening)
	var ofServer, ofClient bytes.Buffer
	go func() { served <- n.Run(&ofServer, []string{"serve", "0", "3"}) }()
	dest := <-listening
	if err := n.Run(&ofClient, []string{"dial", dest.String(), "echo", "1000", "2", "3"}); err != nil {
		t.Errorf("client: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("server: %v", err)
	}
	want := strings.Repeat("ok echo mode=tcp\n", 3)
	if ofServer.String() != want || ofClient.String() != want {
		t.Errorf("printed %q and %q, want %q", ofServer.String(), ofClient.String(), want)
	}

	go func() { served <- n.Run(&ofServer, []string{"serve", "0", "1"}) }()
	dest = <-listening
	ofClient.Reset()
	if err := n.Run(&ofClient, []string{"dial", dest.String(), "echo", fmt.Sprint(maxN + 1), "1", "1"}); err == nil || !strings.HasPrefix(ofClient.String(), "fail echo mode=tcp: ") {
		t.Errorf("a server that gives up: %v, %q", err, ofClient.String())
	}
	if err := <-served; err == nil {
		t.Error("a server that gives up says that all went well")
	}
}

// Arguments that say nothing are refused.
func TestRunArguments(t *testing.T) {
	for _, args := range []string{"", "serve", "serve x 1", "serve 1 x", "dial 127.0.0.1:1 echo 1 1", "dial 127.0.0.1 echo 1 1 1", "dial 127.0.0.1:1 sing 1 1 1", "dial 127.0.0.1:1 echo 1 1 x"} {
		if err := (Network{}).Run(new(bytes.Buffer), strings.Fields(args)); err == nil {
			t.Errorf("%q is carried out", args)
		}
	}
}
