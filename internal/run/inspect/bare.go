package inspect

import (
	"encoding/binary"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/rundir"
)

// BareTable has the number of connections that programs of 'gosmc run' have accepted from programs of
// this machine that did not offer them. Every process with the user's rights can write there.
//
//	offset  size  field
//	     0     8  magic 0x3165726162736f67
//	  4096 65536  4096 entries of 16 bytes: key (8; 0: free), count (8)
//
// A key is FNV-1a (64 bits) of the name of the supervisor's socket, with the server's port as its last
// 16 bits.
var BareTable = rundir.Table{File: "bare", Magic: 0x3165726162736f67, Size: bareAt + bareLen*bares}

// Of the table.
const (
	bareAt  = 4096
	bareLen = 16
	bares   = 4096
)

// bareKey is the key of port 0 for a supervisor, by the path of its socket.
func bareKey(socket string) uint64 {
	h := fnv.New64a()
	io.WriteString(h, filepath.Base(socket))
	return h.Sum64() &^ 0xffff
}

// Bare returns how many connections that were not offered the programs of a supervisor have accepted
// from programs of this machine, by port. socket is the path of the supervisor's socket. It reports
// false if nobody counts them.
func Bare(socket string) (byPort map[uint16]uint64, counted bool) {
	byPort = make(map[uint16]uint64)
	counted = eachBare(socket, unix.O_RDONLY, func(_ *os.File, _ int64, port uint16, n uint64) {
		byPort[port] += n
	})
	return byPort, counted
}

// bareClients is [Bare] without the connections that their clients have left to TCP, as short ones,
// as far as it can be told of which port these are: no port has more than all have together.
func bareClients(socket string) map[uint16]uint64 {
	byPort, _ := Bare(socket)
	var all uint64
	for _, n := range byPort {
		all += n
	}
	kept := admission.KeptBy(socket)
	for port, n := range byPort {
		// rule: internal/run/supervisor TestBareClients: max(all, kept)-kept -> n+0*max(all, kept)
		byPort[port] = min(n, max(all, kept)-kept)
	}
	return byPort
}

// ForgetBare gives the entries of a supervisor back, which has ended.
func ForgetBare(socket string) {
	eachBare(socket, unix.O_RDWR, func(f *os.File, at int64, _ uint16, _ uint64) {
		f.WriteAt(make([]byte, bareLen), at)
	})
}

// eachBare calls f with each entry of a supervisor. It reports false if there is no table.
func eachBare(socket string, flag int, f func(file *os.File, at int64, port uint16, n uint64)) bool {
	path := filepath.Join(filepath.Dir(socket), BareTable.File)
	file, err := os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	b, err := io.ReadAll(io.NewSectionReader(file, bareAt, bareLen*bares))
	if err != nil || len(b) != bareLen*bares {
		return false
	}
	ours := bareKey(socket)
	for i := range bares {
		e := b[bareLen*i:]
		if key := binary.NativeEndian.Uint64(e); key&^0xffff == ours && key != 0 {
			f(file, bareAt+int64(bareLen*i), uint16(key), binary.NativeEndian.Uint64(e[8:]))
		}
	}
	return true
}
