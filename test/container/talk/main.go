// Command talk is a program with package smc for a container with nothing else in it.
//
//	talk serve ADDRESS             sends what its clients ask for
//	talk from ADDRESS              prints the client's address as the server sees it
//	talk echo ADDRESS COUNT        makes connections, and prints how many there were of each mode
//	talk fetch ADDRESS BYTES       gets a pattern to standard output
//	talk wait ADDRESS              prints "waiting" when it does, and ends when the server does
//	talk pour ADDRESS              gets what the server can send, which prints how much it has sent
//	talk range PORT COUNT          is a server on so many ports, each connection of which names itself
//	talk visit HOST PORT COUNT N   makes N connections to that, by processes that are killed at any point
//	talk http ADDRESS DIRECTORY    serves files by HTTP
//	talk get URL...                gets files by HTTP, one after another over one connection, to standard output
//	talk redis ADDRESS COMMAND...  sends commands to redis, and prints the answers
//	talk redis-serve ADDRESS       is a redis that knows PING, SET, GET and INCR
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/gosmc/smc"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "talk:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("needs a verb and an address")
	}
	verb, where, rest := args[0], args[1], args[2:]
	switch {
	case verb == "serve" && len(rest) == 0:
		return serve(where, answer)
	case verb == "redis-serve" && len(rest) == 0:
		r := &store{values: make(map[string]string)}
		return serve(where, r.answer)
	case verb == "wait" && len(rest) == 0:
		return ask(where, "wait", os.Stdout)
	case verb == "pour" && len(rest) == 0:
		return ask(where, "pour", os.Stdout)
	case verb == "range" && len(rest) == 1:
		return serveRange(where, rest[0])
	case verb == "visit" && len(rest) == 3:
		return visitAll(where, rest)
	case verb == visitor && len(rest) == 4:
		return visit(where, rest)
	case verb == "from" && len(rest) == 0:
		return ask(where, "from", os.Stdout)
	case verb == "fetch" && len(rest) == 1:
		return ask(where, "pattern "+rest[0], os.Stdout)
	case verb == "echo" && len(rest) == 1:
		return echo(where, rest[0])
	case verb == "http" && len(rest) == 1:
		l, err := smc.Listen("tcp", where)
		if err != nil {
			return err
		}
		return http.Serve(l, http.FileServer(http.Dir(rest[0])))
	case verb == "get":
		return get(args[1:])
	case verb == "redis":
		return redis(where, rest)
	}
	return fmt.Errorf("%q is nothing that can be done", args)
}

// serve has each connection answered.
func serve(where string, answer func(net.Conn) error) error {
	l, err := smc.Listen("tcp", where)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			if err := answer(c); err != nil {
				fmt.Fprintln(os.Stderr, "talk:", err)
			}
		}()
	}
}

// answer reads a line with a request, and sends what it asks for.
func answer(c net.Conn) error {
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	if err != nil {
		return err
	}
	switch words := strings.Fields(line); {
	case line == "from\n":
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(c, host)
		return err
	case line == "wait\n":
		if _, err := fmt.Fprintln(c, "waiting"); err != nil {
			return err
		}
		io.Copy(io.Discard, r) // its error is the client's death
		fmt.Println("gone")
		return nil
	case line == "pour\n":
		return sendPattern(c, 1<<30, func(sent int) { fmt.Println("sent", sent) })
	case line == "echo\n":
		_, err := io.Copy(c, r)
		return err
	case len(words) == 2 && words[0] == "pattern":
		size, err := strconv.Atoi(words[1])
		if err != nil {
			return err
		}
		return sendPattern(c, size, func(int) {})
	}
	return fmt.Errorf("%q is no request", line)
}

// sendPattern sends bytes of which each place tells where it belongs. accepted is told how many Write has taken so far.
func sendPattern(c net.Conn, size int, accepted func(int)) error {
	var piece []byte
	for i, sent := 0, 0; sent < size; i++ {
		piece = fmt.Appendf(piece, "%015d\n", i)
		if len(piece) < 64<<10 && len(piece) < size-sent {
			continue
		}
		piece = piece[:min(len(piece), size-sent)]
		n, err := c.Write(piece)
		sent += n
		accepted(sent)
		if err != nil {
			return err
		}
		piece = piece[:0]
	}
	return nil
}

