// Package config reads and changes the configuration file of a machine: the settings of an operator
// for all programs, which a program, or its environment, may override.
//
// The file is text. A line has a word and its value, "#" begins a comment, and words that may come
// several times make a list:
//
//	ueid    EXAMPLE.PLEX1      # user-defined enterprise ID, in order of preference
//	seid    off                # do not use the system's own EID: on, off
//	peer    192.0.2.0/24       # speaks SMC-R: address or prefix, with the server's port or without
//	device  192.0.2.1          # address, or prefix of addresses, that SMC-R may send from
//	device  rdma:rxe0          # an RDMA device of the kernel that SMC-R may use at its addresses
//	smcr-v1 on                 # offer and accept version 1 of SMC-R, over RoCEv2: on, off
//	pnet    NET1 eth1          # PNETID of an interface
//	between-hosts on           # connections of 'gosmc run' with peers are SMC-R, too: on, off
//
// Values of package smc that are about speed and memory. Names that Linux and AIX have for them stand
// for them, too: see [Aliases].
//
//	smcr-links     2            # links of a link group of SMC-R: 1 to 8
//	smcr-conns     255          # connections of a link group of SMC-R: 16 to 255
//	smcr-spread    connections  # what its links share evenly: connections, bytes
//	smcr-keepalive 30s          # silence before a link is tested; off: never
//	spin           50us         # longest spin of a Read or Write; off: none
//	read-buffer    1MiB         # of each connection: 16KiB to 8MiB
//
// The connections that may leave TCP at all, for the library and for programs of 'gosmc run' alike.
// Ports and addresses are the server's, on both sides of a connection. "!" makes an exception. If a
// list has other entries than exceptions, a value that is not in it is refused:
//
//	smc             on          # off: every connection is TCP
//	program         !sshd       # of the name that a program was started as
//	listen-port     8000-8999   # of servers here: port or range; any, none
//	listen-address  127.0.0.1   # address or prefix; any, none
//	connect-port    !5432       # of servers that programs here connect to
//	connect-address 10.0.0.0/8
//	users           any         # whose programs may be at the other end: same, any, NAME, @GROUP
//	memory          512MiB      # what a process receives into, at most
//	ring-after      64KiB       # bytes in a direction before a ring joins a connection of 'gosmc run'
//	short-after     16          # short connections of a program to a server before others stay TCP; off: none does
//
// For on and off stand also yes, true and 1, and no, false and 0.
//
// A variable of the environment takes the place of all lines with its word; a field that a program
// sets in smc.Config takes the place of both.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/pnet"
	"github.com/gosmc/smc/internal/rundir"
)

// EnvFile names the file, in place of [DefaultPath]. /dev/null is none.
const EnvFile = "GOSMC_CONFIG"

// DefaultPath is where the file is. It need not exist.
const DefaultPath = "/etc/gosmc.conf"

// Words of the file.
const (
	UEID   = "ueid"
	SEID   = "seid"
	Peer   = "peer"
	Device = "device"
	SMCRv1 = "smcr-v1"
	PNET   = "pnet"
	// BetweenHosts says whether programs of 'gosmc run' speak SMC-R.
	BetweenHosts = "between-hosts"

	SMC            = "smc"
	Program        = "program"
	ListenPort     = "listen-port"
	ListenAddress  = "listen-address"
	ConnectPort    = "connect-port"
	ConnectAddress = "connect-address"
	UsersWord      = "users"

	// MachineAddress is a list of servers that can be on this machine: see [NewMachine].
	MachineAddress = "machine-address"
	Memory         = "memory"
	RingAfter      = "ring-after"
	ShortAfter     = "short-after"

	SMCRLinks     = "smcr-links"
	SMCRConns     = "smcr-conns"
	SMCRSpread    = "smcr-spread"
	SMCRKeepAlive = "smcr-keepalive"
	Spin          = "spin"
	ReadBuffer    = "read-buffer"
)

