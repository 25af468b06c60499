package dissect

import (
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
	"github.com/gosmc/smc/wire/roce"
)

// MessageEvent returns the event of a message that was in no packet, for all renderers; the
// arguments are the same as for Describe in package render. The event refers to bytes.
func MessageEvent(message any, bytes []byte) *Event {
	e := &Event{Message: message, Bytes: bytes}
	if message == nil {
		e.decode()
	}
	switch m := e.Message.(type) {
	case Option:
		e.Family, e.Name = TCPOption, "SYN"
		if m.SYNACK {
			e.Name = "SYN-ACK"
		}
	case clc.Message:
		e.Family, e.Name = CLC, m.Type().String()
	case llc.Message:
		e.Family, e.Name = LLC, m.Type().String()
	case cdc.Message, *cdc.Message, cdc.Header, *cdc.Header:
		e.Family, e.Name = CDC, "CDC"
	case *roce.Packet:
		e.Family, e.Name = RoCE, opcodeNames[m.Opcode]
		if m.Opcode == roce.Acknowledge {
			e.Name = ackName(m.AETH.Syndrome)
		}
	}
	if e.Family == 0 {
		e.Family, e.Name = Note, "message"
	}
	return e
}

// decode guesses the family of an event's bytes by how they begin, and decodes them.
func (e *Event) decode() {
	b := e.Bytes
	var err error
	switch {
	case len(b) >= 4 && b[0] == 0xe2 && b[1] == 0xd4 && b[2] == 0xc3 && (b[3] == 0xd9 || b[3] == 0xc4):
		e.Family, e.Name = CLC, "message"
		var m clc.Message
		if m, err = clc.Parse(b); err == nil {
			e.Message = m
		}
	case clc.ParseOption(b):
		e.Message = Option{Present: true}
	case len(b) == cdc.HeaderLen && b[0] == cdc.TypeMessage:
		var h cdc.Header
		if h, err = cdc.ParseHeader(b); err == nil {
			e.Message = &h
		}
	case len(b) > 0 && b[0] == cdc.TypeMessage:
		e.Family, e.Name = CDC, "CDC"
		var m cdc.Message
		if m, err = cdc.ParseMessage(b); err == nil {
			e.Message = &m
		}
	default:
		e.Family, e.Name = LLC, "message"
		var m llc.Message
		if m, err = llc.Parse(b); err == nil {
			e.Message = m
		}
	}
	if err != nil {
		e.Problems = []Problem{{Kind: Malformed, Text: err.Error()}}
	}
}
