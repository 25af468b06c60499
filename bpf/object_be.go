//go:build armbe || arm64be || m68k || mips || mips64 || mips64p32 || ppc || ppc64 || s390 || s390x || shbe || sparc || sparc64

package bpf

import _ "embed"

//go:embed option_bpfeb.o
var optionObject []byte

//go:embed port_bpfeb.o
var portObject []byte