// Variables are the variables of the environment, by the word that they replace. Entries of lists
// are separated by commas or spaces; with one that is wrong the list is empty, or "none" if it is
// of the policy. The variable of [SMC] is [EnvDisabled], which says the opposite.
var Variables = map[string]string{
	UEID: "GOSMC_UEIDS", SEID: "GOSMC_SEID", Peer: "GOSMC_SMCR_PEERS", Device: "GOSMC_SMCR_DEVICES", SMCRv1: "GOSMC_SMCR_V1",
	Program: "GOSMC_PROGRAMS", ListenPort: "GOSMC_LISTEN_PORTS", ListenAddress: "GOSMC_LISTEN_ADDRESSES",
	ConnectPort: "GOSMC_CONNECT_PORTS", ConnectAddress: "GOSMC_CONNECT_ADDRESSES", Memory: "GOSMC_MEMORY", RingAfter: "GOSMC_RING_AFTER", ShortAfter: "GOSMC_SHORT_AFTER",
	UsersWord: "GOSMC_USERS", MachineAddress: "GOSMC_MACHINE_ADDRESSES", BetweenHosts: "GOSMC_BETWEEN_HOSTS",
	SMCRLinks: "GOSMC_SMCR_LINKS", SMCRConns: "GOSMC_SMCR_CONNS", SMCRSpread: "GOSMC_SMCR_SPREAD",
	SMCRKeepAlive: "GOSMC_SMCR_KEEPALIVE", Spin: "GOSMC_SPIN", ReadBuffer: "GOSMC_READ_BUFFER",
}

// Limits of ours.
const (
	maxFile  = 1 << 20 // bytes
	maxLines = 4096
	maxUEIDs = pnet.MaxUEIDs

	maxProgram = 64 // bytes of the name of a program
	maxLinks   = 40 // to the file, one behind another
)

// Settings are the values of file and environment. The zero value means that neither sets anything.
type Settings struct {
	UEIDs   []string
	NoSEID  bool
	Peers   []string
	Devices []string
	SMCRv1  bool
	PNET    map[string]string // PNETIDs by the name of the interface

	BetweenHosts bool // programs of 'gosmc run' speak SMC-R, with Peers and by TCP option 254

	Off             bool     // every connection is TCP
	Programs        []string // that may leave it, see [NewPolicy]
	Listen, Connect Filter
	Users           []string // other users, see [NewUsers]
	Machine         []string // servers that can be on this machine, see [NewMachine]
	Memory          int64    // bytes that a process receives into, in buffers or rings; 0: the default
	RingAfter       int64    // bytes before a ring joins a connection; 0: the default
	ShortAfter      int      // short connections before others stay TCP; 0: the default, below 0: none does

	Tuning Tuning
}

// Path returns where the file is. A program with privileges that its caller has not does not look
// at the environment.
func Path() string {
	if path := rundir.Getenv(EnvFile); path != "" {
		return path
	}
	return DefaultPath
}

// Load reads file and environment. A file that is not there says nothing. The error tells of
// everything that was not understood; the settings then have the rest.
func Load() (Settings, error) { return load(Path(), environment) }

// load is [Load] for a file and an environment.
func load(path string, getenv func(string) string) (Settings, error) {
	f, err := Read(path)
	return f.settings(err, getenv)
}

// settings returns the values of the file, which was read with an error, and of an environment.
func (f *File) settings(err error, getenv func(string) string) (Settings, error) {
	var s Settings
	values, err := f.merged(err, getenv)
	s.UEIDs, s.Peers, s.Devices = values[UEID], values[Peer], values[Device]
	for _, v := range values[SEID] {
		on, _ := ParseSwitch(v) // checked
		s.NoSEID = !on
	}
	for _, v := range values[SMCRv1] {
		s.SMCRv1, _ = ParseSwitch(v)
	}
	for _, v := range values[BetweenHosts] {
		s.BetweenHosts, _ = ParseSwitch(v)
	}
	for _, v := range values[PNET] {
		id, iface, _ := strings.Cut(v, " ")
		if s.PNET == nil {
			s.PNET = make(map[string]string)
		}
		s.PNET[iface] = id
	}
	s.settlePolicy(values, getenv)
	s.Tuning.settle(values)
	return s, err
}

// environment returns a variable of this process. A set-user-ID program may be switched off by its
// caller, and nothing else.
func environment(name string) string {
	if name == EnvDisabled {
		return os.Getenv(name)
	}
	return rundir.Getenv(name)
}

