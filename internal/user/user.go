// Package user says which numbers of users, as the kernel gives them, are the same user.
package user

import (
	"bytes"
	"os"
	"strconv"
	"sync"
)

// Ours reports whether uid is the user that this process acts as now: its effective user, which may
// have changed since it was asked last.
func Ours(uid int) bool { return uid == os.Geteuid() && Known(uid) }

// Known reports whether uid stands for one user. In a user namespace every user that has no number
// there is shown by the same one, the overflow ID (65534): two that have it need not be the same.
func Known(uid int) bool { return uid != overflowID() || mapsAll() }

// overflowID is what the kernel shows in place of a user that has no number: user_namespaces(7).
var overflowID = sync.OnceValue(func() int {
	if text, err := os.ReadFile("/proc/sys/kernel/overflowuid"); err == nil {
		if id, err := strconv.Atoi(string(bytes.TrimSpace(text))); err == nil {
			return id
		}
	}
	return 65534
})

// mapsAll reports whether every user has a number in our user namespace, as in the initial one. It is
// read each time, since a namespace is mapped after it was entered. Without /proc the answer is no.
func mapsAll() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && isWhole(text)
}

// isWhole reports whether a uid_map has one line, which maps every number to itself.
func isWhole(text []byte) bool {
	fields := bytes.Fields(text)
	return len(fields) == 3 && string(fields[0]) == "0" && string(fields[1]) == "0" &&
		string(fields[2]) == "4294967295"
}
