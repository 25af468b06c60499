package coretest

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/gosmc/smc/wire/clc"
)

// An Exchange is one handshake between two Linux kernels.
type Exchange struct {
	Name     string // capture and frame
	Proposal clc.Proposal
	Accept   clc.Accept
	Confirm  clc.Confirm
	Bytes    map[clc.Type][]byte // of the messages
}

// LinuxExchanges reads internal/core/testdata/linux.txt, for the test of a package beside internal/core.
func LinuxExchanges(t *testing.T) []Exchange {
	t.Helper()
	data, err := os.ReadFile("../core/testdata/linux.txt")
	if err != nil {
		t.Fatal(err)
	}
	var list []Exchange
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) != 4 || fields[0] == "#" {
			continue
		}
		b, err := hex.DecodeString(fields[3])
		if err != nil {
			t.Fatal(err)
		}
		m, err := clc.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := m.(clc.Proposal); ok {
			x := Exchange{Name: fields[0] + " frame " + fields[1], Proposal: p, Bytes: map[clc.Type][]byte{}}
			list = append(list, x)
		}
		x := &list[len(list)-1]
		x.Bytes[m.Type()] = b
		switch m := m.(type) {
		case clc.Accept:
			x.Accept = m
		case clc.Confirm:
			x.Confirm = m
		}
	}
	if len(list) < 5 {
		t.Fatalf("testdata/linux.txt has %d handshakes", len(list))
	}
	return list
}