// merged returns the values of all words, of the file and of an environment, and an error for those
// that are not understood, and for the one with which the file was read.
func (f *File) merged(err error, getenv func(string) string) (map[string][]string, error) {
	errs := []error{err}
	values := make(map[string][]string)
	for _, l := range f.lines {
		if l.word != "" {
			values[l.word] = append(values[l.word], l.value)
		}
	}
	for _, word := range f.wrong { // rule: TestPolicyErrors: range f.wrong -> range f.wrong[:0]
		values[word] = []string{matchNone}
	}
	for _, word := range slices.Sorted(maps.Keys(Variables)) {
		name := Variables[word]
		v := variable(getenv, word)
		if v == "" {
			continue
		}
		list := strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
		for _, item := range list {
			if err := Check(word, item); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
				list = nil
				if slices.Contains(policyWords, word) { // rule: TestPolicyErrors
					list = []string{matchNone}
				}
				break
			}
		}
		values[word] = list
	}
	return values, errors.Join(errs...)
}

// Check returns an error if the value of a word is invalid.
func Check(word, value string) error {
	if ours, v := Canonical(word, value); ours != word {
		if err := Check(ours, v); err != nil {
			return fmt.Errorf("%s is %w", word, err)
		}
		return nil
	}
	if ok, err := checkTuning(word, value); ok {
		return err
	}
	switch word {
	case UEID:
		_, err := pnet.ParseUEID(value)
		return err
	case SEID, SMCRv1, SMC, BetweenHosts:
		if _, err := ParseSwitch(value); err != nil { // rule: TestLoadErrors
			return fmt.Errorf("%s %w", word, err)
		}
	case Peer, Device:
		if value == "" || strings.ContainsAny(value, " ,") {
			return fmt.Errorf("%s %q: want one address or prefix", word, value)
		}
		_, err := ParsePeers([]string{value})
		if word == Device {
			_, _, err = ParseDevices([]string{value})
		}
		if err != nil { // rule: TestProblems
			return fmt.Errorf("%s %w", word, err)
		}
	case Program:
		if err := CheckProgram(value); err != nil {
			return fmt.Errorf("%s %w", word, err)
		}
	case ListenPort, ConnectPort:
		if _, err := parsePort(value); err != nil {
			return fmt.Errorf("%s %w", word, err)
		}
	case ListenAddress, ConnectAddress, MachineAddress:
		if _, err := parseAddress(value); err != nil {
			return fmt.Errorf("%s %w", word, err)
		}
	case UsersWord:
		if err := checkUsers(value); err != nil {
			return fmt.Errorf("%s %w", word, err)
		}
	case Memory, RingAfter:
		if _, err := ParseSize(value); err != nil {
			return fmt.Errorf("%s %w", word, err)
		}
	case ShortAfter:
		if _, err := ParseShortAfter(value); err != nil {
			return fmt.Errorf("%s %w", word, err)
		}
	case PNET:
		id, iface, _ := strings.Cut(value, " ")
		if _, err := pnet.ParsePNETID(id); err != nil {
			return err
		}
		if iface == "" || len(iface) > 15 || strings.ContainsAny(iface, " /") {
			return fmt.Errorf("pnet %q: want a PNETID and the name of an interface", value)
		}
	default:
		return unknown(word)
	}
	return nil
}

// A File is the content of a configuration file, comments included.
type File struct {
	path  string
	lines []line
	wrong []string // words of the policy with a value that was not understood

	problems []Problem // lines that were not understood
}

// A line is one of the file.
type line struct {
	text        string // as it is
	word, value string // of one that says something; blanks in the value are single
}

// iface is the interface of a line about a PNETID.
func (l line) iface() string {
	_, iface, _ := strings.Cut(l.value, " ")
	return iface
}

// Read reads a file. One that is not there is empty. Links of other users than root are not followed.
// The error tells of everything that was not understood, by line; the File then has the rest, but is
// not to be changed.
func Read(path string) (*File, error) {
	f := &File{path: path}
	text, err := content(path)
	if text == nil {
		return f, err
	}
	var errs []error
	number := 0
	for text := range strings.Lines(string(text)) {
		if number++; number > maxLines {
			errs = append(errs, fmt.Errorf("%s has more than %d lines", path, maxLines))
			f.problems = append(f.problems, Problem{
				Line: number, Message: fmt.Sprintf("the file has more than %d lines", maxLines),
			})
			break
		}
		l := line{text: strings.TrimSuffix(text, "\n")}
		says, _, _ := strings.Cut(l.text, "#")
		if fields := strings.Fields(says); len(fields) > 0 {
			word, value := fields[0], strings.Join(fields[1:], " ")
			if err := Check(word, value); err != nil {
				errs = append(errs, fmt.Errorf("%s:%d: %w", path, number, err))
				p := Problem{Line: number, Word: word, Message: err.Error()}
				if !slices.Contains(Words, word) {
					p.Near = nearest(word)
				}
				f.problems = append(f.problems, p)
				if slices.Contains(policyWords, word) {
					f.wrong = append(f.wrong, word)
				}
			} else {
				l.word, l.value = Canonical(word, value)
			}
		}
		f.lines = append(f.lines, l)
	}
	return f, errors.Join(errs...)
}

