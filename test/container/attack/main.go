// Command attack attacks the agent, and programs of other users, from a container. It prints "attacking" when it has begun, and
// goes on until it is killed. "beaten" and its reason on a line mean that the attack has had success.
//
//	attack forge               as root of a private network: sends SYNs with tokens of others and invented ones to a server of its own
//	attack impostor            listens at the name of an agent that was killed, and prints each message that comes there
//	attack proofs ADDRESS      passes sockets that prove nothing to the agent, among them one of a connection to the address
//	attack fill ADDRESS        fills every table that it can reach, those of the server at the address among them
//	attack lie ADDRESS         is a server that lies to the programs that it is introduced to, and an honest echo on TCP
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/wire"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("needs a verb")
	}
	verb, rest := args[0], args[1:]
	switch {
	case verb == "forge" && len(rest) == 0:
		return forge()
	case verb == "impostor" && len(rest) == 0:
		return impostor()
	case verb == "proofs" && len(rest) == 1:
		return proofs(rest[0])
	case verb == "fill" && len(rest) == 1:
		return fill(rest[0])
	case verb == "lie" && len(rest) == 1:
		return lie(rest[0])
	}
	return fmt.Errorf("%q is no attack", args)
}

// room returns the address of the agent in this network namespace. The agent may just have heard of it.
func room() (string, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	if err := pairing.Request(uintptr(fd)); err != nil {
		return "", err
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		name, err := pairing.ServiceName(uintptr(fd))
		if err == nil || !errors.Is(err, pairing.ErrNoName) || time.Now().After(end) {
			return "@" + name, err
		}
	}
}

// dial returns a conversation with the agent.
func dial() (*introduce.Client, error) {
	address, err := room()
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		c, err := introduce.Dial(context.Background(), address, wire.ISMGIDFromUUID([16]byte{9}), introduce.Users{Mode: introduce.ModeAny})
		if err == nil || time.Now().After(end) {
			return c, err
		}
	}
}

// ask has a socket ask for tokens.
func ask(_, _ string, c syscall.RawConn) (err error) {
	cerr := c.Control(func(fd uintptr) { err = pairing.Request(fd) })
	return errors.Join(cerr, err)
}

// descriptor returns a copy of a socket's descriptor, which is never closed.
func descriptor(c interface{ File() (*os.File, error) }) (int, error) {
	f, err := c.File()
	if err != nil {
		return -1, err
	}
	return unix.Dup(int(f.Fd()))
}

// impostor takes the sockets of programs that take it for the agent.
func impostor() error {
	address, err := room()
	if err != nil {
		return err
	}
	var l *net.UnixListener
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // the one that has it is being killed
		if l, err = net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: address}); err == nil {
			break
		}
		if time.Now().After(end) {
			return err
		}
	}
	fmt.Println("attacking")
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			for b, oob := make([]byte, 4096), make([]byte, dispose.Room); ; {
				n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
				if n == 0 || err != nil {
					return
				}
				m, _ := introduce.Parse(b[:n])
				count := len(dispose.Descriptors(oob[:oobn]))
				fmt.Printf("heard a message of kind %d\n", m.Kind)
				if count > 0 {
					fmt.Printf("beaten: a program has passed %d descriptors\n", count)
				}
				c.Write((&introduce.Message{Kind: introduce.KindWelcome, PID: int32(os.Getpid())}).Append(nil))
			}
		}()
	}
}

// proofs asks about sockets in both roles, over and over. None may lead to an introduction, nor be let wait for one.
func proofs(where string) error {
	client, err := dial()
	if err != nil {
		return err
	}
	plain, err := net.Dial("tcp", where) // a connection of somebody else's server, without tokens
	if err != nil {
		return err
	}
	asked, err := (&net.ListenConfig{Control: ask}).Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	kinds := make(map[string]int)
	for name, c := range map[string]interface{ File() (*os.File, error) }{
		"without tokens": plain.(*net.TCPConn), "listening": asked.(*net.TCPListener),
	} {
		if kinds[name], err = descriptor(c); err != nil {
			return err
		}
	}
	if kinds["self-connected"], err = toItself(); err != nil {
		return err
	}
	if kinds["closed"], err = closedAtBothEnds(asked); err != nil {
		return err
	}
	if kinds["not connected"], err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	if err := pairing.Request(uintptr(kinds["not connected"])); err != nil {
		return err
	}
	if kinds["of another type"], err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	fmt.Println("attacking")
	for round := 0; ; round++ {
		for name, fd := range kinds {
			for _, role := range []introduce.Role{introduce.RoleClient, introduce.RoleServer} {
				q, err := client.Ask(role, uintptr(fd), introduce.MaxWait)
				if err != nil {
					return err
				}
				a := <-q.Answer()
				if a.Socket >= 0 || a.Reason == introduce.RefusedAlone {
					fmt.Printf("beaten: a socket that is %s: %+v\n", name, a)
				}
			}
		}
		fmt.Println("round", round)
	}
}

