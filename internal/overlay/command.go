package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// BuildTag is in the build settings of a program, which go version -m prints.
const BuildTag = "gosmc"

// Arguments are the arguments of a command of the go command. If a flag comes again, the last one
// counts.
type Arguments struct {
	Dir     string // of -C
	Tags    string // of -tags, with commas
	HasTags bool
	Overlay string   // of -overlay
	Rest    []string // all others
}

// A GoCommand is a command of the go command with an overlay, ready to be executed.
type GoCommand struct {
	Program string   // the path of the go command
	Args    []string // beginning with the program's name
	Env     []string // with which it is executed
	Flags   []string // the flags among Args that make the overlay work, also for other tools
	// Plain is GOOS/GOARCH of a target for which there is no overlay: its connections stay TCP. It is
	// empty for others.
	Plain string
}

// Prepare asks the go command for its toolchain, and makes the overlay for that. command is a command
// that compiles, such as "build", or "flags" if only Flags is of use. version is that of gosmc.
//
// Errors are those of the go command and of files, and toolchains whose package net is not known.
func Prepare(command string, a Arguments, version string) (*GoCommand, error) {
	env, err := environmentOf(a.Dir)
	if err != nil {
		return nil, err
	}
	flags := ParseArguments("flags", splitFlags(env.GOFLAGS)) // the command line's replace these
	if !a.HasTags {
		a.Tags = flags.Tags
	}
	if a.Overlay == "" {
		a.Overlay = flags.Overlay
	}
	c := &GoCommand{Program: filepath.Join(env.GOROOT, "bin", "go"), Args: []string{"go", command}}
	if _, err := os.Stat(c.Program); err != nil {
		if c.Program, err = exec.LookPath("go"); err != nil {
			return nil, err
		}
	}
	if a.Dir != "" {
		c.Args = append(c.Args, "-C="+a.Dir)
	}
	if env.GOOS == "linux" && (env.GOARCH == "amd64" || env.GOARCH == "arm64") {
		file, err := env.overlay(a, version)
		if err != nil {
			return nil, err
		}
		c.Flags = []string{"-overlay=" + file, "-tags=" + strings.TrimPrefix(a.Tags+","+BuildTag, ",")}
	} else {
		c.Plain = env.GOOS + "/" + env.GOARCH
		if a.Overlay != "" {
			c.Flags = append(c.Flags, "-overlay="+a.Overlay)
		}
		if a.HasTags {
			c.Flags = append(c.Flags, "-tags="+a.Tags)
		}
	}
	c.Args = append(append(c.Args, c.Flags...), a.Rest...)
	// The overlay is for this toolchain: a module that wants another one is refused by the go command.
	others := func(v string) bool { return strings.HasPrefix(v, "GOTOOLCHAIN=") }
	c.Env = append(slices.DeleteFunc(os.Environ(), others), "GOTOOLCHAIN=local")
	return c, nil
}

// FlagLine returns Flags for a shell, which divides the line at blanks: a flag that has one is an
// error.
func (c *GoCommand) FlagLine() (string, error) {
	line := strings.Join(c.Flags, " ")
	if len(strings.Fields(line)) > len(c.Flags) {
		return "", fmt.Errorf("%q has a blank, at which a shell would divide it: "+
			"name another directory by XDG_CACHE_HOME", line)
	}
	return line, nil
}

// overlay makes the overlay for the toolchain, and returns its file.
func (env *environment) overlay(a Arguments, version string) (string, error) {
	if inside, err := filepath.Rel(env.GOMODCACHE, env.GOROOT); err == nil && filepath.IsLocal(inside) {
		return "", fmt.Errorf("the go command replaces no files of %s, which it has fetched itself: "+
			"install %s and set GOTOOLCHAIN=local", env.GOROOT, env.GOVERSION)
	}
	toolchain := Toolchain{GOROOT: env.GOROOT, Version: env.GOVERSION}
	if err := toolchain.Check(); err != nil {
		return "", err
	}
	return Make(Options{Toolchain: toolchain, Version: version, User: a.Overlay, Dir: a.absolute()})
}

// absolute is the directory where the go command runs.
func (a *Arguments) absolute() string {
	dir, err := filepath.Abs(a.Dir)
	if err != nil {
		return a.Dir
	}
	return dir
}

// An environment is the part of the output of "go env" that is used here.
type environment struct{ GOROOT, GOVERSION, GOOS, GOARCH, GOFLAGS, GOMODCACHE string }

// environmentOf asks the go command in a directory, which can have a toolchain of its own.
func environmentOf(dir string) (env environment, err error) {
	cmd := exec.Command("go", "env", "-json",
		"GOROOT", "GOVERSION", "GOOS", "GOARCH", "GOFLAGS", "GOMODCACHE")
	cmd.Dir = dir
	out, err := cmd.Output()
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return env, fmt.Errorf("go env: %s", strings.TrimSpace(string(e.Stderr)))
	}
	if err == nil {
		err = json.Unmarshal(out, &env)
	}
	if err != nil {
		return env, fmt.Errorf("go env: %w", err)
	}
	return env, nil
}

// valueFlags are the flags of the go command that take the next argument as their value. The flags
// of tests are in it too.
var valueFlags = strings.Fields(`C p asmflags buildmode compiler covermode coverpkg exec gccgoflags gcflags
	installsuffix ldflags mod modfile o overlay pgo pkgdir tags toolexec vettool
	bench benchtime blockprofile blockprofilerate count coverprofile cpu cpuprofile fuzz fuzztime
	fuzzminimizetime fuzzcachedir list memprofile memprofilerate mutexprofile mutexprofilefraction
	outputdir parallel run shuffle skip timeout trace`)

// ParseArguments takes the flags out that are ours, too. command says where the arguments of a program
// begin.
func ParseArguments(command string, args []string) (a Arguments) {
	for len(args) > 0 {
		arg := args[0]
		ofProgram := command == "run" && !strings.HasPrefix(arg, "-")
		if ofProgram || arg == "--" || arg == "-args" || arg == "--args" {
			break // later arguments are the program's
		}
		taken := 1
		if name, isFlag := strings.CutPrefix(arg, "-"); isFlag {
			name, value, hasValue := strings.Cut(strings.TrimPrefix(name, "-"), "=")
			if !hasValue && len(args) > 1 && slices.Contains(valueFlags, name) {
				value, taken = args[1], 2
			}
			known := hasValue || taken == 2
			switch {
			case known && name == "C":
				a.Dir = value
			case known && name == "tags":
				words := strings.FieldsFunc(value, func(r rune) bool { return r == ' ' || r == ',' })
				a.Tags, a.HasTags = strings.Join(words, ","), true
			case known && name == "overlay":
				a.Overlay = value
			default:
				a.Rest = append(a.Rest, args[:taken]...)
			}
		} else {
			a.Rest = append(a.Rest, arg)
		}
		args = args[taken:]
	}
	a.Rest = append(a.Rest, args...)
	return a
}

// splitFlags splits the variable GOFLAGS as the go command does: a flag that has blanks is in
// single or double quotes, and there are no escapes. The go command has checked it.
func splitFlags(value string) (list []string) {
	for {
		value = strings.TrimLeft(value, " \t\n\r")
		switch {
		case value == "":
			return list
		case value[0] == '\'' || value[0] == '"': // rule: TestSplitFlags
			flag, rest, _ := strings.Cut(value[1:], value[:1])
			list, value = append(list, flag), rest
		default:
			end := strings.IndexAny(value+" ", " \t\n\r")
			list, value = append(list, value[:end]), value[end:]
		}
	}
}
