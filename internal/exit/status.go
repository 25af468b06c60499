package exit

import (
	"maps"
	"slices"
)

// A Status is an exit status of a verb and its meaning.
type Status struct {
	Code int
	Text string
}

// noDir is the failure of verbs that look for hosts.
const noDir = "some other failure, such as that the run directory which --dir or GOSMC_DIR names " +
	"does not exist"

// own has the meanings of the exit statuses of verbs where they are more than the common ones, or
// fewer.
var own = map[string][]Status{
	"agent": {{Failure, "something is missing, which it names; with --status, no agent answers"}},
	"bench": {{Failure, "nothing could be measured, or some other failure; with --check, a must is missed"}},
	"config": {{Failure,
		"a line of the file is not understood, or with check has no effect; or some other failure"}},
	"connect": {{FellBack, "the connection is less than --require wants"}},
	"device":  {{Failure, noDir + ", or that a part of the configuration is not understood"}},
	"doctor":  {{Failure, "a finding is a warning or a failure; or some other failure"}},
	"dump": {
		{Failure, "some other failure, such as that a file could not be read to its end"},
		{Problems, "--problems has found some"},
	},
	"go": {{Failure, "some other failure, such as a toolchain whose package net is not known"}},
	"info": {{Failure,
		"shared memory cannot be used here, and the table says why; or some other failure"}},
	"link":      {{Failure, noDir}},
	"linkgroup": {{Failure, noDir}},
	"listen":    {{FellBack, "the connection is less than --require wants"}},
	"run": {
		{OK, "with --explain: the connection would leave TCP"},
		{Failure, "some other failure of gosmc itself"},
		{FellBack, "with --require: the program could only use TCP; " +
			"with --explain: the connection would be TCP"},
		{NotExecutable, "PROGRAM was found and cannot be executed"}, {NotFound, "PROGRAM was not found"},
	},
	"ss": {{Failure, noDir}, {FellBack,
		"a connection that is shown does not use the mode of --require"}},
	"stats": {{Failure, noDir}},
}

// Statuses returns the exit statuses of a verb, in order. A command below a verb has the exit
// statuses of the verb. Without a verb, "", they are those of gosmc as a whole.
func Statuses(verb string) []Status {
	list := []Status{
		{OK, "success"}, {Failure, "some other failure"}, {Usage, "the command line was not understood"},
	}
	if verb == "" {
		list = append(list, Status{FellBack, "--require was not met"},
			Status{Problems, "dump --problems has found some"})
	}
	for _, s := range own[verb] {
		list = slices.DeleteFunc(list, func(e Status) bool { return e.Code == s.Code })
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Status) int { return a.Code - b.Code })
	return list
}

// Note is an additional remark about the exit status of a command, or "". name is the command's last
// word.
func Note(name string) string {
	switch name {
	case "run":
		return "Otherwise the exit status is that of PROGRAM."
	case "go":
		return "Otherwise the exit status is that of the go command."
	}
	return ""
}

// Verbs returns the verbs with exit statuses of their own, sorted.
func Verbs() []string { return slices.Sorted(maps.Keys(own)) }
