package render

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/wire/clc"
)

// asJSON returns the event's object as encoding/json reads it.
func asJSON(t *testing.T, e *dissect.Event) map[string]any {
	t.Helper()
	b := AppendJSON([]byte("before"), e)
	if !strings.HasPrefix(string(b), "before{") || strings.Contains(string(b), "\n") {
		t.Fatalf("AppendJSON = %q, want one line after what was there", b)
	}
	var o map[string]any
	d := json.NewDecoder(strings.NewReader(string(b[len("before"):])))
	d.UseNumber()
	if err := d.Decode(&o); err != nil || d.More() {
		t.Fatalf("AppendJSON = %s: %v", b, err)
	}
	return o
}

func TestAppendJSON(t *testing.T) {
	e := writeEvent()
	e.Packet.Source = 1
	e.Dir = dissect.ClientToServer
	e.Conn.Mode = "SMC-Rv2.1"
	e.Conn.Group = &dissect.LinkGroup{ID: 3}
	e.Link.Group = e.Conn.Group
	e.Problems = []dissect.Problem{{Kind: dissect.Nak, Text: "a \"text\"\x01 \\", Rule: "IBTA 9.7.5"}, {Kind: dissect.Truncated}}
	e.Bytes = e.Message.(interface{ Append([]byte) []byte }).Append(nil)
	o := asJSON(t, e)
	for key, want := range map[string]any{
		"packet": json.Number("22"), "source": json.Number("1"), "time": "2026-03-04T05:06:07.891623000Z",
		"family": "RoCE", "name": "RDMA WRITE", "src": "192.0.2.1:49152", "dst": "192.0.2.2:4791",
		"dir": "client > server", "conn": json.Number("1"), "mode": "SMC-Rv2.1", "link": json.Number("2"), "group": json.Number("3"),
		"write": map[string]any{
			"start": true, "bytes": json.Number("100"), "va": "0xff2265d883500000", "length": json.Number("100"),
			"offset": json.Number("200"), "total": json.Number("300"),
		},
		"problems": []any{
			map[string]any{"kind": "NAK", "text": "a \"text\"\x01 \\", "rule": "IBTA 9.7.5"},
			map[string]any{"kind": "truncated", "text": ""},
		},
	} {
		if got := o[key]; !reflect.DeepEqual(got, want) {
			t.Errorf("AppendJSON: %s = %#v, want %#v", key, got, want)
		}
	}
	for _, key := range []string{"progress", "nothing"} {
		if got, ok := o[key]; ok {
			t.Errorf("AppendJSON: %s = %v, want none", key, got)
		}
	}
	if roce := o["roce"].(map[string]any); roce["icrc"] != "good" || roce["psn"] != json.Number("2840255") || roce["gap"] != json.Number("0") {
		t.Errorf("AppendJSON: roce = %v", roce)
	}

	o = asJSON(t, cdcEvent())
	want := map[string]any{
		"repeated": false, "produced": json.Number("100"), "window": json.Number("65436"), "seq_gap": json.Number("0"), "failover": false, "moved": false,
	}
	if got := o["progress"]; !reflect.DeepEqual(got, want) {
		t.Errorf("AppendJSON: progress = %v, want %v", got, want)
	}
}

