package dump

import (
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/capture"
	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/render"
	"github.com/gosmc/smc/internal/exit"
)

// DefaultHistory is how many events from before are shown.
const DefaultHistory = 256

// TimeNames are the values of Arguments.Time.
var TimeNames = []string{"relative", "absolute", "delta", "none"}

// Arguments are the command line of a dump as it was given. [Arguments.Check] comes first.
type Arguments struct {
	Interface                string
	Promiscuous, Devices     bool
	Read                     []string // files, as tcpdump and tshark take them
	Display                  string   // a filter of Wireshark, which is not known here
	Verbose, Hex, JSON       bool
	Flow, ASCII, Stats, List bool
	HTML, Write              string // names of files, or "-"
	Addrs, Ports, Types      []string
	Conns, LinkGroups        []int
	Problems                 bool
	Count                    uint64
	Time                     string
	Hosts                    HostArguments

	filter     dissect.Filter
	timeFormat render.TimeFormat
}

// HostArguments are the part of [Arguments] that chooses running programs.
type HostArguments struct {
	PID     int
	Name    string
	All     bool
	Dir     string
	Cursors time.Duration
	History int
}

// Used reports whether running programs are to be shown, and not packets.
func (f *HostArguments) Used() bool { return f.PID != 0 || f.Name != "" || f.All }

// check checks the flags of dump that are about running programs.
func (f *HostArguments) check(d *Arguments, args []string) error {
	chosen := 0
	for _, used := range []bool{f.PID != 0, f.Name != "", f.All} {
		if used {
			chosen++
		}
	}
	switch {
	case chosen == 0 && (f.Dir != "" || f.Cursors != 0 || f.History != DefaultHistory):
		return exit.Usagef("--dir, --cursors and --history need --pid, --name or --all")
	case chosen == 0:
		return nil
	case chosen > 1:
		return exit.Usagef("only one of --pid, --name and --all can be used")
	case len(args) > 0 || d.Interface != "":
		return exit.Usagef("--pid, --name and --all show running programs: no file, no -i")
	case d.Flow || d.List || d.Stats || d.HTML != "" || d.Write != "" || len(d.LinkGroups) > 0:
		return exit.Usagef("--flow, --list, --stats, --html, --write and --linkgroup need packets: " +
			"running programs have none")
	case f.PID < 0:
		return exit.Usagef("--pid %d: want the number of a process", f.PID)
	case f.History < 0:
		return exit.Usagef("--history %d: want 0 or more", f.History)
	case f.Cursors != 0 && (f.Cursors < 10*time.Millisecond || f.Cursors > time.Hour):
		return exit.Usagef("--cursors %v: want 10ms to 1h", f.Cursors)
	}
	return nil
}

// Check checks the command line as a whole, with the files that are named without a flag, and makes the
// filter. The error asks for the exit status of usage.
func (f *Arguments) Check(args []string) error {
	stdout := 0
	for _, used := range []bool{
		f.Verbose || f.Hex, f.JSON, f.Flow, f.List, f.Stats && !f.JSON, f.HTML == "-", f.Write == "-",
	} {
		if used {
			stdout++
		}
	}
	if err := f.Hosts.check(f, args); err != nil {
		return err
	}
	for i, a := range args {
		if err := wordOfFilter(a, args[i+1:]); err != nil {
			return err
		}
	}
	switch {
	case f.Display != "":
		return exit.Usagef("dump has filters of its own, as --port and --type; Wireshark's: " +
			"tshark -r FILE -Y smc")
	case f.Devices && (len(args) > 0 || f.Interface != "" || f.Hosts.Used()):
		return exit.Usagef("-D shows interfaces, and reads nothing")
	case f.Devices:
		return nil
	case len(args) == 0 && f.Interface == "" && !f.Hosts.Used():
		return exit.Usagef(`nothing to read: name a capture file, "-" for standard input, an interface ` +
			`with -i, or a process with --pid`)
	case len(args) > 0 && f.Interface != "":
		return exit.Usagef("files and -i exclude each other")
	case len(args) > capture.MaxSources:
		return exit.Usagef("%d files: at most %d can be merged", len(args), capture.MaxSources)
	case stdout > 1:
		return exit.Usagef(`only one of -v or -x, --json, --flow, --list, --stats, --html - and --write - ` +
			`can be printed`)
	case f.ASCII && !f.Flow:
		return exit.Usagef("--ascii needs --flow")
	case f.Promiscuous && f.Interface == "":
		return exit.Usagef("--promiscuous needs -i")
	}
	stdins := 0
	for _, a := range args {
		if a == "-" {
			stdins++
		}
	}
	if stdins > 1 {
		return exit.Usagef("standard input can be read once")
	}
	return f.makeFilter()
}

