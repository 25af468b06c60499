package main

import (
	"debug/buildinfo"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/overlay"
)

// A programReport is the output of info --json about a file.
type programReport struct {
	Schema     int    `json:"schema"`
	File       string `json:"file"`
	Go         string `json:"go"`          // version of Go that compiled it; empty for a program that is not of Go
	GosmcGo    string `json:"gosmc_go"`    // version of the 'gosmc go' that compiled it, empty for others
	PackageSMC string `json:"package_smc"` // version of package smc that it imports, empty for others
}

// modulePath is the module that a program with package smc depends on.
const modulePath = "github.com/gosmc/smc"

// showProgram is info with a file.
func showProgram(cmd *cobra.Command, file string, asJSON bool) error {
	r := programReport{Schema: jsonSchema, File: file}
	var err error
	if r.GosmcGo, err = overlay.FindMark(file); err != nil {
		return err
	}
	if build, err := buildinfo.ReadFile(file); err == nil { // else it is not of Go
		r.Go = build.GoVersion
		for _, m := range build.Deps {
			if m.Path == modulePath {
				r.PackageSMC = m.Version
			}
		}
	}
	if asJSON {
		return writeJSON(cmd.OutOrStdout(), r)
	}
	return r.write(cmd.OutOrStdout())
}

func (r *programReport) write(w io.Writer) (err error) {
	name := printable(r.File)
	switch {
	case r.GosmcGo != "":
		_, err = fmt.Fprintf(w, "%s: compiled by gosmc go (gosmc %s, %s): its connections use SMC\n", name, printable(r.GosmcGo), printable(r.Go))
	case r.PackageSMC != "":
		_, err = fmt.Fprintf(w, "%s: imports package smc (%s, %s): the connections that it makes with that use SMC\n", name, printable(r.PackageSMC), printable(r.Go))
	case r.Go != "":
		_, err = fmt.Fprintf(w, "%s: a Go program (%s) without SMC: compile it with 'gosmc go build'\n", name, printable(r.Go))
	default:
		_, err = fmt.Fprintf(w, "%s: no Go program: 'gosmc run --explain HOST:PORT %s' says what gosmc run can do for it\n", name, name)
	}
	return err
}
