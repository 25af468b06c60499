package inspect

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
)

// TestBareTable reads the entries of one supervisor, and gives them back, of a table with those of
// another one.
func TestBareTable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ours, other := filepath.Join(dir, "0123456789abcdef"), filepath.Join(dir, "0123456789abcdee")
	if _, counted := Bare(ours); counted {
		t.Error("a table that is not there counts")
	}
	if err := rundir.MakeTables(dir, BareTable); err != nil {
		t.Fatal(err)
	}
	f, err := BareTable.Open(dir, unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i, e := range []struct {
		socket string
		port   uint64
		count  uint64
	}{{ours, 80, 3}, {other, 80, 7}, {ours, 65535, 1 << 40}} {
		b := binary.NativeEndian.AppendUint64(nil, bareKey(e.socket)|e.port)
		b = binary.NativeEndian.AppendUint64(b, e.count)
		if _, err := f.WriteAt(b, bareAt+bareLen*int64(4095-i)); err != nil {
			t.Fatal(err)
		}
	}
	if got, counted := Bare(ours); !counted || len(got) != 2 || got[80] != 3 || got[65535] != 1<<40 {
		t.Errorf("Bare = %v, %t", got, counted)
	}
	ForgetBare(ours)
	if got, counted := Bare(ours); !counted || len(got) != 0 {
		t.Errorf("after ForgetBare Bare = %v, %t", got, counted)
	}
	if got, _ := Bare(other); got[80] != 7 {
		t.Errorf("after ForgetBare the other supervisor has %v", got)
	}
	if err := f.Truncate(bareAt + 1000); err != nil { // somebody has cut it off
		t.Fatal(err)
	}
	if got, counted := Bare(other); counted || len(got) != 0 {
		t.Errorf("of a table that was cut off: %v, %t", got, counted)
	}
}
