package main

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/info"
)

// An infoReport is the output of info --json.
type infoReport struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"`
	info.Report
}

func newInfoCommand() *cobra.Command {
	var asJSON bool
	var watch time.Duration
	cmd := &cobra.Command{
		Use:   "info [flags] [FILE]",
		Short: "Show what this host can do, and why not more",
		Long: `Show the kinds of SMC that a program started here and now could use, the reason for each
kind that it could not, with all that is missing for it, and the limits that apply. No other program need be running: a host is made
for the occasion and asked. The exit status is 1 if shared memory cannot be used here, and the table says why.

With FILE, show how that program comes to SMC: it was compiled by gosmc go, it imports package smc, or it needs gosmc run.`,
		Example: `  gosmc info
  GOSMC_DIR=/shared/gosmc gosmc info
  gosmc info --watch 2
  gosmc info ./server
  gosmc info --json | jq .capabilities.smc_d_v2`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("info takes one FILE, but got %q, too", args[1])
			}
			if len(args) == 1 && watch != 0 {
				return usagef("--watch is for info without FILE: a file does not change")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return showProgram(cmd, args[0], asJSON)
			}
			return repeat(cmd, watch, asJSON, func(watched bool) error {
				report, err := info.New(cmd.Context())
				r, err := infoReport{jsonSchema, time.Now(), report}, whenWatched(watched, err)
				if asJSON {
					return errors.Join(jsonWriter(watched)(cmd.OutOrStdout(), r), err)
				}
				return errors.Join(r.Write(cmd.OutOrStdout()), err)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	addWatch(cmd, &watch)
	addSchema(cmd, reflect.TypeFor[infoReport]())
	return cmd
}

// A programReport is the output of info --json about a file.
type programReport struct {
	Schema int `json:"schema"`
	info.Program
}

// showProgram is info with a file.
func showProgram(cmd *cobra.Command, file string, asJSON bool) error {
	p, err := info.ReadProgram(file)
	if err != nil {
		return err
	}
	r := programReport{jsonSchema, p}
	if asJSON {
		return writeJSON(cmd.OutOrStdout(), r)
	}
	return r.Write(cmd.OutOrStdout())
}

// sayReady says, for a command line without a verb, whether this machine is ready, and the next step.
func sayReady(cmd *cobra.Command) {
	r, _ := info.New(cmd.Context()) // the verdict has the error
	fmt.Fprintf(cmd.OutOrStdout(), "%s\nNext: %s.\n\n", printable(r.Verdict()), r.NextStep())
}
