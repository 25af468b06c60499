// Package config reads and changes the configuration file of a machine: what an operator says for all programs, and what a
// program, or its environment, may say otherwise.
//
// The file is text. A line has a word and its value, "#" begins a comment, and words that may come several times make a list:
//
//	ueid    EXAMPLE.PLEX1      # user-defined enterprise ID, in order of preference
//	seid    off                # do not use the system's own EID: on, off
//	peer    192.0.2.0/24       # speaks SMC-R: address or prefix, with the server's port or without
//	device  192.0.2.1          # address, or prefix of addresses, that SMC-R may send from
//	smcr-v1 on                 # offer and accept version 1 of SMC-R, over RoCEv2: on, off
//	pnet    NET1 eth1          # PNETID of an interface
//
// A variable of the environment takes the place of all lines with its word; what a program sets in smc.Config that of both.
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
)

// Variables are the variables of the environment, by the word whose place they take. Entries of lists are separated by commas or spaces; with
// one that is wrong the list is empty.
var Variables = map[string]string{
	UEID: "GOSMC_UEIDS", SEID: "GOSMC_SEID", Peer: "GOSMC_SMCR_PEERS", Device: "GOSMC_SMCR_DEVICES", SMCRv1: "GOSMC_SMCR_V1",
}

// Limits of ours.
const (
	maxFile  = 1 << 20 // bytes
	maxLines = 4096
)

// Settings are what file and environment say. The zero value is that they say nothing.
type Settings struct {
	UEIDs   []string
	NoSEID  bool
	Peers   []string
	Devices []string
	SMCRv1  bool
	PNET    map[string]string // PNETIDs by the name of the interface
}

// Path returns where the file is. A program with privileges that its caller has not does not look at the environment.
func Path() string {
	if path := rundir.Getenv(EnvFile); path != "" {
		return path
	}
	return DefaultPath
}

// Load reads file and environment. A file that is not there says nothing. The error tells of everything that was not understood; the
// settings then have the rest.
func Load() (Settings, error) {
	f, err := Read(Path())
	var s Settings
	errs := []error{err}
	values := make(map[string][]string)
	for _, l := range f.lines {
		if l.word != "" {
			values[l.word] = append(values[l.word], l.value)
		}
	}
	for _, word := range slices.Sorted(maps.Keys(Variables)) {
		name := Variables[word]
		v := rundir.Getenv(name)
		if v == "" {
			continue
		}
		list := strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
		for _, item := range list {
			if err := check(word, item); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
				list = nil
				break
			}
		}
		values[word] = list
	}
	s.UEIDs, s.Peers, s.Devices = values[UEID], values[Peer], values[Device]
	for _, v := range values[SEID] {
		s.NoSEID = v == "off"
	}
	for _, v := range values[SMCRv1] {
		s.SMCRv1 = v == "on"
	}
	for _, v := range values[PNET] {
		id, iface, _ := strings.Cut(v, " ")
		if s.PNET == nil {
			s.PNET = make(map[string]string)
		}
		s.PNET[iface] = id
	}
	return s, errors.Join(errs...)
}

// check says what is wrong with the value of a word.
func check(word, value string) error {
	switch word {
	case UEID:
		_, err := pnet.ParseUEID(value)
		return err
	case SEID, SMCRv1:
		if value != "on" && value != "off" {
			return fmt.Errorf("%s %q: want on or off", word, value)
		}
	case Peer, Device: // the host knows what they may be
		if value == "" || strings.ContainsAny(value, " ,") {
			return fmt.Errorf("%s %q: want one address or prefix", word, value)
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
		return fmt.Errorf("unknown word %q", word)
	}
	return nil
}

// A File is what is in a configuration file, comments included.
type File struct {
	path  string
	lines []line
}

// A line is one of the file.
type line struct {
	text        string // as it is
	word, value string // of one that says something; blanks in the value are single
}

// Read reads a file. One that is not there is empty. The error tells of everything that was not understood, by line; the File then
// has the rest, but is not to be changed.
func Read(path string) (*File, error) {
	f := &File{path: path}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f, nil
	case err != nil:
		return f, err
	case info.IsDir() || info.Size() > maxFile:
		return f, fmt.Errorf("%s is no file of up to %d bytes", path, maxFile)
	case !info.Mode().IsRegular():
		return f, nil // /dev/null
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return f, err
	}
	var errs []error
	number := 0
	for text := range strings.Lines(string(text)) {
		if number++; number > maxLines {
			errs = append(errs, fmt.Errorf("%s has more than %d lines", path, maxLines))
			break
		}
		l := line{text: strings.TrimSuffix(text, "\n")}
		says, _, _ := strings.Cut(l.text, "#")
		if fields := strings.Fields(says); len(fields) > 0 {
			word, value := fields[0], strings.Join(fields[1:], " ")
			if err := check(word, value); err != nil {
				errs = append(errs, fmt.Errorf("%s:%d: %w", path, number, err))
			} else {
				l.word, l.value = word, value
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
	if err := check(word, value); err != nil {
		return false, err
	}
	if slices.Contains(f.Values(word), value) {
		return false, nil
	}
	f.lines = append(f.lines, line{text: word + " " + value, word: word, value: value})
	return true, nil
}

// Delete removes the lines of a word whose value is chosen, and returns how many these were.
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

// Write writes the file anew, at once: whoever reads it sees the old or the new one.
func (f *File) Write() error {
	temp, err := os.CreateTemp(filepath.Dir(f.path), ".gosmc.conf-")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // is gone by then if all went well
	var b strings.Builder
	for _, l := range f.lines {
		b.WriteString(l.text + "\n")
	}
	_, err = temp.WriteString(b.String())
	if err == nil {
		err = temp.Chmod(0o644)
	}
	if e := temp.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(temp.Name(), f.path)
	}
	return err
}
