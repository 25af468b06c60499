package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/overlay"
)

// goCommands are the commands of the go command that compile, and flags.
var goCommands = []string{"build", "run", "test", "install", "vet", "flags"}

// buildTag is in the build settings of a program, which go version -m prints.
const buildTag = "gosmc"

func newGoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "go build|run|test|install|vet|flags [ARGUMENT...]",
		Short: "Compile an unchanged Go program so that its TCP connections use SMC",
		Long: `Run the go command with the arguments, and with an overlay for package net: the TCP connections and listeners of the program use SMC
like those of package smc. Neither the source of the program nor its go.mod changes. The program sees *net.TCPConn and *net.TCPListener as ever, and
obeys the same configuration as package smc: see 'gosmc policy --help'. With GOSMC_DISABLED=1 it uses TCP.

The exit status and the output are those of the go command, which needs no network for this. The overlay is written into the user's cache directory.
Targets are linux/amd64 and linux/arm64. For others the program is built as without gosmc, and a line on standard error says so.
A toolchain whose package net is not known is refused.

'gosmc go flags' prints the flags for other tools that run the go command, with the same toolchain. 'gosmc info FILE' says how a
program was built.`,
		Example: `  gosmc go build -o server ./cmd/server
  gosmc go run . -listen :8080
  gosmc go test ./...
  CGO_ENABLED=0 GOARCH=arm64 gosmc go build ./...
  go build $(gosmc go flags) ./...`,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return goCommands, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault // files
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || !slices.Contains(goCommands, args[0]) {
				return usagef("which command? 'gosmc go' knows %s", strings.Join(goCommands, ", "))
			}
			return runGo(cmd, args[0], parseGoArguments(args[0], args[1:]))
		},
	}
	cmd.Flags().SetInterspersed(false) // later arguments are the go command's
	return cmd
}

// runGo carries out one command. It returns only if the go command is not executed.
func runGo(cmd *cobra.Command, command string, a goArguments) error {
	if command == "flags" && len(a.rest) > 0 {
		return usagef("flags takes -C, -tags and -overlay, and no %q", a.rest[0])
	}
	env, err := goEnvironment(a.dir)
	if err != nil {
		return err
	}
	flags := parseGoArguments("flags", splitGoFlags(env.GOFLAGS)) // the command line's replace these
	if !a.hasTags {
		a.tags = flags.tags
	}
	if a.overlay == "" {
		a.overlay = flags.overlay
	}
	program := filepath.Join(env.GOROOT, "bin", "go")
	if _, err := os.Stat(program); err != nil {
		if program, err = exec.LookPath("go"); err != nil {
			return err
		}
	}
	args := []string{"go", command}
	if a.dir != "" {
		args = append(args, "-C="+a.dir)
	}
	var ours []string
	if env.GOOS == "linux" && (env.GOARCH == "amd64" || env.GOARCH == "arm64") {
		if inside, err := filepath.Rel(env.GOMODCACHE, env.GOROOT); err == nil && filepath.IsLocal(inside) {
			return fmt.Errorf("the go command replaces no files of %s, which it has fetched itself: install %s and set GOTOOLCHAIN=local", env.GOROOT, env.GOVERSION)
		}
		toolchain := overlay.Toolchain{GOROOT: env.GOROOT, Version: env.GOVERSION}
		if err := toolchain.Check(); err != nil {
			return err
		}
		file, err := overlay.Make(overlay.Options{Toolchain: toolchain, Version: newVersionReport().Version, User: a.overlay, Dir: a.absolute()})
		if err != nil {
			return err
		}
		ours = []string{"-overlay=" + file, "-tags=" + strings.TrimPrefix(a.tags+","+buildTag, ",")}
	} else {
		fmt.Fprintf(cmd.ErrOrStderr(), "gosmc: connections on %s/%s stay TCP: SMC is for linux/amd64 and linux/arm64\n", env.GOOS, env.GOARCH)
		if a.overlay != "" {
			ours = append(ours, "-overlay="+a.overlay)
		}
		if a.hasTags {
			ours = append(ours, "-tags="+a.tags)
		}
	}
	if command == "flags" {
		line := strings.Join(ours, " ")
		if len(strings.Fields(line)) > len(ours) {
			return fmt.Errorf("%q has a blank, at which a shell would divide it: name another directory by XDG_CACHE_HOME", line)
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), line)
		return err
	}
	args = append(append(args, ours...), a.rest...)
	// The overlay is for this toolchain: a module that wants another one is refused by the go command.
	environment := append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GOTOOLCHAIN=") }), "GOTOOLCHAIN=local")
	return fmt.Errorf("%s: %w", program, unix.Exec(program, args, environment))
}

// A goEnv is the part of the output of "go env" that is used here.
type goEnv struct{ GOROOT, GOVERSION, GOOS, GOARCH, GOFLAGS, GOMODCACHE string }

// goEnvironment asks the go command in a directory, which can have a toolchain of its own.
func goEnvironment(dir string) (env goEnv, err error) {
	cmd := exec.Command("go", "env", "-json", "GOROOT", "GOVERSION", "GOOS", "GOARCH", "GOFLAGS", "GOMODCACHE")
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

// goArguments are the arguments of a command of the go command. If a flag comes again, the last one
// counts.
type goArguments struct {
	dir     string // of -C
	tags    string // of -tags, with commas
	hasTags bool
	overlay string   // of -overlay
	rest    []string // all others
}

// valueFlags are the flags of the go command that take the next argument as their value. The flags
// of tests are in it too.
var valueFlags = strings.Fields(`C p asmflags buildmode compiler covermode coverpkg exec gccgoflags gcflags installsuffix ldflags mod modfile o
	overlay pgo pkgdir tags toolexec vettool bench benchtime blockprofile blockprofilerate count coverprofile cpu cpuprofile fuzz fuzztime
	fuzzminimizetime fuzzcachedir list memprofile memprofilerate mutexprofile mutexprofilefraction outputdir parallel run shuffle skip timeout trace`)

// parseGoArguments takes the flags out that are ours, too.
func parseGoArguments(command string, args []string) (a goArguments) {
	for len(args) > 0 {
		arg := args[0]
		if arg == "--" || arg == "-args" || arg == "--args" || command == "run" && !strings.HasPrefix(arg, "-") {
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
				a.dir = value
			case known && name == "tags":
				a.tags, a.hasTags = strings.Join(strings.FieldsFunc(value, func(r rune) bool { return r == ' ' || r == ',' }), ","), true
			case known && name == "overlay":
				a.overlay = value
			default:
				a.rest = append(a.rest, args[:taken]...)
			}
		} else {
			a.rest = append(a.rest, arg)
		}
		args = args[taken:]
	}
	a.rest = append(a.rest, args...)
	return a
}

// splitGoFlags splits the variable GOFLAGS as the go command does: a flag that has blanks is in
// single or double quotes, and there are no escapes. The go command has checked it.
func splitGoFlags(value string) (list []string) {
	for {
		value = strings.TrimLeft(value, " \t\n\r")
		switch {
		case value == "":
			return list
		case value[0] == '\'' || value[0] == '"': // rule: TestSplitGoFlags
			flag, rest, _ := strings.Cut(value[1:], value[:1])
			list, value = append(list, flag), rest
		default:
			end := strings.IndexAny(value+" ", " \t\n\r")
			list, value = append(list, value[:end]), value[end:]
		}
	}
}

// absolute is the directory where the go command runs.
func (a goArguments) absolute() string {
	dir, err := filepath.Abs(a.dir)
	if err != nil {
		return a.dir
	}
	return dir
}
