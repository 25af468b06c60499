package cdc

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestCursor(t *testing.T) {
	for _, tt := range []struct {
		from        Cursor
		n, capacity uint32
		to          Cursor
	}{
		{Cursor{0, 0}, 0, 10, Cursor{0, 0}},
		{Cursor{0, 0}, 3, 10, Cursor{0, 3}},
		{Cursor{0, 0}, 10, 10, Cursor{1, 0}}, // a full buffer
		{Cursor{0, 7}, 2, 10, Cursor{0, 9}},
		{Cursor{0, 7}, 3, 10, Cursor{1, 0}},
		{Cursor{0, 7}, 10, 10, Cursor{1, 7}},
		{Cursor{0xffff, 9}, 1, 10, Cursor{0, 0}}, // the wrap wraps
		{Cursor{0xffff, 9}, 10, 10, Cursor{0, 9}},
		{Cursor{5, 0}, 1, 1, Cursor{6, 0}},
		{Cursor{0, 65503}, 65504, 65504, Cursor{1, 65503}}, // 64K DMB element
		{Cursor{1, 1<<29 - 1}, 1 << 29, 1 << 29, Cursor{2, 1<<29 - 1}},
		{Cursor{1, math.MaxUint32 - 1}, math.MaxUint32, math.MaxUint32, Cursor{2, math.MaxUint32 - 1}},
	} {
		if got := tt.from.Advance(tt.n, tt.capacity); got != tt.to {
			t.Errorf("%v.Advance(%d, %d) = %v, want %v", tt.from, tt.n, tt.capacity, got, tt.to)
		}
		if got := Diff(tt.from, tt.to, tt.capacity); got != tt.n {
			t.Errorf("Diff(%v, %v, %d) = %d, want %d", tt.from, tt.to, tt.capacity, got, tt.n)
		}
		if got, err := Check(tt.from, tt.to, tt.capacity, tt.capacity); err != nil || got != tt.n {
			t.Errorf("Check(%v, %v, %d, %d) = %d, %v; want %d", tt.from, tt.to, tt.capacity, tt.capacity, got, err, tt.n)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		old, new        Cursor
		limit, capacity uint32
		advance         uint32
		err             error
	}{
		{Cursor{0, 5}, Cursor{0, 5}, 0, 10, 0, nil},
		{Cursor{0, 5}, Cursor{0, 6}, 0, 10, 0, ErrAdvance},
		{Cursor{0, 5}, Cursor{0, 9}, 4, 10, 4, nil},
		{Cursor{0, 5}, Cursor{0, 10}, 10, 10, 0, ErrCount},
		{Cursor{0, 5}, Cursor{0, 11}, 10, 10, 0, ErrCount},
		{Cursor{0, 5}, Cursor{0, math.MaxUint32}, 10, 10, 0, ErrCount},
		{Cursor{0, 5}, Cursor{1, math.MaxUint32}, 10, 10, 0, ErrCount},
		{Cursor{0, 5}, Cursor{0, 4}, 10, 10, 0, ErrAdvance}, // back
		{Cursor{0, 5}, Cursor{1, 4}, 9, 10, 9, nil},
		{Cursor{0, 5}, Cursor{1, 5}, 9, 10, 0, ErrAdvance},
		{Cursor{0, 5}, Cursor{1, 5}, 10, 10, 10, nil},
		{Cursor{0, 5}, Cursor{1, 6}, 10, 10, 0, ErrAdvance}, // more than the buffer
		{Cursor{0, 5}, Cursor{2, 5}, 10, 10, 0, ErrAdvance},
		{Cursor{0, 9}, Cursor{2, 0}, 10, 10, 0, ErrAdvance}, // 11: the least of two wraps
		{Cursor{1, 5}, Cursor{0, 5}, 10, 10, 0, ErrAdvance}, // a whole wrap back
		{Cursor{1, 0}, Cursor{0, 9}, 10, 10, 0, ErrAdvance},
		{Cursor{0xffff, 5}, Cursor{0, 0}, 10, 10, 5, nil},
		{Cursor{0, 5}, Cursor{0xffff, 5}, 10, 10, 0, ErrAdvance},
		{Cursor{0, 5}, Cursor{0x8000, 5}, 10, 10, 0, ErrAdvance},
		{Cursor{0, 0}, Cursor{0, 0}, 0, 0, 0, ErrCount}, // no buffer at all
		// Products that would not fit 32 bits.
		{Cursor{0, 0}, Cursor{8, 0}, 1 << 29, 1 << 29, 0, ErrAdvance},
		{Cursor{0, 1}, Cursor{8, 1}, 1 << 29, 1 << 29, 0, ErrAdvance},
		{Cursor{0, 0}, Cursor{2, 0}, math.MaxUint32, math.MaxUint32, 0, ErrAdvance},
		{Cursor{0, 0}, Cursor{1, 0}, math.MaxUint32, math.MaxUint32, math.MaxUint32, nil},
	} {
		got, err := Check(tt.old, tt.new, tt.limit, tt.capacity)
		if got != tt.advance || !errors.Is(err, tt.err) {
			t.Errorf("Check(%v, %v, %d, %d) = %d, %v; want %d, %v", tt.old, tt.new, tt.limit, tt.capacity, got, err, tt.advance, tt.err)
		}
	}
}

// TestCheckSmall compares Check with its definition for a small ring, every count, and wraps around
// the edges of 16 bits.
func TestCheckSmall(t *testing.T) {
	const capacity = 3
	for oldCount := range uint32(capacity) {
		for limit := range uint32(capacity + 1) {
			for _, wrap := range []uint16{0, 1, 2, 3, 0x7ffe, 0x7fff, 0x8000, 0xfffd, 0xfffe, 0xffff} {
				for count := range uint32(capacity + 2) {
					old, new := Cursor{0xffff, oldCount}, Cursor{wrap, count}
					// The legal cursors are those that a step of at most limit leads to.
					legal, advance := false, uint32(0)
					for n := range limit + 1 {
						if old.Advance(n, capacity) == new {
							legal, advance = true, n
						}
					}
					got, err := Check(old, new, limit, capacity)
					if (err == nil) != legal || got != advance {
						t.Fatalf("Check(%v, %v, %d, %d) = %d, %v; want %d, legal %v", old, new, limit, capacity, got, err, advance, legal)
					}
				}
			}
		}
	}
}

// TestCursorModel plays a producer and a consumer on a ring, against counters that never wrap.
func TestCursorModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.OneOf(rapid.Uint32Range(1, 20), rapid.Uint32Range(1, 1<<29)).Draw(t, "capacity")
		start := Cursor{rapid.Uint16().Draw(t, "wrap"), rapid.Uint32Range(0, capacity-1).Draw(t, "count")}
		producer, consumer := start, start
		var produced, consumed uint64
		t.Repeat(map[string]func(*rapid.T){
			"produce": func(t *rapid.T) {
				free := capacity - uint32(produced-consumed)
				n := rapid.Uint32Range(0, free).Draw(t, "n")
				next := producer.Advance(n, capacity)
				if got, err := Check(producer, next, free, capacity); err != nil || got != n {
					t.Fatalf("Check(%v, %v, %d, %d) = %d, %v; want %d", producer, next, free, capacity, got, err, n)
				}
				producer, produced = next, produced+uint64(n)
			},
			"consume": func(t *rapid.T) {
				used := uint32(produced - consumed)
				n := rapid.Uint32Range(0, used).Draw(t, "n")
				next := consumer.Advance(n, capacity)
				if got, err := Check(consumer, next, used, capacity); err != nil || got != n {
					t.Fatalf("Check(%v, %v, %d, %d) = %d, %v; want %d", consumer, next, used, capacity, got, err, n)
				}
				consumer, consumed = next, consumed+uint64(n)
			},
			"lie": func(t *rapid.T) {
				free := capacity - uint32(produced-consumed)
				lie := Cursor{rapid.Uint16().Draw(t, "wrap"), rapid.Uint32().Draw(t, "count")}
				got, err := Check(producer, lie, free, capacity)
				if err == nil && (got > free || producer.Advance(got, capacity) != lie) {
					t.Fatalf("Check(%v, %v, %d, %d) = %d, want an error", producer, lie, free, capacity, got)
				}
				if err != nil && got != 0 {
					t.Fatalf("Check(%v, %v, %d, %d) = %d, %v; want 0 with an error", producer, lie, free, capacity, got, err)
				}
			},
			"": func(t *rapid.T) {
				if got := Diff(consumer, producer, capacity); uint64(got) != produced-consumed {
					t.Fatalf("Diff(%v, %v, %d) = %d, want %d", consumer, producer, capacity, got, produced-consumed)
				}
				position := uint64(start.Count) + produced
				want := Cursor{start.Wrap + uint16(position/uint64(capacity)), uint32(position % uint64(capacity))}
				if producer != want {
					t.Fatalf("producer %v, want %v after %d bytes", producer, want, produced)
				}
			},
		})
	})
}

func TestCheckAllocations(t *testing.T) {
	old, bad := Cursor{0, 5}, Cursor{7, 5}
	if n := testing.AllocsPerRun(100, func() {
		next := old.Advance(3, 64)
		got, err := Check(old, next, 64, 64)
		_, rejected := Check(old, bad, 64, 64)
		w := PackConsumer(next, WriterBlocked, Closed)
		c, _, _ := UnpackConsumer(w)
		if got != 3 || err != nil || rejected == nil || c != next || UnpackProducer(PackProducer(c)) != c {
			t.Fatal("wrong result")
		}
	}); n != 0 {
		t.Errorf("a cursor update makes %v allocations, want 0", n)
	}
}

func BenchmarkCheck(b *testing.B) {
	b.ReportAllocs()
	const capacity = 65504
	var c Cursor
	for b.Loop() {
		next := UnpackProducer(PackProducer(c.Advance(1000, capacity)))
		if _, err := Check(c, next, capacity, capacity); err != nil {
			b.Fatal(err)
		}
		c = next
	}
}
