package library

import (
	"debug/elf"
	"encoding/binary"
)

// stub makes a shared library for 32-bit programs in which nothing is: a loader that finds it in
// LD_PRELOAD has nothing to complain about.
//
//	offset  size  part
//	     0    52  ELF header
//	    52    96  program headers: all of it, which can be written to, the dynamic section, no executable stack
//	   148    16  symbol table: the null symbol
//	   164    16  hash table: one bucket, one symbol
//	   180    16  string table
//	   196    48  dynamic section
func stub(machine elf.Machine) []byte {
	const (
		headers  = 52
		symbols  = headers + 3*32
		hash     = symbols + 16
		texts    = hash + 16
		name     = "\x00libgosmc.so\x00\x00\x00\x00"
		dynamic  = texts + len(name)
		entries  = 6
		size     = dynamic + 8*entries
		pageSize = 1 << 16 // the largest that there are
	)
	b := make([]byte, 0, size)
	word := func(list ...uint32) {
		for _, v := range list {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
	}
	half := func(list ...uint16) {
		for _, v := range list {
			b = binary.LittleEndian.AppendUint16(b, v)
		}
	}
	flags := uint32(0)
	if machine == elf.EM_ARM {
		flags = 5 << 24 // version 5 of the EABI
	}
	b = append(b, elf.ELFMAG...)
	b = append(b, byte(elf.ELFCLASS32), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT), 0, 0, 0, 0,
		0, 0, 0, 0, 0)
	half(uint16(elf.ET_DYN), uint16(machine))
	word(uint32(elf.EV_CURRENT), 0, headers, 0, flags)
	half(headers, 32, 3, 40, 0, 0)
	rw := uint32(elf.PF_R | elf.PF_W)
	word(uint32(elf.PT_LOAD), 0, 0, 0, uint32(size), uint32(size), rw, pageSize)
	word(uint32(elf.PT_DYNAMIC), uint32(dynamic), uint32(dynamic), uint32(dynamic), 8*entries,
		8*entries, rw, 4)
	word(uint32(elf.PT_GNU_STACK), 0, 0, 0, 0, 0, rw, 16)
	word(0, 0, 0, 0)
	word(1, 1, 0, 0)
	b = append(b, name...)
	word(uint32(elf.DT_HASH), hash, uint32(elf.DT_STRTAB), texts, uint32(elf.DT_SYMTAB), symbols,
		uint32(elf.DT_STRSZ), uint32(len(name)), uint32(elf.DT_SYMENT), 16, uint32(elf.DT_NULL), 0)
	return b
}
