package render

import "github.com/gosmc/smc/internal/dissect"

// AppendHex appends the event's bytes in hexadecimal, with the fields beside them, to b and returns the
// extended slice. Bits are shown in binary, with dots for those that the field does not have. Equal rows
// of a long field are shown once, and a star for the others.
//
//	0x0000  e2 d4 c3 d9                                      eyecatcher: SMC-R
//	0x0007  10                                               flags
//	          0001 ....                                      version: 1
//	offset  bytes                                            field: value
func AppendHex(b []byte, e *dissect.Event) []byte {
	data := e.Bytes
	if data == nil {
		data = encode(e.Message)
	}
	fields := Fields(e)
	if len(fields) == 0 { // of no message; the bytes are still worth a look
		return appendRows(b, data, 0, "")
	}
	shown := 0 // bytes of rows that have been shown
	for i := range fields {
		f := &fields[i]
		label := f.Name
		if !f.Reserved && (!f.Parent || f.words) { // else the bytes say it
			label += ": " + f.String()
		}
		switch {
		case f.Mask == 0:
			b = appendRows(b, data[f.Offset:f.Offset+f.Len], f.Offset, label)
			shown = f.Offset + f.Len
			continue
		case shown <= f.Offset: // bits of a byte that has no name of its own
			b = appendRows(b, data[f.Offset:f.Offset+1], f.Offset, "")
			shown = f.Offset + 1
		}
		b = appendBits(b, data[f.Offset], byte(f.Mask))
		b = append(b, label...)
		b = append(b, '\n')
	}
	return b
}

const (
	rowLen = 16 // bytes
	// hexWidth is the width of the columns before the names: offset and bytes.
	hexWidth = 8 + 3*rowLen + 1
)

// appendRows appends rows of 16 bytes, the first with a label.
func appendRows(b, data []byte, offset int, label string) []byte {
	starred := false
	for i := 0; i < len(data); i += rowLen {
		row := data[i:min(i+rowLen, len(data))]
		last := i+rowLen >= len(data)
		if i > 0 && !last && string(row) == string(data[i-rowLen:i]) {
			if !starred {
				b = append(b, "     *\n"...)
			}
			starred = true
			continue
		}
		starred = false
		start := len(b)
		b = append(b, '0', 'x')
		b = appendDigits(b, uint64(offset+i), 4)
		b = append(b, ' ')
		for _, c := range row {
			b = append(b, ' ')
			b = appendDigits(b, uint64(c), 2)
		}
		if i == 0 && label != "" {
			b = appendBlanks(b, start+hexWidth-len(b))
			b = append(b, label...)
		}
		b = append(b, '\n')
	}
	return b
}

// appendBits appends a row with the bits of c that are in mask.
func appendBits(b []byte, c, mask byte) []byte {
	start := len(b)
	b = appendBlanks(b, 10)
	for i := 7; i >= 0; i-- {
		switch bit := byte(1) << i; {
		case mask&bit == 0:
			b = append(b, '.')
		case c&bit == 0:
			b = append(b, '0')
		default:
			b = append(b, '1')
		}
		if i == 4 {
			b = append(b, ' ')
		}
	}
	return appendBlanks(b, start+hexWidth-len(b))
}
