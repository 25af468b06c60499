// Command limits runs in the guest. The settings of the guest's kernel can be changed without harm
// to anybody. It makes connections between two of its processes until something runs out, and
// checks that both processes live, that every byte arrives, and that a connection for which SMC is
// no longer possible is plain TCP for the expected reason.
//
//	limits -reason MEMORY -max 200     dial until a connection is TCP for that reason; at most 200. A
//	                                   decline of the server has a reason that Linux has, too: MEMORY
//	limits -max 60                     dial 60, in any mode
//
// It prints one line and exits with 0 if all is well.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	smc "github.com/gosmc/smc"
)

const (
	fillFor  = 300 * time.Millisecond // a writer that gets no further for so long has filled its buffers
	patience = 90 * time.Second       // bounds everything else: the guest is slow
	serving  = "GOSMC_LIMITS_SERVER"
)

func main() {
	reason := flag.String("reason", "", "tags of reasons, with commas, for one of which connections must become TCP; empty: they need not")
	most := flag.Int("max", 100, "connections at most")
	group := flag.String("cgroup", "", "control group, a directory, that the client enters")
	buffer := flag.Int("buffer", 0, "bytes of each of the server's receive buffers; 0: the default")
	flag.Parse()
	err := error(nil)
	if os.Getenv(serving) != "" {
		err = serve(*buffer)
	} else {
		err = dial(*reason, *most, *group, *buffer)
	}
	if err != nil {
		fmt.Println("limits:", err)
		os.Exit(1)
	}
}

// serve accepts connections and leaves their bytes unread until standard input ends. Then it reads
// and checks everything, and answers each connection with the number of its bytes.
func serve(buffer int) error {
	lc := smc.ListenConfig{ReadBuffer: buffer}
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	conns := make(chan net.Conn, 1000)
	go func() {
		defer close(conns)
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				conns <- c
			}
		}
	}()
	io.Copy(io.Discard, os.Stdin)
	l.Close()
	if err := checkMappings(); err != nil {
		return err
	}
	for c := range conns {
		c.SetDeadline(time.Now().Add(patience))
		var p pattern
		n, err := io.Copy(&p, c)
		if err == nil {
			_, err = c.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
		}
		if err != nil {
			return fmt.Errorf("after %d bytes: %w", n, err)
		}
		c.Close()
	}
	return nil
}

// checkMappings makes sure that a tenth of the mappings that the process may have are left for the runtime,
// which ends the process when it gets none.
func checkMappings() error {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	text, err := os.ReadFile("/proc/sys/vm/max_map_count")
	if err != nil {
		return err
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	if n := bytes.Count(maps, []byte{'\n'}); n > limit*9/10 {
		return fmt.Errorf("%d mappings of %d", n, limit)
	}
	return nil
}

// A pattern is an endless text, by place. It checks the bytes that are written to it.
type pattern struct{ at uint64 }

func (p *pattern) next() byte {
	p.at++
	return byte(p.at * 0x9e3779b97f4a7c15 >> 56)
}

func (p *pattern) fill(b []byte) {
	for i := range b {
		b[i] = p.next()
	}
}

func (p *pattern) Write(b []byte) (int, error) {
	for i := range b {
		if want := p.next(); b[i] != want {
			return i, fmt.Errorf("byte %d is %#x, want %#x", p.at, b[i], want)
		}
	}
	return len(b), nil
}

// A filled connection has as many bytes under way as fit.
type filled struct {
	*smc.Conn
	sent uint64
}

func dial(reason string, most int, group string, buffer int) error {
	server := exec.Command("/proc/self/exe", "-buffer", strconv.Itoa(buffer))
	server.Env = append(os.Environ(), serving+"=1")
	server.Stderr = os.Stderr
	start, err := server.StdinPipe()
	if err != nil {
		return err
	}
	out, err := server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	said := bufio.NewScanner(out)
	if !said.Scan() {
		return errors.Join(errors.New("the server did not start"), server.Wait())
	}
	address := said.Text()
	if group != "" {
		if err := os.WriteFile(group+"/cgroup.procs", fmt.Append(nil, os.Getpid()), 0o600); err != nil {
			return err
		}
	}

	var conns []filled
	modes := make(map[string]int)
	met := reason == ""
	for len(conns) < most && (reason == "" || !met) {
		c, err := fill(address)
		if err != nil {
			return fmt.Errorf("connection %d (%v so far): %w", len(conns), modes, err)
		}
		conns = append(conns, c)
		state := c.State()
		what := state.Mode.String()
		if state.Mode == smc.ModeTCP {
			what += " " + state.Reason.Tag
			met = met || slices.Contains(strings.Split(reason, ","), state.Reason.Tag)
		}
		modes[what]++
	}
	if !met {
		return fmt.Errorf("no connection became TCP because of %s: %v", reason, modes)
	}
	if modes["SMC-D"] == 0 {
		return fmt.Errorf("no connection is SMC-D: %v", modes)
	}

	if err := checkMappings(); err != nil {
		return err
	}
	start.Close()
	total := uint64(0)
	for i, c := range conns {
		if err := c.finish(); err != nil {
			return fmt.Errorf("connection %d of %v: %w", i, modes, err)
		}
		total += c.sent
	}
	rest := new(strings.Builder)
	for said.Scan() {
		fmt.Fprintln(rest, said.Text())
	}
	if err := server.Wait(); err != nil {
		return fmt.Errorf("the server: %w: %s", err, rest)
	}
	fmt.Printf("%v, %d MiB\n", modes, total>>20)
	return nil
}

// fill makes a connection and writes until nothing more fits. On plain TCP it writes little: the
// memory of the kernel's own buffers can end a process in a small control group as well.
func fill(address string) (filled, error) {
	c, err := smc.Dial("tcp", address)
	if err != nil {
		return filled{}, err
	}
	f := filled{Conn: c}
	var p pattern
	b := make([]byte, 64<<10)
	for {
		p.fill(b)
		c.SetWriteDeadline(time.Now().Add(fillFor))
		n, err := c.Write(b)
		f.sent += uint64(n)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return f, c.SetWriteDeadline(time.Time{})
		}
		if err != nil || c.State().Mode == smc.ModeTCP {
			return f, err
		}
	}
}

// finish says that there is no more, and checks that all has arrived.
func (f filled) finish() error {
	f.SetDeadline(time.Now().Add(patience))
	if err := f.CloseWrite(); err != nil {
		return err
	}
	var b [8]byte
	if _, err := io.ReadFull(f, b[:]); err != nil {
		return err
	}
	if got := binary.BigEndian.Uint64(b[:]); got != f.sent {
		return fmt.Errorf("%d bytes arrived of %d", got, f.sent)
	}
	return f.Close()
}
