package main

import (
	"net"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/netcat"
	"github.com/gosmc/smc/internal/usage"
)

func newConnectCommand() *cobra.Command {
	var flags netcatFlags
	timeout := 30 * time.Second
	var source string
	var scan bool
	cmd := &cobra.Command{
		Use:   "connect [flags] HOST:PORT | HOST PORT",
		Short: "Connect, and copy standard input and output over the connection",
		Long: `Connect to a TCP address, over SMC if both ends can and over plain TCP if not. Standard
input goes to the peer, what the peer sends to standard output. The end of the input is passed
on; the connection is over when both sides have ended (at a terminal: when the peer has). As netcat does, it takes HOST PORT, too. A PORT alone
is one of this machine.

` + aboutSMCR,
		Example: `  echo hello | gosmc connect -v 127.0.0.1:7000
  gosmc connect --require smc-d --json 127.0.0.1:7000 < file
  gosmc connect -v --ueid ACCOUNTING --peer 192.0.2.7:7000 192.0.2.7:7000 < file`,
		Args: usage.OneAddress,
		RunE: func(cmd *cobra.Command, args []string) error {
			return connect(cmd, usage.JoinAddress(args), &flags, timeout, source, scan)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&source, "source", "", "connect from this `address`; SMC-R then uses it too, unless --device says otherwise")
	cmd.Flags().VarP((*delay)(&timeout), "timeout", "w",
		"give up connecting after this `time`, such as 500ms; a number has seconds")
	cmd.RegisterFlagCompletionFunc("timeout", cobra.NoFileCompletions)
	cmd.Flags().BoolVarP(&scan, "scan", "z", false,
		"close the connection at once: the exit status says whether there was one, -v in which mode")
	return cmd
}

func connect(
	cmd *cobra.Command, addr string, flags *netcatFlags, timeout time.Duration, source string, scan bool,
) error {
	d := smc.Dialer{Timeout: timeout}
	if source != "" {
		ip, err := netip.ParseAddr(source)
		if err != nil {
			return usagef("--source %q: want an IP address", source)
		}
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 0))
	}
	h, err := flags.smcr.host(smc.Config{})
	if err != nil {
		return err
	}
	defer h.Close()
	d.Host = h
	c := netcat.Client{
		Dialer: d, Require: flags.require, Network: flags.network(), Scan: scan,
		Report:  flags.reporter(cmd).Report,
		Streams: netcat.Streams{In: cmd.InOrStdin(), Terminal: isTerminal(cmd.InOrStdin()), Out: cmd.OutOrStdout()},
	}
	return exitOf(c.Run(cmd.Context(), addr))
}
