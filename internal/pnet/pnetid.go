package pnet

import (
	"fmt"
	"strings"
)

// A PNETID names a physical network. Devices and interfaces with the same PNETID are attached to
// the same one, so that SMC-D and SMC-R may replace TCP there (RFC 7609 calls it the physical
// network ID). The zero PNETID means none; the others are padded with blanks to 16 bytes.
type PNETID [16]byte

// ParsePNETID returns the PNETID with the given text: 1 to 16 capital letters and digits. Blanks
// after the text are allowed. Linux net/smc turns small letters into capital ones; here they are
// refused, for the reason given at [ParseUEID]. Errors are of type [*NameError].
func ParsePNETID(text string) (PNETID, error) {
	fail := func(format string, args ...any) (PNETID, error) {
		return PNETID{}, &NameError{Kind: "PNETID", Text: text, Reason: fmt.Sprintf(format, args...)}
	}
	var id PNETID
	name := strings.TrimRight(text, " ")
	switch {
	case name == "":
		return fail("is empty")
	case len(name) > len(id):
		return fail("has %d characters, %d are allowed", len(name), len(id))
	}
	for _, r := range name {
		switch {
		case 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		case 'a' <= r && r <= 'z':
			return fail("has the lower-case letter %q; only capital letters are allowed, as in %q",
				r, strings.ToUpper(name))
		default:
			return fail("has the character %q; only A-Z and 0-9 are allowed", r)
		}
	}
	for i := range id {
		id[i] = ' '
	}
	copy(id[:], name)
	return id, nil
}

// IsZero reports whether no PNETID is set.
func (p PNETID) IsZero() bool { return p == PNETID{} }

// String returns the text without padding, "" for none.
func (p PNETID) String() string { return strings.TrimRight(string(p[:]), " \x00") }

// Matches reports whether p and q name the same physical network. An unset PNETID matches
// nothing, not even another unset one. In Linux net/smc two unset ones compare equal, which can pair
// devices of unrelated networks.
func (p PNETID) Matches(q PNETID) bool { return !p.IsZero() && p == q } // rule: TestPNETID: !p.IsZero() -> true

// CheckTable returns an error that names the fault of PNETIDs by the names of interfaces.
func CheckTable(table map[string]string) error {
	for iface, id := range table {
		if _, err := ParsePNETID(id); err != nil {
			return fmt.Errorf("interface %s: %w", iface, err)
		}
	}
	return nil
}
