// Package admission is the memory that clients have of how their connections to a server have
// ended. By it they leave connections to TCP that will be too short to gain by being moved. Clients
// are package smc, and programs of 'gosmc run' (preload/src/admission.c). The memory is a file of
// the run directory that all programs of a user share, and outlives each of them. Everybody with
// the user's rights can write there, as they could kill a program: the file decides nothing but
// this.
//
//	known of a program and a server            its next connection                      short  other
//	nothing                                    moved                                    +1     0
//	fewer short ones than the limit            moved                                    +1     0
//	as many                                    TCP; one in 32, later 256, is moved      +1     0
package admission

import (
	"encoding/binary"
	"hash/fnv"
	"io"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
)

// Table is the file.
//
//	offset  size    field
//	     0       8  magic 0x316d6461736d6f67
//	  4096  262144  4096 entries; a program and a server have one of the four from their key modulo 4096 on, without its last two bits
//
//	entry
//	     0       8  key; 0: the entry is free
//	     8       8  hash of the path of the supervisor of the server; 0: it has none
//	    16       8  connections to servers of that which were TCP because those before were short
//	    24       4  connections that were moved and short, one after another
//	    28       4  connections that were TCP since one was moved
//	    32       4  the last of how many was or will be moved, 32 to 256; 0: 32
//	    36       4  when it was used last, in seconds of CLOCK_BOOTTIME
//	    40      24  reserved
//
// Hashes are FNV-1a with 64 bits, of numbers in the order of the machine. A key is the hash of the
// server's address, of 16 bytes (IPv4 is mapped), its port (2), the cookie of the network namespace
// (8), and a program (8): device and inode (8 each) of its file and, where its first argument is a
// file, of that one, with the lowest bit set.
var Table = rundir.Table{File: "admission", Magic: 0x316d6461736d6f67, Size: entriesAt + entryLen*entries}

const (
	entriesAt = 4096 // bytes
	entries   = 4096
	entryLen  = 64 // bytes
	ways      = 4  // places that one may have

	idle       = 60 // seconds, after which another one may take the place
	probes     = 32 // of how many connections the last one is moved all the same
	probesMost = 256

	// Where the agent has to introduce the two each time, a move takes as long as 30 others do. Then the
	// first trial is one in probesFar, and the last ones are one in probesFarMost: preload/src/admission.c.
	probesFar     = 2 * probesMost
	probesFarMost = 8 * probesMost
)

// DefaultAfter is how many connections of a program to a server have to be short, one after
// another, before others stay TCP, where the policy does not say it.
const DefaultAfter = 16

// A Memory is the memory that clients have of the connections of a program to a server.
type Memory struct {
	Short uint32 // connections that were moved and ended before they gained by it, one after another
	Kept  uint64 // connections that were TCP for that
	Probe uint32 // the last of how many is moved all the same, to see whether they are short still
}

// entry is an entry as it is in the table.
type entry struct {
	key, socket, kept          uint64
	shorts, since, probe, used uint32
}

func parseEntry(b []byte) entry {
	u32, u64 := binary.NativeEndian.Uint32, binary.NativeEndian.Uint64
	return entry{
		key: u64(b[0:]), socket: u64(b[8:]), kept: u64(b[16:]),
		shorts: u32(b[24:]), since: u32(b[28:]), probe: u32(b[32:]), used: u32(b[36:]),
	}
}

// append appends the entry as it is in the table.
func (e *entry) append(b []byte) []byte {
	o := binary.NativeEndian
	b = o.AppendUint64(o.AppendUint64(o.AppendUint64(b, e.key), e.socket), e.kept)
	b = o.AppendUint32(o.AppendUint32(o.AppendUint32(o.AppendUint32(b, e.shorts), e.since), e.probe), e.used)
	return append(b, make([]byte, entryLen-40)...)
}

// nextProbe is the last of how many connections is moved.
func (e *entry) nextProbe() uint32 {
	if e.probe < probes || e.probe > probesFarMost {
		return probes
	}
	return e.probe
}

func hash(parts ...[]byte) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum64()
}

// Key is the key of a program, by its hash, and a server.
func Key(server netip.AddrPort, netns, program uint64) uint64 {
	ip := server.Addr().As16()
	e := binary.NativeEndian
	return max(1, hash(ip[:], e.AppendUint16(nil, server.Port()), e.AppendUint64(nil, netns),
		e.AppendUint64(nil, program)))
}

// places returns where the entries begin in the table of which a key may have one.
func places(key uint64) int64 { return entriesAt + int64(key%entries&^(ways-1))*entryLen }

// Lookup returns the memory of a key in a directory of supervisors; the zero value is none.
func Lookup(dir string, key uint64) Memory {
	f, err := open(dir)
	if err != nil {
		return Memory{}
	}
	defer f.Close()
	var set [ways * entryLen]byte
	if _, err := f.ReadAt(set[:], places(key)); err != nil {
		return Memory{}
	}
	for b := set[:]; len(b) > 0; b = b[entryLen:] {
		if e := parseEntry(b); e.key == key {
			return Memory{Short: e.shorts, Kept: e.kept, Probe: e.nextProbe()}
		}
	}
	return Memory{}
}

// KeptBy is how many connections to servers of a supervisor, by the path of its socket, were TCP
// because those before were short.
func KeptBy(socket string) (n uint64) {
	f, err := open(filepath.Dir(socket))
	if err != nil {
		return 0
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, entriesAt, entryLen*entries))
	if err != nil {
		return 0
	}
	ours := hash([]byte(socket))
	for ; len(b) >= entryLen; b = b[entryLen:] {
		if e := parseEntry(b); e.key != 0 && e.socket == ours {
			n += e.kept
		}
	}
	return n
}

// open opens the table of a directory, which may be another user's, for reading.
func open(dir string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, Table.File), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}
