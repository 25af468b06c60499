package supervisor

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/run/proto"
)

// Cases of testdata/tally.c.
var tallyCases = []string{"in-band", "rings", "threads", "fork", "served", "exec", "passed", "copies", "killed", "handed", "many"}

// tallyPrograms compiles testdata/tally.c, with libc and without.
func tallyPrograms(t *testing.T) (dynamic, static string) {
	t.Helper()
	dir := t.TempDir()
	dynamic, static = filepath.Join(dir, "tally"), filepath.Join(dir, "static")
	const source = "testdata/tally.c"
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", dynamic, source)
	compile(t, "-O1", "-static", "-pthread", "-o", static, source)
	return dynamic, static
}

// runTally runs a case, and calls check for each line.
func runTally(t *testing.T, program, name string, check func(line string), environ ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, name)
	cmd.Env = append(os.Environ(), environ...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		check(lines.Text())
		io.WriteString(in, "\n")
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v", err)
	}
}

// sides splits a line into its words and its numbers, by three or two.
func sides(t *testing.T, line string, each int) (what string, list [][]uint64) {
	t.Helper()
	words := strings.Fields(line)
	first := slices.IndexFunc(words, func(w string) bool { return strings.Trim(w, "-0123456789") == "" })
	what = strings.Join(words[:first], " ")
	for numbers := range slices.Chunk(words[first:], each) {
		var side []uint64
		for _, n := range numbers {
			v, err := strconv.ParseInt(n, 10, 64)
			if err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			side = append(side, uint64(v))
		}
		list = append(list, side)
	}
	return what, list
}

// tallyOf adds up the numbers of supervisors for an end, as gosmc ss does. It reports false if the bytes are not known.
func tallyOf(cookie uint64, of ...*supervisor) (in, out uint64, known bool) {
	lent := 0
	for _, s := range of {
		_, ends, _ := s.record.tally.read()
		for _, e := range ends {
			if e.Cookie == cookie {
				in, out, lent, known = in+e.In, out+e.Out, lent+int(e.Lent), true
			}
		}
	}
	return in, out, known && lent == 0
}

// checkTally compares the numbers of a program and of a supervisor.
func checkTally(t *testing.T, s *supervisor, line string) {
	t.Helper()
	if totals, found := strings.CutPrefix(line, "total "); found {
		all, ends, _ := s.record.tally.read()
		if got := fmt.Sprint(all.In, " ", all.Out); got != totals {
			t.Errorf("the bytes of all connections are %s, want %s; ends: %+v", got, totals, ends)
		}
		return
	}
	what, list := sides(t, line, 3)
	for i, side := range list {
		in, out, known := tallyOf(side[0], s)
		if want := side[1] != math.MaxUint64; known != want || known && (in != side[1] || out != side[2]) {
			t.Errorf("%s: end %d has received %d and sent %d, known: %v; want %d and %d", what, i, in, out, known, int64(side[1]), int64(side[2]))
		}
	}
}

