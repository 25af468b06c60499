package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/gosmc/smc/internal/uverbs"
)

// sizes are those of messages: none, around the path MTU of 1024 and pages, and the largest.
var sizes = []int{0, 1, 2, 7, 63, 64, 1023, 1024, 1025, 4095, 4096, 4097, 16384, 65535, 65536}

// loop moves data between two queue pairs of a device in all ways that SMC-R uses.
func loop(c *uverbs.Context) error {
	a, b, err := pair(c, uverbs.RemoteWrite|uverbs.LocalWrite)
	if err != nil {
		return err
	}
	for _, part := range []struct {
		name string
		run  func(a, b *end) (string, error)
	}{
		{"writes", writes}, {"messages", messages}, {"batches", batches}, {"wakeups", wakeups}, {"allocations", allocations},
	} {
		said, err := part.run(a, b)
		if err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		fmt.Printf("%s: %s\n", part.name, said)
	}
	return errors.Join(a.close(), b.close())
}

// fill fills memory with new bytes.
func fill(random *rand.ChaCha8, b []byte) { random.Read(b) }

// writes makes WRITEs of all sizes from and to all alignments. The whole region of the peer is compared, so that a
// byte too many shows as well as one too few.
func writes(a, b *end) (string, error) {
	random := rand.NewChaCha8([32]byte{1})
	image := bytes.Clone(b.mr.Bytes())
	count := 0
	for round := range 8 {
		for _, n := range sizes {
			from, to := round*9, 1000*round+round*7
			fill(random, a.mr.Bytes()[from:from+n])
			copy(image[to:], a.mr.Bytes()[from:from+n])
			w := write(uint64(count), a.mr, from, b.mr, to, n)
			if n > 2 { // two pieces
				w.Local = [uverbs.MaxSGE]uverbs.SGE{sge(a.mr, from, n/3), sge(a.mr, from+n/3, n-n/3)}
			}
			if err := a.qp.PostSend(w); err != nil {
				return "", err
			}
			if _, err := a.want(uint64(count), uverbs.CompletedWrite, uverbs.StatusOK); err != nil {
				return "", err
			}
			if !bytes.Equal(image, b.mr.Bytes()) {
				return "", fmt.Errorf("%d bytes from %d to %d: other memory than expected", n, from, to)
			}
			count++
		}
	}
	return fmt.Sprintf("%d WRITEs of 0 B to 64 KiB", count), nil
}

// messages sends messages of all sizes in both directions, with and without immediate data, and WRITEs with immediate
// data.
func messages(a, b *end) (string, error) {
	random := rand.NewChaCha8([32]byte{2})
	ops := []uverbs.Op{uverbs.OpSend, uverbs.OpSendImm, uverbs.OpWriteImm}
	count := 0
	for range 4 {
		for _, n := range sizes {
			for _, op := range ops {
				a, b = b, a
				if err := message(random, a, b, op, n, uint64(count)); err != nil {
					return "", fmt.Errorf("%v of %d bytes: %w", op, n, err)
				}
				count++
			}
		}
	}
	return fmt.Sprintf("%d messages of 0 B to 64 KiB", count), nil
}

func message(random *rand.ChaCha8, a, b *end, op uverbs.Op, n int, id uint64) error {
	fill(random, a.mr.Bytes()[:n])
	clear(b.mr.Bytes())
	const at = 100_000
	if err := b.qp.PostRecv(uverbs.RecvWR{ID: ^id, Local: one(sge(b.mr, at, 65536))}); err != nil {
		return err
	}
	w := uverbs.SendWR{ID: id, Op: op, Signaled: true, Local: one(sge(a.mr, 0, n)), Imm: uint32(id) ^ 0x12345678}
	got, done := uverbs.Received, uverbs.CompletedSend
	if op == uverbs.OpWriteImm {
		w.Remote, w.RKey = b.mr.Addr()+at, b.mr.RKey()
		got, done = uverbs.ReceivedWriteImm, uverbs.CompletedWrite
	}
	if err := a.qp.PostSend(w); err != nil {
		return err
	}
	if _, err := a.want(id, done, uverbs.StatusOK); err != nil {
		return err
	}
	r, err := b.want(^id, got, uverbs.StatusOK)
	switch {
	case err != nil:
		return err
	case int(r.Len) != n:
		return fmt.Errorf("%d bytes received", r.Len)
	case r.HasImm != (op != uverbs.OpSend) || r.HasImm && r.Imm != w.Imm:
		return fmt.Errorf("immediate data %#x (%v), want %#x", r.Imm, r.HasImm, w.Imm)
	case !bytes.Equal(b.mr.Bytes()[at:at+n], a.mr.Bytes()[:n]):
		return errors.New("other bytes than sent")
	case bytes.ContainsFunc(b.mr.Bytes()[at+n:], func(r rune) bool { return r != 0 }):
		return errors.New("bytes beyond the message")
	}
	return nil
}

