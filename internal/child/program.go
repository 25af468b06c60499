package child

import (
	"os"
	"syscall"
)

// WriteProgram writes a file that this process starts afterwards. os.WriteFile is not enough where other
// goroutines start
// processes: until such a process has called exec, it has a copy of the descriptor that writes, and Linux
// refuses to run the file:
// "text file busy" (https://go.dev/issue/22315).
func WriteProgram(name string, program []byte) error {
	// Nothing is forked while the descriptor is open.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(name, program, 0o755)
}
