package main

import (
	"net"
	"testing"
)

// TestIsFree has a port that a server without SO_REUSEADDR could not have: one that was closed a
// moment ago, and one that is taken at another address.
func TestIsFree(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if isFree(port) {
		t.Error("a port is free at which somebody listens")
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	s.Close() // first, so that the port waits
	c.Close()
	if isFree(port) {
		t.Error("a port is free that was in use a moment ago")
	}
	other, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if isFree(other.Addr().(*net.TCPAddr).Port) {
		t.Error("a port is free that has a listener at another address")
	}
	l, err = net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if port := l.Addr().(*net.TCPAddr).Port; !isFree(port) {
		t.Errorf("port %d is not free, that nobody has used", port)
	}
}
