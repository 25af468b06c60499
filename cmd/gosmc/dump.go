package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gosmc/smc/internal/capture"
	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dump"
	"github.com/gosmc/smc/internal/exit"
)

// dumpFlags are the flags of dump as they were given.
type dumpFlags struct {
	dump.Arguments
	numeric bool
}

func newDumpCommand() *cobra.Command {
	var f dumpFlags
	cmd := &cobra.Command{
		Use:   "dump [FILE...] [flags]",
		Short: "Show the messages of SMC in captures, on an interface or of running programs",
		Long: `Read captures, or capture on an interface, and show what they have of SMC: the TCP
option, the CLC handshake, LLC and CDC messages, and the RoCEv2 packets that carry them and the
data. Files are pcap or pcapng, also compressed with gzip; "-" is standard input; several files are
merged by time, and a packet that several have, such as those of both hosts, counts once. Capturing needs the capability CAP_NET_RAW.

Each message is a line, which begins with the number of its packet, the time, the addresses, and
the numbers of its connection (c1) and link (l1). Other outputs take its place:

  -v, -x         all fields below the line; the bytes with the fields beside them
  --json         one object on a line, with the names of Wireshark's display filters
  --flow         a ladder diagram of each link group and each connection, in text
  --list         a line for each connection: ends, mode, state, bytes, problems
  --html FILE    one page for a browser: ladders, bytes by field, cursors and window over time
  --stats        what there is how often; with --json as one object
  --write FILE   the packets of the selected messages as pcapng; unless --type or --problems selects, with
                 all TCP segments of selected connections, and with --conn what their link group has said

Filters choose messages; several filters must all hold, several values of one filter are
alternatives. --stats counts the whole capture, whatever is filtered. In a live capture, and from
standard input, a connection is known to belong to a link group from its Confirm on.

With --pid, --name or --all the messages are those of running programs that use gosmc, which may be SMC-D
without a single packet: rendezvous, handshake, states, flags, and with --cursors samples of how far the bytes
are. In front of each line are the host, and whether it has sent or received the message; of a connection
within the machine both ends may be seen. It begins with some events from before. What is read too slowly is
lost, which is told, and does not hold up the program. Payload is never shown.

--problems shows what is wrong: declines, malformed messages, damaged packets, NAKs, timeouts, resets and
broken rules with the place that has the rule. The exit status is then 4 if there were any.

A fault in a file is told on standard error, with the packet and the offset; what follows it is
read, and the exit status is 1 at the end.`,
		Example: `  gosmc dump smc.pcapng
  gosmc dump -v --type proposal,accept,confirm,decline smc.pcapng
  gosmc dump --list smc.pcapng
  gosmc dump --flow --conn 1 smc.pcapng
  gosmc dump --problems client.pcap server.pcap
  gosmc dump --html smc.html smc.pcapng
  gosmc dump --json smc.pcapng | jq 'select(.name == "Decline")'
  sudo gosmc dump -i eth0 --write smc.pcapng -v
  gosmc dump --all
  gosmc dump --pid 4711 --cursors 1s --json | jq 'select(.event == "cursors") | .progress.window'`,
		Args: func(_ *cobra.Command, args []string) error { return f.Check(append(slices.Clone(f.Read), args...)) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.Devices {
				return listInterfaces(cmd.OutOrStdout())
			}
			return f.run(cmd, append(slices.Clone(f.Read), args...))
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"pcap", "pcapng", "pcap.gz", "pcapng.gz", "cap"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.Interface, "interface", "i", "", "capture on the interface `NAME`, or on all with \"any\", until interrupted")
	flags.StringArrayVarP(&f.Read, "read", "r", nil, "read this `FILE`, as one that is named without a flag")
	flags.BoolVarP(&f.Devices, "list-interfaces", "D", false, "list the interfaces that -i takes")
	flags.BoolVarP(&f.numeric, "numeric", "n", false, "no effect: addresses are numbers")
	flags.StringVarP(&f.Display, "display-filter", "Y", "", "not known here: filters of Wireshark are for tshark")
	flags.Lookup("display-filter").Hidden = true
	flags.BoolVar(&f.Promiscuous, "promiscuous", false, "with -i: also frames that are for other hosts")
	flags.BoolVarP(&f.Verbose, "verbose", "v", false, "show all fields of each message")
	flags.BoolVarP(&f.Hex, "hex", "x", false, "show the bytes of each message with the names of the fields")
	flags.BoolVar(&f.JSON, "json", false, "print one JSON object for each message, or with --stats one in all")
	flags.BoolVar(&f.Flow, "flow", false, "draw ladder diagrams, after the end of the capture")
	flags.BoolVar(&f.ASCII, "ascii", false, "with --flow: draw with ASCII characters")
	flags.BoolVar(&f.List, "list", false, "print a line for each connection, after the end of the capture")
	flags.BoolVar(&f.Stats, "stats", false, "print counts, after the end of the capture")
	flags.StringVar(&f.HTML, "html", "", "write a page for a browser to `FILE`")
	flags.StringVarP(&f.Write, "write", "w", "", "write the selected packets to `FILE` as pcapng")
	flags.StringSliceVar(&f.Addrs, "addr", nil, "only messages from or to `ADDRESS`, or ADDRESS/BITS")
	flags.StringSliceVar(&f.Addrs, "host", nil, "the same as --addr `ADDRESS`")
	flags.StringSliceVar(&f.Ports, "port", nil, "only messages of connections from or to the TCP `PORT`")
	flags.StringSliceVar(&f.Types, "type", nil, "only messages of `TYPE`: a family such as clc, or a message such as add-link")
	flags.IntSliceVar(&f.Conns, "conn", nil, "only messages of the connection with this `NUMBER`")
	flags.IntSliceVar(&f.LinkGroups, "linkgroup", nil, "only messages of the link group with this `NUMBER` and its connections")
	flags.BoolVar(&f.Problems, "problems", false, "only messages with problems")
	flags.Uint64VarP(&f.Count, "count", "c", 0, "end after this `NUMBER` of messages")
	flags.StringVar(&f.Time, "time", "relative", "show times in this `FORMAT`: relative, absolute, delta or none")
	registerHosts(flags, &f.Hosts)
	completeDirs(cmd, "dir")
	mustComplete(cmd, "pid", completeHosts(cmd, hostPID))
	mustComplete(cmd, "name", completeHosts(cmd, hostName))
	fixed := func(name string, values ...string) {
		if err := cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic("gosmc: " + err.Error()) // there is no such flag
		}
	}
	fixed("type", dissect.TypeWords()...)
	fixed("time", dump.TimeNames...)
	fixed("interface", append(interfaceNames(), capture.AnyInterface)...)
	return cmd
}

