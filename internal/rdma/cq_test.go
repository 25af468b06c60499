package rdma

import (
	"errors"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
)

// TestCQNeverOverflows posts more than there is room for, before and after a failure, at once and one
// by one: work keeps its place until its completion has been taken out.
func TestCQNeverOverflows(t *testing.T) {
	const depth = 16
	dev, err := Open(randomLoopback(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	pd, err := dev.NewPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := dev.NewCQ(2*depth, nil)
	if err != nil {
		t.Fatal(err)
	}
	q, err := pd.NewQP(QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: depth, MaxRecv: depth})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := pd.NewQP(QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 1}); !errors.Is(err, ErrCQTooSmall) {
		t.Errorf("NewQP with a full completion queue = %v, want ErrCQTooSmall", err)
	}
	if err := q.Init(0); err != nil {
		t.Fatal(err)
	}
	receives := make([]RecvWR, depth+4)
	if err := q.PostRecv(receives...); !errors.Is(err, ErrQueueFull) {
		t.Errorf("PostRecv of %d into %d places = %v, want ErrQueueFull", len(receives), depth, err)
	}
	if err := q.Fail(); err != nil {
		t.Fatal(err)
	}
	sends := make([]SendWR, depth+4)
	for i := range sends {
		sends[i].Op = OpSend
	}
	var taken []Completion
	for range 3 {
		if err := q.PostSend(sends...); !errors.Is(err, ErrQueueFull) {
			t.Errorf("PostSend of %d into %d places = %v, want ErrQueueFull", len(sends), depth, err)
		}
		if err := q.PostRecv(receives...); !errors.Is(err, ErrQueueFull) {
			t.Errorf("PostRecv of %d into %d places = %v, want ErrQueueFull", len(receives), depth, err)
		}
		if err := q.PostSend(sends[0]); !errors.Is(err, ErrQueueFull) {
			t.Errorf("PostSend of one more = %v, want ErrQueueFull", err)
		}
		buf := make([]Completion, 3*depth)
		n := cq.Poll(buf)
		if n != 2*depth {
			t.Errorf("Poll = %d completions, want %d", n, 2*depth)
		}
		taken = append(taken, buf[:n]...)
	}
	for i, c := range taken {
		if c.QP != q || c.Status != StatusFlushed {
			t.Fatalf("completion %d is %+v, want a flushed one of the queue pair", i, c)
		}
	}
}

// TestDrain has the handler called on the goroutine that asks for it, also where another one is in it: then that is waited for, but not for ever.
func TestDrain(t *testing.T) {
	enter, leave := make(chan struct{}), make(chan struct{})
	calls := 0 // of the handler, never two at a time
	cq := &CQ{handler: func(verbs.CQ) {
		if calls++; calls == 1 {
			close(enter)
			<-leave
		}
	}}
	q := &QP{recvCQ: cq}
	go cq.notify()
	<-enter
	drained := make(chan bool)
	go func() { drained <- q.Drain(time.Millisecond) }()
	select {
	case ok := <-drained:
		if ok {
			t.Error("Drain = true, beside a handler that does not return")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Drain waits for ever")
	}
	go func() { drained <- q.Drain(time.Minute) }()
	close(leave)
	if !<-drained || calls != 2 {
		t.Errorf("the handler was called %d times, want 2", calls)
	}
}

// TestTurn sends over two pairs of devices by turns, each time when the message before is known to have arrived, and has the receives looked at afterwards: their
// completions tell the order in which they have arrived.
func TestTurn(t *testing.T) {
	var pairs [2][2]*side
	for i := range pairs {
		p := [2]*side{newSide(t, randomLoopback(), nil, nil), newSide(t, randomLoopback(), nil, nil)}
		connect(t, p[0], p[1], wire.MTU1024)
		pairs[i] = p
	}
	const messages = 20
	for i := range messages {
		p := pairs[i/2%2]
		if err := p[1].qp.PostRecv(RecvWR{ID: uint64(i)}); err != nil {
			t.Fatal(err)
		}
		if err := p[0].qp.PostSend(SendWR{Op: OpSend, Signaled: true}); err != nil {
			t.Fatal(err)
		}
		if c := p[0].await(t); c.Status != StatusOK {
			t.Fatal(c)
		}
	}
	var turns [messages]uint64
	for range messages / 2 {
		for _, p := range pairs {
			c := p[1].await(t)
			turns[c.ID] = c.Turn
		}
	}
	for i, n := range turns[1:] {
		if n <= turns[i] {
			t.Errorf("messages have come in the turns %d", turns)
			break
		}
	}
}
