package config

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gosmc/smc/internal/rundir"
)

// A Filter says for which servers connections may leave TCP, on one side of them. Both lists have
// to allow a server; an empty one allows all.
//
// Entries that begin with an exclamation mark are exceptions: a value that they match is refused.
// If there are other entries, a value that none of these matches is refused, too.
type Filter struct {
	Ports     []string // "5432", "8000-8999", "!22", "any", "none"
	Addresses []string // "127.0.0.1", "192.0.2.0/24", "!::1", "any", "none"
}

// any and none match everything and nothing.
const (
	matchAny  = "any"
	matchNone = "none"
)

// A Policy decides which connections may leave TCP. The zero value, and nil, allow everything.
// Several goroutines may use it.
type Policy struct {
	Listen, Connect Rules
	Users           Users
}

// Rules are a [Filter] that was understood.
type Rules struct {
	ports     []portRule
	addresses []addressRule
	positive  [2]bool // of ports, of addresses: there are entries that are no exceptions
	refuseAll string  // why, if so
	portWord  string
	addrWord  string
}

type portRule struct {
	text     string
	from, to uint16
	not      bool
}

type addressRule struct {
	text   string
	prefix netip.Prefix // not valid: none; of any see all
	all    bool
	not    bool
}

// NewPolicy makes a policy of the filters for listening and for connecting, and of the names of
// programs: see [CheckProgram]. The program is the caller's. Its Users say nothing.
func NewPolicy(listen, connect Filter, programs []string, program string) (*Policy, error) {
	var p Policy
	var err error
	if p.Listen, err = newRules(listen, ListenPort, ListenAddress); err != nil {
		return nil, err
	}
	if p.Connect, err = newRules(connect, ConnectPort, ConnectAddress); err != nil {
		return nil, err
	}
	why := refusedProgram(programs, program)
	p.Listen.refuseAll, p.Connect.refuseAll = why, why
	return &p, nil
}

// refusedProgram says why a program is refused, "" if it is not.
func refusedProgram(list []string, name string) string {
	allowed := true
	for _, item := range list {
		rest, not := strings.CutPrefix(item, "!")
		if not && (rest == name || rest == matchAny) { // rule: TestPrograms
			return fmt.Sprintf("program %s is refused by %s %s", name, Program, item)
		}
		allowed = allowed && not
	}
	if allowed || slices.Contains(list, name) || slices.Contains(list, matchAny) {
		return ""
	}
	return fmt.Sprintf("program %s is not among %s %s", name, Program, strings.Join(list, " "))
}

// ProgramName is the name by which the configuration refers to a program, from the name that it was
// started as: without directories, and without the hyphen of a login shell.
func ProgramName(argv0 string) string { return strings.TrimPrefix(filepath.Base(argv0), "-") }

func newRules(f Filter, portWord, addrWord string) (Rules, error) {
	r := Rules{portWord: portWord, addrWord: addrWord}
	for _, item := range f.Ports {
		p, err := parsePort(item)
		if err != nil {
			return r, fmt.Errorf("%s %w", portWord, err)
		}
		r.ports = append(r.ports, p)
		r.positive[0] = r.positive[0] || !p.not
	}
	for _, item := range f.Addresses {
		a, err := parseAddress(item)
		if err != nil {
			return r, fmt.Errorf("%s %w", addrWord, err)
		}
		r.addresses = append(r.addresses, a)
		r.positive[1] = r.positive[1] || !a.not
	}
	return r, nil
}

func parsePort(item string) (portRule, error) {
	text, not := strings.CutPrefix(item, "!")
	switch text {
	case matchAny:
		return portRule{item, 0, math.MaxUint16, not}, nil
	case matchNone:
		return portRule{item, 1, 0, not}, nil
	}
	first, last, ranged := strings.Cut(text, "-")
	if !ranged {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 16)
	to, err2 := strconv.ParseUint(last, 10, 16)
	if err != nil || err2 != nil || from > to || from == 0 {
		return portRule{}, fmt.Errorf("%q: want a port or a range such as 8000-8999, ! before an exception, any or none", item)
	}
	return portRule{item, uint16(from), uint16(to), not}, nil
}

