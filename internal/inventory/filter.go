package inventory

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// An Filter chooses connections and listeners. All of its parts have to fit.
type Filter struct {
	State        string // "established", "listening"; empty: all
	src, dst     endFilter
	mode         string // in small letters; empty: all
	program      string // part of the name of the program at either end; empty: all
	Port         uint16 // of either end; 0: all
	Only4, Only6 bool   // addresses of IPv4, or of IPv6; both or neither: all
	sport, dport uint16 // 0: all
}

// An endFilter is an address or prefix, and perhaps a port.
type endFilter struct {
	prefix netip.Prefix // invalid: all
	port   uint16       // 0: all
}

// ParseFilter reads the words of a filter, in the form of ss(8) as far as there is a meaning here.
//
// Words may stand in one argument, and in parentheses, as all conditions have to fit.
func ParseFilter(words []string) (f Filter, err error) {
	words = strings.Fields(strings.Join(words, " "))
	words = slices.DeleteFunc(words, func(w string) bool { return w == "(" || w == ")" })
	next := func() string {
		if len(words) == 0 {
			return ""
		}
		word := words[0]
		words = words[1:]
		return word
	}
	for len(words) > 0 {
		word := next()
		switch word {
		case "and", "&&":
			continue
		case "state", "src", "dst", "sport", "dport", "mode", "program":
		case "or", "||", "not", "!", "exclude", "|", "&":
			return f, fmt.Errorf("filter %q: only conditions that all have to fit are known here; --json and jq do the rest", word)
		default:
			return f, fmt.Errorf("filter %q: want state, src, dst, sport, dport, mode or program", word)
		}
		value := next()
		if value == "=" || value == "==" || value == "eq" {
			value = next()
		}
		if value == "" {
			return f, fmt.Errorf("filter %s needs a value", word)
		}
		switch word {
		case "state":
			f.State, err = parseState(value)
		case "mode":
			f.mode, err = parseMode(value)
		case "program":
			f.program = value
		case "src":
			f.src, err = parseEnd(value)
		case "dst":
			f.dst, err = parseEnd(value)
		case "sport":
			f.sport, err = parsePort(value)
		case "dport":
			f.dport, err = parsePort(value)
		}
		if err != nil {
			return f, fmt.Errorf("filter %s %q: %w", word, value, err)
		}
	}
	return f, nil
}

func parseState(s string) (string, error) {
	switch s {
	case "established", "connected", "estab":
		return "established", nil
	case "listening", "listen":
		return "listening", nil
	case "all":
		return s, nil
	}
	return "", fmt.Errorf("want established, listening or all")
}

func parseMode(s string) (string, error) {
	switch s = strings.ToLower(s); s {
	case "tcp", "unix", "smc-d", "smc-r":
		return s, nil
	}
	return "", fmt.Errorf("want tcp, unix, smc-d or smc-r")
}

// parsePort reads a port, with or without a colon, or the name of a service.
func parsePort(s string) (uint16, error) {
	s = strings.TrimPrefix(s, ":")
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil && strings.Trim(s, "0123456789") != "" { // rule: cmd/gosmc TestSSFilter
		if named, err := net.LookupPort("tcp", s); err == nil {
			return uint16(named), nil
		}
	}
	if err != nil || n == 0 {
		return 0, fmt.Errorf("want a port from 1 to 65535, or the name of a service")
	}
	return uint16(n), nil
}

// parseEnd reads an address or a prefix, with or without a port, or a port behind a colon.
func parseEnd(s string) (e endFilter, err error) {
	host := s
	if h, port, split := net.SplitHostPort(s); split == nil {
		if host = h; port != "*" {
			if e.port, err = parsePort(port); err != nil {
				return e, err
			}
		}
	}
	host = strings.Trim(host, "[]")
	if host == "" || host == "*" {
		return e, nil
	}
	if strings.Contains(host, "/") {
		e.prefix, err = netip.ParsePrefix(host)
	} else {
		var addr netip.Addr
		if addr, err = netip.ParseAddr(host); err == nil {
			e.prefix = netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen())
		}
	}
	if err != nil {
		return e, fmt.Errorf("want an address, a prefix, ADDRESS:PORT or :PORT")
	}
	return e, nil
}

// fits reports whether an end, in the form ADDRESS:PORT, is one that is meant.
func (e endFilter) fits(end string) bool {
	if e == (endFilter{}) {
		return true
	}
	addr, err := netip.ParseAddrPort(end)
	return err == nil && (e.port == 0 || e.port == addr.Port()) &&
		(!e.prefix.IsValid() || e.prefix.Contains(addr.Addr().Unmap().WithZone("")))
}

// family reports whether an end has an address of a version of IP that is meant.
func (f *Filter) family(end string) bool {
	if f.Only4 == f.Only6 {
		return true
	}
	addr, err := netip.ParseAddrPort(end)
	return err == nil && addr.Addr().Unmap().Is4() == f.Only4
}

// hasPort reports whether an end has a port. Every end has the port 0.
func hasPort(end string, port uint16) bool {
	_, p, err := net.SplitHostPort(end)
	return port == 0 || err == nil && p == strconv.Itoa(int(port))
}

func (f *Filter) Connection(c *Conn) bool {
	return f.State != "listening" && f.family(c.Local) && // rule: cmd/gosmc TestSSFilter: f.family(c.Local) -> true
		(f.mode == "" || strings.EqualFold(f.mode, c.Mode)) &&
		// rule: cmd/gosmc TestSSFilter: c.PeerCommand -> ""
		(strings.Contains(c.Command, f.program) || strings.Contains(c.PeerCommand, f.program)) &&
		(hasPort(c.Local, f.Port) || hasPort(c.Peer, f.Port)) && hasPort(c.Local, f.sport) &&
		hasPort(c.Peer, f.dport) &&
		f.src.fits(c.Local) && f.dst.fits(c.Peer)
}

func (f *Filter) Listener(l *Listener) bool {
	return f.State != "established" && f.family(l.Local) &&
		strings.Contains(l.Command, f.program) && // rule: cmd/gosmc TestSSFilter: f.program -> ""
		f.mode == "" && f.dport == 0 && f.dst == (endFilter{}) &&
		hasPort(l.Local, f.Port) && hasPort(l.Local, f.sport) && f.src.fits(l.Local)
}
