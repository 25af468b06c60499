package llc_test

import (
	"errors"
	"fmt"

	"github.com/gosmc/smc/wire/llc"
)

// The payload of a SEND is a CDC message if its first byte says so, and an LLC message if not.
func ExampleParse() {
	form := llc.V2Little // the form of the peer's CONFIRM LINK
	received := [][]byte{
		llc.TestLink{Header: llc.Header{Form: form}}.Append(nil),
		append([]byte{0xa5}, make([]byte, 43)...),
		{0xff},
	}
	for _, b := range received {
		m, err := llc.Parse(b)
		switch {
		case errors.Is(err, llc.ErrOptional):
			fmt.Println("discarded")
			continue
		case err != nil:
			fmt.Println("out of sync:", err)
			continue
		}
		switch m := m.(type) {
		case llc.TestLink:
			m.Reply = true
			fmt.Println("send", m)
		}
	}
	// Output:
	// send TEST LINK reply v2-little-endian data=00000000000000000000000000000000
	// discarded
	// out of sync: llc.Header: type at offset 0: wrong message type
}
