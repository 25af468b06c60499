package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseAck(t *testing.T) {
	ack := func(kind uint16, seq uint32, errno int32) []byte {
		var b []byte
		b = binary.NativeEndian.AppendUint32(b, 20)
		b = binary.NativeEndian.AppendUint16(b, kind)
		b = binary.NativeEndian.AppendUint16(b, 0)
		b = binary.NativeEndian.AppendUint32(b, seq)
		b = binary.NativeEndian.AppendUint32(b, 4711)
		return binary.NativeEndian.AppendUint32(b, uint32(-errno))
	}
	for _, tt := range []struct {
		name string
		m    []byte
		want unix.Errno
	}{
		{"success", ack(unix.NLMSG_ERROR, 7, 0), 0},
		{"refusal", ack(unix.NLMSG_ERROR, 7, int32(unix.EPERM)), unix.EPERM},
		{"to another request", ack(unix.NLMSG_ERROR, 6, int32(unix.EPERM)), notOurAck},
		{"no answer", ack(unix.RTM_NEWLINK, 7, 0), notOurAck},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := parseAck(tt.m, 7); err != nil || got != tt.want {
				t.Errorf("parseAck(%x) = %v, %v, want %v", tt.m, got, err, tt.want)
			}
			for n := range tt.m {
				if _, err := parseAck(tt.m[:n], 7); err == nil {
					t.Errorf("parseAck of %d bytes: no error", n)
				}
			}
		})
	}
}

func TestAppendAttr(t *testing.T) {
	got := appendAttr([]byte{9}, 3, []byte("abcde"))
	want := binary.NativeEndian.AppendUint16([]byte{9}, 9)
	want = append(binary.NativeEndian.AppendUint16(want, 3), "abcde\x00\x00\x00"...)
	if string(got) != string(want) {
		t.Errorf("appendAttr = %x, want %x", got, want)
	}
}

// A function runs in another network namespace, and no thread stays there.
func TestInFile(t *testing.T) {
	const file = "/proc/thread-self/ns/net"
	own, err := os.Readlink(file)
	if err != nil {
		t.Fatal(err)
	}
	made := make(chan *os.File)
	go func() {
		runtime.LockOSThread() // for good
		defer close(made)
		before, err := os.Open(file)
		if err != nil {
			t.Error(err)
			return
		}
		defer before.Close()
		if unix.Unshare(unix.CLONE_NEWNET) != nil {
			return
		}
		f, err := os.Open(file)
		if err := errors.Join(err, unix.Setns(int(before.Fd()), unix.CLONE_NEWNET)); err != nil {
			t.Error(err)
		}
		made <- f
	}()
	ns := <-made
	if ns == nil {
		t.Skip("needs root, to make network namespaces")
	}
	defer ns.Close()
	there := ""
	failure := errors.New("of the function")
	if err := InFile(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), func() error {
		there, _ = os.Readlink(file)
		return failure
	}); err != failure || there == own || there == "" {
		t.Errorf("InFile = %v in %s, want the function's error, elsewhere than %s", err, there, own)
	}
	threads, _ := filepath.Glob("/proc/self/task/*/ns/net")
	for _, thread := range threads {
		if now, err := os.Readlink(thread); err == nil && now == there {
			t.Errorf("thread %s is in the other namespace", thread)
		}
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := InFile(fifo, func() error { return nil }); !errors.Is(err, unix.EINVAL) {
		t.Errorf("InFile(FIFO) = %v, want %v", err, unix.EINVAL)
	}
}
