package main

import (
	"bufio"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

//go:embed player
var source embed.FS

// A mode is a way to play a script. The first one is TCP, to which the others have to be equal.
type mode struct {
	name    string
	moved   bool     // under 'gosmc run'
	rings   bool     // directions go over to rings
	environ []string // beside that
	most    int      // bytes that a script may leave unread in a direction, at most; 0: any number
}

// modes: a tiny ring holds fewer bytes than TCP, so shaken connections play only scripts that leave
// little unread.
func modes(seed uint64) []mode {
	return []mode{
		{name: "bare", environ: []string{"EQUAL_BARE=1"}},
		{name: "in-band", moved: true, environ: []string{"GOSMC_RING_AFTER=1TiB"}},
		{name: "rings", moved: true, rings: true, environ: []string{"GOSMC_RING_AFTER=1B"}},
		{name: "shaken", moved: true, rings: true, environ: []string{"GOSMC_RUN_SHAKE=" + strconv.FormatUint(seed%1_000_000+1, 10)}, most: smallMost},
	}
}

// A tool has the parts that all players have in common.
type tool struct {
	dir    string // with the player, gosmc and run directories
	player string
	gosmc  string
	seed   uint64
}

// errNoCompiler is the error of newTool where there is nothing to compile the player with.
var errNoCompiler = errors.New("needs a C compiler: no cc in PATH (Debian: apt-get install gcc libc6-dev)")

// newTool compiles the player, and gosmc unless that is given.
func newTool(ctx context.Context, dir, gosmc string, seed uint64) (*tool, error) {
	t := &tool{dir: dir, player: filepath.Join(dir, "player"), gosmc: gosmc, seed: seed}
	cc, err := exec.LookPath("cc")
	if err != nil {
		return nil, errNoCompiler
	}
	src := filepath.Join(dir, "src")
	if err := os.CopyFS(src, source); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(src, "player", "*.c"))
	if err != nil {
		return nil, err
	}
	args := append([]string{"-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", t.player}, files...)
	if text, err := exec.CommandContext(ctx, cc, args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cc: %w\n%s", err, text)
	}
	if t.gosmc == "" {
		t.gosmc = filepath.Join(dir, "gosmc")
		if text, err := exec.CommandContext(ctx, "go", "build", "-buildvcs=auto", "-o", t.gosmc, "github.com/gosmc/smc/cmd/gosmc").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build: %w\n%s", err, text)
		}
	}
	t.gosmc, err = filepath.Abs(t.gosmc)
	return t, err
}

// A player is a process that plays scripts in one mode, one after the other.
type player struct {
	tool   *tool
	mode   mode
	rundir string
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	says   strings.Builder // standard error
	played int
	late   atomic.Bool   // it was killed as it took too long
	stall  time.Duration // see bareStall; 0: a script may take all its time
}

// A play is the outcome of a script in a mode.
type play struct {
	lines  []string // the observation of each step
	rings  bool     // the mode has some
	died   string   // which process of the script was killed by which signal; empty: none
	moved  int      // connections that left TCP
	of     int      // connections
	joined int      // connections whose client left TCP, and whose server did not: a supervisor copies their bytes, in its own time
}

// Limits, which -patience multiplies.
var (
	playTime  = 9 * time.Second // that a script may take; more than a loop of the player does that is stuck
	shortTime = 2 * time.Second // the same, where it has ended before, and many are tried
	spareTime = 8 * time.Second // until a player counts as dead that should have ended a script
)

// A script stands still if no step ends, no byte moves, and all threads that are in a step sleep. It
// hangs if that takes longer than a step waits for nothing in a script that ends. So it need not be
// waited for until its time is over, of which there is more on a busy machine.
const (
	bareStall = 1500 * time.Millisecond // over TCP: such a script is dropped
	longStall = 3 * time.Second         // under 'gosmc run', where timers of the supervisor come into it: not for a verdict, but to make a script smaller
)

const playsEach = 5000 // scripts of one player, until there is a new one

func (p *player) start() error {
	words := []string{p.tool.player}
	if p.mode.moved {
		words = []string{p.tool.gosmc, "run", "--", p.tool.player}
	}
	dir, err := os.MkdirTemp(p.tool.dir, "r")
	if err != nil {
		return err
	}
	p.rundir = dir
	p.cmd = exec.Command(words[0], words[1:]...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GOSMC_") && !strings.HasPrefix(v, "LD_PRELOAD=") && !strings.HasPrefix(v, "EQUAL_") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	p.cmd.Env = append(append(p.cmd.Env, "GOSMC_DIR="+dir, "GOSMC_SHORT_AFTER=off"), p.mode.environ...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.says.Reset()
	p.cmd.Stderr = &p.says
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.out = bufio.NewReaderSize(out, 64<<10)
	p.played = 0
	p.cmd.WaitDelay = time.Second
	return p.cmd.Start()
}

// stop ends the player. The processes that it has started end with it.
func (p *player) stop() {
	if p.cmd == nil {
		return
	}
	p.in.Close()
	stopped := time.AfterFunc(5*time.Second, func() { p.cmd.Process.Kill() })
	p.cmd.Wait()
	stopped.Stop()
	p.cmd = nil
	os.RemoveAll(p.rundir)
}

// play has a script played, which may take so long.
func (p *player) play(s *script, most time.Duration) (*play, error) {
	if p.cmd != nil && p.played >= playsEach {
		p.stop()
	}
	if p.cmd == nil {
		if err := p.start(); err != nil {
			return nil, err
		}
	}
	p.played++
	p.late.Store(false)
	process := p.cmd.Process
	limit := time.AfterFunc(most+spareTime, func() {
		p.late.Store(true)
		process.Kill()
	})
	defer limit.Stop()
	var b strings.Builder
	stall := p.stall
	if !p.mode.moved {
		stall = bareStall
	}
	fmt.Fprintf(&b, "script x %d %d\n", most.Milliseconds(), stall.Milliseconds())
	for _, step := range s.steps {
		b.WriteString(step + "\n")
	}
	b.WriteString(".\n")
	if _, err := io.WriteString(p.in, b.String()); err != nil {
		return nil, p.gone(err)
	}
	r := &play{rings: p.mode.rings}
	begun := false
	for {
		line, err := p.out.ReadString('\n')
		if err != nil {
			return nil, p.gone(err)
		}
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "died "):
			r.died = line
		case strings.HasPrefix(line, "script "):
			begun = true
		case line == ".":
			if len(r.lines) != len(s.steps) {
				return nil, p.gone(fmt.Errorf("%d lines for %d steps", len(r.lines), len(s.steps)))
			}
			return r, nil
		case begun && len(r.lines) == len(s.steps):
			if _, err := fmt.Sscanf(line, "moved %d %d %d", &r.moved, &r.joined, &r.of); err != nil {
				return nil, p.gone(err)
			}
		default:
			r.lines = append(r.lines, line)
		}
	}
}

// errLate is the error of a player that has not come back in time, as when all processes were
// stopped for a while.
var errLate = errors.New("took too long")

// gone ends a player that does not answer as it should.
func (p *player) gone(err error) error {
	if p.late.Load() {
		err = errLate
	}
	p.cmd.Process.Kill()
	p.stop()
	return fmt.Errorf("player (%s): %w: %s", p.mode.name, err, strings.TrimSpace(p.says.String()))
}