// ask sends a request, and copies the answer.
func ask(where, request string, to io.Writer) error {
	c, err := smc.Dial("tcp", where)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := fmt.Fprintln(c, request); err != nil {
		return err
	}
	_, err = io.Copy(to, c)
	return err
}

// echo makes connections one after another. Each has words of its own go to and fro.
func echo(where, number string) error {
	count, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	modes := make(map[string]int)
	for i := range count {
		c, err := smc.Dial("tcp", where)
		if err != nil {
			return err
		}
		modes[c.State().Mode.String()]++
		if _, err := fmt.Fprintln(c, "echo"); err != nil {
			return err
		}
		sent := bytes.Repeat(fmt.Appendf(nil, "%d of %d ", i, os.Getpid()), 200)
		if _, err := c.Write(sent); err != nil {
			return err
		}
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(c, got); err != nil {
			return err
		}
		if !bytes.Equal(sent, got) {
			return fmt.Errorf("connection %d got other bytes than were sent", i)
		}
		c.Close()
	}
	fmt.Println(modes)
	return nil
}

func get(urls []string) error {
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return (&smc.Dialer{}).DialContext(ctx, network, address)
		},
	}}
	for _, url := range urls {
		resp, err := client.Get(url)
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, resp.Status)
		}
		_, err = io.Copy(os.Stdout, resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			return err
		}
	}
	return nil
}

// redis prints answers that are integers, strings or nothing as redis-cli does when no terminal reads.
func redis(where string, commands []string) error {
	c, err := smc.Dial("tcp", where)
	if err != nil {
		return err
	}
	defer c.Close()
	r := bufio.NewReader(c)
	for _, command := range commands {
		if _, err := fmt.Fprintf(c, "%s\r\n", command); err != nil {
			return err
		}
		text, err := readAnswer(r)
		if err != nil {
			return err
		}
		fmt.Println(text)
	}
	return nil
}

// readAnswer reads one answer of RESP: a simple string, an integer or a bulk string.
func readAnswer(r *bufio.Reader) (string, error) {
	line, err := readLine(r)
	if err != nil || line == "" {
		return "", errors.Join(err, errors.New("no answer"))
	}
	switch line[0] {
	case '+', ':':
		return line[1:], nil
	case '$':
		size, err := strconv.Atoi(line[1:])
		if err != nil || size < 0 || size > 1<<20 {
			return "", err
		}
		b := make([]byte, size+2)
		_, err = io.ReadFull(r, b)
		return string(b[:size]), err
	}
	return "", fmt.Errorf("answer %q", line)
}

func readLine(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err
}

// A store is what a redis has.
type store struct {
	mu     sync.Mutex
	values map[string]string
}

// answer serves one connection, with commands as arrays, as redis-cli sends them, or in a line.
func (s *store) answer(c net.Conn) error {
	r := bufio.NewReader(c)
	for {
		words, err := readCommand(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := io.WriteString(c, s.do(words)); err != nil {
			return err
		}
	}
}

func readCommand(r *bufio.Reader) (words []string, err error) {
	line, err := readLine(r)
	if err != nil || !strings.HasPrefix(line, "*") {
		return strings.Fields(line), err
	}
	count, err := strconv.Atoi(line[1:])
	if err != nil || count > 16 {
		return nil, fmt.Errorf("%d words: %w", count, err)
	}
	for range count {
		word, err := readAnswer(r)
		if err != nil {
			return nil, err
		}
		words = append(words, word)
	}
	return words, nil
}

func (s *store) do(words []string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(words) == 1 && strings.EqualFold(words[0], "ping"):
		return "+PONG\r\n"
	case len(words) == 3 && strings.EqualFold(words[0], "set"):
		s.values[words[1]] = words[2]
		return "+OK\r\n"
	case len(words) == 2 && strings.EqualFold(words[0], "get"):
		value, ok := s.values[words[1]]
		if !ok {
			return "$-1\r\n"
		}
		return fmt.Sprintf("$%d\r\n%s\r\n", len(value), value)
	case len(words) == 2 && strings.EqualFold(words[0], "incr"):
		n, _ := strconv.Atoi(s.values[words[1]])
		s.values[words[1]] = strconv.Itoa(n + 1)
		return fmt.Sprintf(":%d\r\n", n+1)
	}
	return "-ERR unknown command\r\n"
}
