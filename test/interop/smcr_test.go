package main

import (
	"strings"
	"testing"

	"github.com/gosmc/smc/test/interop/talk"
)

// The findings of gosmc dump are compared with the ones that a case expects, and it has to have
// seen packets at all.
func TestCheckFindings(t *testing.T) {
	const (
		saw      = "gosmc: 7 packets of SMC, 1 messages shown, 0 packets dropped by the kernel\n"
		declines = `{"packet":4,"info":"Decline","problems":[{"kind":"declined","text":"no device","rule":""}]}` + "\n"
		refuses  = `{"packet":9,"src":"192.168.76.2:4791","info":"NAK","problems":[{"kind":"NAK"}]}` + "\n"
	)
	for _, tt := range []struct {
		name, messages, remarks string
		expected, tolerated     []string
		want                    string // in the error; empty: none
	}{
		{"nothing", "", saw, nil, nil, ""},
		{"no packets", "", strings.Replace(saw, "7", "0", 1), nil, nil, "want packets"},
		{"packets missed", "", strings.Replace(saw, "0 packets", "3 packets", 1), nil, nil, ""},
		{"no remark", "", "", nil, nil, "want packets"},
		{"expected", declines, saw, []string{"declined"}, nil, ""},
		{"expected in vain", "", saw, []string{"declined"}, nil, `nothing of the kind "declined"`},
		{"unexpected", declines + refuses, saw, []string{"declined"}, nil, "1 findings:\n192.168.76.2:4791 NAK"},
		{"declined after many others", strings.Repeat(refuses, 11) + declines, saw, nil, nil, "12 findings:\n Decline\n192.168.76.2:4791 NAK"},
		{"tolerated", declines + refuses, saw, []string{"declined"}, []string{"NAK"}, ""},
		{"tolerated in vain", "", saw, nil, []string{"NAK"}, ""},
		{"no JSON", "Decline", saw, nil, nil, "dump --json"},
	} {
		missed, err := checkFindings(tt.messages, tt.remarks, tt.expected, tt.tolerated)
		if want := map[bool]string{true: "3", false: "0"}[tt.name == "packets missed"]; missed != want {
			t.Errorf("%s: %s missed, want %s", tt.name, missed, want)
		}
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// The output of the ends counts only if all connections are SMC-R.
func TestAllSMCR(t *testing.T) {
	c := says(talk.Echo, 1).times(2)
	const good = "ok echo mode=smc-r\n"
	for said, ok := range map[string]bool{
		good + good:                          true,
		good:                                 false,
		good + good + good:                   false,
		good + "ok echo mode=tcp reason=0x1": false,
		good + "fail echo mode=smc-r: EOF\n": false,
		good + "ok half mode=smc-r\n":        false,
	} {
		if err := allSMCR(said, c); (err == nil) != ok {
			t.Errorf("allSMCR(%q) = %v, want ok %t", said, err, ok)
		}
	}
}
