package link

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/verbs"
)

// An adapter is a second provider: software RoCE that offers no more than hardware does. Regions are
// whole pages, nobody guards them or counts their bytes, and acknowledgements are not ours.
type adapter struct{ verbs.Device }

func (a adapter) WholePages() bool { return true }

func (a adapter) NewPD() (verbs.PD, error) {
	p, err := a.Device.NewPD()
	return adapterPD{p}, err
}

type adapterPD struct{ verbs.PD }

func (p adapterPD) RegisterMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	page := uintptr(os.Getpagesize())
	if uintptr(unsafe.Pointer(&mem[0]))%page != 0 || uintptr(len(mem))%page != 0 || access&verbs.LocalWrite == 0 {
		return nil, errors.New("not whole pages that the device may write to")
	}
	m, err := p.PD.RegisterMR(mem, access)
	return adapterMR{m}, err
}

func (p adapterPD) NewQP(cfg verbs.QPConfig) (verbs.QP, error) {
	q, err := p.PD.NewQP(cfg)
	return adapterQP{q}, err
}

type adapterMR struct{ verbs.MR }

type adapterQP struct{ verbs.QP }

func (q adapterQP) AnswerFirst()             {}
func (q adapterQP) HoldAnswers()             {}
func (q adapterQP) Stats() verbs.QPStats     { return verbs.QPStats{} }
func (q adapterQP) Drain(time.Duration) bool { return q.QP.Drain(drainTime) }

func (q adapterQP) PostSend(wrs ...verbs.SendWR) error {
	for _, w := range wrs {
		bare(&w.Local)
		if err := q.QP.PostSend(w); err != nil {
			return err
		}
	}
	return nil
}

func (q adapterQP) PostRecv(wrs ...verbs.RecvWR) error {
	for _, w := range wrs {
		bare(&w.Local)
		if err := q.QP.PostRecv(w); err != nil {
			return err
		}
	}
	return nil
}

func bare(local *[verbs.MaxSGE]verbs.SGE) {
	for i := range local {
		if m, ok := local[i].MR.(adapterMR); ok {
			local[i].MR = m.MR
		}
	}
}

func openAdapter(t testing.TB) verbs.Device {
	return adapter{openDevice(t, randomLoopback(), nil)}
}

// TestAdapter moves data between links on adapters, and between an adapter and software RoCE.
func TestAdapter(t *testing.T) {
	watchdog(t)
	for name, s := range map[string]sides{
		"both": joinSides(t, openAdapter(t), openAdapter(t)),
		"one":  joinSides(t, openAdapter(t), openDevice(t, randomLoopback(), &rdma.Config{})),
	} {
		t.Run(name, func(t *testing.T) {
			a, b := s.connect(t, settings{})
			exchange(t, a, b, 300_000)
		})
	}
}

// TestHeldPages has no page of registered memory given back to the system, as the device would write
// to the old page. The memory is cleared all the same.
func TestHeldPages(t *testing.T) {
	s := joinSides(t, openAdapter(t), openAdapter(t))
	rmb, err := s[0].group.NewRMB(3)
	if err != nil {
		t.Fatal(err)
	}
	if err := rmb.mem.giveBack(0, os.Getpagesize()); !errors.Is(err, errHeld) {
		t.Errorf("pages of an RMB are given back: %v", err)
	}
	all := rmb.Bytes()
	all[0], all[len(all)-1] = 1, 1
	rmb.touched = len(all)
	rmb.Clear()
	for i, b := range all {
		if b != 0 {
			t.Fatalf("byte %d is not zero", i)
		}
	}
	a, _ := s.connect(t, settings{})
	if err := a.carrier.ReturnPages(0, 4*os.Getpagesize()); err != nil {
		t.Errorf("ReturnPages: %v", err)
	}
	if err := a.carrier.ring.giveBack(0, os.Getpagesize()); !errors.Is(err, errHeld) {
		t.Errorf("pages of a send ring are given back: %v", err)
	}
	rmb.Free()
}

// TestMoveUncounted has a peer move without a validation message, and with a gap in the numbers, where
// nobody counts the bytes that it has placed: the connection ends rather than to take lost bytes for
// zeroes. With software RoCE it would go on.
func TestMoveUncounted(t *testing.T) {
	watchdog(t)
	u := newUnsaid(t, false)
	u.e.carrier.group.mu.Lock()
	u.e.rmb.mem.uncounted = true
	u.e.carrier.group.mu.Unlock()
	u.place(0, 5, 3)
	u.say(0, 1, 5, 0)
	u.say(1, 3, 8, 0)
	u.links[0][0].Fail(io.ErrClosedPipe)
	if n, err := io.ReadFull(u.e, make([]byte, 6)); n > 5 || !errors.As(err, new(*stream.PeerError)) {
		t.Errorf("read %d bytes, %v; want at most 5, and a broken rule", n, err)
	}
}
