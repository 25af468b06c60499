package bpf

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
)

func TestMain(m *testing.M) {
	smctest.Apart()
	smctest.RunChild(programs)
	os.Exit(m.Run())
}

// needRoot skips a test that cannot load programs.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to load eBPF programs")
	}
	if root, err := CgroupRoot(); err != nil {
		t.Skipf("needs control groups: %v", err)
	} else if unix.Access(root, unix.W_OK) != nil {
		t.Skipf("needs to write to %s", root)
	}
}

// mountPins makes a directory for pins.
func mountPins(t testing.TB) string {
	t.Helper()
	pins := filepath.Join(smctest.MountBPF(t), "gosmc")
	if err := PreparePins(pins); err != nil {
		t.Fatal(err)
	}
	return pins
}

// A place is where the programs are attached for a test: a control group, pins, and a network namespace with
// its loopback interface up.
type place struct {
	group, pins string
	run         func(func()) // in the namespace
	netns       string
	option      *Option
}

func newPlace(t testing.TB) *place {
	needRoot(t)
	root, err := CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	p := &place{group: smctest.EnterCgroup(t, root), pins: mountPins(t)}
	p.run, p.netns = smctest.EnterNamespace(t)
	p.run(func() { err = smctest.Up("lo") })
	if err != nil {
		t.Fatal(err)
	}
	p.attach(t)
	t.Cleanup(func() {
		p.option.Close()
		if err := DetachOption(p.pins); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *place) attach(t testing.TB) {
	t.Helper()
	o, err := AttachOption(p.group, p.pins)
	if err != nil {
		t.Fatal(err)
	}
	if p.option != nil {
		p.option.Close()
	}
	p.option = o
}

// sysctl sets a variable of the namespace.
func (p *place) sysctl(t testing.TB, name, value string) {
	t.Helper()
	var err error
	p.run(func() {
		err = os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// sameNamespace returns a function that runs others on a thread of its own in the namespace.
func sameNamespace(p *place) (run func(func() error) error, err error) {
	ns, err := os.Open(p.netns)
	if err != nil {
		return nil, err
	}
	return func(f func() error) error {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	}, nil
}
