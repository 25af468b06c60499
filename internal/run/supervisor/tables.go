package supervisor

import (
	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/rundir"
)

// tables are those that there are in the directory of supervisors, as long as there are any.
// Programs can do without.
var tables = []rundir.Table{resetsTable, admission.Table, inspect.BareTable}
