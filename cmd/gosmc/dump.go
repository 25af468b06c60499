package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/capture"
	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/render"
	"github.com/gosmc/smc/internal/dump"
	"github.com/gosmc/smc/internal/exit"
)

// dumpFlags are the flags of dump as they were given.
type dumpFlags struct {
	iface                   string
	promiscuous             bool
	read                    []string // files, as tcpdump and tshark take them
	numeric, devices        bool
	display                 string
	verbose, hex            bool
	json, flow, stats, list bool
	ascii                   bool
	html, write             string
	addrs                   []string
	ports                   []string
	types                   []string
	conns, linkGroups       []int
	problems                bool
	count                   uint64
	time                    string
	hosts                   hostFlags

	filter     dissect.Filter
	timeFormat render.TimeFormat
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
		Args: func(_ *cobra.Command, args []string) error { return f.check(append(slices.Clone(f.read), args...)) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.devices {
				return listInterfaces(cmd.OutOrStdout())
			}
			return f.run(cmd, append(slices.Clone(f.read), args...))
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"pcap", "pcapng", "pcap.gz", "pcapng.gz", "cap"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.iface, "interface", "i", "", "capture on the interface `NAME`, or on all with \"any\", until interrupted")
	flags.StringArrayVarP(&f.read, "read", "r", nil, "read this `FILE`, as one that is named without a flag")
	flags.BoolVarP(&f.devices, "list-interfaces", "D", false, "list the interfaces that -i takes")
	flags.BoolVarP(&f.numeric, "numeric", "n", false, "no effect: addresses are numbers")
	flags.StringVarP(&f.display, "display-filter", "Y", "", "not known here: filters of Wireshark are for tshark")
	flags.Lookup("display-filter").Hidden = true
	flags.BoolVar(&f.promiscuous, "promiscuous", false, "with -i: also frames that are for other hosts")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "show all fields of each message")
	flags.BoolVarP(&f.hex, "hex", "x", false, "show the bytes of each message with the names of the fields")
	flags.BoolVar(&f.json, "json", false, "print one JSON object for each message, or with --stats one in all")
	flags.BoolVar(&f.flow, "flow", false, "draw ladder diagrams, after the end of the capture")
	flags.BoolVar(&f.ascii, "ascii", false, "with --flow: draw with ASCII characters")
	flags.BoolVar(&f.list, "list", false, "print a line for each connection, after the end of the capture")
	flags.BoolVar(&f.stats, "stats", false, "print counts, after the end of the capture")
	flags.StringVar(&f.html, "html", "", "write a page for a browser to `FILE`")
	flags.StringVarP(&f.write, "write", "w", "", "write the selected packets to `FILE` as pcapng")
	flags.StringSliceVar(&f.addrs, "addr", nil, "only messages from or to `ADDRESS`, or ADDRESS/BITS")
	flags.StringSliceVar(&f.addrs, "host", nil, "the same as --addr `ADDRESS`")
	flags.StringSliceVar(&f.ports, "port", nil, "only messages of connections from or to the TCP `PORT`")
	flags.StringSliceVar(&f.types, "type", nil, "only messages of `TYPE`: a family such as clc, or a message such as add-link")
	flags.IntSliceVar(&f.conns, "conn", nil, "only messages of the connection with this `NUMBER`")
	flags.IntSliceVar(&f.linkGroups, "linkgroup", nil, "only messages of the link group with this `NUMBER` and its connections")
	flags.BoolVar(&f.problems, "problems", false, "only messages with problems")
	flags.Uint64VarP(&f.count, "count", "c", 0, "end after this `NUMBER` of messages")
	flags.StringVar(&f.time, "time", "relative", "show times in this `FORMAT`: relative, absolute, delta or none")
	f.hosts.register(flags)
	completeDirs(cmd, "dir")
	mustComplete(cmd, "pid", completeHosts(cmd, hostPID))
	mustComplete(cmd, "name", completeHosts(cmd, hostName))
	fixed := func(name string, values ...string) {
		if err := cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic("gosmc: " + err.Error()) // there is no such flag
		}
	}
	fixed("type", dissect.TypeWords()...)
	fixed("time", timeFormatNames...)
	fixed("interface", append(interfaceNames(), capture.AnyInterface)...)
	return cmd
}

var timeFormatNames = []string{"relative", "absolute", "delta", "none"}

