package sysinfo

import (
	"bufio"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory returns how many bytes of memory the control group of this process may have: the least of
// its own limit and the limits of the groups around it, as far as they can be seen. ok is false if
// there is no limit, or none can be seen. root is where /proc and /sys are, for tests.
//
// Both versions of control groups are looked at; a machine can have one, or a bit of each:
// Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux.
func Memory(root string) (limit int64, ok bool) {
	groups, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(groups)) {
		// 0::/group in version 2, number:controllers:/group in version 1.
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		v2 := parts[0] == "0" && parts[1] == ""
		if !v2 && !contains(parts[1], "memory") {
			continue
		}
		mount, shown := mountOf(root, v2)
		if mount == "" {
			continue
		}
		files := []string{"memory.limit_in_bytes"}
		if v2 {
			files = []string{"memory.max", "memory.high"}
		}
		group, inside := strings.CutPrefix(path.Clean("/"+parts[2]), strings.TrimSuffix(shown, "/"))
		if !inside {
			group = "" // the mount is another part of the tree: a container's own
		}
		for dir := path.Clean("/" + group); ; dir = path.Dir(dir) {
			for _, file := range files {
				if n, found := readLimit(filepath.Join(root, mount, dir, file)); found && (!ok || n < limit) {
					limit, ok = n, true
				}
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit, ok
}

// noLimit is the least value that means "unlimited" in version 1, where it is the largest multiple of
// a page.
const noLimit = 1 << 62

// readLimit reads a file with a number of bytes. It reports false if there is no such limit.
func readLimit(name string) (int64, bool) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // or "max"
	return n, err == nil && n > 0 && n < noLimit
}

// mountOf returns where the control groups of version 2, or the memory controller of version 1,
// are mounted, and which part of the tree is seen there; "" if they are not mounted.
func mountOf(root string, v2 bool) (mount, shown string) {
	f, err := os.Open(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return "", ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// 36 35 98:0 /shown /mount options ... - type source options: proc(5)
		before, after, found := strings.Cut(lines.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !found || len(left) < 5 || len(right) < 3 {
			continue
		}
		if v2 && right[0] == "cgroup2" || !v2 && right[0] == "cgroup" && contains(right[2], "memory") {
			return left[4], left[3]
		}
	}
	return "", ""
}

// contains reports whether word is in a list with commas.
func contains(list, word string) bool {
	for s := range strings.SplitSeq(list, ",") {
		if s == word {
			return true
		}
	}
	return false
}
