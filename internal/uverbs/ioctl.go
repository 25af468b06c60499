package uverbs

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers of ioctl(2): RDMA_VERBS_IOCTL, enum uverbs_default_objects, enum uverbs_methods_device,
// and the attributes of the query of GIDs.
const (
	ioctlVerbs = 3<<30 | ioctlHeaderLen<<16 | 0x1b<<8 | 1

	objectDevice        = 0
	methodQueryGIDTable = 5

	attrGIDEntrySize  = 0
	attrGIDFlags      = 1
	attrGIDEntries    = 2
	attrGIDNumEntries = 3

	attrMandatory = 1

	ioctlHeaderLen = 24
	ioctlAttrLen   = 16
)

// driverRXE is the number of the kernel's driver rxe: RDMA_DRIVER_RXE. The kernel refuses a command
// with the number of another driver, so one answer proves which driver a device has.
const driverRXE = 14

// An attribute is one argument of an ioctl. Input of up to 8 bytes is the data itself, else data is
// an address.
type attribute struct {
	id   uint16
	size uint16
	data uint64
}

// appendIoctl appends the argument of an ioctl.
//
//	offset  size  field
//	     0     2  length, with the attributes
//	     2     2  object
//	     4     2  method
//	     6     2  number of attributes
//	     8     8  reserved
//	    16     4  driver
//	    20     4  reserved
//	    24    ..  attributes of 16 bytes:
//
//	     0     2  attribute
//	     2     2  length of the data
//	     4     2  flags: 1 = mandatory
//	     6     2  reserved
//	     8     8  data, or its address
func appendIoctl(b []byte, object, method uint16, driver uint32, attributes []attribute) []byte {
	b = host.AppendUint16(b, uint16(ioctlHeaderLen+ioctlAttrLen*len(attributes)))
	b = host.AppendUint16(b, object)
	b = host.AppendUint16(b, method)
	b = host.AppendUint16(b, uint16(len(attributes)))
	b = host.AppendUint64(b, 0)
	b = host.AppendUint32(b, driver)
	b = host.AppendUint32(b, 0)
	for _, a := range attributes {
		b = host.AppendUint16(b, a.id)
		b = host.AppendUint16(b, a.size)
		b = host.AppendUint16(b, attrMandatory)
		b = host.AppendUint16(b, 0)
		b = host.AppendUint64(b, a.data)
	}
	return b
}

// queryGIDs asks the kernel for up to n entries of the device's GID tables.
func (c *deviceFile) queryGIDs(n int) ([]GIDEntry, error) {
	var pinned runtime.Pinner
	defer pinned.Unpin()
	entries, count := make([]byte, n*gidEntryLen), make([]byte, 8)
	pinned.Pin(&entries[0])
	pinned.Pin(&count[0])
	b := appendIoctl(nil, objectDevice, methodQueryGIDTable, driverRXE, []attribute{
		{attrGIDEntrySize, 8, inline64(gidEntryLen)},
		{attrGIDFlags, 4, inline32(0)},
		{attrGIDEntries, uint16(len(entries)), uint64(uintptr(unsafe.Pointer(&entries[0])))},
		{attrGIDNumEntries, 8, uint64(uintptr(unsafe.Pointer(&count[0])))},
	})
	c.fdMu.RLock()
	defer c.fdMu.RUnlock()
	if c.fd < 0 {
		return nil, ErrClosed
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), ioctlVerbs, uintptr(unsafe.Pointer(&b[0])))
	if errno != 0 {
		return nil, commandError("QUERY_GID_TABLE", errno)
	}
	return parseGIDTable(entries, host.Uint64(count))
}

// inline64 and inline32 return input as the field data of an attribute holds it: the bytes of the
// value come first.
func inline64(v uint64) uint64 { return v }

func inline32(v uint32) uint64 {
	var b [8]byte
	host.PutUint32(b[:], v)
	return host.Uint64(b[:])
}
