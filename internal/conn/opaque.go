package conn

import (
	"errors"
	"fmt"
	"syscall"
)

// An opaqueConn hides a socket that package os would find behind a RawConn of package net, into
// which io.Copy(conn, file) sends the file, past our Write.
//
// Write fails, since bytes that a program sends on the socket would break the connection. Read
// serves programs that find out in that way whether a connection is alive. It does not wait, since
// nothing comes.
type opaqueConn struct {
	syscall.RawConn
	conn   *ident
	before func() // is called before the socket is looked at; nil: nothing
}

// Write implements [syscall.RawConn].
func (o opaqueConn) Write(func(fd uintptr) bool) error {
	return o.conn.opError("raw-write", errNoSocket)
}

// Read implements [syscall.RawConn].
func (o opaqueConn) Read(f func(fd uintptr) (done bool)) error {
	if o.before != nil {
		o.before()
	}
	done := false
	err := o.RawConn.Read(func(fd uintptr) bool {
		done = f(fd)
		return true
	})
	if err == nil && !done {
		err = o.conn.opError("raw-read", errNoSocket)
	}
	return err
}

// errNoSocket says that data does not pass through a socket.
var errNoSocket = fmt.Errorf("smc: the data of a connection over shared memory passes through no socket: %w",
	errors.ErrUnsupported)

// errNoFile says that the bytes of a connection pass through no socket.
var errNoFile = fmt.Errorf("smc: a connection over shared memory has no file: %w", errors.ErrUnsupported)
