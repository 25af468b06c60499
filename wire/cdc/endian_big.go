//go:build armbe || arm64be || m68k || mips || mips64 || mips64p32 || ppc || ppc64 || s390 || s390x || shbe || sparc || sparc64

package cdc

// bigEndian is the byte order of this machine.
const bigEndian = true

// TypeWord is the word at [TypeOffset]: the type, then 7 reserved bytes.
const TypeWord uint64 = TypeMessage << 56
