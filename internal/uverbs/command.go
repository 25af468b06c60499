package uverbs

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers of the commands that are given by write(2): enum ib_uverbs_write_cmds.
const (
	cmdGetContext        = 0
	cmdQueryDevice       = 1
	cmdQueryPort         = 2
	cmdAllocPD           = 3
	cmdDeallocPD         = 4
	cmdRegMR             = 9
	cmdDeregMR           = 13
	cmdCreateCompChannel = 17
	cmdCreateCQ          = 18
	cmdDestroyCQ         = 20
	cmdReqNotifyCQ       = 23
	cmdCreateQP          = 24
	cmdModifyQP          = 26
	cmdDestroyQP         = 27
	cmdPostSend          = 28
)

// nameRegMR is the name of the command for which the kernel counts locked memory.
const nameRegMR = "REG_MR"

// commandNames has the names of the commands, for errors.
var commandNames = map[uint32]string{
	cmdGetContext: "GET_CONTEXT", cmdQueryDevice: "QUERY_DEVICE", cmdQueryPort: "QUERY_PORT",
	cmdAllocPD: "ALLOC_PD", cmdDeallocPD: "DEALLOC_PD", cmdRegMR: nameRegMR, cmdDeregMR: "DEREG_MR",
	cmdCreateCompChannel: "CREATE_COMP_CHANNEL", cmdCreateCQ: "CREATE_CQ", cmdDestroyCQ: "DESTROY_CQ",
	cmdReqNotifyCQ: "REQ_NOTIFY_CQ", cmdCreateQP: "CREATE_QP", cmdModifyQP: "MODIFY_QP",
	cmdDestroyQP: "DESTROY_QP", cmdPostSend: "POST_SEND",
}

// host is the byte order of the kernel's structures.
var host = binary.NativeEndian

const (
	headerLen  = 8 // bytes before the body of a command
	addressLen = 8 // bytes of the response's address, in commands with a response
)

// appendCommand appends a command. The kernel writes the response to address; a command without a
// response has responseLen 0 and no address.
//
//	offset  size  field
//	     0     4  command
//	     4     2  length of the command, with this header, in words of 4 bytes
//	     6     2  length of the response in words of 4 bytes
//	     8     8  address of the response, if there is one
//	          ..  body
func appendCommand(b []byte, command uint32, address uintptr, responseLen int, body []byte) []byte {
	size := headerLen + len(body)
	if responseLen > 0 {
		size += addressLen
	}
	b = host.AppendUint32(b, command)
	b = host.AppendUint16(b, uint16(size/4))
	b = host.AppendUint16(b, uint16(responseLen/4))
	if responseLen > 0 {
		b = host.AppendUint64(b, uint64(address))
	}
	return append(b, body...)
}

// A deviceFile is an open file /dev/infiniband/uverbsN.
type deviceFile struct {
	fdMu sync.RWMutex // write-locked to close fd, read-locked for every command
	fd   int          // -1 when closed
}

// close closes the file, after the commands that run.
func (c *deviceFile) close() error {
	c.fdMu.Lock()
	defer c.fdMu.Unlock()
	err := unix.Close(c.fd)
	c.fd = -1
	return err
}

// command gives the kernel a command, and has it write the response to response, which may be
// empty.
func (c *deviceFile) command(command uint32, body, response []byte) error {
	var pinned runtime.Pinner
	defer pinned.Unpin()
	var address uintptr
	if len(response) > 0 {
		pinned.Pin(&response[0])
		address = uintptr(unsafe.Pointer(&response[0]))
	}
	b := appendCommand(make([]byte, 0, headerLen+addressLen+len(body)), command, address, len(response), body)
	return c.write(command, b)
}

// write writes a command. It allocates nothing if all goes well.
func (c *deviceFile) write(command uint32, b []byte) error {
	c.fdMu.RLock()
	defer c.fdMu.RUnlock()
	if c.fd < 0 {
		return ErrClosed
	}
	for tries := 1; ; tries++ {
		n, err := unix.Write(c.fd, b)
		switch {
		case (errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN)) && tries < maxTries: // rule: TestWriteTries: tries < maxTries -> true
			continue
		case err != nil:
			return commandError(commandNames[command], err)
		case n != len(b):
			return kernelError("%s took %d of %d bytes", commandNames[command], n, len(b))
		}
		return nil
	}
}

// destroy gives the command that ends an object. The object is gone as well if the device is: the
// kernel releases it with the descriptor.
func (c *deviceFile) destroy(command uint32, body, response []byte) error {
	err := c.command(command, body, response)
	if errors.Is(err, ErrRemoved) || errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

// needs returns an error if a structure of the kernel is shorter than it has to be.
func needs(name string, b []byte, size int) error {
	if len(b) < size {
		return kernelError("%s has %d bytes, not %d", name, len(b), size)
	}
	return nil
}