// check checks the command line as a whole, and makes the filter.
func (f *dumpFlags) check(args []string) error {
	stdout := 0
	for _, used := range []bool{f.verbose || f.hex, f.json, f.flow, f.list, f.stats && !f.json, f.html == "-", f.write == "-"} {
		if used {
			stdout++
		}
	}
	if err := f.hosts.check(f, args); err != nil {
		return err
	}
	for i, a := range args {
		if err := wordOfFilter(a, args[i+1:]); err != nil {
			return err
		}
	}
	switch {
	case f.display != "":
		return usagef("dump has filters of its own, as --port and --type; Wireshark's: tshark -r FILE -Y smc")
	case f.devices && (len(args) > 0 || f.iface != "" || f.hosts.used()):
		return usagef("-D shows interfaces, and reads nothing")
	case f.devices:
		return nil
	case len(args) == 0 && f.iface == "" && !f.hosts.used():
		return usagef(`nothing to read: name a capture file, "-" for standard input, an interface with -i, or a process with --pid`)
	case len(args) > 0 && f.iface != "":
		return usagef("files and -i exclude each other")
	case len(args) > capture.MaxSources:
		return usagef("%d files: at most %d can be merged", len(args), capture.MaxSources)
	case stdout > 1:
		return usagef(`only one of -v or -x, --json, --flow, --list, --stats, --html - and --write - can be printed`)
	case f.ascii && !f.flow:
		return usagef("--ascii needs --flow")
	case f.promiscuous && f.iface == "":
		return usagef("--promiscuous needs -i")
	}
	stdins := 0
	for _, a := range args {
		if a == "-" {
			stdins++
		}
	}
	if stdins > 1 {
		return usagef("standard input can be read once")
	}
	return f.makeFilter()
}

// wordOfFilter is the error for an argument that is a word of a capture filter, and no file.
func wordOfFilter(word string, rest []string) error {
	flag := map[string]string{"port": "--port", "host": "--host", "net": "--addr", "src": "--host", "dst": "--host", "tcp": "--type", "type": "--type"}[word]
	if flag == "" {
		return nil
	}
	if _, err := os.Stat(word); err == nil {
		return nil
	}
	value := map[string]string{"--port": "PORT", "--host": "ADDRESS", "--addr": "ADDRESS/BITS", "--type": "TYPE"}[flag]
	if len(rest) > 0 && word != "tcp" {
		value = rest[0]
	}
	return usagef("there is no file %q; did you mean %s %s?", word, flag, value)
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

func (f *dumpFlags) makeFilter() error {
	f.filter = dissect.Filter{Conns: f.conns, LinkGroups: f.linkGroups, Problems: f.problems}
	for _, text := range f.addrs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, errAddr := netip.ParseAddr(text)
			if errAddr != nil {
				return usagef("address %q: want an IP address, with /BITS for a network", text)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		f.filter.Addrs = append(f.filter.Addrs, p.Masked())
	}
	for _, text := range f.ports {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return usagef("port %q: want a number up to 65535", text)
		}
		f.filter.Ports = append(f.filter.Ports, uint16(n))
	}
	for _, text := range f.types {
		t, err := dissect.ParseType(text)
		if err != nil {
			return exit.With(exit.Usage, err)
		}
		f.filter.Types = append(f.filter.Types, t)
	}
	for _, n := range append(append([]int{}, f.conns...), f.linkGroups...) {
		if n < 1 {
			return usagef("connections and link groups are numbered from 1, there is no %d", n)
		}
	}
	switch f.time {
	case "relative":
		f.timeFormat = render.TimeRelative
	case "absolute":
		f.timeFormat = render.TimeAbsolute
	case "delta":
		f.timeFormat = render.TimeDelta
	case "none":
		f.timeFormat = render.TimeNone
	default:
		return usagef("--time %q: want %s", f.time, strings.Join(timeFormatNames, ", "))
	}
	return nil
}

// options are the options of a dump of any kind.
func (f *dumpFlags) options(cmd *cobra.Command) dump.Options {
	return dump.Options{
		Filter: f.filter, Time: f.timeFormat, Verbose: f.verbose, Hex: f.hex, JSON: f.json, Count: f.count,
		Stdout: cmd.OutOrStdout(),
		Note:   func(text string) { cmd.PrintErrln("gosmc:", printable(text)) },
	}
}

// run carries out the dump, and gives errors their exit codes.
func (f *dumpFlags) run(cmd *cobra.Command, files []string) error {
	var err error
	if f.hosts.used() {
		err = dump.Hosts(cmd.Context(), f.hosts.options(f.options(cmd)))
	} else {
		err = dump.Packets(cmd.Context(), f.packets(cmd, files))
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
func (f *dumpFlags) packets(cmd *cobra.Command, files []string) *dump.PacketOptions {
	o := &dump.PacketOptions{
		Options: f.options(cmd), Files: files, Interface: f.iface, Promiscuous: f.promiscuous,
		Flow: f.flow, ASCII: f.ascii, Stats: f.stats, HTML: f.html, Write: f.write,
		Terminal: isTerminal(cmd.OutOrStdout()),
	}
	if f.list {
		o.List = writeConnList
	}
	if f.iface == "" && isTerminal(cmd.ErrOrStderr()) && !(o.Lines() && o.Terminal) {
		p := newProgress(cmd.ErrOrStderr(), false)
		o.Progress = func(line string) {
			if line == "" {
				p.done()
			} else {
				p.show("%s", line)
			}
		}
	}
	return o
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
