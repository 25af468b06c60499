package ism

import (
	"testing"

	"golang.org/x/sys/unix"
)

func closeFD(t testing.TB, fd int) {
	t.Helper()
	if err := unix.Close(fd); err != nil {
		t.Fatalf("close(%d): %v", fd, err)
	}
}
