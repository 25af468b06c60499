package survey

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/control"
)

const (
	scanInterval = 100 * time.Millisecond // how often it is looked for new hosts
	// how long events wait for older ones of other hosts, also of new ones
	settleInterval = 125 * time.Millisecond
	maxUnsettled   = 1 << 14 // events that wait for that, at most
	queuedEvents   = 256     // on their way from the hosts
)

// Options select the hosts and events to follow.
type Options struct {
	Dir    string                     // look in this run directory only; empty: in all
	Choose func(*control.Status) bool // is this host meant? It is asked once for each.
	Stay   bool                       // wait for hosts that start later, also when there is none
	Trace  control.TraceOptions
}

// A Host is one that is followed.
type Host struct {
	control.Status // as it was when it was found, without connections and listeners
	// its process, and which of the hosts of that process that have been followed: 4711.1
	Label string
}

// An Event is an event that came from a host.
type Event struct {
	Host *Host
	control.TraceEvent
	End error // instead of all but Time: why nothing more comes

	old bool // it has waited for those before it
}

// A Sink takes the events that are followed. Its methods are called by one goroutine at a time.
type Sink interface {
	// Found begins a host, before its first event.
	Found(*Host)
	// Unanswered is for a host that cannot be asked: fs.ErrPermission is of another user.
	Unanswered(error)
	// Nobody is for a beginning without a host. An error ends Follow, which returns it.
	Nobody() error
	// Event takes the next event in the order of time. After more false, or an error, none follows.
	Event(*Event) (more bool, err error)
	// Settled says that no event is ready now, so that printed text may be written out.
	Settled() error
}

// A follower carries out Follow.
type follower struct {
	Options
	sink    Sink
	seen    map[string]bool // control sockets that were looked at, by key of the place and name
	running int             // hosts that are followed
	heard   bool            // of any of them
	failed  error           // the first of those that could not be followed
	enough  bool            // the sink wants no more

	elsewhere []place      // run directories of other mount namespaces
	looks     chan []place // for those
	looked    time.Time    // when the last of these began
	looking   bool         // it is under way

	ofProcess map[int]int // hosts that have been followed, by process

	events  chan Event
	waiting []Event
}

func newFollower(o Options, sink Sink) *follower {
	return &follower{Options: o, sink: sink, seen: make(map[string]bool), ofProcess: make(map[int]int),
		events: make(chan Event, queuedEvents)}
}

// Follow tells sink the events of the chosen hosts. It ends when ctx ends, which is no error, when
// nothing more can come, or when sink has had enough. An error is one of sink's, or says why a host
// cannot be followed when nothing was heard of any.
func Follow(ctx context.Context, o Options, sink Sink) error {
	return newFollower(o, sink).run(ctx)
}

func (f *follower) run(interrupted context.Context) error {
	ctx, stop := context.WithCancel(interrupted)
	var following sync.WaitGroup
	defer following.Wait()
	defer stop()
	f.scan(ctx, &following)
	if f.running == 0 {
		if err := f.sink.Nobody(); err != nil {
			return err
		}
	}
	scan := time.NewTicker(scanInterval)
	defer scan.Stop()
	settle := time.NewTicker(settleInterval)
	defer settle.Stop()
	for f.Stay || f.running > 0 {
		select {
		case <-interrupted.Done():
			return f.settle(true)
		case <-scan.C:
			f.scan(ctx, &following)
		case <-settle.C:
			if err := f.settle(false); err != nil || f.enough {
				return err
			}
		case e := <-f.events:
			if f.waiting = append(f.waiting, e); len(f.waiting) >= maxUnsettled {
				if err := f.settle(true); err != nil || f.enough {
					return err
				}
			}
		}
	}
	if f.failed != nil && !f.heard {
		return f.failed
	}
	return nil
}

// scan begins to follow hosts that were not there before.
func (f *follower) scan(ctx context.Context, following *sync.WaitGroup) {
	there := make(map[string]bool)
	for _, place := range f.places() {
		list, errs := control.GatherSome(ctx, place.dir, func(name string) bool {
			path := filepath.Join(place.key, name)
			there[path] = f.seen[path]
			return !f.seen[path]
		})
		for _, err := range errs {
			if errors.Is(err, context.Canceled) {
				continue
			}
			if e, ok := errors.AsType[*control.Error](err); ok {
				there[filepath.Join(place.key, filepath.Base(e.Path))] = true // it is asked once only
			}
			f.sink.Unanswered(err)
		}
		for i := range list {
			there[filepath.Join(place.key, list[i].Name)] = true
			if f.Choose(&list[i]) {
				f.follow(ctx, following, &list[i])
			}
		}
	}
	f.seen = there
}

// follow begins to follow a host.
func (f *follower) follow(ctx context.Context, following *sync.WaitGroup, st *control.Status) {
	f.ofProcess[st.PID]++
	h := &Host{Status: *st, Label: fmt.Sprintf("%d.%d", st.PID, f.ofProcess[st.PID])}
	h.Connections, h.Listeners = nil, nil
	f.running++
	f.sink.Found(h)
	following.Go(func() {
		send := func(e Event) {
			select {
			case f.events <- e:
			case <-ctx.Done():
			}
		}
		err := control.FollowTrace(ctx, st.Dir, st.Name, f.Trace,
			func(e control.TraceEvent) { send(Event{Host: h, TraceEvent: e}) })
		send(Event{Host: h, TraceEvent: control.TraceEvent{Time: time.Now()}, End: err})
	})
}

// settle hands on the events that have waited long enough for older ones of other hosts, or all.
func (f *follower) settle(all bool) error {
	if len(f.waiting) == 0 {
		return nil
	}
	slices.SortStableFunc(f.waiting, func(a, b Event) int { return a.Time.Compare(b.Time) })
	n := len(f.waiting)
	if !all {
		for ; n > 0 && !f.waiting[n-1].old; n-- {
		}
	}
	for i := range f.waiting[:n] {
		if err := f.hand(&f.waiting[i]); err != nil {
			return err
		}
		if f.enough {
			break
		}
	}
	f.waiting = slices.Delete(f.waiting, 0, n)
	for i := range f.waiting {
		f.waiting[i].old = true
	}
	return f.sink.Settled()
}

// hand gives the sink one event.
func (f *follower) hand(e *Event) error {
	if e.End != nil {
		f.running--
		if errors.Is(e.End, context.Canceled) {
			return nil
		}
		if _, ok := errors.AsType[*control.Error](e.End); ok && f.failed == nil {
			f.failed = e.End
		}
	} else {
		f.heard = true
	}
	more, err := f.sink.Event(e)
	f.enough = !more
	return err
}
