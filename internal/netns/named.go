package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Names is where ip-netns(8) keeps network namespaces.
const Names = "/run/netns"

// InNamed calls a function in a network namespace: one that ip-netns(8) has named, of a process by its ID, or
// of a file; "" is this one. The function looks at the namespace in the goroutine in which it is called.
func InNamed(name string, f func() error) error {
	if name == "" {
		return f()
	}
	path, err := named(Names, name)
	if err != nil {
		return err
	}
	called := false
	err = InFile(path, func() error {
		called = true
		return f()
	})
	switch {
	case called || err == nil:
		return err
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("network namespace %s: %w: run as root", name, err)
	}
	return fmt.Errorf("network namespace %s: %w", name, err)
}

// named returns the file of a network namespace: of a name in dir, of a process, or the one named.
func named(dir, name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := filepath.Join(dir, name)
	if _, err := os.Lstat(path); err == nil && name != "." && name != ".." {
		return path, nil
	}
	if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
		return fmt.Sprintf("/proc/%d/ns/net", pid), nil
	}
	return "", fmt.Errorf("no network namespace has the name %q in %s: see 'ip netns list', "+
		"or give a process ID or a file", name, dir)
}
