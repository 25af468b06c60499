// Package port gets a process its own socket on a UDP port that many processes share: 4791, the
// port of RoCEv2.
//
// A port of an address belongs to one socket, and every process with a device needs it. 'gosmc
// agent' makes one for each process that asks (SO_REUSEPORT). The kernel chooses among them by the
// destination queue pair number of each packet. The agent hands the socket over with the range of
// numbers that belongs to it. From then on the agent is not needed: packets come straight to the
// process, and the range is free again when the socket is closed, however the process ends.
package port

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

// A Grant is a socket of this process on the shared port of an address.
type Grant struct {
	Socket *os.File // bound, with SO_REUSEPORT; not yet given to anybody else
	First  wire.QPN // the first of the numbers that steer packets to it
	Count  int      // how many there are
	Key    Key      // shared by all processes that have a socket on this port
}

// A Key shows the processes that share a port that a packet was handed on by one of them.
type Key [16]byte

// Close gives the socket back, if nobody has taken it over.
func (g *Grant) Close() error { return g.Socket.Close() }

// ErrNoAgent is that there is no agent to ask: the process opens the port by itself.
var ErrNoAgent = errors.New("no agent shares UDP ports on this machine")

// A RefusedError is an agent's answer in words.
type RefusedError struct{ Reason string }

// Error implements error.
func (e *RefusedError) Error() string { return "the agent refused: " + e.Reason }

// EnvSocket is the environment variable that names the agent's socket.
const EnvSocket = "GOSMC_AGENT"

// SystemSocket is where an agent listens if nobody says otherwise. TestMain sets another path.
var SystemSocket = "/run/gosmc-agent.sock"

// SocketName is the name of the agent's socket in a run directory.
const SocketName = "agent.sock"

// Paths returns where an agent may listen, in the order in which they are tried: the path in the
// environment, else the run directory dir, if it is not empty, and then the system's.
func Paths(dir string) []string {
	if path := os.Getenv(EnvSocket); path != "" {
		return []string{path}
	}
	if dir == "" {
		return []string{SystemSocket}
	}
	return []string{filepath.Join(dir, SocketName), SystemSocket}
}

// The messages on the agent's socket, which is of the type SOCK_SEQPACKET: one JSON object a
// message. The answer to a request for a port carries the socket, as SCM_RIGHTS.
type (
	// A Request is the question of a process.
	Request struct {
		Version int        `json:"version"`
		Request string     `json:"request"`           // "port" or "status"
		Address netip.Addr `json:"address,omitzero"`  // of the port; a link-local one with its zone
		UDPPort uint16     `json:"udp_port,omitzero"` // 0 for 4791
		// that asks, whose network namespace the socket is to be in
		Thread int `json:"tid,omitzero"`
	}
	// An Answer is the agent's answer. Error is empty if all is well.
	Answer struct {
		Version int             `json:"version"`
		Error   string          `json:"error,omitempty"`
		Code    Code            `json:"code,omitempty"` // beside an error that is more than words
		First   wire.QPN        `json:"first,omitempty"`
		Count   int             `json:"count,omitempty"`
		Key     string          `json:"key,omitempty"` // in hexadecimal digits
		Status  json.RawMessage `json:"status,omitempty"`
	}
)

// A Code tells errors apart that a process does something about.
type Code string

const (
	CodeBusy    Code = "busy"     // the agent serves many others: ask again
	CodeNoPorts Code = "no-ports" // it shares no ports, as if it was not there
)

// Version is the version of the messages.
const Version = 1

// Bounds of a message.
const (
	MaxRequest = 512
	MaxAnswer  = 64 << 10
	patience   = 2 * time.Second // for the agent to answer
	busyPause  = 20 * time.Millisecond
)