// listInterfaces prints the names that -i takes.
func listInterfaces(w io.Writer) error {
	for _, name := range append(interfaceNames(), capture.AnyInterface) {
		if _, err := fmt.Fprintln(w, printable(name)); err != nil {
			return err
		}
	}
	return nil
}

// run carries out the dump, and gives errors their exit codes.
func (f *dumpFlags) run(cmd *cobra.Command, files []string) error {
	o := f.Options(cmd.OutOrStdout(), func(text string) { cmd.PrintErrln("gosmc:", printable(text)) })
	var err error
	if f.Hosts.Used() {
		err = dump.Hosts(cmd.Context(), f.Hosts.Options(o))
	} else {
		err = dump.Packets(cmd.Context(), f.packets(cmd, o, files))
	}
	if _, ok := errors.AsType[*dump.ProblemsError](err); ok {
		return exit.With(exit.Problems, err)
	}
	if _, ok := errors.AsType[*dump.OutputError](err); ok {
		return exit.With(exit.Usage, err)
	}
	return err
}

// packets are the options of a dump of files or of an interface. Progress is shown on a terminal,
// unless messages go there as well.
func (f *dumpFlags) packets(cmd *cobra.Command, options dump.Options, files []string) *dump.PacketOptions {
	o := f.Packets(options, files)
	o.Terminal = isTerminal(cmd.OutOrStdout())
	if f.Interface == "" && isTerminal(cmd.ErrOrStderr()) && !(o.Lines() && o.Terminal) {
		p := newProgress(cmd.ErrOrStderr(), false)
		o.Progress = func(line string) {
			if line == "" {
				p.Done()
			} else {
				p.Show("%s", line)
			}
		}
	}
	return o
}

// registerHosts registers the flags that choose running programs.
func registerHosts(flags *pflag.FlagSet, f *dump.HostArguments) {
	flags.IntVar(&f.PID, "pid", 0, "show the messages of the running process `PID`")
	flags.StringVar(&f.Name, "name", "", "show those of the hosts of a `NAME`, as ss shows it: a command, or PID/COMMAND")
	flags.BoolVar(&f.All, "all", false, "show those of all running hosts, also of such as start later")
	flags.StringVar(&f.Dir, "dir", "", "with --pid, --name, --all: look in the run directory `DIR` only")
	flags.DurationVar(&f.Cursors, "cursors", 0, "with them: also the cursors of each SMC connection, every `INTERVAL`")
	flags.IntVar(&f.History, "history", dump.DefaultHistory, "with them: begin with at most this `NUMBER` of events from before")
}

// interfaceNames returns the names of the interfaces of this machine.
func interfaceNames() []string {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	names := make([]string, len(all))
	for i, ifi := range all {
		names[i] = ifi.Name
	}
	return names
}
