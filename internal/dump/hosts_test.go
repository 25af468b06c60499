package dump

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/render"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/internal/text"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

// newTestDump returns a dump that is given its events by hand, its output and its notes.
func newTestDump(t *testing.T, o *HostOptions, types ...string) (*hostsDump, *bytes.Buffer, *bytes.Buffer) {
	t.Helper()
	for _, word := range types {
		f, err := dissect.ParseType(word)
		if err != nil {
			t.Fatal(err)
		}
		o.Filter.Types = append(o.Filter.Types, f)
	}
	var stdout, notes bytes.Buffer
	o.Stdout = &stdout
	o.Note = func(note string) { fmt.Fprintf(&notes, "gosmc: %s\n", text.Printable(note)) }
	return newHostsDump(o), &stdout, &notes
}

// exampleEvents are the events of a connection that is declined, as two hosts may report them.
func exampleEvents() []survey.Event {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	client, server := netip.MustParseAddrPort("127.0.0.1:50000"), netip.MustParseAddrPort("127.0.0.1:80")
	a := &survey.Host{Label: "100.1", Status: control.Status{PID: 100, Command: "client"}}
	b := &survey.Host{Label: "20000.1", Status: control.Status{PID: 20000, Command: "ser\x1bver"}}
	decline := clc.Decline{Version: clc.V2, Diagnosis: clc.DiagConfig, OS: clc.OSLinux}.Append(nil)
	header := cdc.Header{Producer: cdc.Cursor{Count: 100}, ConnFlags: cdc.Closed}.Append(nil)
	list := []survey.Event{
		{Host: b, TraceEvent: control.TraceEvent{Time: at.Add(2), Kind: control.TraceCLC, Conn: 1, Sent: true, Local: server, Peer: client, Bytes: decline}},
		{Host: b, TraceEvent: control.TraceEvent{Time: at.Add(4000), Kind: control.TraceFallback, Conn: 1, Local: server, Peer: client, Mode: "TCP", Text: "why"}},
		{Host: a, TraceEvent: control.TraceEvent{Time: at, Kind: control.TraceRendezvous, Client: true, Sent: true, Peer: server, Name: "Expect", Text: "attempt=1"}},
		{Host: a, TraceEvent: control.TraceEvent{Time: at.Add(3000), Kind: control.TraceCLC, Conn: 9, Client: true, Local: client, Peer: server, Bytes: decline}},
		{Host: a, TraceEvent: control.TraceEvent{Time: at.Add(5000), Kind: control.TraceLost, Count: 12}},
		{Host: a, TraceEvent: control.TraceEvent{Time: at.Add(6000), Kind: control.TraceCDC, Conn: 10, Client: true, Sent: true, Local: client, Peer: server, Bytes: header}},
		{Host: a, TraceEvent: control.TraceEvent{Time: at.Add(7000), Kind: control.TraceCursors, Conn: 10, Client: true, Sent: true, Local: client, Peer: server, Mode: "SMC-Dv2.1", Bytes: header, Moved: 100, Window: 50}},
		{Host: a, TraceEvent: control.TraceEvent{Time: at.Add(8000)}, End: control.ErrHostClosed},
	}
	return list
}

// The words of all outputs.
func TestHostsOutput(t *testing.T) {
	var all strings.Builder
	none := render.TimeNone
	for _, tt := range []struct {
		o     Options
		types []string
	}{
		{o: Options{Time: render.TimeRelative}},
		{Options{Time: none, Verbose: true, Hex: true}, []string{"decline", "note"}},
		{o: Options{Time: none, JSON: true}},
		{o: Options{Time: none, Filter: dissect.Filter{Problems: true}}},
		{Options{Time: none}, []string{"cdc"}},
		{o: Options{Time: none, Count: 2}},
	} {
		o := tt.o
		d, stdout, notes := newTestDump(t, &HostOptions{Options: o}, tt.types...)
		d.width = len("20000.1")
		events := exampleEvents()
		slices.SortStableFunc(events, func(a, b survey.Event) int { return a.Time.Compare(b.Time) })
		for i := range events {
			more, err := d.Event(&events[i])
			if err != nil {
				t.Fatal(err)
			}
			if !more {
				break
			}
		}
		if err := d.Settled(); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "-v %t -x %t --json %t --problems %t --type %q -c %d\n%s%s%d shown, %d with problems, %d lost\n\n",
			o.Verbose, o.Hex, o.JSON, o.Filter.Problems, tt.types, o.Count, stdout, notes, d.shown, d.wrong, d.lost)
		if o.JSON {
			for line := range strings.Lines(stdout.String()) {
				if !json.Valid([]byte(line)) {
					t.Errorf("%s is not JSON", line)
				}
			}
		}
	}
	path := filepath.Join("testdata", "hosts.txt")
	if *update {
		if err := os.WriteFile(path, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), all.String()); diff != "" {
		t.Errorf("output (-want +got; go test -update rewrites it):\n%s", diff)
	}
}

// A user that may not see a host is told how to get access.
func TestHostsDenied(t *testing.T) {
	pid := os.Getpid()
	stranger := os.Geteuid() + 1
	for _, tt := range []struct {
		o    HostOptions
		want string
	}{
		{HostOptions{PID: pid}, fmt.Sprintf("process %d belongs to user %d: run as that user or as root", pid, os.Geteuid())},
		{HostOptions{Name: "x"}, `no host in the run directories is called "x", but 3 of other users are there: run as root to see them`},
	} {
		d, _, _ := newTestDump(t, &tt.o)
		d.denied, d.euid = 3, stranger
		if err := d.Nobody(); err == nil || err.Error() != tt.want {
			t.Errorf("Nobody() with %+v = %v, want %s", tt.o, err, tt.want)
		}
	}
	d, _, notes := newTestDump(t, &HostOptions{All: true})
	d.denied = 3
	if err := d.Nobody(); err != nil || !strings.Contains(notes.String(), "what belongs to other users (3 found); run as root to see it") {
		t.Errorf("Nobody() with All = %v, %q", err, notes)
	}
}
