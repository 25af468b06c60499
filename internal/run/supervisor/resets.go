package supervisor

import "github.com/gosmc/smc/internal/rundir"

// resetsTable is that by which the libraries of programs tell each other that an end will be closed
// with a reset: SO_LINGER with 0 seconds. Without it programs see an end of file in place of a
// reset.
//
//	offset  size  field
//	     0     8  magic 0x31747372736f67
//	     8     4  not 0: there was ever a mark
//	  4096 65536  8192 marks: FNV-1a (64 bits) of the name of an end, at that modulo 8192; 0: none
var resetsTable = rundir.Table{File: "resets", Magic: 0x31747372736f67, Size: 4096 + 8*8192}
