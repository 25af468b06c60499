package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/control"
)

func newConnectCommand() *cobra.Command {
	var flags netcatFlags
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "connect [flags] HOST:PORT",
		Short: "Connect, and copy standard input and output over the connection",
		Long: `Connect to a TCP address, over SMC if both ends can and over plain TCP if not. Standard
input goes to the peer, what the peer sends to standard output. The end of the input is passed
on; the connection is over when both sides have ended (at a terminal: when the peer has).`,
		Example: `  echo hello | gosmc connect -v 127.0.0.1:7000
  gosmc connect --require smc-d --json 127.0.0.1:7000 < file`,
		Args: oneAddress,
		RunE: func(cmd *cobra.Command, args []string) error {
			return connect(cmd, args[0], &flags, timeout)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags.register(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "give up connecting after this time")
	return cmd
}

func connect(cmd *cobra.Command, addr string, flags *netcatFlags, timeout time.Duration) error {
	ctx := cmd.Context()
	h, err := smc.NewHost(nil)
	if err != nil {
		return err
	}
	defer h.Close()
	d := smc.Dialer{Host: h, Require: flags.require.Requirement, Timeout: timeout}
	c, err := d.DialContext(ctx, "tcp", addr)
	if fallback, ok := errors.AsType[*smc.FallbackError](err); ok {
		r := connReport{
			Schema: jsonSchema, Event: "closed", Time: time.Now(), Verb: "connect", Peer: addr,
			ReasonCode: control.ReasonCode(fallback.Reason.Code), Reason: fallback.Reason.Text, Advice: fallback.Reason.Advice,
		}
		r.Error = flags.require.unmet(r).Error()
		r.print(cmd.ErrOrStderr(), flags)
		return flags.require.unmet(r)
	}
	if err != nil {
		return err
	}
	r := newConnReport("connect", c)
	err = transfer(ctx, c, newInput(cmd.InOrStdin()), cmd.OutOrStdout(), &r)
	r.print(cmd.ErrOrStderr(), flags)
	shutdown(h)
	return err
}

// shutdown lets the connections of h end in order, for a moment at most.
func shutdown(h *smc.Host) {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	h.Shutdown(ctx)
}
