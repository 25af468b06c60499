package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/near"
)

// Tuning has the values that are about speed and memory of package smc. Zero values stand for the
// defaults.
type Tuning struct {
	SMCRLinks     int           // links of a link group, 1 to 8
	SMCRConns     int           // connections of a link group, 16 to 255
	SMCRSpread    string        // "connections" or "bytes"
	SMCRKeepAlive time.Duration // silence before a link is tested; below 0: for ever
	Spin          time.Duration // longest spin of a Read or Write; below 0: none
	ReadBuffer    int           // bytes, 16 KiB to 8 MiB
}

// A number is a word whose value is one of some numbers.
type number struct {
	least, most int64
	parse       func(text string) (int64, error)
	want        string
}

// The bounds are as in smc.Config, where it has some. A link that is tested all the time carries
// nothing else, and a wait that spins for long takes a processor from the peer.
var numbers = map[string]number{
	SMCRLinks:     {1, 8, parseCount, "a number of links from 1 to 8"},
	SMCRConns:     {16, 255, parseCount, "a number of connections from 16 to 255"},
	SMCRKeepAlive: {int64(time.Second), int64(24 * time.Hour), parseTime, "a time from 1s to 24h, or off"},
	Spin: {
		int64(time.Microsecond), int64(10 * time.Millisecond), parseTime, "a time from 1us to 10ms, or off",
	},
	ReadBuffer: {16 << 10, 8 << 20, ParseSize, "a number of bytes from 16KiB to 8MiB"},
}

func parseCount(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) }

// parseTime parses a time; off is -1.
func parseTime(text string) (int64, error) {
	if on, err := ParseSwitch(text); err == nil && !on {
		return -1, nil
	}
	d, err := time.ParseDuration(text)
	if d < 0 {
		d = 0 // out of all bounds
	}
	return int64(d), err
}

// spreads are the values of [SMCRSpread].
var spreads = []string{"connections", "bytes"}

// checkTuning is [Check] for a word of [Tuning]. ok is false for other words.
func checkTuning(word, value string) (ok bool, err error) {
	if word == SMCRSpread {
		if !slices.Contains(spreads, value) { // rule: TestTuning
			return true, fmt.Errorf("%s %q: want %s", word, value, strings.Join(spreads, " or "))
		}
		return true, nil
	}
	n, ok := numbers[word]
	if !ok {
		return false, nil
	}
	v, err := n.parse(value)
	off := v == -1 && strings.HasSuffix(n.want, "off")
	if err != nil || !off && (v < n.least || v > n.most) { // rule: TestTuning: v > n.most -> false
		return true, fmt.Errorf("%s %q: want %s", word, value, n.want)
	}
	return true, nil
}

// settle takes over the values of all words. They are checked.
func (t *Tuning) settle(values map[string][]string) {
	number := func(word string) (v int64) {
		if list := values[word]; len(list) > 0 {
			v, _ = numbers[word].parse(list[len(list)-1])
		}
		return v
	}
	t.SMCRLinks, t.SMCRConns = int(number(SMCRLinks)), int(number(SMCRConns))
	t.SMCRKeepAlive, t.Spin = time.Duration(number(SMCRKeepAlive)), time.Duration(number(Spin))
	t.ReadBuffer = int(number(ReadBuffer))
	if list := values[SMCRSpread]; len(list) > 0 {
		t.SMCRSpread = list[len(list)-1]
	}
}

// Aliases are names that other systems have for words of the file, where the meaning is the same.
// The sysctls of Linux may begin with "net.smc.".
var Aliases = map[string]string{
	"smcr_max_links_per_lgr": SMCRLinks,     // Linux
	"smcr_max_conns_per_lgr": SMCRConns,     // Linux
	"conns_per_lg":           SMCRConns,     // AIX
	"smcr_testlink_time":     SMCRKeepAlive, // Linux: seconds, 0: off
	"rmem":                   ReadBuffer,    // Linux: bytes
}

// fixed are names of other systems for values that cannot be changed here, with these.
var fixed = map[string]string{
	"smcr_max_send_wr": "16 send work requests, as few as Linux: a peer posts receives for them",
	"smcr_max_recv_wr": "48 receive work requests: peers count on them",
	"autocorking_size": "16 KiB, and a program has TCP_NODELAY",
	"wmem":             "send buffers of 1 MiB, whose pages take memory when they are written",
}

// linuxPrefix is before the names of sysctls.
const linuxPrefix = "net.smc."

// Canonical returns the word that a name of another system stands for, and its value as it is here.
// Others are returned as they are.
func Canonical(word, value string) (ours, valueOfOurs string) {
	name := strings.TrimPrefix(word, linuxPrefix)
	ours = Aliases[name]
	switch {
	case ours == "":
		return word, value
	case ours == SMCRKeepAlive && value != "" && strings.Trim(value, "0123456789") == "" && value != "0":
		value += "s" // rule: TestAliases
	}
	return ours, value
}

// unknown is the error for a word that the file does not have.
func unknown(word string) error {
	if why := fixed[strings.TrimPrefix(word, linuxPrefix)]; why != "" { // rule: TestAliases
		return fmt.Errorf("%s cannot be set: gosmc has %s", word, why)
	}
	if near := nearest(word); near != "" { // rule: TestNearest
		return fmt.Errorf("unknown word %q; did you mean %s?", word, near)
	}
	return fmt.Errorf("unknown word %q", word)
}

// nearest returns the word that may have been meant, or "" if none is near.
func nearest(word string) string {
	if ours, _ := Canonical(word, ""); ours != word {
		return ours
	}
	if fixed[strings.TrimPrefix(word, linuxPrefix)] != "" {
		return ""
	}
	list := slices.Clone(Words)
	for name := range Aliases {
		list = append(list, name)
	}
	slices.Sort(list[len(Words):]) // a map has no order
	return near.Nearest(word, list)
}
