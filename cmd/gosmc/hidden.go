package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/bench"
	"github.com/gosmc/smc/internal/demo"
	"github.com/gosmc/smc/internal/pod"
)

// newHiddenCommands are the verbs with which demo and bench start this program again.
func newHiddenCommands() []*cobra.Command {
	var list []*cobra.Command
	for verb, work := range map[string]func(context.Context, io.Reader, io.Writer) error{
		bench.WorkerVerb: func(_ context.Context, in io.Reader, out io.Writer) error { return bench.Work(in, out) },
		bench.NetnsVerb:  bench.KeepNetns,
		pod.AgentVerb:    func(_ context.Context, in io.Reader, out io.Writer) error { return pod.ServeAgent(in, out) },
		demo.WorkerVerb:  func(_ context.Context, in io.Reader, out io.Writer) error { return demo.Work(in, out) },
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
