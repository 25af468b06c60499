package procs

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// reachTime bounds a look at the files of another process: its file systems may not answer.
const reachTime = time.Second

// looks are the mount namespaces in which a look has not come back. In each there is one thread at most.
var looks struct {
	sync.Mutex
	in map[string]bool
}

// Reach returns the path by which this process reaches the socket of a supervisor. Where the directory
// has another name here, as in front of a container, it is the one in the root of the served process.
func Reach(pid int, socket string) string {
	if _, err := os.Lstat(socket); err == nil {
		return socket
	}
	dir := filepath.Join(Dir, strconv.Itoa(pid))
	space, err := os.Readlink(filepath.Join(dir, "ns/mnt"))
	if err != nil || !beginLook(space) { // rule: TestReachHung: !beginLook(space) -> false
		return socket
	}
	inside, there := filepath.Join(dir, "root", socket), make(chan bool, 1)
	go func() {
		_, err := lstat(inside)
		endLook(space)
		there <- err == nil
	}()
	select {
	case ok := <-there:
		if ok {
			return inside
		}
	case <-time.After(reachTime): // rule: TestReachHung: reachTime -> time.Hour
	}
	return socket
}

// lstat is replaced by tests.
var lstat = os.Lstat

func beginLook(space string) bool {
	looks.Lock()
	defer looks.Unlock()
	if looks.in == nil {
		looks.in = make(map[string]bool)
	}
	free := !looks.in[space]
	looks.in[space] = true
	return free
}

func endLook(space string) {
	looks.Lock()
	defer looks.Unlock()
	delete(looks.in, space)
}
