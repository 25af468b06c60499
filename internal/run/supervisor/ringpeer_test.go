package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
)

func peerProgram(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "peer")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/peer.c", "-pthread")
	return path
}

// claimEnd accepts a connection from a program with the library, and returns our end of its pair, which does not wait and is the caller's to close.
func claimEnd(d *broker.Broker, l *net.TCPListener) (int, error) {
	l.SetDeadline(time.Now().Add(ringPatience))
	tcp, err := l.AcceptTCP()
	if err != nil {
		return -1, err
	}
	defer tcp.Close()
	end, _ := d.Claim(tcp)
	if end == nil {
		return -1, errors.New("the connection is TCP")
	}
	defer end.Close()
	raw, err := end.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	if cerr := raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }); cerr != nil {
		return -1, cerr
	}
	return fd, err
}

// TestRingPeer plays one end of a connection in Go, by docs/shared-memory.md, against a program with the library: both directions at a time, with sizes,
// takeovers, looks and leavings at random. Each direction is closed by itself.
func TestRingPeer(t *testing.T) {
	t.Run("committed", func(t *testing.T) {
		wrote, read := playRings(t, committedLibrary(t), 6<<20, 8)
		// Full rings and looks depend on which end is faster.
		if wrote.offered == 0 || wrote.joined == 0 || wrote.left == 0 || wrote.withdrawn == 0 || read.offered == 0 || read.joined == 0 || read.refused == 0 {
			t.Error("not all was tried")
		}
	})
	t.Run("sanitized", func(t *testing.T) { playRings(t, sanitizedLibrary(t), 2<<20, 2, "ASAN_OPTIONS=detect_leaks=0") })
}

func playRings(t *testing.T, library string, most, rounds int, environ ...string) (wrote, read deeds) {
	t.Helper()
	d := newTestDesk(t)
	program := peerProgram(t)
	for i := range rounds {
		for _, mode := range []string{"blocking", "nonblocking"} {
			env := append([]string{"LD_PRELOAD=" + library, proto.EnvSocket + "=" + d.Path}, environ...)
			if i%2 == 1 { // its rings are tiny
				env = append(env, "GOSMC_RUN_SHAKE="+strconv.Itoa(i))
			}
			playRing(t, d, program, mode, most, rand.Uint64(), &wrote, &read, env)
		}
	}
	t.Logf("as writer %+v, as reader %+v", wrote, read)
	return wrote, read
}

// playRing has one connection, of which seed says all.
func playRing(t *testing.T, d *broker.Broker, program, mode string, most int, seed uint64, wrote, read *deeds, environ []string) {
	t.Helper()
	l, spot := announced(t, d)
	defer d.Withdraw(spot)
	ctx, stop := context.WithTimeout(t.Context(), ringPatience*2)
	defer stop()
	random := rand.New(rand.NewPCG(seed, 0))
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	cmd := exec.CommandContext(ctx, program, "talk", port, strconv.FormatUint(seed>>1, 10), strconv.Itoa(random.IntN(most)), mode)
	cmd.Env = append(os.Environ(), environ...)
	var out, text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &text
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer stop()
	fd, err := claimEnd(d, l)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	defer unix.Close(fd)
	w := &ringWriter{fd: fd, rand: rand.New(rand.NewPCG(seed, 1))}
	r := &ringReader{fd: fd, rand: rand.New(rand.NewPCG(seed, 2)), leaves: []int{2, 20, 1 << 30}[random.IntN(3)], idle: ringPatience}
	sent, received := fnv.New64a(), fnv.New64a()
	size := int64(random.IntN(most))
	done := make(chan error, 1)
	go func() {
		defer w.close()
		source := io.TeeReader(io.LimitReader(randomBytes{rand.New(rand.NewPCG(seed, 3))}, size), sent)
		_, err := io.CopyBuffer(struct{ io.Writer }{w}, source, make([]byte, 200<<10))
		if err == nil {
			err = unix.Shutdown(fd, unix.SHUT_WR)
		}
		done <- err
	}()
	n, err := io.CopyBuffer(received, struct{ io.Reader }{r}, make([]byte, 200<<10))
	r.close()
	if err != nil {
		t.Errorf("seed %d, %s: reading: %v after %d bytes", seed, mode, err, n)
		unix.Shutdown(fd, unix.SHUT_RDWR)
	}
	if err := <-done; err != nil {
		t.Errorf("seed %d, %s: writing: %v", seed, mode, err)
		unix.Shutdown(fd, unix.SHUT_RDWR)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("seed %d, %s: %v\n%s", seed, mode, err, &text)
	}
	if want := fmt.Sprintf("%d %016x %016x\n", size, sent.Sum64(), received.Sum64()); out.String() != want {
		t.Errorf("seed %d, %s: the program has received, with hashes of that and of what it has sent:\n%swant\n%s", seed, mode, &out, want)
	}
	wrote.add(w.deeds)
	read.add(r.deeds)
}

func (d *deeds) add(o deeds) {
	d.offered += o.offered
	d.joined += o.joined
	d.left += o.left
	d.refused += o.refused
	d.withdrawn += o.withdrawn
	d.full += o.full
	d.looked += o.looked
}

// randomBytes has no end. The bytes that it gives in one part are mostly few.
type randomBytes struct{ *rand.Rand }

func (r randomBytes) Read(b []byte) (int, error) {
	b = b[:1+r.IntN(min(len(b), []int{1, 10, 300, 5000, 40000, 1 << 30}[r.IntN(6)]))]
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return len(b), nil
}
