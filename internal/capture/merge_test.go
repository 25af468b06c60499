package capture

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// scripted is a Source that gives the items of a list: packets with a time in seconds, 0 for none,
// and errors.
type scripted struct {
	name   string
	steps  []any // int or error
	packet Packet
	closed int
	err    error // of Close
}

func (s *scripted) Next() (*Packet, error) {
	if len(s.steps) == 0 {
		return nil, io.EOF
	}
	step := s.steps[0]
	s.steps = s.steps[1:]
	if err, ok := step.(error); ok {
		return nil, err
	}
	s.packet = Packet{Number: s.packet.Number + 1, Data: fmt.Appendf(nil, "%s%d", s.name, s.packet.Number+1)}
	if at := step.(int); at != 0 {
		s.packet.Time = time.Unix(int64(at), 0)
	}
	return &s.packet, nil
}

func (s *scripted) Close() error { s.closed++; return s.err }
func (s *scripted) Name() string { return s.name }

// TestMerge merges by time: packets of the same time come in the order of the sources, and a packet
// without a time comes after the packet before it.
func TestMerge(t *testing.T) {
	lost := &Error{Name: "b", Packet: 2, Err: ErrCorrupt}
	for _, tt := range []struct {
		name string
		in   [][]any
		want string
	}{
		{"nothing", nil, ""},
		{"one", [][]any{{3, 1, 2}}, "a1 a2 a3"},
		{"empty ones", [][]any{{}, {1}, {}}, "b1"},
		{"two", [][]any{{1, 3, 5}, {2, 4, 6}}, "a1 b1 a2 b2 a3 b3"},
		{"same times", [][]any{{1, 1}, {1, 1}, {1}}, "a1 a2 b1 b2 c1"},
		{"one after the other", [][]any{{5, 6}, {1, 2}}, "b1 b2 a1 a2"},
		{"out of order in one", [][]any{{5, 1, 6}, {2, 5}}, "b1 a1 a2 b2 a3"},
		{"no times", [][]any{{2, 0, 0, 4}, {1, 3}}, "b1 a1 a2 a3 b2 a4"},
		{"no times at first", [][]any{{1, 2}, {0, 0, 3}}, "b1 b2 a1 a2 b3"},
		{"an error", [][]any{{1, 2, 4}, {1, lost, 3}}, "a1 b1 ! a2 b2 a3"},
		{"errors at first and last", [][]any{{lost, 1, lost}, {lost, lost}}, "! ! ! a1 !"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var sources []Source
			for i, steps := range tt.in {
				sources = append(sources, &scripted{name: string(rune('a' + i)), steps: steps})
			}
			m := Merge(sources...)
			var got []string
			for n := 0; ; {
				p, err := m.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					if err != error(lost) {
						t.Fatal(err)
					}
					got = append(got, "!")
					continue
				}
				if n++; p.Number != n || p.Source != int(p.Data[0]-'a') {
					t.Errorf("%s has number %d and source %d, want %d and %d", p.Data, p.Number, p.Source, n, p.Data[0]-'a')
				}
				got = append(got, string(p.Data))
			}
			if got := strings.Join(got, " "); got != tt.want {
				t.Errorf("merged: %s, want %s", got, tt.want)
			}
			if _, err := m.Next(); err != io.EOF {
				t.Errorf("Next() after the end: %v, want EOF", err)
			}
		})
	}
}

// TestMergeSorted merges any sorted sources: as a stable sort of all would.
func TestMergeSorted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type item struct {
			at   int
			name string
		}
		var sources []Source
		var want []item
		for i := range rapid.IntRange(0, 6).Draw(t, "sources") {
			times := rapid.SliceOfN(rapid.IntRange(1, 9), 0, 9).Draw(t, "times")
			slices.Sort(times)
			s := &scripted{name: string(rune('a' + i))}
			for k, at := range times {
				s.steps = append(s.steps, at)
				want = append(want, item{at, fmt.Sprintf("%s%d", s.name, k+1)})
			}
			sources = append(sources, s)
		}
		slices.SortStableFunc(want, func(a, b item) int { return a.at - b.at })
		m := Merge(sources...)
		for _, w := range want {
			if p, err := m.Next(); err != nil || string(p.Data) != w.name {
				t.Fatalf("Next() = %v, %v; want %s", p, err, w.name)
			}
		}
		if _, err := m.Next(); err != io.EOF {
			t.Fatalf("Next() = %v, want EOF", err)
		}
	})
}

func TestMergeClose(t *testing.T) {
	broken := errors.New("broken")
	a, b := &scripted{name: "a", err: broken}, &scripted{name: "b"}
	m := Merge(a, b)
	if got := m.Name(); got != "a, b" {
		t.Errorf("Name() = %q, want %q", got, "a, b")
	}
	if err := m.Close(); !errors.Is(err, broken) || a.closed != 1 || b.closed != 1 {
		t.Errorf("Close() = %v, closed %d and %d times; want %v, 1 and 1", err, a.closed, b.closed, broken)
	}
	if _, _, ok := m.(Progresser).Progress(); ok {
		t.Error("Progress() of sources without = known")
	}
	defer func() {
		if recover() == nil {
			t.Error("Merge of too many sources did not panic")
		}
	}()
	Merge(make([]Source, MaxSources+1)...)
}

// TestMergeFiles merges captures of a kernel with themselves, and reports the progress of both.
func TestMergeFiles(t *testing.T) {
	name := roceTestdata + "/linux-6.12-smcrv2-two-links.pcap.gz"
	var sources []Source
	var size int64
	for range 2 {
		s, err := Open(name)
		if err != nil {
			t.Fatal(err)
		}
		_, n, _ := s.(Progresser).Progress()
		size += n
		sources = append(sources, s)
	}
	m := Merge(sources...)
	defer m.Close()
	got := readAll(t, m)
	if len(got.packets) != 2*647 || len(got.errs) > 0 {
		t.Fatalf("%d packets and %v, want %d", len(got.packets), got.errs, 2*647)
	}
	if read, all, ok := m.(Progresser).Progress(); read != size || all != size || !ok || size == 0 {
		t.Errorf("Progress() = %d, %d, %v; want %d twice", read, all, ok, size)
	}
}