// Values returns the values of a word, in order.
func (f *File) Values(word string) (list []string) {
	for _, l := range f.lines {
		if l.word == word {
			list = append(list, l.value)
		}
	}
	return list
}

// Add adds a line, unless it is there already, which it reports as false.
func (f *File) Add(word, value string) (added bool, err error) {
	if err := Check(word, value); err != nil {
		return false, err
	}
	if slices.Contains(f.Values(word), value) {
		return false, nil
	}
	f.lines = append(f.lines, line{text: word + " " + value, word: word, value: value})
	return true, nil
}

// Set has a word have these values and no other. The first lines of the word get the values, keep
// their comments and stay at their places; other lines of the word go. New lines follow the word's
// last line, or the last comment "#word ...", or are at the end of the file.
func (f *File) Set(word string, values ...string) error {
	for _, v := range values {
		if err := Check(word, v); err != nil {
			return err
		}
	}
	at, rest := -1, values // new lines come before the line with this index
	var lines []line
	for _, l := range f.lines {
		switch {
		case l.word == word && len(rest) == 0:
			continue
		case l.word == word:
			_, comment, commented := strings.Cut(l.text, "#")
			changed := l.value != rest[0]
			l.value, rest = rest[0], rest[1:]
			if changed {
				l.text = word + " " + l.value
				if commented { // rule: TestSet
					l.text += " #" + comment
				}
			}
			lines = append(lines, l)
			at = len(lines)
			continue
		}
		lines = append(lines, l)
		fields := strings.Fields(strings.TrimPrefix(l.text, "#"))
		example := strings.HasPrefix(l.text, "#") && len(fields) > 1 && fields[0] == word &&
			Check(word, strings.Join(fields[1:], " ")) == nil
		if example && len(rest) == len(values) { // rule: TestSet
			at = len(lines)
		}
	}
	if at < 0 {
		at = len(lines)
	}
	for _, v := range rest {
		lines = slices.Insert(lines, at, line{text: word + " " + v, word: word, value: v})
		at++
	}
	f.lines = lines
	return nil
}

// Delete removes the lines of a word with a chosen value, and returns how many these were.
func (f *File) Delete(word string, chosen func(value string) bool) (count int) {
	f.lines = slices.DeleteFunc(f.lines, func(l line) bool {
		if l.word != word || !chosen(l.value) {
			return false
		}
		count++
		return true
	})
	return count
}

// Write writes the file anew, at once: a reader sees the old or the new one. Owner and mode stay. A
// link to the file stays, too, if it is root's or ours; nothing is written in place of a device.
func (f *File) Write() error {
	path, mode, uid, gid, err := f.target()
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(path), ".gosmc.conf-")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // is gone by then if all went well
	var b strings.Builder
	for _, l := range f.lines {
		b.WriteString(l.text + "\n")
	}
	_, err = temp.WriteString(b.String())
	if err == nil && (uid != os.Geteuid() || gid != os.Getegid()) {
		if err = temp.Chown(uid, gid); errors.Is(err, fs.ErrPermission) {
			err = nil // another user's file in a directory of ours becomes ours
		}
	}
	if err == nil {
		err = temp.Chmod(mode)
	}
	if err == nil {
		err = temp.Sync() // else a crash could leave an empty file under the name
	}
	if e := temp.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	return err
}

// target returns the file that is written, behind the links to it, with the mode and the owner that
// it is to have.
func (f *File) target() (path string, mode fs.FileMode, uid, gid int, err error) {
	path, st, err := behind(f.path)
	switch {
	case err != nil:
		return "", 0, 0, 0, err
	case st == nil:
		return path, 0o644, os.Geteuid(), os.Getegid(), nil
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return "", 0, 0, 0, fmt.Errorf("%s is no regular file: nothing is written in its place", path)
	}
	return path, fs.FileMode(st.Mode & 0o777), int(st.Uid), int(st.Gid), nil
}
