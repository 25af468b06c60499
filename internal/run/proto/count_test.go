package proto

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCount has two mappings of a count. Nobody can cut it off.
func TestCount(t *testing.T) {
	a, err := NewCount()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	fd, err := unix.Dup(int(a.File().Fd()))
	if err != nil {
		t.Fatal(err)
	}
	b, err := CountOf(os.NewFile(uintptr(fd), "count"))
	if err != nil {
		t.Fatal(err)
	}
	a.Add(3)
	b.Add(4)
	if a.Load() != 7 || b.Load() != 7 {
		t.Errorf("the count is %d here and %d there, want 7", a.Load(), b.Load())
	}
	if err := b.File().Truncate(0); err == nil {
		t.Error("the memory can be cut off")
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	var none *Count
	none.Add(1)
	if none.Load() != 0 || none.Close() != nil {
		t.Error("a nil count counts")
	}
	if _, err := CountOf(os.NewFile(^uintptr(0), "none")); err == nil {
		t.Error("a count of no file")
	}
}
