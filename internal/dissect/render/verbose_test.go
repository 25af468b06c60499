package render

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
	"github.com/gosmc/smc/wire/roce"
)

// items returns the items of a verbose event by name.
func items(t *testing.T, e *dissect.Event) map[string]string {
	t.Helper()
	m := make(map[string]string)
	for line := range strings.Lines(string(AppendVerbose(nil, e))) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok || !strings.HasPrefix(line, "    ") || !strings.HasSuffix(line, "\n") {
			t.Errorf("AppendVerbose has the line %q", line)
		}
		m[name] = strings.TrimSpace(value)
	}
	return m
}

func TestAppendVerbose(t *testing.T) {
	conn := &dissect.Conn{
		ID: 3, Mode: "SMC-Rv2.1", State: dissect.ConnEstablished,
		Client: netip.MustParseAddrPort("192.0.2.1:40000"), Server: netip.MustParseAddrPort("192.0.2.2:5000"),
	}
	link := &dissect.Link{ID: 7, Num: 2, NumKnown: true, State: dissect.LinkActive, Group: &dissect.LinkGroup{ID: 4}, Client: dissect.Endpoint{QPN: 17}, Server: dissect.Endpoint{QPN: 18}}
	for _, tt := range []struct {
		name   string
		change func(*dissect.Event)
		e      *dissect.Event
		want   map[string]string
	}{
		{"context", func(e *dissect.Event) { e.Conn, e.Link, e.Dir = conn, link, dissect.ServerToClient }, writeEvent(), map[string]string{
			"connection": "3, 192.0.2.1:40000 > 192.0.2.2:5000, SMC-Rv2.1, established",
			"link":       "7, QPN 0x11 and 0x12, active, number 2 of link group 4",
			"direction":  "server > client", "buffer": "bytes 200 to 299 of 65536", "written so far": "300 bytes",
		}},
		{"no context", func(e *dissect.Event) { e.Conn, e.Link = nil, nil }, writeEvent(), map[string]string{
			"connection": "", "link": "", "direction": "", "ICRC": "", "retransmission": "", "packets missing before": "", "problem": "",
		}},
		{"transport", func(e *dissect.Event) {
			e.RoCE.ICRC, e.RoCE.Retransmission, e.RoCE.Gap = dissect.ICRCUnchecked, true, 5
		}, writeEvent(), map[string]string{
			"ICRC": "not checkable", "retransmission": "yes", "packets missing before": "5",
		}},
		{"new numbers", func(e *dissect.Event) { e.RoCE.Gap = -1 }, writeEvent(), map[string]string{
			"packets missing before": "unknown, the numbers begin anew",
		}},
		{"middle of a WRITE", func(e *dissect.Event) { e.Write.Start, e.Write.Ring = false, nil }, writeEvent(), map[string]string{
			"writes to": "0xff2265d883500000, of 100 bytes", "buffer": "unknown", "written so far": "",
		}},
		{"WRITE of nothing", func(e *dissect.Event) { e.Write.Bytes = 0 }, writeEvent(), map[string]string{
			"buffer": "no bytes, at 200 of 65536",
		}},
		{"progress", nil, cdcEvent(), map[string]string{
			"produced": "100 bytes", "consumed": "", "window": "65436 bytes", "peer's window": "", "repeated": "", "failover": "",
			"RoCEv2": "RC WRITE ONLY qpn=0x11 psn=0x2b56bf ack-request pkey=0x0000 va=0xff2265d883500000 rkey=0x372 length=100", "ICRC": "good",
		}},
		{"repeated", func(e *dissect.Event) { e.Progress = &dissect.Progress{Repeated: true, Failover: true, SeqGap: 3} }, cdcEvent(), map[string]string{
			"repeated": "yes, it changes nothing", "failover": "from another link", "messages missing before": "3", "peer's window": "0 bytes",
		}},
		{"problem", func(e *dissect.Event) {
			e.Problems = []dissect.Problem{{Kind: dissect.Violation, Text: "a write outside the buffer", Rule: "RFC 7609 §4.5"}}
		}, writeEvent(), map[string]string{
			"problem": "violation: a write outside the buffer (RFC 7609 §4.5)",
		}},
	} {
		e := tt.e
		if tt.change != nil {
			tt.change(e)
		}
		got := items(t, e)
		for name, want := range tt.want {
			if got[name] != want {
				t.Errorf("%s: AppendVerbose: %s is %q, want %q", tt.name, name, got[name], want)
			}
		}
	}
}

// Reserved bytes are told of if they are not zero.
func TestVerboseReserved(t *testing.T) {
	b := clc.Decline{Version: clc.V1, Diagnosis: clc.DiagNoDevice}.Append(nil)
	if got, ok := items(t, dissect.MessageEvent(nil, b))["reserved"]; ok {
		t.Errorf("AppendVerbose has reserved zeros: %q", got)
	}
	b[22] = 7
	if got := items(t, dissect.MessageEvent(nil, b))["reserved"]; got != "000700" {
		t.Errorf("AppendVerbose: reserved is %q, want 000700", got)
	}
}

func TestAppendHex(t *testing.T) {
	p := &roce.Packet{
		BTH:     roce.BTH{Opcode: roce.WriteLast, PKey: roce.DefaultPKey, DestQPN: 1, PSN: 2, AckReq: true},
		Payload: append(bytes.Repeat([]byte{0xaa}, 100), 0xbb),
	}
	for _, tt := range []struct {
		name string
		e    *dissect.Event
		want string
	}{
		{"equal rows", dissect.MessageEvent(p, nil), `
0x0000  08                                               opcode: 8 (RC WRITE LAST)
0x0001  30
          0... ....                                      solicited event: no
          .0.. ....                                      MigReq: no
          ..11 ....                                      pad count: 3
          .... 0000                                      version: 0
0x0002  ff ff                                            P_Key: 0xffff
0x0004  00
          0... ....                                      FECN: no
          .0.. ....                                      BECN: no
          ..00 0000                                      reserved
0x0005  00 00 01                                         destination QPN: 1
0x0008  80
          1... ....                                      acknowledge request: yes
          .000 0000                                      reserved
0x0009  00 00 02                                         PSN: 2
0x000c  aa aa aa aa aa aa aa aa aa aa aa aa aa aa aa aa  payload: 101 bytes
     *
0x006c  aa aa aa aa bb
0x0071  00 00 00                                         pad
`},
		{"cut off", &dissect.Event{Family: dissect.LLC, Bytes: llc.TestLink{Header: llc.Header{Form: llc.V1, Reply: true}}.Append(nil)[:6]}, `
0x0000  07                                               type: TEST LINK
          0000 ....                                      version: 1
          .... 0111                                      message: 7 (TEST LINK)
0x0001  2c                                               length: 44
0x0002  00                                               reserved
0x0003  80                                               flags
          1... ....                                      reply: yes
          .000 0000                                      reserved
0x0004  00 00                                            user data (cut off)
`},
		{"no message", &dissect.Event{Family: dissect.TCP, Bytes: []byte("0123456789abcdefg")}, `
0x0000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66
0x0010  67
`},
		{"nothing", &dissect.Event{Family: dissect.Note}, "\n"},
	} {
		if got := "\n" + string(AppendHex(nil, tt.e)); got != tt.want {
			t.Errorf("%s: AppendHex = %s\nwant %s", tt.name, got, tt.want)
		}
	}
}
