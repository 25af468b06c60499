package supervisor

import (
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/rundir"
)

// resetsTable is that by which the libraries of programs tell each other that an end will be closed
// with a reset: SO_LINGER with 0 seconds. Without it programs see an end of file in place of a
// reset. [proto.Resets] has the layout.
var resetsTable = rundir.Table{File: proto.ResetsFile, Magic: proto.ResetsMagic, Size: proto.ResetsSize}
