package survey

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/control"
)

// A recorder is a sink that wants so many events.
type recorder struct {
	want    int
	events  []string // Name of each, or the text of its end
	settled int
	nobody  error
}

func (r *recorder) Found(*Host)      {}
func (r *recorder) Unanswered(error) {}
func (r *recorder) Nobody() error    { return r.nobody }
func (r *recorder) Settled() error   { r.settled++; return nil }

func (r *recorder) Event(e *Event) (bool, error) {
	if e.End != nil {
		r.events = append(r.events, e.End.Error())
	} else {
		r.events = append(r.events, e.Name)
	}
	return len(r.events) < r.want, nil
}

func eventAt(name string, ns time.Duration) Event {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	return Event{Host: &Host{}, TraceEvent: control.TraceEvent{Time: at.Add(ns), Name: name}}
}

// Events wait for older ones of other hosts, for a time.
func TestSettle(t *testing.T) {
	r := &recorder{want: 100}
	f := newFollower(Options{}, r)
	f.waiting = append(f.waiting, eventAt("b", 2), eventAt("c", 4000))
	if err := f.settle(false); err != nil || len(r.events) != 0 {
		t.Errorf("settle of new events = %v, handed on %q, want none", err, r.events)
	}
	f.waiting = append(f.waiting, eventAt("a", 0), eventAt("d", 5000))
	if err := f.settle(false); err != nil || !slices.Equal(r.events, []string{"a", "b", "c"}) {
		t.Errorf("settle = %v, handed on %q, want those up to the last old one in order of time", err, r.events)
	}
	if err := f.settle(false); err != nil || len(r.events) != 4 || len(f.waiting) != 0 || r.settled != 3 {
		t.Errorf("settle = %v, handed on %q, %d left, settled %d times, want all", err, r.events, len(f.waiting), r.settled)
	}
}

// A sink that has had enough gets nothing more.
func TestEnough(t *testing.T) {
	r := &recorder{want: 2}
	f := newFollower(Options{}, r)
	f.waiting = append(f.waiting, eventAt("a", 1), eventAt("b", 2), eventAt("c", 3))
	if err := f.settle(true); err != nil || len(r.events) != 2 || !f.enough {
		t.Errorf("settle = %v, handed on %q, enough %v, want two", err, r.events, f.enough)
	}
}

// A host that could not be asked is an error only if nothing was heard of any.
func TestFailed(t *testing.T) {
	refused := &control.Error{Path: "p", Err: errors.New("8 programs follow")}
	r := &recorder{want: 100}
	f := newFollower(Options{}, r)
	f.running = 2
	end := eventAt("", 1)
	end.End = refused
	if err := f.hand(&end); err != nil || f.running != 1 || f.failed != error(refused) || f.heard || !slices.Equal(r.events, []string{"p: 8 programs follow"}) {
		t.Errorf("end with an error = %v, %d running, failed %v, handed on %q", err, f.running, f.failed, r.events)
	}
	end.End = context.Canceled // we have left
	if err := f.hand(&end); err != nil || f.running != 0 || len(r.events) != 1 {
		t.Errorf("end by ourselves = %v, %d running, handed on %q, want nothing new", err, f.running, r.events)
	}
}

func TestFollowNobody(t *testing.T) {
	r := &recorder{nobody: errors.New("nobody is here")}
	o := Options{Dir: t.TempDir(), Choose: func(*control.Status) bool { return true }}
	if err := Follow(t.Context(), o, r); err != r.nobody {
		t.Errorf("Follow in an empty directory = %v, want what the sink says", err)
	}
	r.nobody = nil
	if err := Follow(t.Context(), o, r); err != nil {
		t.Errorf("Follow in an empty directory, with patience = %v, want its end", err)
	}
}

func TestAskNobody(t *testing.T) {
	dir := t.TempDir()
	if a := Ask(t.Context(), dir); !slices.Equal(a.Dirs, []string{dir}) || len(a.Hosts) != 0 || len(a.Errors) != 0 || a.Errors == nil {
		t.Errorf("Ask(empty directory) = %+v", a)
	}
	for dir, want := range map[string]string{"/dev/null": "not a directory", "/dev/null/x": "not a directory", t.TempDir() + "/x": "does not exist"} {
		a := Ask(t.Context(), dir)
		if !a.Missing || len(a.Errors) != 1 || a.Errors[0].Path != dir || !strings.Contains(a.Errors[0].Text, want) {
			t.Errorf("Ask(%s) = %+v, want an error that says %q", dir, a, want)
		}
		t.Setenv("GOSMC_DIR", dir)
		if a := Ask(t.Context(), ""); !a.Missing || len(a.Errors) == 0 || a.Errors[0].Path != dir {
			t.Errorf("Ask() with GOSMC_DIR=%s = %+v, want that error", dir, a)
		}
	}
}
