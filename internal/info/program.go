package info

import (
	"debug/buildinfo"
	"fmt"
	"io"

	"github.com/gosmc/smc/internal/overlay"
	"github.com/gosmc/smc/internal/text"
)

// A Program is the file of a program, and how it comes to SMC.
type Program struct {
	File       string `json:"file"`
	Go         string `json:"go"`          // version of Go that compiled it; empty for other programs
	GosmcGo    string `json:"gosmc_go"`    // version of the 'gosmc go' that compiled it, empty for others
	PackageSMC string `json:"package_smc"` // version of package smc that it imports, empty for others
}

// modulePath is the module that a program with package smc depends on.
const modulePath = "github.com/gosmc/smc"

// ReadProgram looks at a file. The error is about reading it; a file that is no program is none.
func ReadProgram(file string) (Program, error) {
	p := Program{File: file}
	var err error
	if p.GosmcGo, err = overlay.FindMark(file); err != nil {
		return p, err
	}
	if build, err := buildinfo.ReadFile(file); err == nil { // else it is not of Go
		p.Go = build.GoVersion
		for _, m := range build.Deps {
			if m.Path == modulePath {
				p.PackageSMC = m.Version
			}
		}
	}
	return p, nil
}

// Write says in a line how the program comes to SMC.
func (p *Program) Write(w io.Writer) (err error) {
	name, version := text.Printable(p.File), text.Printable(p.Go)
	switch {
	case p.GosmcGo != "":
		_, err = fmt.Fprintf(w, "%s: compiled by gosmc go (gosmc %s, %s): its connections use SMC\n",
			name, text.Printable(p.GosmcGo), version)
	case p.PackageSMC != "":
		_, err = fmt.Fprintf(w, "%s: imports package smc (%s, %s): the connections that it makes with that "+
			"use SMC\n", name, text.Printable(p.PackageSMC), version)
	case p.Go != "":
		_, err = fmt.Fprintf(w, "%s: a Go program (%s) without SMC: compile it with 'gosmc go build'\n",
			name, version)
	default:
		_, err = fmt.Fprintf(w, "%s: no Go program: 'gosmc run --explain HOST:PORT %s' says what gosmc run "+
			"can do for it\n", name, name)
	}
	return err
}
