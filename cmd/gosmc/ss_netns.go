package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/netns"
)

// namedNetns is where ip-netns(8) keeps network namespaces.
const namedNetns = inventory.NamedNetNS

// inNetns calls a function in a network namespace, as --net names it; "" is this one. The function
// looks at the namespace in the goroutine in which it is called.
func inNetns(name string, f func() error) error {
	if name == "" {
		return f()
	}
	path, err := netnsFile(namedNetns, name)
	if err != nil {
		return err
	}
	called := false
	err = netns.InFile(path, func() error {
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

// netnsFile returns the file of a network namespace: of a name in dir, of a process, or the one named.
func netnsFile(dir, name string) (string, error) {
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
	return "", fmt.Errorf("no network namespace has the name %q in %s: see 'ip netns list', or give a process ID or a file", name, dir)
}

// completeNetns completes --net.
func completeNetns(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var list []cobra.Completion
	entries, _ := os.ReadDir(namedNetns)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list, cobra.ShellCompDirectiveDefault // or a file
}
