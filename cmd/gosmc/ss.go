package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/netns"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/internal/text"
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
	gather         gatherFlags
	all, listening bool
	wide, bare     bool // whole addresses, no heading
	why, summary   bool
	info           bool // bytes, too
	watch          time.Duration
	netns          string // as ss(8) takes it; empty: this one
	require        string
	port           uint16
	columns        []string // of the table, by ssColumns; empty: all
	sort           string   // a column of ssColumns; empty: as they come
	only4, only6   bool
	nothing        bool // flags of ss of iproute2 that are without an effect here
	filter         inventory.Filter
}

// ssColumns are the names of the columns of the table, in order. Those that stand between
// ssLastUsual and the last one are shown if --columns has them.
var ssColumns = []cobra.Completion{
	"state", "recv-q", "send-q", "local", "peer", "mode", "lg-id", "link", ssLastUsual,
	"user", "namespace", "container", "peer-process", "peer-user", "peer-namespace", "peer-container", "bytes-in", "bytes-out",
	"reason",
}

const ssLastUsual = "process"

// ssInfo are the columns that --info adds.
var ssInfo = map[bool][]string{true: {"bytes-in", "bytes-out"}}

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

--columns chooses columns of the table and their order, and --sort the order of the lines, numbers from the largest. The columns are state, recv-q, send-q,
local, peer, mode, lg-id, link, process and reason, and on demand user, namespace and container of the process, and peer-process, peer-user,
peer-namespace and peer-container of the other end where it is known, and bytes-in and bytes-out, which -i adds to the usual ones: the bytes that
the programs of the connection have received and sent so far, n/a where nobody knows them. A namespace is that of the network: its name of ip-netns(8), or its number as
of lsns(8). A container is shown by the first digits of its ID, as by docker(1), or by its name. Run as root to see the programs of other users.

-N looks from another network namespace, as root, as ss(8) does: a name of 'ip netns list', the process ID of a container, or a file. It
shows that namespace alone, with the connections of programs under 'gosmc run' there.

The flags -t, -u, -n, -p, -o, -e, -m and -O of ss(8) are taken, and change nothing: all is TCP, addresses are numbers, and the process is always shown. A FILTER
has these parts; all of them have to fit:

  state STATE        established, listening or all
  src ADDRESS, dst ADDRESS
                     address or prefix of the local end or the peer, also ADDRESS:PORT
  sport PORT, dport PORT
                     port of the local end or the peer, also as = :PORT,
                     or the name of a service
  mode MODE          tcp, unix, smc-d or smc-r
  program NAME       name of the program at either end, or a part of it

