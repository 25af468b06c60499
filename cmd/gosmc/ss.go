package main

import (
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/survey"
)

// addressWidth is how much of an address ss shows without --wide, as smcss does.
const addressWidth = 23

// modeUnix is the mode of a connection that 'gosmc run' has moved to a pair of Unix sockets.
const modeUnix = inventory.ModeUnix

// otherNetNS marks a line with addresses that cannot be reached from here, or belong to another
// host here.
const otherNetNS = "in another network namespace"

// An ssReport is the output of ss --json. Queues and buffers are bytes.
type ssReport struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"`
	inventory.Report
}

func newSSReport(g *survey.Answers, connections, listeners bool) ssReport {
	return ssReport{jsonSchema, time.Now(), inventory.New(g, connections, listeners)}
}

// ssFlags are the flags of ss.
type ssFlags struct {
	gather            gatherFlags
	all, listening    bool
	wide, bare        bool // whole addresses, no heading
	why, summary      bool
	watch             int
	require           string
	port              uint16
	tcp, numeric      bool // of ss of iproute2, without an effect here
	processes, timers bool
	filter            inventory.Filter
}

func newSSCommand() *cobra.Command {
	var f ssFlags
	cmd := &cobra.Command{
		Use:   "ss [flags] [FILTER...]",
		Short: "Show the connections of all hosts on this machine",
		Long: `Show every connection that a process on this machine handles with gosmc, and for plain
TCP connections why they do not use SMC. A connection within the machine has two ends and two lines.

Recv-Q is received and not yet read by the program, Send-Q written and not yet taken by the
peer, both in bytes. Addresses in another network namespace than that of this command are marked: 127.0.0.1
there is not 127.0.0.1 here. The mode Unix is that of programs started by 'gosmc run', in this network namespace; their TCP connections
are shown, too. Sockets of the kernel's own SMC (AF_SMC) in this network namespace are shown where the kernel has it, as "the kernel's AF_SMC". A ring in shared memory carries the bytes that come in, those that go out, or both. LG-ID is the connection's link group in its host, and Link, of SMC-R, the link's number in
that: see 'gosmc linkgroup' and 'gosmc link'.

--why adds the remedy below each connection that is TCP. --summary counts the connections of each server by mode, and the reasons of those
that are TCP. --require is for scripts: the exit status is 3 if a connection that is shown is TCP.

The flags -t, -n, -p and -o of ss(8) are taken, and change nothing: all is TCP, addresses are numbers, and the process is always shown. A FILTER
has these parts; all of them have to fit:

  state STATE        established, listening or all
  src ADDRESS, dst ADDRESS
                     address or prefix of the local end or the peer, also ADDRESS:PORT
  sport PORT, dport PORT
                     port of the local end or the peer, also as = :PORT
  mode MODE          tcp, unix, smc-d or smc-r

The exit status is 1 if the run directory that --dir or GOSMC_DIR names does not exist.`,
		Example: `  gosmc ss
  gosmc ss -a --wide
  gosmc ss --summary
  gosmc ss --why mode tcp
  gosmc ss -tnp state established sport = :6379
  gosmc ss --require smc --port 6379
  gosmc ss --json | jq '.connections[] | select(.mode == "TCP") | .reason'`,
		Args: func(_ *cobra.Command, args []string) error { return f.check(args) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			return repeat(cmd, f.watch, f.gather.json, func(interval bool) error { return f.show(cmd, interval) })
		},
		ValidArgsFunction: cobra.FixedCompletions([]cobra.Completion{"state", "src", "dst", "sport", "dport", "mode"}, cobra.ShellCompDirectiveNoFileComp),
	}
	f.gather.register(cmd)
	flags := cmd.Flags()
	flags.BoolVarP(&f.all, "all", "a", false, "show connections and listeners")
	flags.BoolVarP(&f.listening, "listening", "l", false, "show listeners only")
	flags.BoolVarP(&f.wide, "wide", "W", false, "do not cut addresses")
	flags.BoolVarP(&f.bare, "no-header", "H", false, "leave out the heading")
	flags.BoolVar(&f.why, "why", false, "show the cause and the remedy below each connection that is TCP")
	flags.BoolVarP(&f.summary, "summary", "s", false, "count the connections of each server by mode, and the reasons for TCP")
	flags.IntVar(&f.watch, "watch", 0, "repeat after this many `seconds`; JSON is then one object on a line")
	flags.StringVar(&f.require, "require", "", "fail with exit status 3 unless all connections shown use `mode`: smc (any but TCP), unix, smc-d, smc-r")
	flags.Uint16Var(&f.port, "port", 0, "show connections and listeners of this `port` only, at either end")
	flags.BoolVarP(&f.tcp, "tcp", "t", false, "no effect: all is TCP, or was")
	flags.BoolVarP(&f.numeric, "numeric", "n", false, "no effect: addresses are numbers")
	flags.BoolVarP(&f.processes, "processes", "p", false, "no effect: processes are shown")
	flags.BoolVarP(&f.timers, "options", "o", false, "no effect: there are no timers to show")
	for _, name := range []string{"watch", "port"} {
		cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	cmd.RegisterFlagCompletionFunc("require", cobra.FixedCompletions(ssModes, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// show prints the report once. watched says that it is one of several.
func (f *ssFlags) show(cmd *cobra.Command, watched bool) error {
	g := f.gather.gather(cmd.Context())
	r := newSSReport(&g, f.all || !f.listening, f.all || f.listening)
	if f.all || !f.listening {
		r.AddMoved(f.gather.dir, g.NetNS)
	}
	if f.all || f.listening {
		r.AddServers(f.gather.dir, g.NetNS)
	}
	if f.gather.dir == "" {
		r.AddKernel(f.all || !f.listening, f.all || f.listening, g.NetNS)
	}
	r.Connections = slices.DeleteFunc(r.Connections, func(c inventory.Conn) bool { return !f.filter.Connection(&c) })
	r.Listeners = slices.DeleteFunc(r.Listeners, func(l inventory.Listener) bool { return !f.filter.Listener(&l) })
	if f.summary {
		r.Services = inventory.Summarize(r.Connections)
	}
	out := cmd.OutOrStdout()
	if f.gather.json {
		write := writeJSON
		if watched {
			write = writeJSONLine
		}
		return errors.Join(write(out, r), incomplete(&g), f.unmet(&r))
	}
	var err error
	if f.summary {
		err = r.writeServices(out, f.bare)
	} else {
		err = r.write(out, f)
	}
	if err != nil {
		return err
	}
	complain(cmd, &g)
	if loops := r.Loops(); loops > 0 {
		cmd.PrintErrf("gosmc: %d ends are TCP though both programs were started by 'gosmc run': docs/run.md has what is moved\n", loops)
	}
	if r.Omitted > 0 {
		cmd.PrintErrf("gosmc: %d more connections are not listed by their hosts\n", r.Omitted)
	}
	return errors.Join(incomplete(&g), f.unmet(&r))
}

// unannounced is said of a listener that clients do not find.
const unannounced = "clients connect by TCP: see 'gosmc run --explain'"

// kernelMark marks sockets of the kernel's SMC.
func kernelMark(source string) string {
	if source == "" {
		return ""
	}
	return "the kernel's AF_SMC"
}

func (r *ssReport) write(w io.Writer, f *ssFlags) error {
	address := func(s string) string {
		if s = printable(s); f.wide {
			return s
		}
		return cutAddress(s, addressWidth)
	}
	t := table{Bare: f.bare, Columns: []column{
		{Title: "State"}, {Title: "Recv-Q", Right: true}, {Title: "Send-Q", Right: true},
		{Title: "Local Address"}, {Title: "Peer Address"}, {Title: "Mode"}, {Title: "LG-ID"}, {Title: "Link"}, {Title: "Process"}, {},
	}}
	for _, l := range r.Listeners {
		mark, mode := kernelMark(l.Source), l.Mode
		switch {
		case l.OtherNetNS:
			mark = otherNetNS
		case l.Unannounced:
			mark, mode = unannounced, "TCP"
		}
		t.Add("LISTEN", strconv.Itoa(l.Pending), "0", address(l.Local), "*", mode, "", "", process(l.PID, l.Command), mark)
	}
	for _, c := range r.Connections {
		mode := orNA(c.Mode)
		if c.Version != "" {
			mode += " " + printable(c.Version)
		}
		switch c.Rings {
		case "both":
			mode += " rings"
		case "in", "out":
			mode += " ring " + c.Rings
		}
		if c.ReasonCode != 0 {
			mode += " " + c.ReasonCode.String()
		}
		group, link := "", ""
		if c.Group != 0 {
			group = lgID(c.Group)
		}
		if c.Link != 0 {
			link = strconv.Itoa(int(c.Link))
		}
		var notes []string
		if c.Source != "" {
			notes = append(notes, kernelMark(c.Source))
		}
		if c.OtherNetNS {
			notes = append(notes, otherNetNS)
		}
		if c.Reason != "" {
			notes = append(notes, printable(c.Reason))
		}
		t.Add(orNA(c.State), strconv.FormatUint(c.RecvQ, 10), strconv.FormatUint(c.SendQ, 10),
			address(c.Local), address(c.Peer), mode, group, link, process(c.PID, c.Command), strings.Join(notes, "; "))
		if f.why {
			t.Below(remedy(&c)...)
		}
	}
	return t.Write(w)
}

// cutAddress shortens host:port to width characters, with two dots in front of the port.
func cutAddress(addr string, width int) string {
	if utf8.RuneCountInString(addr) <= width {
		return addr
	}
	h, port, err := net.SplitHostPort(addr)
	if err != nil {
		h, port = addr, ""
	}
	if len(addr) > 0 && addr[0] == '[' {
		h = "[" + h
	}
	tail := ".." + ":" + port
	if port == "" {
		tail = ".."
	}
	keep := max(width-len(tail), 0)
	runes := []rune(h)
	return string(runes[:min(keep, len(runes))]) + tail
}
