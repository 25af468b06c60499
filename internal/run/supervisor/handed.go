package supervisor

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
)

// A program may give a descriptor to a process that knows no rings, while bytes are in its ring. It
// puts an end of a fresh pair in its place. The supervisor has the other end of the fresh pair, and
// copies between it and the end that the program had.

// mayHand gives a talk a place among the relays. It reports whether the second message may follow.
func (s *supervisor) mayHand(t *broker.Talk) (more bool) {
	if t.Outside || !broker.Spare(s.Socket, broker.RelayBrings) {
		t.Reply(proto.KindRelay, proto.StatusNo, -1)
		return false
	}
	select {
	case s.Relays <- struct{}{}:
		t.Relays = true
		return t.Reply(proto.KindRelay, proto.StatusOK, -1)
	default:
		t.Reply(proto.KindRelay, proto.StatusNo, -1)
		return false
	}
}

// handed begins to copy. It has a place among the relays, and the descriptors are its own: the end,
// the other one of the pair, and the file.
func (s *supervisor) handed(m proto.Message, fds []int) bool {
	if m.Unique > maxHanded || m.NetNS > maxTokens || !proto.IsStream(fds[0], unix.AF_UNIX) || !proto.IsStream(fds[1], unix.AF_UNIX) || !isMemory(fds[2]) { // rule: TestHandedHostile
		<-s.Relays
		dispose.Close(fds...)
		return false
	}
	go func() {
		own, fresh, rest := broker.Stream(fds[0]), broker.Stream(fds[1]), os.NewFile(uintptr(fds[2]), "rest")
		if own != nil && fresh != nil {
			handOver(fresh, own, rest, int64(m.Unique), int64(m.NetNS))
		}
		broker.CloseStreams(own, fresh)
		rest.Close()
		<-s.Relays
		s.Relayed()
	}()
	return true
}

// handOver copies in both directions until both have ended, or the receiver of the descriptor has
// closed it. The bytes that the receiver has written go to the peer all the same.
func handOver(fresh, own broker.Half, rest io.Reader, n, tokens int64) {
	in, out := make(chan bool, 2), make(chan error, 1)
	go func() {
		if err := bring(fresh, own, rest, n, tokens); err != nil {
			in <- false
			io.Copy(io.Discard, own) // nobody reads it any more, and the peer need not wait
		}
		in <- true
	}()
	go func() {
		_, err := io.Copy(own, fresh)
		if err == nil {
			err = own.CloseWrite()
		}
		out <- err
	}()
	if err := <-out; err != nil {
		return
	}
	<-in
}

// bring sends the bytes that were in the ring, takes the tokens out of the end, and copies the
// bytes behind them.
func bring(fresh, own broker.Half, rest io.Reader, n, tokens int64) error {
	if _, err := io.CopyN(fresh, rest, n); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, own, tokens); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := io.Copy(fresh, own); err != nil {
		return err
	}
	return fresh.CloseWrite()
}

// isMemory reports whether a descriptor that a program has sent is a file that can be read without
// waiting for anybody.
func isMemory(fd int) bool {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if unix.Fstat(fd, &st) != nil || unix.Fstatfs(fd, &fs) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG ||
		fs.Type != unix.TMPFS_MAGIC {
		return false
	}
	_, err := unix.Seek(fd, 0, unix.SEEK_SET)
	return err == nil
}
