package conn

import (
	"io"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire/clc"
)

// Mode is the transport that carries a connection's bytes.
type Mode uint8

// The modes.
const (
	ModeTCP Mode = iota
	ModeSMCD
	ModeSMCR
	ModeUnix // a pair of Unix sockets, with a program of 'gosmc run'
)

var modeNames = [...]string{ModeTCP: "TCP", ModeSMCD: "SMC-D", ModeSMCR: "SMC-R", ModeUnix: "Unix"}

func (m Mode) String() string { return modeNames[m] }

// modes has the Mode for each mode of core.
var modes = map[core.Mode]Mode{core.SMCD: ModeSMCD, core.SMCR: ModeSMCR}

// ModeOf returns the mode of connections over a fabric.
func ModeOf(m core.Mode) Mode { return modes[m] }

// A Conn is an established connection: an [SMC], a [TCP] or a [Unix]. Several goroutines may call
// its methods at once. Those that package net has, too, have the same meaning.
type Conn interface {
	net.Conn
	io.ReaderFrom
	io.WriterTo
	urgentConn
	optionConn
	hostedConn

	// WriteBuffers writes the buffers one after the other, like a writev. On return, bufs holds the
	// bytes that were not written.
	WriteBuffers(bufs *net.Buffers) (int64, error)

	// CloseRead ends reading: reads return io.EOF. As with TCP the peer is not told.
	CloseRead() error

	// CloseWrite ends writing: the peer reads io.EOF after the bytes that were written.
	CloseWrite() error

	// Forget ends a connection that nobody can use any more. A TCP socket is closed as soon as
	// nobody can use that either: somebody may have asked for it with SyscallConn.
	Forget()

	// SyscallConn returns the TCP socket, or our end of a pair. Only on plain TCP may the
	// connection's bytes be read and written there.
	SyscallConn() (syscall.RawConn, error)

	// File returns a copy of the TCP socket of a plain TCP connection. It fails if the bytes pass
	// through no TCP socket, and, before the first Read, if the last message of a handshake that
	// led to TCP may still come.
	File() (*os.File, error)

	// Mode returns the transport that carries the bytes.
	Mode() Mode

	// Reason says why the connection is plain TCP; the zero value on any other.
	Reason() clc.Reason

	// ByPeer reports whether the connection is plain TCP because the peer has declined.
	ByPeer() bool

	// Agreed returns the result of the handshake; the zero value on plain TCP.
	Agreed() Agreed

	// Totals returns the bytes that the application has read and written.
	Totals() (in, out uint64)

	// Buffers returns the sizes of our receive buffer and the peer's in bytes; zero without SMC.
	Buffers() (local, remote int)

	// Link returns the number of the link of SMC-R that carries the written bytes, 0 if none does.
	Link() uint8
}

// Read is c.Read. Where a method of an interface is called, the compiler has to put b on the heap;
// here it knows the methods.
func Read(c Conn, b []byte) (int, error) {
	switch c := c.(type) {
	case *SMC:
		return c.Read(b)
	case *TCP:
		return c.Read(b)
	case *Unix:
		return c.Read(b)
	}
	panic("conn: impossible connection")
}

// Write is c.Write, as [Read] is c.Read.
func Write(c Conn, b []byte) (int, error) {
	switch c := c.(type) {
	case *SMC:
		return c.Write(b)
	case *TCP:
		return c.Write(b)
	case *Unix:
		return c.Write(b)
	}
	panic("conn: impossible connection")
}

// An urgentConn has urgent data: MSG_OOB of a socket, which package net does not have.
type urgentConn interface {
	// WriteUrgent writes b, whose last byte is urgent: see [stream.Conn.WriteUrgent].
	WriteUrgent(b []byte) (int, error)

	// ReadUrgent returns the newest urgent byte: see [stream.Conn.ReadUrgent].
	ReadUrgent() (byte, error)

	// WaitUrgent returns when urgent data is announced: see [stream.Conn.WaitUrgent]. On a socket
	// that is when it has come.
	WaitUrgent() error

	// SetUrgentInline says whether urgent bytes stay in the stream: SO_OOBINLINE.
	SetUrgentInline(inline bool) error

	// AtUrgentMark reports whether reads have come to the urgent byte: SIOCATMARK.
	AtUrgentMark() (bool, error)
}

