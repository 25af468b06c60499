package program

import (
	"io"
	"os/exec"
	"strconv"
	"testing"
)

// TestCountCalls counts the system calls of a process, and of one that it starts meanwhile, and not its
// own.
func TestCountCalls(t *testing.T) {
	const times = 2000
	loop := `i=0; while [ $i -lt ` + strconv.Itoa(times) + ` ]; do i=$((i + 1)); : 2>/dev/null; done`
	for _, script := range []string{`read x; ` + loop + `; echo; read x`, `read x; (` + loop + `); echo; read x`} {
		cmd := exec.Command("sh", "-c", script)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		c, err := countCalls([]int{cmd.Process.Pid})
		if err != nil {
			in.Close()
			cmd.Wait()
			t.Skip(err)
		}
		for range 10 * times {
			exec.LookPath("no-such-program") // of this process
		}
		io.WriteString(in, "\n")
		out.Read(make([]byte, 1)) // the work is done
		n, err := c.total()
		in.Close()
		cmd.Wait()
		c.close()
		// An open for each, and some calls around it.
		if err != nil || n < times || n > 20*times {
			t.Errorf("%d calls, %v; want some for each of %d", n, err, times)
		}
	}
}
