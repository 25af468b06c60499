package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/overlay"
)

// goCommands are the commands of the go command that compile, and flags.
var goCommands = []string{"build", "run", "test", "install", "vet", "flags"}

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
			return runGo(cmd, args[0], overlay.ParseArguments(args[0], args[1:]))
		},
	}
	cmd.Flags().SetInterspersed(false) // later arguments are the go command's
	return cmd
}

// runGo carries out one command. It returns only if the go command is not executed.
func runGo(cmd *cobra.Command, command string, a overlay.Arguments) error {
	if command == "flags" && len(a.Rest) > 0 {
		return usagef("flags takes -C, -tags and -overlay, and no %q", a.Rest[0])
	}
	c, err := overlay.Prepare(command, a, newVersionReport().Version)
	if err != nil {
		return err
	}
	if c.Plain != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "gosmc: connections on %s stay TCP: SMC is for linux/amd64 and linux/arm64\n", c.Plain)
	}
	if command == "flags" {
		line, err := c.FlagLine()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), line)
		return err
	}
	return fmt.Errorf("%s: %w", c.Program, unix.Exec(c.Program, c.Args, c.Env))
}