func parseAddress(item string) (addressRule, error) {
	text, not := strings.CutPrefix(item, "!")
	switch text {
	case matchAny:
		return addressRule{text: item, all: true, not: not}, nil
	case matchNone:
		return addressRule{text: item, not: not}, nil
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return addressRule{text: item, prefix: netip.PrefixFrom(a, a.BitLen()), not: not}, nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return addressRule{}, fmt.Errorf("%q: want an address or a prefix such as 192.0.2.0/24, ! before an exception, any or none", item)
	}
	return addressRule{text: item, prefix: p.Masked(), not: not}, nil
}

// Refuses says why a connection to a server stays with TCP, "" if it may leave it. It allocates
// nothing if it may.
func (r *Rules) Refuses(server netip.AddrPort) (why string) {
	if why = r.refusesPort(server.Port()); why != "" {
		return why
	}
	return r.refusesAddress(server.Addr().Unmap().WithZone(""))
}

// AnyAddress reports whether the rules allow a port at every address.
func (r *Rules) AnyAddress(port uint16) bool {
	return len(r.addresses) == 0 && r.refusesPort(port) == ""
}

// RefusesListener says why no connection to a listener may leave TCP, "" if one may. For a listener
// for all addresses, ask again with each connection.
func (r *Rules) RefusesListener(local netip.AddrPort) (why string) {
	if local.Addr().IsUnspecified() { // rule: TestRefusesListener
		return r.refusesPort(local.Port())
	}
	return r.Refuses(local)
}

func (r *Rules) refusesPort(port uint16) string {
	if r.refuseAll != "" {
		return r.refuseAll
	}
	allowed := !r.positive[0]
	for _, p := range r.ports {
		switch {
		case port < p.from || port > p.to: // rule: TestRules
		case p.not: // rule: TestRules
			return fmt.Sprintf("port %d is refused by %s %s", port, r.portWord, p.text)
		default:
			allowed = true
		}
	}
	if !allowed {
		return fmt.Sprintf("port %d is not among %s %s", port, r.portWord,
			texts(r.ports, func(p portRule) string { return p.text }))
	}
	return ""
}

func (r *Rules) refusesAddress(a netip.Addr) string {
	allowed := !r.positive[1]
	for _, p := range r.addresses {
		switch {
		case !p.all && !(p.prefix.IsValid() && p.prefix.Contains(a)): // rule: TestRules
		case p.not: // rule: TestRules
			return fmt.Sprintf("address %s is refused by %s %s", a, r.addrWord, p.text)
		default:
			allowed = true
		}
	}
	if !allowed {
		return fmt.Sprintf("address %s is not among %s %s", a, r.addrWord,
			texts(r.addresses, func(p addressRule) string { return p.text }))
	}
	return ""
}

func texts[T any](list []T, text func(T) string) string {
	var words []string
	for _, e := range list {
		words = append(words, text(e))
	}
	return strings.Join(words, " ")
}

// CheckProgram returns an error if a name of a program is invalid: the name that it was started as,
// without directories.
func CheckProgram(item string) error {
	name := strings.TrimPrefix(item, "!")
	if name == "" || len(name) > maxProgram || strings.ContainsAny(name, " ,/") {
		return fmt.Errorf("%q: want the name of a program without directories, of up to %d bytes, ! before an exception", item, maxProgram)
	}
	return nil
}

// ParseSize parses a number of bytes: 4096, 64K, 64KiB, 2M, 1GiB, in powers of 1024.
func ParseSize(text string) (int64, error) {
	digits := strings.TrimRight(text, "KMGTiBkmgtb")
	shift, ok := map[string]uint{"": 0, "b": 0, "k": 10, "kib": 10, "m": 20, "mib": 20, "g": 30, "gib": 30,
		"t": 40, "tib": 40}[strings.ToLower(text[len(digits):])]
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%q: want a number of bytes such as 65536, 64KiB or 1GiB", text)
	}
	return n << shift, nil
}

// ParseShortAfter parses the value of [ShortAfter]: a number of connections, from 1 to 65535, or
// off, which is below 0.
func ParseShortAfter(text string) (int, error) {
	if n, err := strconv.ParseUint(text, 10, 16); err == nil && n > 0 {
		return int(n), nil
	}
	if on, err := ParseSwitch(text); err == nil && !on {
		return -1, nil
	}
	return 0, fmt.Errorf("%q: want a number of connections from 1 to 65535, or off", text)
}

// EnvDisabled is the variable that says whether everything is TCP.
const EnvDisabled = "GOSMC_DISABLED"

