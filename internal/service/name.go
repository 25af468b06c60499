package service

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

const suffix = ".service"

// A Name is the full name of a unit: "nginx.service", "postgresql@15-main.service". [ParseName] makes it.
type Name string

// nameLetters are the letters of names of units: systemd.unit(5).
const nameLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_.\\@"

// ParseName checks the name of a service. The end ".service" may be left out.
func ParseName(text string) (Name, error) {
	name := text
	if kind := path.Ext(text); isKind(kind) {
		base := strings.TrimSuffix(text, kind)
		return "", next(fmt.Errorf("%s is a unit of the type %s", text, kind[1:]),
			"name the service that it starts, such as %s%s", base, suffix)
	}
	if !strings.HasSuffix(name, suffix) {
		name += suffix
	}
	base := strings.TrimSuffix(name, suffix)
	switch {
	case base == "" || base[0] == '@' || base[0] == '.':
		return "", fmt.Errorf("%q is no name of a service", text)
	case len(name) > maxName:
		return "", fmt.Errorf("the name of the service has %d bytes, more than %d", len(name), maxName)
	case strings.Trim(base, nameLetters) != "" || strings.IndexFunc(base, func(r rune) bool { return !strings.ContainsRune(nameLetters, r) }) >= 0: // rule: TestParseName
		return "", next(fmt.Errorf("%q is no name of a service", text),
			"names have letters, digits and :-_.\\@ only; 'systemctl list-units --type=service' shows them")
	}
	return Name(name), nil
}

// isKind reports whether an extension belongs to another type of units.
func isKind(ext string) bool {
	switch ext {
	case ".socket", ".device", ".mount", ".automount", ".swap", ".target", ".path", ".timer", ".slice", ".scope":
		return true
	}
	return false
}

// Short is the name without its end, as people write it.
func (n Name) Short() string { return strings.TrimSuffix(string(n), suffix) }

// Template returns the name of the template of an instance, "" if the unit is none:
// "postgresql@.service" of "postgresql@15-main.service".
func (n Name) Template() Name {
	prefix, instance, ok := strings.Cut(n.Short(), "@")
	if !ok || instance == "" {
		return ""
	}
	return Name(prefix + "@" + suffix)
}

// IsTemplate reports whether the unit is a template, which is started as instances only.
func (n Name) IsTemplate() bool { return strings.HasSuffix(n.Short(), "@") }

// instance returns the value of %i.
func (n Name) instance() string {
	_, instance, _ := strings.Cut(n.Short(), "@")
	return instance
}

// expand replaces the specifiers of a unit that say its name: %i, %I, %p, %P, %n, %N and %%. It
// reports false if there are others.
func (n Name) expand(text string) (string, bool) {
	prefix, _, _ := strings.Cut(n.Short(), "@")
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			b.WriteByte(text[i])
			continue
		}
		if i++; i == len(text) {
			return "", false
		}
		switch text[i] {
		case '%':
			b.WriteByte('%')
		case 'i':
			b.WriteString(n.instance())
		case 'I':
			plain, err := unescape(n.instance())
			if err != nil {
				return "", false
			}
			b.WriteString(plain)
		case 'p':
			b.WriteString(prefix)
		case 'P':
			plain, err := unescape(prefix)
			if err != nil {
				return "", false
			}
			b.WriteString(plain)
		case 'n':
			b.WriteString(string(n))
		case 'N':
			b.WriteString(n.Short())
		default:
			return "", false
		}
	}
	return b.String(), true
}

// unescape reverses systemd-escape(1): "-" is "/", and \x2d a byte.
func unescape(text string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '-':
			b.WriteByte('/')
		case text[i] == '\\':
			var c byte
			if len(text) < i+4 || text[i+1] != 'x' {
				return "", errors.New("a backslash that escapes nothing")
			}
			if _, err := fmt.Sscanf(text[i+2:i+4], "%02x", &c); err != nil {
				return "", err
			}
			b.WriteByte(c)
			i += 3
		default:
			b.WriteByte(text[i])
		}
	}
	return b.String(), nil
}

// dropInDirs are the names of directories with drop-ins for a unit, lower ranks first. They are the
// directories of its type, of prefixes that end with a hyphen, of its template, and its own
// (systemd.unit(5)). A file name in one of them hides the same file name in those before.
func (n Name) dropInDirs() []string {
	list := []string{"service.d"}
	base, instance, isInstance := strings.Cut(n.Short(), "@")
	for i := range len(base) {
		if base[i] == '-' && i+1 < len(base) {
			prefix := base[:i+1]
			if isInstance {
				prefix += "@"
			}
			list = append(list, prefix+suffix+".d")
			if isInstance && instance != "" {
				list = append(list, prefix+instance+suffix+".d")
			}
		}
	}
	if t := n.Template(); t != "" {
		list = append(list, string(t)+".d")
	}
	return append(list, string(n)+".d")
}
