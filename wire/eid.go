package wire

import (
	"errors"
	"strings"
)

// An EID is an enterprise ID: a name that two hosts must share for SMC version 2. It is a user's
// (UEID) or the system's (SEID); both have the same form: 32 bytes of ASCII, padded with blanks on
// the right. The zero EID means none.
//
// SMCv2 pp.57-59, note 7.
type EID [32]byte

// ErrEID is returned by [ParseEID] for a text that is no EID.
var ErrEID = errors.New("an EID has 1 to 32 of the characters A-Z 0-9 . -, " +
	"starts with a letter or digit, and has no two dots in a row")

// ParseEID returns the EID with the text s, without its padding. The error is [ErrEID].
//
// Linux allows two dots in a row, the specification does not; we follow the specification, so
// that an EID configured here can be configured everywhere.
func ParseEID(s string) (EID, error) {
	var e EID
	if len(s) > len(e) {
		return EID{}, ErrEID
	}
	for i := range e {
		e[i] = ' '
	}
	copy(e[:], s)
	if !e.Valid() {
		return EID{}, ErrEID
	}
	return e, nil
}

// Valid reports whether e has the form that the specification asks for.
func (e EID) Valid() bool {
	text := strings.TrimRight(string(e[:]), " ")
	if text == "" || text[0] == '.' || text[0] == '-' || strings.Contains(text, "..") { // rule: TestParseEID
		return false
	}
	for _, c := range []byte(text) {
		switch {
		case 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '-':
		default:
			return false
		}
	}
	return true
}

// IsZero reports whether e is all zero bytes, as in version 1 messages.
func (e EID) IsZero() bool { return e == EID{} }

// String returns the text without trailing blanks and zero bytes. Bytes that are not printable
// ASCII, which only a broken peer sends, are shown as question marks.
func (e EID) String() string {
	text := []byte(strings.TrimRight(string(e[:]), " \x00"))
	for i, c := range text {
		if c < ' ' || c > '~' {
			text[i] = '?'
		}
	}
	return string(text)
}
