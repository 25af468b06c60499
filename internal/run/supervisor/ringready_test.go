package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/proto"
)

// readyRounds is how often the writer stops between bytes and their token.
const readyRounds = 500

// A stoppingWriter is the writer of a ring, which stops between bytes and their token.
type stoppingWriter struct{ ringWriter }

// start joins a ring.
func (w *stoppingWriter) start() error {
	if _, err := w.offer([]byte{1}); err != nil {
		return err
	}
	for deadline := time.Now().Add(ringPatience); !w.on; runtime.Gosched() {
		if time.Now().After(deadline) {
			return fmt.Errorf("the reader has not attached for %v", ringPatience)
		}
		if w.out.attach(attachedYes, attachedSwitched) {
			w.on = true
			_, err := w.send([]byte{1}, w.fd)
			return err
		}
	}
	return nil
}

// publish puts bytes into the ring. It says if a token is due: none is while the reader looks, for which
// it waits until that is over.
func (w *stoppingWriter) publish(b []byte) (due bool, err error) {
	w.out.put(w.head, b)
	w.head = (w.head + uint64(len(b))) & pubHead
	for {
		pub := w.out.pub()
		if pub&pubLooks != 0 {
			if err := w.armed(); err != nil {
				return false, err
			}
			continue
		}
		want := pub&^(pubHead|pubArmed) | w.head
		if due = pub&pubArmed != 0; due {
			want = counted(want)
		}
		if w.out.swap(pub, want) {
			return due, nil
		}
	}
}

// armed waits until the reader has taken all, and asks for a token, as it does when it does not look any more.
func (w *stoppingWriter) armed() error {
	for deadline := time.Now().Add(ringPatience); w.out.pub()&(pubArmed|pubLooks) != pubArmed; {
		if time.Now().After(deadline) {
			return fmt.Errorf("the reader has not asked for a token for %v", ringPatience)
		}
	}
	return nil
}

func (w *stoppingWriter) play(b []byte) error {
	if err := w.start(); err != nil {
		return err
	}
	for range readyRounds {
		if err := w.armed(); err != nil {
			return err
		}
		if _, err := w.publish(b); err != nil {
			return err
		}
		if _, err := w.send([]byte{0}); err != nil {
			return err
		}
		if err := w.armed(); err != nil {
			return err
		}
		due, err := w.publish(b) // the read of the first ones may be at work yet
		if err != nil {
			return err
		}
		for stop := time.Now().Add(3 * time.Millisecond); time.Now().Before(stop); {
			runtime.Gosched()
		}
		if !due {
			return fmt.Errorf("no token is due, though the reader has asked for one")
		}
		if _, err := w.send([]byte{0}); err != nil {
			return err
		}
	}
	return unix.Shutdown(w.fd, unix.SHUT_WR)
}

// TestRingReady has a program that reads once whenever poll says so find something each time, also
// where the writer is stopped between bytes and their token while the program reads the bytes
// before them.
func TestRingReady(t *testing.T) {
	d := newTestDesk(t)
	l, spot := announced(t, d)
	defer d.Withdraw(spot)
	ctx, stop := context.WithTimeout(t.Context(), 2*ringPatience)
	defer stop()
	cmd := exec.CommandContext(ctx, peerProgram(t), "trust", strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+committedLibrary(t), proto.EnvSocket+"="+d.Path)
	var out, text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &text
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer stop()
	fd, err := claimEnd(d, l)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	w := &stoppingWriter{ringWriter{fd: fd, rand: rand.New(rand.NewPCG(1, 1))}}
	defer w.close()
	b := make([]byte, 20)
	playErr := w.play(b)
	if playErr != nil {
		stop()
	}
	if err := cmd.Wait(); err != nil || playErr != nil {
		t.Fatalf("%v; the program: %v\n%s", playErr, err, &text)
	}
	if want := fmt.Sprintln(2 + 2*readyRounds*len(b)); out.String() != want {
		t.Errorf("the program has read %s bytes, want %s", &out, want)
	}
}
