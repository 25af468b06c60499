package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc"
)

// visitor is the verb of a process that makes connections until it is killed.
const visitor = "visitor"

// visitors is how many of them there are at once.
const visitors = 4

// errMixed says that a connection got bytes of another one.
var errMixed = errors.New("bytes of another connection")

// serveRange listens on count ports from first on. It ends when a connection gets another's bytes.
func serveRange(first, count string) error {
	from, err1 := strconv.Atoi(first)
	n, err2 := strconv.Atoi(count)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	for port := from + n - 1; port >= from; port-- { // the first one is the last to listen
		l, err := smc.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					fmt.Println(err)
					os.Exit(1)
				}
				go func() {
					defer c.Close()
					if err := repeat(c, port); errors.Is(err, errMixed) {
						fmt.Println(err)
						os.Exit(1)
					}
				}()
			}
		}()
	}
	select {}
}

// repeat sends back the lines of a connection. The first names the connection and its port, and the
// others have to be equal. A client that dies sends a part of one.
func repeat(c net.Conn, port int) error {
	r := bufio.NewReader(c)
	var name []byte
	for {
		line, err := r.ReadSlice('\n')
		switch {
		case name == nil && err == nil && !strings.HasSuffix(string(line), fmt.Sprintf(" at %d\n", port)):
			return fmt.Errorf("%w: %q on port %d", errMixed, line, port)
		case name == nil:
			name = bytes.Clone(line)
		case err == nil && !bytes.Equal(line, name), !bytes.HasPrefix(name, line):
			return fmt.Errorf("%w: %q on the connection %q", errMixed, line, name)
		}
		if err != nil {
			return err
		}
		if _, err := c.Write(line); err != nil {
			return err
		}
	}
}

// visitAll has processes make connections, and prints how many there were. Each is killed within some
// milliseconds to seconds, and another one takes its place.
func visitAll(host string, rest []string) error {
	left, err := strconv.Atoi(rest[2])
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var mu sync.Mutex
	total, moved, deaths := left, 0, 0
	var failed error
	var working sync.WaitGroup
	for range visitors {
		working.Go(func() {
			for {
				mu.Lock()
				over := left <= 0 || failed != nil
				name := deaths
				deaths++
				mu.Unlock()
				if over {
					return
				}
				life := time.Millisecond << rand.N(13) // up to 4 s, and most lives are short
				life += rand.N(life)
				cmd := exec.Command(self, visitor, host, rest[0], rest[1], strconv.Itoa(name), strconv.Itoa(int(life.Microseconds())))
				var complaint strings.Builder
				cmd.Stderr = &complaint
				out, err := cmd.Output()
				mu.Lock()
				left -= len(out)
				moved += bytes.Count(out, []byte{'m'})
				if status, ok := errors.AsType[*exec.ExitError](err); !ok || status.Exited() {
					failed = errors.Join(failed, fmt.Errorf("visitor %d: %v: %s", name, err, complaint.String()))
				}
				mu.Unlock()
			}
		})
	}
	working.Wait()
	fmt.Printf("%d connections, %d moved, %d processes killed\n", total-left, moved, deaths-visitors)
	return failed
}

// visit makes connections until a timer kills it. It prints a letter for each that was complete: m for
// one that was moved, t for one of TCP.
func visit(host string, rest []string) error {
	var numbers [4]int
	for i := range numbers {
		var err error
		if numbers[i], err = strconv.Atoi(rest[i]); err != nil {
			return err
		}
	}
	first, count, process, life := numbers[0], numbers[1], numbers[2], numbers[3]
	time.AfterFunc(time.Duration(life)*time.Microsecond, func() { unix.Kill(os.Getpid(), unix.SIGKILL) })
	for i := 0; ; i++ {
		port := first + rand.N(count)
		c, err := smc.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			return err
		}
		sent := bytes.Repeat(fmt.Appendf(nil, "%d of %d at %d\n", i, process, port), 1+rand.N(200))
		if _, err := c.Write(sent); err != nil {
			return err
		}
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(c, got); err != nil {
			return err
		}
		if !bytes.Equal(got, sent) {
			return fmt.Errorf("%w: %.100q on the connection %.30q", errMixed, got, sent)
		}
		letter := "m"
		if c.State().Mode == smc.ModeTCP {
			letter = "t"
		}
		if err := c.Close(); err != nil {
			return err
		}
		if _, err := os.Stdout.WriteString(letter); err != nil {
			return err
		}
	}
}
