package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire/cdc"
)

// childVariable is set for the child process of TestTwoProcesses, to "spin size milliseconds
// seed"; its descriptors 3, 4 and 5 are the memory, its own bell and its parent's.
const childVariable = "GOSMC_STREAM_CHILD"

// A stress is one side of a two-process transfer: the memory and the bells through which it moves
// bytes, and for how long.
type stress struct {
	side     int
	spin     time.Duration
	size     int // of an element
	duration time.Duration
	seed     uint64
	mem      []byte // two elements, then two pages of sleep words
	bells    [2]int // eventfds: ours to wait on, the peer's to ring
}

// memoryLen is how long the shared memory is: elements begin on a page each.
func (s *stress) memoryLen() int { return 2*s.stride() + pageSize }
func (s *stress) stride() int    { return roundUp(s.size, pageSize) }

// conn returns the Conn of this side.
func (s *stress) conn(stats *Stats) *Conn {
	element := func(i int) []byte { return s.mem[i*s.stride():][:s.size:s.size] }
	sleeps := func(side, half int) *atomic.Uint32 {
		return (*atomic.Uint32)(unsafe.Pointer(&s.mem[2*s.stride()+128*(2*side+half)]))
	}
	me, peer := s.side, 1-s.side
	return New(Config{
		In:           ElementInbox(element(me)),
		Out:          NewMemory(element(peer), sleeps(peer, 0), sleeps(peer, 1), func() { ring(s.bells[1]) }),
		ReaderSleeps: sleeps(me, 0), WriterSleeps: sleeps(me, 1),
		Spin:  s.spin,
		Stats: stats,
	})
}

// ring adds 1 to an eventfd.
func ring(fd int) { unix.Write(fd, binary.NativeEndian.AppendUint64(nil, 1)) }

// run moves bytes both ways until the time is over and the peer is done, and returns how many.
func (s *stress) run() (read, written uint64, stats *Stats, err error) {
	stats = new(Stats)
	c := s.conn(stats)
	limit := time.Now().Add(s.duration + patience)
	c.SetReadDeadline(limit)
	c.SetWriteDeadline(limit)
	var bell, work sync.WaitGroup
	var over atomic.Bool
	bell.Go(func() {
		count := make([]byte, 8)
		for !over.Load() {
			unix.Read(s.bells[0], count)
			c.Wake()
		}
	})
	errs := make(chan error, 3)
	work.Go(func() { errs <- s.send(c) })
	work.Go(func() { errs <- s.receive(c) })
	sweeping := make(chan struct{})
	go func() {
		defer close(sweeping)
		sweep := time.NewTicker(100 * time.Microsecond) // as the sweeper of a host, but more often
		defer sweep.Stop()
		remote := s.mem[(1-s.side)*s.stride():][:s.stride()]
		for !over.Load() {
			c.SayRead()
			c.Idle()
			if err := c.ReturnPages(func(from, to int) error { return unix.Madvise(remote[from:to], unix.MADV_REMOVE) }); err != nil {
				c.Fail(err)
			}
			<-sweep.C
		}
	}()
	work.Wait()
	over.Store(true)
	ring(s.bells[0])
	bell.Wait()
	<-sweeping
	read, written = c.Totals()
	return read, written, stats, errors.Join(<-errs, <-errs)
}

func (s *stress) send(c *Conn) error {
	random := rand.New(rand.NewPCG(s.seed, uint64(s.side)))
	buf := make([]byte, 2*s.size)
	place := uint64(0)
	for end := time.Now().Add(s.duration); time.Now().Before(end); {
		b := buf[:1+random.IntN(len(buf))>>random.IntN(12)]
		fillPattern(b, place)
		n, err := c.Write(b)
		if err != nil {
			return fmt.Errorf("Write at %d = %d, %w", place, n, err)
		}
		place += uint64(n)
		pause(random.Uint32N(1000))
	}
	c.CloseWrite()
	c.SendFlags(cdc.DoneWriting)
	return nil
}

func (s *stress) receive(c *Conn) error {
	random := rand.New(rand.NewPCG(s.seed, uint64(2+s.side)))
	buf := make([]byte, 2*s.size)
	place := uint64(0)
	for {
		n, err := c.Read(buf[:1+random.IntN(len(buf))>>random.IntN(12)])
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = checkPattern(buf[:n], place)
		}
		if err != nil {
			err = fmt.Errorf("Read at %d: %w", place, err)
			c.Fail(err)
			return err
		}
		place += uint64(n)
		pause(random.Uint32N(1000))
	}
}

// runChild is the main function of the child process.
func runChild() int {
	var s stress
	var spin, milliseconds int
	if _, err := fmt.Sscan(os.Getenv(childVariable), &spin, &s.size, &milliseconds, &s.seed); err != nil {
		fmt.Println(err)
		return 2
	}
	s.side = 1
	s.spin = time.Duration(spin)
	s.duration = time.Duration(milliseconds) * time.Millisecond
	s.bells = [2]int{4, 5}
	var err error
	if s.mem, err = unix.Mmap(3, 0, s.memoryLen(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		fmt.Println(err)
		return 2
	}
	read, written, _, err := s.run()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(read, written)
	return 0
}

// Two processes, whose accesses no race detector orders or sees, move bytes for a while
// through memory they share, and check each of them.
func TestTwoProcesses(t *testing.T) {
	watchdog(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	random := newRandom(t)
	for _, spin := range []time.Duration{0, DefaultSpin} {
		for _, size := range []int{33, 1000, 64 << 10} {
			t.Run(fmt.Sprintf("spin %v, size %d", spin, size), func(t *testing.T) {
				s := &stress{spin: spin, size: size, duration: 300 * time.Millisecond, seed: random.Uint64()}
				var fd int
				s.mem, fd = sharedMemory(t, s.memoryLen())
				for i := range s.bells {
					if s.bells[i], err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
						t.Fatal(err)
					}
				}
				child := exec.Command(self, "-test.run=^$")
				child.Env = append(os.Environ(), childVariable+"="+fmt.Sprint(int64(spin), size, s.duration.Milliseconds(), s.seed))
				for _, fd := range []int{fd, s.bells[1], s.bells[0]} {
					copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
					if err != nil {
						t.Fatal(err)
					}
					f := os.NewFile(uintptr(copied), "shared")
					defer f.Close()
					child.ExtraFiles = append(child.ExtraFiles, f)
				}
				var said strings.Builder
				child.Stdout, child.Stderr = &said, &said
				if err := child.Start(); err != nil {
					t.Fatal(err)
				}
				read, written, stats, err := s.run()
				if err != nil {
					child.Process.Kill()
					t.Error(err)
				}
				if err := child.Wait(); err != nil {
					t.Fatalf("child: %v: %s", err, said.String())
				}
				for i := range s.bells {
					unix.Close(s.bells[i])
				}
				if want := strconv.FormatUint(written, 10) + " " + strconv.FormatUint(read, 10); strings.TrimSpace(said.String()) != want {
					t.Errorf("the child read and wrote %s bytes, want %s", said.String(), want)
				}
				if read == 0 || written == 0 {
					t.Errorf("bytes read and written = %d, %d, want some", read, written)
				}
				t.Logf("read %d, written %d, rings %d, sleeps %d, spins %d", read, written, stats.Rings.Load(), stats.Sleeps.Load(), stats.Spins.Load())
			})
		}
	}
}
