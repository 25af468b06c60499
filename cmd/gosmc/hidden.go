package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/agent"
	"github.com/gosmc/smc/internal/bench"
	"github.com/gosmc/smc/internal/demo"
	"github.com/gosmc/smc/internal/pod"
)

// newHiddenCommands are the verbs with which demo, bench and agent start this program again.
func newHiddenCommands() []*cobra.Command {
	var list []*cobra.Command
	for verb, work := range map[string]func(context.Context, io.Reader, io.Writer) error{
		bench.WorkerVerb: withoutContext(bench.Work),
		bench.NetnsVerb:  bench.KeepNetns,
		pod.AgentVerb:    withoutContext(pod.ServeAgent),
		agent.KeeperVerb: func(context.Context, io.Reader, io.Writer) error { return agent.Keep() },
		demo.WorkerVerb:  withoutContext(demo.Work),
	} {
		list = append(list, &cobra.Command{
			Use:    verb,
			Hidden: true,
			Args:   noArguments,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return work(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
			},
		})
	}
	return list
}

// withoutContext is for work that ends with its input.
func withoutContext(work func(io.Reader, io.Writer) error) func(context.Context, io.Reader, io.Writer) error {
	return func(_ context.Context, in io.Reader, out io.Writer) error { return work(in, out) }
}
