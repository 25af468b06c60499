package child

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

// A program can be started at once, while other goroutines start processes.
func TestWriteProgram(t *testing.T) {
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Skip(err)
	}
	done := make(chan struct{})
	var starters sync.WaitGroup
	defer starters.Wait()
	defer close(done)
	for range 4 {
		starters.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := exec.Command("/bin/true").Run(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	dir := t.TempDir()
	for i := range 300 {
		name := filepath.Join(dir, strconv.Itoa(i))
		if err := WriteProgram(name, program); err != nil {
			t.Fatal(err)
		}
		if err := exec.Command(name).Run(); err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
	}
}