The exit status is 1 if the run directory that --dir or GOSMC_DIR names does not exist.`,
		Example: `  gosmc ss
  gosmc ss -a --wide
  gosmc ss --summary
  gosmc ss --why mode tcp
  gosmc ss --columns process,mode,reason --sort mode
  gosmc ss -i --sort bytes-out
  sudo gosmc ss --columns process,user,peer-process,peer-user,reason mode tcp
  gosmc ss -tnp state established sport = :6379
  gosmc ss --require smc --port 6379
  gosmc ss -N blue
  gosmc ss --json | jq '.connections[] | select(.mode == "TCP") | .reason'`,
		Args: func(_ *cobra.Command, args []string) error { return f.check(args) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			return repeat(cmd, f.watch, f.gather.json, func(interval bool) error {
				return netns.InNamed(f.netns, func() error { return f.show(cmd, interval) })
			})
		},
		ValidArgsFunction: cobra.FixedCompletions([]cobra.Completion{"state", "src", "dst", "sport", "dport", "mode", "program"}, cobra.ShellCompDirectiveNoFileComp),
	}
	f.gather.register(cmd)
	flags := cmd.Flags()
	flags.BoolVarP(&f.all, "all", "a", false, "show connections and listeners")
	flags.BoolVarP(&f.listening, "listening", "l", false, "show listeners only")
	flags.BoolVarP(&f.wide, "wide", "W", false, "do not cut addresses")
	flags.BoolVarP(&f.bare, "no-header", "H", false, "leave out the heading")
	flags.BoolVar(&f.why, "why", false, "show the cause and the remedy below each connection that is TCP")
	flags.BoolVarP(&f.summary, "summary", "s", false, "count the connections of each server by mode, and the reasons for TCP")
	flags.BoolVarP(&f.info, "info", "i", false, "show the bytes that each connection has received and sent, too")
	addWatch(cmd, &f.watch)
	flags.StringVar(&f.require, "require", "", "fail with exit status 3 unless all connections shown use `mode`: smc (any but TCP), unix, smc-d, smc-r")
	flags.Uint16Var(&f.port, "port", 0, "show connections and listeners of this `port` only, at either end")
	flags.BoolVarP(&f.only4, "ipv4", "4", false, "show connections and listeners with IPv4 addresses only")
	flags.BoolVarP(&f.only6, "ipv6", "6", false, "show connections and listeners with IPv6 addresses only")
	for _, none := range [][3]string{
		{"tcp", "t", "all is TCP, or was"}, {"udp", "u", "all is TCP, or was"},
		{"numeric", "n", "addresses are numbers"}, {"processes", "p", "processes are shown"},
		{"options", "o", "there are no timers to show"}, {"oneline", "O", "each has one line"},
		{"extended", "e", "--json has more"},
		{"memory", "m", "--json has more"}, {"no-color", "", "there are no colors"},
	} {
		flags.BoolVarP(&f.nothing, none[0], none[1], false, "no effect: "+none[2])
	}
	flags.StringVarP(&f.netns, "net", "N", "", "show connections in the network namespace `NETNS` only: a name of ip-netns(8), a process ID, or a file")
	cmd.RegisterFlagCompletionFunc("net", completeNetns)
	cmd.RegisterFlagCompletionFunc("port", cobra.NoFileCompletions)
	flags.StringSliceVar(&f.columns, "columns", nil, "show these columns of the table, a `list` with commas")
	flags.StringVar(&f.sort, "sort", "", "order the lines by this `column`")
	for _, name := range []string{"columns", "sort"} {
		cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(ssColumns, cobra.ShellCompDirectiveNoFileComp))
	}
	addSchema(cmd, reflect.TypeFor[ssReport]())
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
	r.AddPlaces(g.NetNS)
	r.Connections = slices.DeleteFunc(r.Connections, func(c inventory.Conn) bool {
		return f.netns != "" && c.OtherNetNS || !f.filter.Connection(&c)
	})
	r.Listeners = slices.DeleteFunc(r.Listeners, func(l inventory.Listener) bool {
		return f.netns != "" && l.OtherNetNS || !f.filter.Listener(&l) // rule: TestSSOtherNetworkNamespace: f.netns != "" && l.OtherNetNS -> false
	})
	if f.summary {
		r.Services = inventory.Summarize(r.Connections)
	}
	out := cmd.OutOrStdout()
	if f.gather.json {
		return errors.Join(jsonWriter(watched)(out, r), incomplete(&g), f.unmet(&r))
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

// bareClients is said of a listener to which clients have come that do not use gosmc.
const bareClients = "connections from programs without gosmc so far: %d; 'gosmc ss --why' names those that are there"

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
		{Title: "Local Address"}, {Title: "Peer Address"}, {Title: "Mode"}, {Title: "LG-ID"}, {Title: "Link"}, {Title: "Process"},
		{Title: "User"}, {Title: "Namespace"}, {Title: "Container"},
		{Title: "Peer Process"}, {Title: "Peer User"}, {Title: "Peer Namespace"}, {Title: "Peer Container"},
		{Title: "Bytes In", Right: true}, {Title: "Bytes Out", Right: true}, {},
	}}
	for _, l := range r.Listeners {
		mark, mode := kernelMark(l.Source), l.Mode
		switch {
		case l.OtherNetNS:
			mark = otherNetNS
		case l.Unannounced:
			mark, mode = unannounced, "TCP"
		case l.BareConns != nil: // rule: TestSSBare: l.BareConns != nil -> false
			mark = fmt.Sprintf(bareClients, *l.BareConns)
		}
		t.Add("LISTEN", strconv.Itoa(l.Pending), "0", address(l.Local), "*", mode, "", "", process(l.PID, l.Command),
			orNA(l.User), orNA(l.Namespace), text.Container(l.User, l.Container), "-", "-", "-", "-", "-", "-", mark)
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
			address(c.Local), address(c.Peer), mode, group, link, process(c.PID, c.Command),
			orNA(c.User), orNA(c.Namespace), text.Container(c.User, c.Container),
			process(c.PeerPID, c.PeerCommand), orNA(c.PeerUser), orNA(c.PeerNamespace), text.Container(c.PeerUser, c.PeerContainer),
			text.Count(c.BytesIn), text.Count(c.BytesOut),
			strings.Join(notes, "; "))
		if f.why {
			t.Below(remedy(&c)...)
		}
	}
	if f.sort != "" {
		t.Sort(slices.Index(ssColumns, f.sort))
	}
	columns := f.columns
	if len(columns) > 0 {
		t.Columns[len(t.Columns)-1].Title = "Reason"
	} else {
		usual := slices.Index(ssColumns, ssLastUsual) + 1
		columns = slices.Concat(ssColumns[:usual], ssInfo[f.info], ssColumns[len(ssColumns)-1:])
	}
	var list []int
	for _, name := range columns {
		list = append(list, slices.Index(ssColumns, name))
	}
	t.Pick(list)
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
