package proto

import (
	"encoding/binary"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The table of resets in the directory of supervisors:
//
//	offset  size  field
//	     0     8  magic
//	     8     4  not 0: there was ever a mark
//	  4096 65536  8192 marks: FNV-1a (64 bits) of the name of an end, at that modulo 8192; 0: none
const (
	ResetsFile  = "resets"
	ResetsMagic = 0x31747372736f67
	ResetsSize  = marksAt + 8*marks

	anyAt   = 8
	marksAt = 4096
	marks   = 8192
)

// Resets are the marks of ends whose last close is a reset: preload/src/resets.c. It is read and written
// as a file, so that one who cuts it off harms nobody here. The methods of nil do nothing.
type Resets struct{ file *os.File }

// OpenResets opens the table of a directory of supervisors. It returns nil if there is none.
func OpenResets(dir string) *Resets {
	f, err := os.OpenFile(filepath.Join(dir, ResetsFile), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	return ResetsOf(f)
}

// ResetsOf returns the table that an open file is. It closes any other file, and returns nil.
func ResetsOf(f *os.File) *Resets {
	var magic [8]byte
	st, err := f.Stat()
	if _, readErr := f.ReadAt(magic[:], 0); err != nil || readErr != nil || st.Size() != ResetsSize ||
		binary.NativeEndian.Uint64(magic[:]) != ResetsMagic {
		f.Close()
		return nil
	}
	return &Resets{f}
}

// File returns the file, nil if there is none.
func (r *Resets) File() *os.File {
	if r == nil {
		return nil
	}
	return r.file
}

// Close closes the table.
func (r *Resets) Close() {
	if r != nil {
		r.file.Close()
	}
}

// markOf returns the mark of an end with a name, and where it is.
func markOf(name string) (mark uint64, at int64) {
	mark = 0xcbf29ce484222325
	for i := range len(name) {
		c := name[i]
		if i == 0 && c == '@' {
			c = 0 // as the kernel has it
		}
		mark = (mark ^ uint64(c)) * 0x100000001b3
	}
	at = marksAt + 8*int64(mark%marks)
	return max(mark, 1), at
}

// Set says whether the end with a name is to be reset when it is closed for the last time.
func (r *Resets) Set(name string, on bool) {
	if r == nil {
		return
	}
	mark, at := markOf(name)
	switch {
	case on:
		r.put(at, mark)
		var one [4]byte
		binary.NativeEndian.PutUint32(one[:], 1)
		r.file.WriteAt(one[:], anyAt)
	case r.get(at) == mark:
		r.put(at, 0)
	}
}

// Take reports whether the end with a name was to be reset, and takes the mark away.
func (r *Resets) Take(name string) bool {
	if r == nil {
		return false
	}
	mark, at := markOf(name)
	if r.get(at) != mark {
		return false
	}
	r.put(at, 0)
	return true
}

func (r *Resets) get(at int64) uint64 {
	var b [8]byte
	r.file.ReadAt(b[:], at) // 0 if it was cut off
	return binary.NativeEndian.Uint64(b[:])
}

func (r *Resets) put(at int64, mark uint64) {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], mark)
	r.file.WriteAt(b[:], at)
}