// TestTally has programs move known numbers of bytes in every way: in-band, by rings, by files, through copies of descriptors, and in processes that get ends by fork,
// exec and messages, or are killed. The supervisor has exactly these, or says that it does not know.
func TestTally(t *testing.T) {
	library := committedLibrary(t)
	program, static := tallyPrograms(t)
	for _, name := range tallyCases {
		t.Run(name, func(t *testing.T) {
			s := newTestSupervisor(t)
			runTally(t, program, name, func(line string) { checkTally(t, s, line) },
				"MOVED=1", "STATIC="+static, "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
		})
	}
}

// TestTallyShaken has them do it with rings that come and go at random.
func TestTallyShaken(t *testing.T) {
	library := committedLibrary(t)
	program, _ := tallyPrograms(t)
	s := newTestSupervisor(t)
	for seed := range 5 {
		for _, name := range []string{"threads", "fork", "served"} {
			runTally(t, program, name, func(line string) { checkTally(t, s, line) }, "MOVED=1",
				"GOSMC_RUN_SHAKE="+strconv.Itoa(seed+1), "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
		}
	}
}

// TestTallyStatus has the control socket tell of the bytes.
func TestTallyStatus(t *testing.T) {
	library := committedLibrary(t)
	program, _ := tallyPrograms(t)
	s := newTestSupervisor(t)
	runTally(t, program, "rings", func(line string) {
		hosts, errs := control.Gather(t.Context(), filepath.Dir(filepath.Dir(filepath.Dir(s.Path))))
		if len(hosts) != 1 || len(errs) != 0 {
			t.Fatalf("hosts %+v, errors %v; want one", hosts, errs)
		}
		what, list := sides(t, line, 3)
		var sum control.ByteCount
		for _, side := range list {
			sum.In, sum.Out = sum.In+side[1], sum.Out+side[2]
			if want := (control.StatusTally{Cookie: side[0], In: side[1], Out: side[2]}); !slices.Contains(hosts[0].Tallies, want) {
				t.Errorf("%s: tallies are %+v, want %+v", what, hosts[0].Tallies, want)
			}
		}
		if got := hosts[0].Counters.Bytes[proto.ModeUnix]; got != sum {
			t.Errorf("%s: bytes are %+v, want %+v", what, got, sum)
		}
	}, "MOVED=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	all, _, counted := s.record.tally.read()
	if !counted || all.In != all.Out || all.In == 0 {
		t.Errorf("when the connections have gone the bytes are %+v, want as many as before", all)
	}
}

// TestTallyFull has a program with more ends than there is room for in the places of one, of processes that have ended and that have not: the ones of the dead are given away, with their bytes kept.
func TestTallyFull(t *testing.T) {
	library := committedLibrary(t)
	program, _ := tallyPrograms(t)
	s := newTestSupervisor(t)
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	ty := s.record.tally
	for at := tallySlots; at < tallySize; at += tallyLen {
		ty.word(at).Store(1 << 60)
		ty.word(at + tallyInBand).Store(1)
		ty.word32(at + tallyNS).Store(ty.namespace)
		ty.word32(at + tallyHolders).Store(uint32(dead.Process.Pid))
	}
	runTally(t, program, "in-band", func(line string) { checkTally(t, s, line) },
		"MOVED=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	if all, _, _ := ty.read(); all.In != all.Out+tallies {
		t.Errorf("the bytes are %+v, want %d more received than sent", all, tallies)
	}
	for at := tallySlots; at < tallySize; at += tallyLen {
		ty.word(at).Store(1 << 60)
		ty.word32(at + tallyHolders).Store(uint32(os.Getpid()))
	}
	runTally(t, program, "in-band", func(line string) {
		_, list := sides(t, line, 3)
		for _, side := range list {
			if _, _, known := tallyOf(side[0], s); known {
				t.Errorf("an end for which there was no room is counted")
			}
		}
	}, "MOVED=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	if missed := ty.word(tallyGone + 16).Load(); missed != 2 {
		t.Errorf("%d ends were missed, want 2", missed)
	}
}

// TestTallyHostile has a program write invented numbers: sums never get less, wrap or fail, and a program of the supervisor goes on.
func TestTallyHostile(t *testing.T) {
	ty, err := newTally()
	if err != nil {
		t.Fatal(err)
	}
	defer ty.close()
	fd, err := unix.Open(ty.mark(), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 0); err != unix.EPERM {
		t.Errorf("a program cuts the tally off: %v, want %v", err, unix.EPERM)
	}
	put := func(at int64, v uint64) {
		t.Helper()
		if _, err := unix.Pwrite(fd, binary.NativeEndian.AppendUint64(nil, v), at); err != nil {
			t.Fatal(err)
		}
	}
	put(tallySlots, 7)
	put(tallySlots+tallyInBand, 1000)
	put(tallySlots+tallyNS, 0)
	for _, tt := range []struct {
		name   string
		change func()
		all    uint64
		ends   int
	}{
		{"honest", func() {}, 1000, 1},
		{"less", func() { put(tallySlots+tallyInBand, 10) }, 1000, 1},
		{"more than a connection carries", func() { put(tallySlots+tallyInBand, math.MaxUint64) }, 1000, 1},
		{"that wraps", func() { put(tallySlots+tallyRings, 2) }, 1000, 1},
		{"the magic", func() { put(0, 0) }, 1000, 1},
		{"busy", func() { put(tallySlots, tallyBusy) }, 1000, 0},
		{"of ends that are gone", func() {
			put(tallyGone, math.MaxUint64-5)
			put(tallySlots, 7)
			put(tallySlots+tallyRings, 0)
			put(tallySlots+tallyInBand, 100)
		}, math.MaxUint64, 1},
		{"none", func() { put(tallyGone, 0) }, math.MaxUint64, 1},
	} {
		tt.change()
		all, ends, counted := ty.read()
		if !counted || all.In != tt.all || len(ends) != tt.ends {
			t.Errorf("%s: read %+v, %+v; want %d bytes and %d ends", tt.name, all, ends, tt.all, tt.ends)
		}
		for _, e := range ends {
			if e.In > tallyMost {
				t.Errorf("%s: an end has received %d bytes", tt.name, e.In)
			}
		}
	}
	b := make([]byte, 64<<10)
	for i := range b {
		b[i] = byte(i * 7)
	}
	for at := int64(0); at < tallySize; at += int64(len(b)) {
		if _, err := unix.Pwrite(fd, b[:min(int64(len(b)), tallySize-at)], at); err != nil {
			t.Fatal(err)
		}
	}
	if _, ends, _ := ty.read(); len(ends) > tallies {
		t.Errorf("%d ends", len(ends))
	}
}

// TestTallyScribbled has all of a supervisor's tally be nonsense while its programs count: they notice nothing.
func TestTallyScribbled(t *testing.T) {
	library := committedLibrary(t)
	program, static := tallyPrograms(t)
	s := newTestSupervisor(t)
	ty := s.record.tally
	scribble := func() {
		for at := 8; at < tallySize; at += 8 {
			ty.word(at).Store(uint64(at) * 0x9e3779b97f4a7c15)
		}
	}
	scribble()
	for _, name := range []string{"in-band", "rings", "fork", "exec", "copies", "handed", "many"} {
		runTally(t, program, name, func(string) { scribble(); ty.read() },
			"MOVED=1", "STATIC="+static, "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
	}
}
