package run

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// admissionTable is that by which clients remember how their connections to a server have ended, to leave to TCP those that will be too short to gain:
// preload/src/admission.c. Without it all are moved.
//
//	offset  size    field
//	     0       8  magic 0x316d6461736d6f67
//	  4096  262144  4096 entries, of which a program and a server have one of the four from their key modulo 4096 on, whose last two bits do not count
//
//	entry
//	     0       8  key; 0: the entry is free
//	     8       8  hash of the path of the supervisor of the server
//	    16       8  connections to servers of that which were TCP because those before were short
//	    24       4  connections that were moved and short, one after another
//	    28       4  connections that were TCP since one was moved
//	    32       4  the last of how many was or will be moved, 32 to 256; 0: 32
//	    36       4  when it was used last, in seconds of CLOCK_BOOTTIME
//	    40      24  reserved
//
// Hashes are FNV-1a with 64 bits, of numbers in the order of the machine. A key is that of the server's address, of 16 bytes (IPv4 is mapped), its port (2), the cookie of the network
// namespace (8), and a program (8): device and inode (8 each) of its file and, where its first argument is a file, of that one, with the lowest bit set.
var admissionTable = table{"admission", 0x316d6461736d6f67, admissionsAt + admissionLen*admissions}

const (
	admissionsAt  = 4096
	admissions    = 4096
	admissionLen  = 64
	admissionWays = 4
)

// EnvShortAfter is the variable with how many connections of a program to a server have to be short, one after another, before others stay TCP, where the policy
// does not say it; DefaultShortAfter is that number.
const (
	EnvShortAfter     = "GOSMC_RUN_SHORT_AFTER"
	DefaultShortAfter = 16
)

// An Admission is what clients remember of the connections of a program to a server.
type Admission struct {
	Short uint32 // connections that were moved and ended before they gained by it, one after another
	Kept  uint64 // connections that were TCP for that
	Probe uint32 // the last of how many is moved all the same, to see whether they are short still
}

// admission is an entry as it is in the table.
type admission struct {
	key, socket, kept          uint64
	shorts, since, probe, used uint32
}

func parseAdmission(b []byte) admission {
	u32, u64 := binary.NativeEndian.Uint32, binary.NativeEndian.Uint64
	return admission{
		key: u64(b[0:]), socket: u64(b[8:]), kept: u64(b[16:]),
		shorts: u32(b[24:]), since: u32(b[28:]), probe: u32(b[32:]), used: u32(b[36:]),
	}
}

func hash64(parts ...[]byte) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum64()
}

// admissionKey is the key of a program, by its hash, and a server.
func admissionKey(server netip.AddrPort, netns, program uint64) uint64 {
	ip := server.Addr().As16()
	e := binary.NativeEndian
	return max(1, hash64(ip[:], e.AppendUint16(nil, server.Port()), e.AppendUint64(nil, netns), e.AppendUint64(nil, program)))
}

// programHash is that of a program in a key: exe is its file; script its first argument, "" if there is none.
func programHash(exe, script string) (hash uint64, err error) {
	file := func(path string, regular bool) ([]byte, error) {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return nil, &os.PathError{Op: "stat", Path: path, Err: err}
		}
		if regular && st.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil, nil
		}
		return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, uint64(st.Dev)), uint64(st.Ino)), nil
	}
	of, err := file(exe, false)
	if err != nil {
		return 0, err
	}
	var argument []byte
	if script != "" && script[0] != '-' {
		argument, _ = file(script, true)
	}
	return hash64(of, argument) | 1, nil
}

// programHashOf is that of a process.
func programHashOf(pid int) (hash uint64, err error) {
	dir := filepath.Join(procDir, strconv.Itoa(pid))
	argv, _ := readProc(dir, "cmdline")
	script := ""
	if args := bytes.Split(argv, []byte{0}); len(args) > 1 && len(args[1]) > 0 {
		if script = string(args[1]); !filepath.IsAbs(script) && script[0] != '-' {
			script = filepath.Join(dir, "cwd", script)
		}
	}
	return programHash(filepath.Join(dir, "exe"), script)
}

// openAdmissions opens the table of a directory of supervisors.
func openAdmissions(dir string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, admissionTable.file), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// admissionIn looks for what is remembered in a directory of supervisors; the zero value is nothing.
func admissionIn(dir string, key uint64) Admission {
	f, err := openAdmissions(dir)
	if err != nil {
		return Admission{}
	}
	defer f.Close()
	var set [admissionWays * admissionLen]byte
	first := int64(key % admissions &^ (admissionWays - 1))
	if _, err := f.ReadAt(set[:], admissionsAt+first*admissionLen); err != nil {
		return Admission{}
	}
	for b := set[:]; len(b) > 0; b = b[admissionLen:] {
		if a := parseAdmission(b); a.key == key {
			return Admission{Short: a.shorts, Kept: a.kept, Probe: max(32, min(256, a.probe))}
		}
	}
	return Admission{}
}

// keptBy is how many connections to servers of a supervisor were TCP because those before were short.
func keptBy(socket string) (n uint64) {
	f, err := openAdmissions(filepath.Dir(socket))
	if err != nil {
		return 0
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, admissionsAt, admissionLen*admissions))
	if err != nil {
		return 0
	}
	ours := hash64([]byte(socket))
	for ; len(b) >= admissionLen; b = b[admissionLen:] {
		if a := parseAdmission(b); a.key != 0 && a.socket == ours {
			n += a.kept
		}
	}
	return n
}
