package main

import (
	"errors"
	"reflect"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/survey"
)

// A statsReport is the output of stats --json.
type statsReport struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"`
	inventory.Stats
}

func newStatsCommand() *cobra.Command {
	var flags gatherFlags
	var watch time.Duration
	cmd := &cobra.Command{
		Use:   "stats [flags]",
		Short: "Show counters: connections by mode, bytes, messages by type, fallbacks and ends by reason",
		Long: `Show what the hosts of this machine have counted since they started, summed and for each
host; link groups and the memory of RMBs, the receive buffers of SMC-R, are those that there are now. Ends are
those of handshakes and connections that did not end in order, and of link groups of SMC-R. Each end counts its bytes, so a connection between two programs of package smc counts twice. One between programs of 'gosmc run' counts once, with its server. Bytes are n/a if they are not counted; TCP connections of 'gosmc run' are in no sum. A host ends with its process, and its counters with it. The exit status is 1 if the run directory that --dir or
GOSMC_DIR names does not exist.`,
		Example: `  gosmc stats
  gosmc stats --watch 2
  gosmc stats --json | jq .total.fallbacks`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return repeat(cmd, watch, flags.json, func(watched bool) error { return showStats(cmd, &flags, watched) })
		},
	}
	flags.register(cmd)
	addWatch(cmd, &watch)
	addSchema(cmd, reflect.TypeFor[statsReport]())
	return cmd
}

// showStats prints the counters once. watched says that they are printed several times.
func showStats(cmd *cobra.Command, flags *gatherFlags, watched bool) error {
	g := flags.gather(cmd.Context())
	r := newStatsReport(&g)
	var err error
	switch {
	case flags.json && watched:
		err = writeJSONLine(cmd.OutOrStdout(), r)
	case flags.json:
		err = writeJSON(cmd.OutOrStdout(), r)
	default:
		err = r.Write(cmd.OutOrStdout())
		complain(cmd, &g)
	}
	return errors.Join(err, incomplete(&g))
}

func newStatsReport(g *survey.Answers) statsReport {
	return statsReport{jsonSchema, time.Now(), inventory.NewStats(g)}
}
