package main

import (
	"fmt"
	"io"
	"strconv"
)

// echo sends back what arrives on so many connections, one after the other, and prints the mode of each
// and the number of its bytes. A connection that ends in disorder ends no other.
func echo(out io.Writer, port, count string) error {
	p, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	l, err := listen(uint16(p))
	if err != nil {
		return err
	}
	for range n {
		s, err := l.accept()
		if err != nil {
			return err
		}
		mode := s.mode()
		bytes, err := io.Copy(s, s)
		fmt.Fprintln(out, "echoed", bytes, mode, err)
		s.Close()
	}
	return nil
}