// batches posts full queues again and again, of which one request is signaled, and a SEND after the WRITEs, as SMC-R
// does. Rings and sequence numbers wrap around many times.
func batches(a, b *end) (string, error) {
	random := rand.NewChaCha8([32]byte{3})
	const rounds, n = 500, 100
	for round := range rounds {
		var work [depth]uverbs.SendWR
		fill(random, a.mr.Bytes()[:depth*n])
		for i := range work[:depth-1] {
			work[i] = write(uint64(i), a.mr, i*n, b.mr, i*n, n)
			work[i].Signaled = false
		}
		id := uint64(round)
		work[depth-1] = uverbs.SendWR{ID: id, Op: uverbs.OpSend, Signaled: true, Local: one(sge(a.mr, (depth-1)*n, n))}
		if err := b.qp.PostRecv(uverbs.RecvWR{ID: id, Local: one(sge(b.mr, (depth-1)*n, n))}); err != nil {
			return "", err
		}
		if err := a.qp.PostSend(work[:]...); err != nil {
			return "", err
		}
		// The queue is full, though the kernel may be done: nothing was taken out.
		if err := a.qp.PostSend(work[0]); !errors.Is(err, uverbs.ErrQueueFull) {
			return "", fmt.Errorf("posting to a full queue: %v", err)
		}
		if _, err := a.want(id, uverbs.CompletedSend, uverbs.StatusOK); err != nil {
			return "", fmt.Errorf("round %d: %w", round, err)
		}
		if _, err := b.want(id, uverbs.Received, uverbs.StatusOK); err != nil {
			return "", fmt.Errorf("round %d: %w", round, err)
		}
		if !bytes.Equal(a.mr.Bytes()[:depth*n], b.mr.Bytes()[:depth*n]) {
			return "", fmt.Errorf("round %d: other bytes than sent", round)
		}
	}
	return fmt.Sprintf("%d operations in %d batches", rounds*depth, rounds), nil
}

// wakeups has one side wait in Go's poller for each of the other's messages.
func wakeups(a, b *end) (string, error) {
	const rounds = 200
	errs := make(chan error, 1)
	before := b.wakeups
	go func() { errs <- answer(b, rounds) }()
	for id := range uint64(rounds) {
		err := errors.Join(b.qp.PostRecv(uverbs.RecvWR{ID: id}), a.qp.PostRecv(uverbs.RecvWR{ID: id}))
		if err != nil {
			return "", err
		}
		runtime.Gosched()
		if err := a.qp.PostSend(uverbs.SendWR{ID: id, Op: uverbs.OpSend, Signaled: true}); err != nil {
			return "", err
		}
		for range 2 { // in either order
			done, err := a.next()
			if err != nil {
				return "", err
			}
			if done.Status != uverbs.StatusOK {
				return "", errors.New(done.Status.String())
			}
		}
	}
	if err := <-errs; err != nil {
		return "", err
	}
	if b.wakeups == before {
		return "", errors.New("no wait of 200 rounds")
	}
	return fmt.Sprintf("%d rounds", rounds), nil
}

// answer answers each of n messages. The completion of an answer may come after the next message.
func answer(b *end, n int) error {
	for range 2 * n {
		done, err := b.next()
		switch {
		case err != nil:
			return err
		case done.Status != uverbs.StatusOK:
			return errors.New(done.Status.String())
		case done.Op != uverbs.Received:
			continue
		}
		if err := b.qp.PostSend(uverbs.SendWR{ID: done.ID, Op: uverbs.OpSend, Signaled: true}); err != nil {
			return err
		}
	}
	return nil
}

// allocations checks that the data path allocates nothing.
func allocations(a, b *end) (string, error) {
	var failed error
	work := write(1, a.mr, 0, b.mr, 0, 64)
	dst := make([]uverbs.Completion, 4)
	n := testing.AllocsPerRun(200, func() {
		if err := a.qp.PostSend(work); err != nil {
			failed = err
		}
		for failed == nil && a.cq.Poll(dst) == 0 {
		}
	})
	if failed == nil && n != 0 {
		failed = fmt.Errorf("%v allocations for each WRITE", n)
	}
	return "none for each WRITE", failed
}