// An optionConn has the socket options of [net.TCPConn], and remembers them.
type optionConn interface {
	// Options returns the socket options as they were last set.
	Options() Options

	// SetNoDelay remembers the option and sets it on the TCP socket. Over SMC-D the peer sees
	// written bytes at once. Over SMC-R small writes gather while an earlier one is on its way,
	// unless the program has set the option: RFC 7609 §4.5.2. That it is set from the beginning, as
	// in package net, does not count.
	SetNoDelay(noDelay bool) error

	// SetKeepAlive turns TCP's own keepalive on the idle TCP connection on or off; when it
	// finds the peer unreachable, the SMC connection ends too. Over SMC-R the link is asked as well.
	SetKeepAlive(on bool) error

	SetKeepAlivePeriod(d time.Duration) error
	SetKeepAliveConfig(config net.KeepAliveConfig) error

	// SetLinger sets how Close treats bytes that the peer has not read: with 0 it resets the
	// connection. Otherwise SMC has nothing to wait for, because the bytes that Write has taken are
	// already in the peer's memory.
	SetLinger(sec int) error

	// SetReadBuffer and SetWriteBuffer set the buffers of a socket. On SMC they fail, since
	// the buffers were given to the peer in the handshake.
	SetReadBuffer(bytes int) error
	SetWriteBuffer(bytes int) error
}

// A hostedConn has the other methods that its host needs. A method that has no meaning for a
// connection does nothing.
type hostedConn interface {
	// Abort resets the connection.
	Abort()

	// IsClosed reports whether Close was called.
	IsClosed() bool

	// Flush waits, after Close and for a limited time, until the end of this process cannot lose
	// bytes that were written.
	Flush()

	// Association is the association whose end is also the connection's, nil without SMC.
	Association() transport.Association

	// AssociationEnded says that the association has ended, and LinkLost, after it, that its links are gone.
	AssociationEnded()
	LinkLost()

	// Sweep publishes how far the connection has been read, gives pages back if it has been
	// quiet since the last sweep, and reports whether some are left to be given back.
	Sweep() (dirty bool)

	// AppendCursors appends the cursors of both directions, unless the buffers are gone.
	AppendCursors(list []control.TraceEvent) []control.TraceEvent

	// Status describes the connection by its own knowledge.
	Status() control.StatusConn

	// Socket is the socket that the bytes pass through; the idle TCP socket on SMC.
	Socket() syscall.Conn

	// ID is the number of the connection within its host.
	ID() uint64

	// Since is when the TCP connection was taken over.
	Since() time.Time

	// Client reports whether this end has dialled.
	Client() bool

	// TraceClosed traces the end of the connection.
	TraceClosed(in, out uint64)
}

// An Owner has the functions of the host that a connection needs. Its methods may be called with
// locks of the connection held, and do not call the connection back but for methods that take none.
type Owner interface {
	// Add puts an established connection into the table. It fails if the host is closing.
	Add(c Conn) error

	// Forget takes a connection that is over out of the table. It does nothing if the connection is
	// not there.
	Forget(c Conn)

	// Closed says that the application has closed a connection, which may still wait for its peer.
	Closed(c Conn)

	// FellBack counts a connection that goes on over TCP, and whether this end is the client.
	FellBack(reason clc.Reason, client bool)

	// Failed counts a connection that has failed.
	Failed(reason string)

	// BeginTrace returns the place of an event, which is empty, for the caller to fill in. EndTrace
	// follows at once and keeps the event, and copies the message that it is about.
	BeginTrace() *Record
	EndTrace(message []byte)
}

// An Env has the values that the connections of a host have in common.
type Env struct {
	Owner  Owner
	Logger *slog.Logger
	Stats  *stream.Stats
	Dirty  func() // is called when a clean connection is written to

	ResetPatience time.Duration // before a reset of TCP counts: ResetPatience, but in tests
	WordTime      time.Duration // between two looks for the last word of a peer: WordTime, but in tests

	keepAlives keepAlives
}

// Agreed is the result of the handshake, as people want to see it.
type Agreed struct {
	Version  string // "2.1"
	EID      string
	PeerHost string
	PeerOS   string
	PeerPID  int // 0 if it cannot be seen
}
