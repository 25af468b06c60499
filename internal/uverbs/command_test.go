package uverbs

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestArmClosed arms a queue that another goroutine has closed, where the kernel refuses the handle.
// The error must not look like an error of the device.
func TestArmClosed(t *testing.T) {
	f := newFake(t)
	writable := f.c.fd
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	f.c.fd = fd
	if err := f.cq.Arm(false); err == nil || errors.Is(err, ErrClosed) {
		t.Errorf("queue that the kernel refuses: %v", err)
	}
	f.c.fd = writable
	if err := errors.Join(f.qp.Close(), f.cq.Close()); err != nil {
		t.Fatal(err)
	}
	f.c.fd = fd
	if err := f.cq.Arm(false); !errors.Is(err, ErrClosed) {
		t.Errorf("closed queue: %v, want ErrClosed", err)
	}
	f.c.fd = writable
}

// TestWriteTries gives a command to a file that puts off every one: the command ends with an error.
func TestWriteTries(t *testing.T) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	c := deviceFile{fd: p[1]}
	defer c.close()
	reader := os.NewFile(uintptr(p[0]), "reader")
	defer reader.Close()
	for {
		if _, err := unix.Write(p[1], make([]byte, 1)); errors.Is(err, unix.EAGAIN) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- c.command(cmdAllocPD, nil, nil) }()
	select {
	case err := <-ended:
		if !errors.Is(err, unix.EAGAIN) {
			t.Errorf("%v, want EAGAIN", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the command is tried without end")
		reader.Close()
		<-ended
	}
}

// mappingFlags returns the kernel's flags of the mapping that has an address.
func mappingFlags(t *testing.T, at *byte) []string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	within := false
	for line := range strings.Lines(string(text)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			within = from <= uintptr(unsafe.Pointer(at)) && uintptr(unsafe.Pointer(at)) < to
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags: "); ok && within {
			return strings.Fields(flags)
		}
	}
	t.Fatal("no such mapping")
	return nil
}
