package run

import (
	"bytes"
	"path/filepath"
	"strconv"

	"github.com/gosmc/smc/internal/admission"
)

// EnvShortAfter is the variable with how many connections of a program to a server have to be
// short, one after another, before others stay TCP, where the policy does not say it.
const EnvShortAfter = "GOSMC_RUN_SHORT_AFTER"

// programHashOf returns the hash that stands for the program of a process in the table of
// admissions.
func programHashOf(pid int) (hash uint64, err error) {
	dir := filepath.Join(procDir, strconv.Itoa(pid))
	argv, _ := readProc(dir, "cmdline")
	script := ""
	if args := bytes.Split(argv, []byte{0}); len(args) > 1 && len(args[1]) > 0 {
		if script = string(args[1]); !filepath.IsAbs(script) && script[0] != '-' {
			script = filepath.Join(dir, "cwd", script)
		}
	}
	return admission.ProgramHash(filepath.Join(dir, "exe"), script)
}
