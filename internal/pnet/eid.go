// Package pnet holds the rules for the names that decide which hosts may use SMC with each other:
// enterprise IDs (UEID and SEID) for version 2, PNETIDs for devices and interfaces. It does no I/O:
// texts come from the caller.
package pnet

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"

	"github.com/gosmc/smc/wire"
)

// MaxUEIDs is the most UEIDs that a host may have: "SMCv2 defines a maximum of 8 EIDs" (SMCv2 p.20).
// Linux net/smc lets its user configure 4, and accepts 8 from a peer.
const MaxUEIDs = 8

// ErrName is matched, with [errors.Is], by all errors of this package: a text is not a valid name.
var ErrName = errors.New("not a valid name")

// A NameError names the fault of a name.
type NameError struct {
	Kind   string // "UEID", "PNETID" or "boot id"
	Text   string // as given
	Reason string
}

// Error quotes the text and names its fault.
func (e *NameError) Error() string { return fmt.Sprintf("%s %q: %s", e.Kind, e.Text, e.Reason) }

// Is makes a NameError match [ErrName].
func (e *NameError) Is(target error) bool { return target == ErrName }

// ParseUEID returns the UEID with the given text: 1 to 32 characters of A-Z, 0-9, dot and hyphen,
// of which the first is a letter or a digit, without two dots in a row (SMCv2 p.57, note 7). Blanks
// after the text are allowed, as they are the padding of the wire form. Lower-case letters are
// refused and not converted: the name would then differ from the text that the user wrote, and that
// the peer's administrator was told. Errors are of type [*NameError].
func ParseUEID(text string) (wire.EID, error) {
	fail := func(format string, args ...any) (wire.EID, error) {
		return wire.EID{}, &NameError{Kind: "UEID", Text: text, Reason: fmt.Sprintf(format, args...)}
	}
	name := strings.TrimRight(text, " ")
	switch {
	case name == "":
		return fail("is empty")
	case len(name) > len(wire.EID{}):
		return fail("has %d characters, %d are allowed", len(name), len(wire.EID{}))
	case name[0] == '.' || name[0] == '-': // rule: TestParseUEID
		return fail("starts with %q; the first character must be a letter or a digit", name[0])
	case strings.Contains(name, ".."):
		return fail("has two dots in a row")
	}
	for _, r := range name {
		switch {
		case 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '-':
		case 'a' <= r && r <= 'z':
			return fail("has the lower-case letter %q; only capital letters are allowed, as in %q",
				r, strings.ToUpper(name))
		default:
			return fail("has the character %q; only A-Z, 0-9, dot and hyphen are allowed", r)
		}
	}
	eid, err := wire.ParseEID(name)
	if err != nil {
		return fail("%v", err)
	}
	return eid, nil
}

// ParseUEIDs parses a list of UEIDs, in order of preference. At most [MaxUEIDs] are allowed, and
// none may come twice. Errors are of type [*NameError].
func ParseUEIDs(texts []string) ([]wire.EID, error) {
	var eids []wire.EID
	seen := make(map[wire.EID]bool)
	for _, text := range texts {
		eid, err := ParseUEID(text)
		switch {
		case err != nil:
			return nil, err
		case seen[eid]: // rule: TestParseUEIDs
			return nil, &NameError{Kind: "UEID", Text: text, Reason: "comes twice"}
		case len(eids) == MaxUEIDs: // rule: TestParseUEIDs
			return nil, &NameError{Kind: "UEID", Text: text,
				Reason: fmt.Sprintf("is one too many, %d are allowed", MaxUEIDs)}
		}
		seen[eid] = true
		eids = append(eids, eid)
	}
	return eids, nil
}

// A BootID names one boot of one kernel: the UUID in /proc/sys/kernel/random/boot_id, in the
// order of its text. All processes of a machine read the same one, also those in containers.
type BootID [16]byte

// ParseBootID parses the text of the kernel's file: 32 hexadecimal digits, with or without the
// hyphens of a UUID, and with a line end or without. The zero UUID is refused. Errors are of type
// [*NameError].
func ParseBootID(text string) (BootID, error) {
	fail := func(reason string) (BootID, error) {
		return BootID{}, &NameError{Kind: "boot id", Text: text, Reason: reason}
	}
	var id BootID
	digits := strings.ReplaceAll(strings.TrimSpace(text), "-", "")
	if len(digits) != 2*len(id) {
		return fail("does not have 32 hexadecimal digits")
	}
	for i := range len(digits) {
		c := digits[i] | 0x20 // lower case
		switch {
		case '0' <= digits[i] && digits[i] <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		default:
			return fail("does not have 32 hexadecimal digits")
		}
		id[i/2] = id[i/2]<<4 | c
	}
	if id == (BootID{}) {
		return fail("is zero")
	}
	return id, nil
}

const (
	seidPrefix = "GOSMC-"
	seidDomain = "gosmc seid 1\n"
)

// SEID derives the system EID from the kernel's boot id, so that all processes on one kernel share
// an EID and no two kernels do, without configuration.
//
//	offset  size  content
//	     0     6  "GOSMC-"
//	     6    26  base32 (RFC 4648 §6: A-Z 2-7, no padding) of the first 16 bytes of
//	              SHA-256("gosmc seid 1" + line feed + the 16 bytes of the boot id)
//
// It has the form of a UEID, as SMCv2 p.60, note 2, asks for, and cannot be mistaken for the SEID
// of a mainframe ("IBM-SYSZ-ISMSEID..."). The boot id goes in as a hash because an SEID is
// sent to every peer, and the boot id itself is nobody's business.
func SEID(boot BootID) wire.EID {
	sum := sha256.Sum256(append([]byte(seidDomain), boot[:]...))
	text := seidPrefix + base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16])
	return wire.EID([]byte(text))
}
