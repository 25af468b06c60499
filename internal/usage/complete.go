package usage

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// FileFlags are the flags that take the name of a file, which the shell completes.
var FileFlags = []string{"cgroup", "html", "pins", "read", "socket", "table", "write"}

// CompleteFlag completes the value of a flag with one of several.
func CompleteFlag(cmd *cobra.Command, flag string, values ...cobra.Completion) {
	MustComplete(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// MustComplete registers the completion of a flag's values. It panics if there is no such flag, or if
// it has one.
func MustComplete(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic("gosmc: " + err.Error())
	}
}

// CompleteRest has the shell offer no files for the values of flags that are none, of cmd and of all
// commands below it. It comes after all other completions are registered.
func CompleteRest(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		_, done := cmd.GetFlagCompletionFunc(f.Name)
		_, dir := f.Annotations[cobra.BashCompSubdirsInDir]
		if !done && !dir && f.Value.Type() != "bool" && !slices.Contains(FileFlags, f.Name) {
			MustComplete(cmd, f.Name, cobra.NoFileCompletions)
		}
	})
	for _, c := range cmd.Commands() {
		CompleteRest(c)
	}
}

// AddCompletion adds cobra's verb completion, with checks of its arguments. It keeps the output
// that root has then.
func AddCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Example = "  source <(gosmc completion bash)"
		c.Args, c.RunE = NoArguments, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		for _, shell := range c.Commands() {
			// A shell of other systems.
			// rule: cmd/gosmc TestManPages
			if shell.Name() == "powershell" {
				c.RemoveCommand(shell)
				continue
			}
			shell.Args = NoArguments
			shell.Example = "  gosmc completion " + shell.Name()
		}
	}
}

// CompleteDirs completes the value of a flag with directories. It panics if there is no such flag.
func CompleteDirs(cmd *cobra.Command, flag string) {
	if err := cmd.MarkFlagDirname(flag); err != nil {
		panic("gosmc: " + err.Error())
	}
}
