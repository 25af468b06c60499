package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/sockdiag"
)

// A Seen is what a kernel says of its SMC sockets to internal/sockdiag, with what is known of them.
type Seen struct {
	Sockets []sockdiag.SMCSocket
	Stats   *sockdiag.SMCStats
	Raw     [][]byte // the kernel's messages about sockets

	Listener uint16 // port of a listener
	SMC, TCP uint16 // port here of a connection to a server with SMC, and to one without
	Sent     uint64 // bytes that the first one has sent, which its peer has not read
	Inet     uint16 // port of a socket of IPPROTO_SMC, connected to the server with SMC; 0: none is there
	InetWhy  string
}

const (
	inetSMC = 256              // IPPROTO_SMC of linux/in.h
	settle  = 30 * time.Second // for bytes on their way
)

// showSockets makes sockets, and prints a Seen as JSON when the socket of the first has received
// something, and nothing changes any more.
func showSockets(w io.Writer, smc, tcp string) error {
	server, err := netip.ParseAddrPort(smc)
	if err != nil {
		return err
	}
	plain, err := netip.ParseAddrPort(tcp)
	if err != nil {
		return err
	}
	var s Seen
	listener, err := listen(0)
	if err != nil {
		return err
	}
	defer listener.Close()
	s.Listener = listener.port()
	c, err := connect(server)
	if err != nil {
		return err
	}
	defer c.Close()
	s.SMC = c.port()
	p, err := connect(plain)
	if err != nil {
		return err
	}
	defer p.Close()
	s.TCP = p.port()
	if i, err := connectInet(server); err != nil {
		s.InetWhy = err.Error()
	} else {
		defer i.Close()
		s.Inet = i.port()
	}
	buf := make([]byte, 10_000)
	for {
		n, err := unix.SendmsgN(c.fd, buf, nil, nil, unix.MSG_DONTWAIT)
		if err == unix.EAGAIN {
			break
		}
		if err != nil {
			return os.NewSyscallError("sendmsg", err)
		}
		s.Sent += uint64(n)
	}
	quiet := func(c *sockdiag.SMCSocket) bool { return c.SendQ == s.Sent && c.RecvQ > 0 }
	for end := time.Now().Add(settle); ; time.Sleep(50 * time.Millisecond) {
		if s.Sockets, err = sockdiag.SMC(); err != nil {
			return err
		}
		done := time.Now().After(end)
		for _, found := range s.Sockets {
			done = done || found.Local.Port() == s.SMC && quiet(&found)
		}
		if done {
			break
		}
	}
	if s.Raw, err = rawSockets(); err != nil {
		return err
	}
	if s.Stats, err = sockdiag.Stats(); err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(s)
}

// rawSockets returns the kernel's messages about its sockets of SMC.
func rawSockets() (list [][]byte, err error) {
	fd, err := netlink(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	request := make([]byte, 52) // struct smc_diag_req
	request[0], request[3] = unix.AF_SMC, diagAllExtensions
	if err := send(fd, append(header(diagBySocketFamily, unix.NLM_F_REQUEST|unix.NLM_F_DUMP), request...)); err != nil {
		return nil, err
	}
	err = receive(fd, func(_ uint16, b []byte) (bool, error) {
		list = append(list, append([]byte{}, b...))
		return false, nil
	})
	return list, err
}

// connectInet is connect for a socket of the family of IP.
func connectInet(dest netip.AddrPort) (*socket, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, inetSMC)
	if err != nil {
		return nil, fmt.Errorf("socket of IPPROTO_SMC: %w", err)
	}
	s := &socket{fd: fd}
	if err := s.withAddr(unix.SYS_CONNECT, "connect", dest); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}
