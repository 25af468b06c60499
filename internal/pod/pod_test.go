package pod

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/smctest"
)

// childOfTest tells the test program that it is the agent.
const childOfTest = "GOSMC_CHILD_OF_TEST"

func TestMain(m *testing.M) {
	smctest.Apart()
	if os.Getenv(childOfTest) != "" {
		if err := ServeAgent(os.Stdin, os.Stdout); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	smctest.MainChildren(m, childOfTest)
}

// Nothing is left of a site.
func TestClose(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make control groups")
	}
	s, err := New(t.Context())
	if errors.Is(err, ErrNoPairing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if s.group == nil || s.Introducer() != "an agent for the occasion" {
		t.Fatalf("%+v, want an agent of its own", s)
	}
	s.Close()
	for _, path := range []string{s.group.Name(), s.Dir} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("left behind: %s, %v", path, err)
		}
	}
	select {
	case <-s.agent.Exited():
	default:
		t.Error("the agent has not ended")
	}
}

// A site whose programs would not be the first to see the containers' sockets is not made.
func TestAttached(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make control groups")
	}
	s, err := New(t.Context())
	if errors.Is(err, ErrNoPairing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	own := filepath.Dir(s.group.Name())
	enter := func(group string) error {
		return os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0)
	}
	if err := enter(s.group.Name()); err != nil {
		t.Fatal(err)
	}
	second, err := New(t.Context())
	if err := enter(own); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, errLeft) {
		t.Errorf("New = %v, want %v", err, errLeft)
	}
	if second != nil {
		second.Close()
	}
}
