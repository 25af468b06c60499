//go:build !(armbe || arm64be || m68k || mips || mips64 || mips64p32 || ppc || ppc64 || s390 || s390x || shbe || sparc || sparc64)

package bpf

import _ "embed"

//go:embed option_bpfel.o
var optionObject []byte

//go:embed port_bpfel.o
var portObject []byte