func TestJSONFields(t *testing.T) {
	for _, tt := range []struct {
		message clc.Message
		fields  map[string]any
		text    map[string]any
	}{
		{
			clc.Decline{Version: clc.V2, OutOfSync: true, PeerID: samplePeer, Diagnosis: clc.DiagNoUEID, OS: clc.OSLinux},
			map[string]any{
				"smc.clc_msg": json.Number("4"), "smc.decline.osync": true, "smc.decline.os.type": json.Number("2"),
				"smc.peer.diag.info": json.Number("50528264"), "smc.sender.peer.id": "0xb1a098039babcdef", "smc.reserved": nil,
			},
			map[string]any{
				"smc.clc_msg": "Decline", "smc.decline.osync": nil, "smc.sender.peer.id": "45472@98:03:9b:ab:cd:ef",
				"smc.peer.diag.info": "NOUEID (0x03030008): " + clc.Lookup(clc.DiagNoUEID, clc.OSLinux).Sentence,
			},
		}, {
			clc.Accept{Version: clc.V2, FirstContact: true, R: sampleR, EID: mustEID("EID-ONE"), FCE: sampleFCE},
			map[string]any{
				"smc.accept.eid": "EID-ONE", "smc.proposal.first.contact": true, "smc.accept.server.qp.number": json.Number("66051"),
				"smc.accept.server.preferred.gid": "::ffff:192.0.2.1", "smc.accept.server.rmb.virtual.address": "0x1112131415161718",
				"smc.v21.max_conns": json.Number("32"), "smc.v21.feature_mask": json.Number("32769"),
				"smc.v21.vendor_options": "01020304", "smc.accept.v2_lg.type": true,
			},
			map[string]any{
				"smc.accept.server.preferred.gid": "192.0.2.1", "smc.v21.feature_mask": "Emulated-ISM, unknown 0x8000",
				"smc.accept.rmb.buffer.size": "65536 bytes", "smc.accept.eid": nil,
			},
		}, {
			clc.Proposal{Version: clc.V2, V1: clc.TypesNone, V2: clc.TypesD, Ext: &clc.ProposalV2{
				Release: clc.Release1, D: &clc.ProposalDv2{Devices: []clc.ISMDevice{{GID: sampleUUID, CHID: 0xffff}}},
			}},
			map[string]any{
				"smc.proposal.ism.gid":  []any{"0x0000000000000000", "0xe34ad0f52d1878b5"},
				"smc.proposal.smc.chid": []any{json.Number("0"), json.Number("65535"), json.Number("65535")},
				"smc.proposal.eid":      nil, keyProposalPart2: []any{"0x15959739727ee7be"},
			},
			map[string]any{
				"smc.proposal.ism.gid":  []any{"0000000000000000", sampleUUID.String() + " (Extended GID)"},
				"smc.proposal.smc.type": "none", "smc.proposal.smcv2.type": "SMC-D",
			},
		},
	} {
		o := asJSON(t, dissect.MessageEvent(tt.message, nil))
		for what, want := range map[string]map[string]any{"fields": tt.fields, "text": tt.text} {
			got, _ := o[what].(map[string]any)
			for key, v := range want {
				if !reflect.DeepEqual(got[key], v) {
					t.Errorf("AppendJSON of %v: %s[%q] = %#v, want %#v", tt.message, what, key, got[key], v)
				}
			}
		}
	}
}

// Every message makes an object in which each list of words is as long as its list of values.
func TestJSONOfAllMessages(t *testing.T) {
	for _, s := range samples(t) {
		o := asJSON(t, s.event)
		fields, _ := o["fields"].(map[string]any)
		text, _ := o["text"].(map[string]any)
		if fields == nil && len(eventBytes(s.event)) > 0 {
			t.Errorf("AppendJSON of %s has no fields", s.name)
		}
		for key, v := range text {
			list, isList := v.([]any)
			if values, ok := fields[key].([]any); ok != isList || len(values) != len(list) {
				t.Errorf("AppendJSON of %s: text[%q] = %v for %v", s.name, key, v, fields[key])
			}
		}
		if _, ok := fields["infiniband.payload"]; ok {
			t.Errorf("AppendJSON of %s has the payload", s.name)
		}
	}
}

func TestAppendQuoted(t *testing.T) {
	for _, s := range []string{"", "plain", `"`, `\`, "\x00\x1f\x7f", "\n\t", "é…", "\xff", "a\xc3"} {
		var got string
		b := appendQuoted([]byte("x"), s)
		if err := json.Unmarshal(b[1:], &got); err != nil || got != strings.ToValidUTF8(s, "\ufffd") {
			t.Errorf("appendQuoted(%q) = %s, which is %q, %v", s, b, got, err)
		}
	}
}