// ParseSwitch parses the value of a word or variable that is on or off: on, yes, true, 1, off, no,
// false, 0, and t and f, in either case of letters.
func ParseSwitch(value string) (on bool, err error) {
	switch v := strings.ToLower(value); v {
	case "on", "yes":
		return true, nil
	case "off", "no":
		return false, nil
	default:
		if on, err = strconv.ParseBool(v); err != nil {
			return false, fmt.Errorf("%q: want on or off (yes, true, 1; no, false, 0)", value)
		}
		return on, nil
	}
}

// ParseDisabled reports what a value of [EnvDisabled] stands for, and whether it is one of those
// that [ParseSwitch] knows. Any other value counts as yes: a user that sets the variable most
// likely wants the effect that its name says.
func ParseDisabled(value string) (yes, known bool) {
	if value == "" {
		return false, true
	}
	yes, err := ParseSwitch(value)
	return yes || err != nil, err == nil
}

// Source names the source of the value of a word of the file: the environment variable that stands
// in its place, or the file, or nobody, which is "".
func Source(word string) string {
	if word == SMC {
		if os.Getenv(EnvDisabled) != "" {
			return "$" + EnvDisabled
		}
	}
	if name := Variables[word]; name != "" && variable(rundir.Getenv, word) != "" {
		return "$" + name
	}
	f, _ := Read(Path())
	if len(f.Values(word)) == 0 && !slices.Contains(f.wrong, word) {
		return ""
	}
	return Path()
}

// policyWords are the words of a [Policy]. If one of them is not understood, everything is refused:
// TCP cannot be wrong.
var policyWords = []string{Program, ListenPort, ListenAddress, ConnectPort, ConnectAddress, UsersWord}

// Closed returns the words of the policy that refuse all: nothing else is in their lists.
func (s *Settings) Closed() (words []string) {
	lists := [][]string{
		s.Programs, s.Listen.Ports, s.Listen.Addresses, s.Connect.Ports, s.Connect.Addresses, s.Users,
	}
	for i, list := range lists {
		if slices.Equal(list, []string{matchNone}) {
			words = append(words, policyWords[i])
		}
	}
	return words
}

// settlePolicy takes over the values of the policy words.
func (s *Settings) settlePolicy(values map[string][]string, getenv func(string) string) {
	s.Programs = values[Program]
	s.Listen = Filter{values[ListenPort], values[ListenAddress]}
	s.Connect = Filter{values[ConnectPort], values[ConnectAddress]}
	s.Users, s.Machine = values[UsersWord], values[MachineAddress]
	for _, v := range values[SMC] {
		on, _ := ParseSwitch(v) // checked
		s.Off = !on
	}
	if v := getenv(EnvDisabled); v != "" {
		s.Off, _ = ParseDisabled(v)
	}
	for _, v := range values[Memory] {
		s.Memory, _ = ParseSize(v) // checked
	}
	for _, v := range values[RingAfter] {
		s.RingAfter, _ = ParseSize(v)
	}
	for _, v := range values[ShortAfter] {
		s.ShortAfter, _ = ParseShortAfter(v)
	}
}

// Environ returns the settings of s that concern policy as variables. With them a program, and the
// programs that it starts, do not look at the file for these. A list that says nothing is "any". A
// list of which nothing was said at all is left out.
func (s *Settings) Environ() (list []string) {
	add := func(word string, items []string) {
		if len(items) > 0 {
			list = append(list, Variables[word]+"="+strings.Join(items, ","))
		}
	}
	add(Program, s.Programs)
	add(ListenPort, s.Listen.Ports)
	add(ListenAddress, s.Listen.Addresses)
	add(ConnectPort, s.Connect.Ports)
	add(ConnectAddress, s.Connect.Addresses)
	if users, err := NewUsers(s.Users); err != nil {
		add(UsersWord, []string{usersSame})
	} else if value := users.numeric(); value != "" {
		add(UsersWord, []string{value})
	}
	add(MachineAddress, s.Machine)
	if s.Memory > 0 {
		list = append(list, Variables[Memory]+"="+strconv.FormatInt(s.Memory, 10))
	}
	if s.RingAfter > 0 {
		list = append(list, Variables[RingAfter]+"="+strconv.FormatInt(s.RingAfter, 10))
	}
	if s.ShortAfter != 0 {
		list = append(list, Variables[ShortAfter]+"="+strconv.Itoa(max(0, s.ShortAfter)))
	}
	if s.Off {
		list = append(list, EnvDisabled+"=1")
	}
	return list
}
