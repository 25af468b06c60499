package clc_test

import (
	"bytes"
	"fmt"
	"io"

	"github.com/gosmc/smc/wire/clc"
)

// Reading one message from a stream, without taking a byte after it.
func ExampleParse() {
	stream := bytes.NewBuffer(clc.Decline{
		Version:   clc.V2,
		Diagnosis: clc.DiagNoUEID,
		OS:        clc.OSLinux,
	}.Append(nil))
	stream.WriteString("application data")

	buf := make([]byte, clc.HeaderLen)
	if _, err := io.ReadFull(stream, buf); err != nil {
		fmt.Println(err)
		return
	}
	header, err := clc.ParseHeader(buf)
	if err != nil {
		fmt.Println(err)
		return
	}
	buf = append(buf, make([]byte, header.Len-clc.HeaderLen)...)
	if _, err := io.ReadFull(stream, buf[clc.HeaderLen:]); err != nil {
		fmt.Println(err)
		return
	}
	message, err := clc.Parse(buf)
	if err != nil {
		fmt.Println(err)
		return
	}
	if d, ok := message.(clc.Decline); ok {
		fmt.Println(d.Reason(), d.Reason().Sentence)
	}
	fmt.Println("left for the application:", stream)
	// Output:
	// NOUEID (0x03030008) No user-defined EID was offered, or none that both hosts have.
	// left for the application: application data
}
