package smctest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// EnterNamespace starts a thread in a new network namespace, which ends with the test, and returns a
// function that runs others there, one at a time, and a name of the namespace, as ip-link(8) takes it.
// The test is skipped if it may not make namespaces.
func EnterNamespace(t testing.TB) (run func(func()), name string) {
	t.Helper()
	work, done := make(chan func()), make(chan bool)
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			started <- err
			return
		}
		name = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		started <- nil
		for f := range work {
			f()
			done <- true
		}
		done <- true
	}()
	if err := <-started; err != nil {
		if errors.Is(err, unix.EPERM) {
			t.Skip("needs CAP_SYS_ADMIN for network namespaces")
		}
		t.Fatalf("unshare: %v", err)
	}
	t.Cleanup(func() { close(work); <-done })
	return func(f func()) { work <- f; <-done }, name
}

// AwaitCarrier waits until an interface passes packets on: the kernel takes its time between "up" and that.
func AwaitCarrier(t testing.TB, run func(func()), name string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
		var iface *net.Interface
		var err error
		run(func() { iface, err = net.InterfaceByName(name) })
		if err != nil {
			t.Fatal(err)
		}
		if iface.Flags&net.FlagRunning != 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s has no carrier: %v", name, iface.Flags)
		}
	}
}

// envNetwork says that a test binary is in a network namespace of its own.
const envNetwork = "GOSMC_TEST_NETWORK"

// OwnNetwork starts the process again in a network namespace of its own, with its loopback
// interface up: for tests of ports with fixed numbers, which others of this machine may have.
// TestMain calls it first. Without privilege nothing happens.
func OwnNetwork() {
	if os.Getenv(envNetwork) != "" {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); errors.Is(err, unix.EPERM) {
		return
	} else if err != nil {
		panic(err)
	}
	if err := Up("lo"); err != nil {
		panic(err)
	}
	os.Setenv(envNetwork, "1")
	panic(unix.Exec("/proc/self/exe", os.Args, os.Environ())) // the new program is in this thread's namespace
}

// Up sets an interface of the thread's namespace up.
func Up(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, r); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	r.SetUint16(r.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
}
