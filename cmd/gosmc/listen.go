package main

import (
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/netcat"
	"github.com/gosmc/smc/internal/usage"
)

func newListenCommand() *cobra.Command {
	var flags netcatFlags
	var echo, discard, keep, nothing bool
	cmd := &cobra.Command{
		Use:   "listen [flags] HOST:PORT | HOST PORT | PORT",
		Short: "Accept connections, and copy standard input and output, echo, or discard",
		Long: `Listen on a TCP address and accept connections over SMC and over plain TCP. A PORT alone, as with netcat, is that of all
addresses of this machine.

Without --echo and --discard the first connection is joined with standard input and output, and
its end ends the command; --keep goes on with the next one. With --echo everything is sent back, with
--discard it is dropped; both serve any number of connections at a time until interrupted.

Where SMC cannot be used every connection is plain TCP, and a line on standard error says why; with --json it
is an object whose event is "warning".

` + aboutSMCR,
		Example: `  gosmc listen 127.0.0.1:7000 < /dev/null > file
  gosmc listen --echo -v :7000
  gosmc listen --discard --require smc-d --json :7000
  gosmc listen --echo -v --ueid ACCOUNTING --peer 192.0.2.0/24:7000 192.0.2.7:7000`,
		Args: usage.OneAddress,
		RunE: func(cmd *cobra.Command, args []string) error {
			if echo && discard {
				return usagef("--echo and --discard exclude each other")
			}
			s := netcat.Server{Require: flags.require, Network: flags.network(), Keep: keep}
			switch {
			case echo:
				s.Serve = netcat.Echo
			case discard:
				s.Serve = netcat.Discard
			}
			return listen(cmd, &s, &flags, usage.JoinAddress(args))
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags.register(cmd)
	cmd.Flags().BoolVar(&echo, "echo", false, "send everything back")
	cmd.Flags().BoolVar(&discard, "discard", false, "read everything and drop it")
	cmd.Flags().BoolVarP(&keep, "keep", "k", false, "after a connection wait for the next one")
	cmd.Flags().BoolVarP(&nothing, "listen", "l", false, "no effect: it listens")
	return cmd
}

func listen(cmd *cobra.Command, s *netcat.Server, flags *netcatFlags, addr string) error {
	p := flags.reporter(cmd)
	warned := netcat.NewWarnings(p.Warn)
	h, err := flags.smcr.host(smc.Config{Logger: slog.New(warned)})
	if err != nil {
		return err
	}
	defer h.Close()
	s.Host, s.Report = h, p.Report
	s.Streams = netcat.Streams{In: cmd.InOrStdin(), Terminal: isTerminal(cmd.InOrStdin()), Out: cmd.OutOrStdout()}
	s.Listening = func(addr string) {
		p.Listening(addr)
		warned.Release()
	}
	return exitOf(s.Run(cmd.Context(), addr))
}
