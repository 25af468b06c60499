package inspect

import (
	"bytes"
	"path/filepath"
	"strconv"

	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/run/procs"
)

// ProgramHash returns the hash that stands for the program of a process in the table of
// admissions.
func ProgramHash(pid int) (hash uint64, err error) {
	dir := filepath.Join(procs.Dir, strconv.Itoa(pid))
	argv, _ := procs.ReadFile(dir, "cmdline")
	script := ""
	if args := bytes.Split(argv, []byte{0}); len(args) > 1 && len(args[1]) > 0 {
		if script = string(args[1]); !filepath.IsAbs(script) && script[0] != '-' {
			script = filepath.Join(dir, "cwd", script)
		}
	}
	return admission.ProgramHash(filepath.Join(dir, "exe"), script)
}