// toItself returns a socket that is connected to itself.
func toItself() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := errors.Join(pairing.Request(uintptr(fd)), unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})); err != nil {
		return -1, err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return -1, err
	}
	return fd, unix.Connect(fd, name)
}

// closedAtBothEnds returns a socket of a connection that had tokens, and was reset.
func closedAtBothEnds(l net.Listener) (int, error) {
	c, err := (&net.Dialer{Control: ask}).Dial("tcp", l.Addr().String())
	if err != nil {
		return -1, err
	}
	s, err := l.Accept()
	if err != nil {
		return -1, err
	}
	fd, err := descriptor(c.(*net.TCPConn))
	if err != nil {
		return -1, err
	}
	s.(*net.TCPConn).SetLinger(0)
	if err := s.Close(); err != nil {
		return -1, err
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		return -1, fmt.Errorf("a connection that was reset: %v", err)
	}
	return fd, nil
}

// fill opens as many listening sockets, connections with tokens, conversations and questions as it can have, and sends questions
// without end.
func fill(where string) error {
	address, err := room()
	if err != nil {
		return err
	}
	var listeners, conversations, questions, connections int
	for range 1500 {
		if _, err := (&net.ListenConfig{Control: ask}).Listen(context.Background(), "tcp4", "127.0.0.1:0"); err != nil {
			break
		}
		listeners++
	}
	for range 3000 {
		c, err := net.Dial("unixpacket", address)
		if err != nil {
			break
		}
		hello := introduce.Message{Kind: introduce.KindHello, GID: wire.ISMGIDFromUUID([16]byte{1})}
		c.Write(hello.Append(nil))
		conversations++
	}
	l, err := (&net.ListenConfig{Control: ask}).Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() {
		for {
			if _, err := l.Accept(); err != nil {
				return
			}
		}
	}()
	var held []int
	for i := range 4000 { // half of them at the server of somebody else, to fill its tables
		to := l.Addr().String()
		if i%2 == 0 {
			to = where
		}
		c, err := (&net.Dialer{Control: ask, Timeout: time.Second}).Dial("tcp", to)
		if err != nil {
			continue
		}
		fd, err := descriptor(c.(*net.TCPConn))
		if err != nil {
			break
		}
		held = append(held, fd)
		connections++
	}
	flood := func() {
		for {
			c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: address})
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			hello := introduce.Message{Kind: introduce.KindHello, GID: wire.ISMGIDFromUUID([16]byte{1})}
			c.Write(hello.Append(nil))
			go io.Copy(io.Discard, c)
			for _, fd := range held {
				question := introduce.Message{Kind: introduce.KindAsk, Role: introduce.RoleClient, Offer: 1, ID: uint64(fd)}
				if _, _, err := c.WriteMsgUnix(question.Append(nil), unix.UnixRights(fd), nil); err != nil {
					break
				}
				questions++
			}
			c.Close()
		}
	}
	fmt.Printf("attacking: %d listening sockets, %d conversations, %d connections\n", listeners, conversations, connections)
	flood()
	return nil
}

// lie is introduced to its clients, one after the other, and says nothing to them, hangs up, sends garbage or descriptors, or what
// it got.
func lie(where string) error {
	client, err := dial()
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{Control: ask}).Listen(context.Background(), "tcp4", where)
	if err != nil {
		return err
	}
	memory, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	if err := unix.Ftruncate(memory, 1<<20); err != nil {
		return err
	}
	fmt.Println("attacking")
	for i := 0; ; i++ {
		s, err := l.Accept()
		if err != nil {
			return err
		}
		fd, err := descriptor(s.(*net.TCPConn))
		if err != nil {
			return err
		}
		q, err := client.Ask(introduce.RoleServer, uintptr(fd), time.Second)
		if err != nil {
			return err
		}
		unix.Close(fd)
		go func() {
			if a := <-q.Answer(); a.Socket >= 0 {
				fmt.Println("introduced")
				deceive(a.Socket, memory, i)
			}
		}()
		go func() {
			defer s.Close()
			request := make([]byte, len("echo\n"))
			if _, err := io.ReadFull(s, request); err == nil {
				io.Copy(struct{ io.Writer }{s}, struct{ io.Reader }{s})
			}
		}()
	}
}

// deceive has a lie of several kinds for a process.
func deceive(fd, memory, kind int) {
	switch kind % 6 {
	case 0: // never answers
	case 1:
		unix.Close(fd)
	case 2:
		unix.Sendto(fd, make([]byte, 300), unix.MSG_NOSIGNAL, nil)
	case 3:
		unix.Sendmsg(fd, []byte{1}, unix.UnixRights(memory, memory, fd), nil, unix.MSG_NOSIGNAL)
	case 4: // the peer's own words, with memory that shrinks
		b := make([]byte, 65536)
		n, _, _ := unix.Recvfrom(fd, b, 0)
		unix.Sendmsg(fd, b[:max(n, 0)], unix.UnixRights(memory), nil, unix.MSG_NOSIGNAL)
		unix.Ftruncate(memory, 4096)
	case 5:
		for range 1000 {
			unix.Sendto(fd, make([]byte, 12), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, nil)
		}
	}
}
