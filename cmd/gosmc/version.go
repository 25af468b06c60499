package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/measure"
)

type versionReport struct {
	Schema  int    `json:"schema"`
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Date    string `json:"date"` // of the commit
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Example: `  gosmc version
  gosmc version --json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), newVersionReport())
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func newVersionReport() versionReport {
	return versionReport{jsonSchema, measure.ModuleVersion(), measure.BuildCommit(), measure.BuildDate(), runtime.Version(), runtime.GOOS, runtime.GOARCH}
}

// versionLine is the output of version and --version.
func versionLine() string {
	v := newVersionReport()
	return fmt.Sprintf("gosmc %s (commit %s, %s, %s, %s/%s)", v.Version, v.Commit, v.Date, v.Go, v.OS, v.Arch)
}