// wordOfFilter is the error for an argument that is a word of a capture filter, and no file.
func wordOfFilter(word string, rest []string) error {
	flag := map[string]string{
		"port": "--port", "host": "--host", "net": "--addr", "src": "--host", "dst": "--host",
		"tcp": "--type", "type": "--type",
	}[word]
	if flag == "" {
		return nil
	}
	if _, err := os.Stat(word); err == nil {
		return nil
	}
	value := map[string]string{
		"--port": "PORT", "--host": "ADDRESS", "--addr": "ADDRESS/BITS", "--type": "TYPE",
	}[flag]
	if len(rest) > 0 && word != "tcp" {
		value = rest[0]
	}
	return exit.Usagef("there is no file %q; did you mean %s %s?", word, flag, value)
}

func (f *Arguments) makeFilter() error {
	f.filter = dissect.Filter{Conns: f.Conns, LinkGroups: f.LinkGroups, Problems: f.Problems}
	for _, text := range f.Addrs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, errAddr := netip.ParseAddr(text)
			if errAddr != nil {
				return exit.Usagef("address %q: want an IP address, with /BITS for a network", text)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		f.filter.Addrs = append(f.filter.Addrs, p.Masked())
	}
	for _, text := range f.Ports {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return exit.Usagef("port %q: want a number up to 65535", text)
		}
		f.filter.Ports = append(f.filter.Ports, uint16(n))
	}
	for _, text := range f.Types {
		t, err := dissect.ParseType(text)
		if err != nil {
			return exit.With(exit.Usage, err)
		}
		f.filter.Types = append(f.filter.Types, t)
	}
	for _, n := range append(append([]int{}, f.Conns...), f.LinkGroups...) {
		if n < 1 {
			return exit.Usagef("connections and link groups are numbered from 1, there is no %d", n)
		}
	}
	switch f.Time {
	case "relative":
		f.timeFormat = render.TimeRelative
	case "absolute":
		f.timeFormat = render.TimeAbsolute
	case "delta":
		f.timeFormat = render.TimeDelta
	case "none":
		f.timeFormat = render.TimeNone
	default:
		return exit.Usagef("--time %q: want %s", f.Time, strings.Join(TimeNames, ", "))
	}
	return nil
}

// Options belong to a dump of any kind, for the outputs of a caller.
func (f *Arguments) Options(stdout io.Writer, note func(string)) Options {
	return Options{
		Filter: f.filter, Time: f.timeFormat, Verbose: f.Verbose, Hex: f.Hex, JSON: f.JSON, Count: f.Count,
		Stdout: stdout, Note: note,
	}
}

// Packets are the options of a dump of files or of an interface.
func (f *Arguments) Packets(o Options, files []string) *PacketOptions {
	return &PacketOptions{
		Options: o, Files: files, Interface: f.Interface, Promiscuous: f.Promiscuous,
		Flow: f.Flow, ASCII: f.ASCII, List: f.List, Stats: f.Stats, HTML: f.HTML, Write: f.Write,
	}
}

// Options are the options of a dump of running programs.
func (f *HostArguments) Options(o Options) *HostOptions {
	return &HostOptions{
		Options: o, PID: f.PID, Name: f.Name, All: f.All, Dir: f.Dir, Cursors: f.Cursors, History: f.History,
	}
}
