package survey

import (
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/rundir"
)

// TestAskAtOnce has the hosts of two directories wait until both were asked. One after another they
// would take the time limit of a question each, as stopped hosts do.
func TestAskAtOnce(t *testing.T) {
	var asked sync.WaitGroup
	asked.Add(2)
	var dirs []string
	var met sync.WaitGroup
	for range 2 {
		dir := t.TempDir()
		if err := rundir.Prepare(dir); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", filepath.Join(rundir.Path(dir, rundir.Control), "host"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		dirs = append(dirs, dir)
		met.Go(func() {
			c, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			asked.Done()
			both := make(chan struct{})
			go func() {
				asked.Wait()
				close(both)
			}()
			gone := make(chan struct{})
			go func() {
				io.Copy(io.Discard, c)
				close(gone)
			}()
			select {
			case <-both:
			case <-gone:
				t.Error("a host was given up before the other one was asked")
			case <-time.After(30 * time.Second):
				t.Error("only one host was asked")
			}
		})
	}
	if list := gather(t.Context(), here(dirs)); len(list) != 2 || len(list[0].errs) != 1 || len(list[1].errs) != 1 {
		t.Errorf("gather = %v, want an error of each host, which says nothing", list)
	}
	met.Wait()
}