// Claim asks the agent for a socket on a UDP port (4791 for RoCEv2) of a local address, in the
// network namespace of the calling thread. dir is the run directory of the process. ctx bounds the
// wait, which takes two seconds at most.
//
// The error matches [ErrNoAgent] if there is nobody to ask, and is a [*RefusedError] if the agent says no.
func Claim(ctx context.Context, dir string, local netip.Addr, udpPort uint16) (*Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request := Request{Request: "port", Address: local, UDPPort: udpPort, Thread: unix.Gettid()}
	answer, socket, err := Ask(ctx, Paths(dir), request)
	for answer.Code == CodeBusy && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(busyPause/2 + rand.N(busyPause)):
			answer, socket, err = Ask(ctx, Paths(dir), request)
		}
	}
	if answer.Code == CodeNoPorts {
		err = fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	if err != nil {
		return nil, err
	}
	g := &Grant{Socket: socket, First: answer.First, Count: answer.Count}
	key, err := hex.DecodeString(answer.Key)
	if socket == nil || err != nil || len(key) != len(g.Key) || g.Count < 1 ||
		uint64(g.First)+uint64(g.Count)-1 > uint64(wire.MaxQPN) {
		if socket != nil {
			socket.Close()
		}
		return nil, fmt.Errorf("port: the agent's answer makes no sense: numbers %d + %d", answer.First,
			answer.Count)
	}
	copy(g.Key[:], key)
	return g, nil
}

// Ask sends a request to the agent at the first of paths that has one, and returns its answer, and
// the socket that came along, nil for none. An answer with an error is a [*RefusedError].
func Ask(ctx context.Context, paths []string, request Request) (Answer, *os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := dial(ctx, paths)
	if err != nil {
		return Answer{}, nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
	request.Version = Version
	b, err := json.Marshal(request)
	if err != nil {
		return Answer{}, nil, fmt.Errorf("port: %w", err)
	}
	if _, err := c.Write(b); err != nil {
		return Answer{Code: codeOf(err)}, nil, fmt.Errorf("port: ask the agent: %w", err)
	}
	answer, socket, err := receive(c)
	if err != nil {
		answer.Code = codeOf(err)
	}
	if err == nil && answer.Error != "" {
		err = &RefusedError{answer.Error}
	}
	if err != nil && socket != nil {
		socket.Close()
		socket = nil
	}
	return answer, socket, err
}

// codeOf is the code for which an error of the socket stands. An agent that is busy hangs up on a
// request that it has not read.
func codeOf(err error) Code {
	if errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return CodeBusy
	}
	return ""
}

// dial connects to the first agent that is there, and can be trusted: root's, or one of this user.
func dial(ctx context.Context, paths []string) (*net.UnixConn, error) {
	last := error(ErrNoAgent)
	for _, path := range paths {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unixpacket", path)
		if err != nil {
			if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) &&
				!errors.Is(err, unix.ENOTDIR) {
				last = fmt.Errorf("%w: %w", ErrNoAgent, err)
			}
			continue
		}
		u := c.(*net.UnixConn)
		cred, err := Credentials(u)
		if err == nil && cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
			err = fmt.Errorf("%w: the one at %s belongs to user %d, whom we do not trust", ErrNoAgent,
				path, cred.Uid)
		}
		if err != nil {
			u.Close()
			last = err
			continue
		}
		return u, nil
	}
	return nil, last
}

// Credentials asks the kernel which process is at the other end of c.
func Credentials(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); cerr != nil {
		return nil, cerr
	}
	return cred, err
}

// receive reads an answer and the descriptor that comes with it. Others are closed.
func receive(c *net.UnixConn) (answer Answer, socket *os.File, err error) {
	b, oob := make([]byte, MaxAnswer), make([]byte, unix.CmsgSpace(4*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return answer, nil, fmt.Errorf("port: the agent has not answered: %w", err)
	}
	var fds []int
	if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil {
		for i := range messages {
			if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
				fds = append(fds, got...)
			}
		}
	}
	for i, fd := range fds {
		if i == 0 && len(fds) == 1 {
			socket = os.NewFile(uintptr(fd), "shared UDP port")
		} else {
			unix.Close(fd)
		}
	}
	switch {
	case n == 0:
		err = errors.New("port: the agent has hung up")
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) > 1:
		err = errors.New("port: the agent's answer is too long")
	default:
		if err = json.Unmarshal(b[:n], &answer); err != nil {
			err = fmt.Errorf("port: the agent's answer: %w", err)
		} else if answer.Version != Version {
			err = fmt.Errorf("port: the agent speaks version %d, want %d", answer.Version, Version)
		}
	}
	return answer, socket, err
}
