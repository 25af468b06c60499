package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// An exitStatus is an exit status of a command and its meaning.
type exitStatus struct {
	code int
	text string
}

// noDir is the failure of verbs that look for hosts.
const noDir = "some other failure, such as that the run directory which --dir or GOSMC_DIR names does not exist"

// ownExits has the meanings of the exit statuses of verbs where they are more than the common ones,
// or fewer.
var ownExits = map[string][]exitStatus{
	"agent": {{exitFailure, "something is missing, which it names; with --status, no agent answers"}},
	"bench": {{exitFailure, "nothing could be measured, or some other failure; with --check, a must is missed"}},
	"config": {{exitFailure,
		"a line of the file is not understood, or with check has no effect; or some other failure"}},
	"connect":   {{exitFellBack, "the connection is less than --require wants"}},
	"device":    {{exitFailure, noDir}},
	"doctor":    {{exitFailure, "a finding is a warning or a failure; or some other failure"}},
	"dump":      {{exitFailure, "some other failure, such as that a file could not be read to its end"}, {exitProblems, "--problems has found some"}},
	"go":        {{exitFailure, "some other failure, such as a toolchain whose package net is not known"}},
	"info":      {{exitFailure, "shared memory cannot be used here, and the table says why; or some other failure"}},
	"link":      {{exitFailure, noDir}},
	"linkgroup": {{exitFailure, noDir}},
	"listen":    {{exitFellBack, "the connection is less than --require wants"}},
	"run": {
		{exitOK, "with --explain: the connection would leave TCP"}, {exitFailure, "some other failure of gosmc itself"},
		{exitFellBack, "with --require: the program could only use TCP; with --explain: the connection would be TCP"},
		{exitNotExecutable, "PROGRAM was found and cannot be executed"}, {exitNotFound, "PROGRAM was not found"},
	},
	"ss": {{exitFailure, noDir}, {exitFellBack,
		"a connection that is shown does not use the mode of --require"}},
	"stats": {{exitFailure, noDir}},
}

// exits returns the exit statuses of a command, in order. A command below a verb has the exit
// statuses of the verb.
func exits(cmd *cobra.Command) []exitStatus {
	list := []exitStatus{{exitOK, "success"}, {exitFailure, "some other failure"}, {exitUsage, "the command line was not understood"}}
	verb, _, _ := strings.Cut(verbOf(cmd), " ")
	if cmd == cmd.Root() {
		list = append(list, exitStatus{exitFellBack, "--require was not met"}, exitStatus{exitProblems, "dump --problems has found some"})
	}
	for _, own := range ownExits[verb] {
		list = slices.DeleteFunc(list, func(e exitStatus) bool { return e.code == own.code })
		list = append(list, own)
	}
	slices.SortFunc(list, func(a, b exitStatus) int { return a.code - b.code })
	return list
}

// exitNote is an additional remark about the exit status.
func exitNote(cmd *cobra.Command) string {
	if cmd.Name() == "run" {
		return "Otherwise the exit status is that of PROGRAM."
	}
	if cmd.Name() == "go" {
		return "Otherwise the exit status is that of the go command."
	}
	return ""
}

// The functions of templates are cobra's, not a command's: nothing may be added while one runs.
func init() { cobra.AddTemplateFunc("exitStatuses", exitHelp) }

// addExits puts exit statuses into the help of all commands.
func addExits(root *cobra.Command) {
	root.SetUsageTemplate(root.UsageTemplate() + "{{exitStatuses .}}")
}

// exitHelp is that part of the help of a command.
func exitHelp(cmd *cobra.Command) string {
	var b strings.Builder
	b.WriteString("\nExit status:\n")
	for _, e := range exits(cmd) {
		fmt.Fprintf(&b, "  %-4d %s\n", e.code, e.text)
	}
	if note := exitNote(cmd); note != "" {
		b.WriteString("  " + note + "\n")
	}
	return b.String()
}
