package service

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// A command is one command line of ExecStart=: systemd.service(5), "Command lines".
type command struct {
	prefix  string // of - : + ! without @
	program string // unquoted
	argv0   string // the word after the program as it is in the file, with the prefix @
	rest    string // all words after these as they are in the file
}

// prefixes are letters before a program that systemd knows. The order is kept.
const prefixes = "-@:+!"

// parseCommands splits a line of ExecStart= at its semicolons.
func parseCommands(line string) (list []command, err error) {
	words, err := splitWords(line)
	if err != nil {
		return nil, err
	}
	for start := 0; start < len(words); {
		end := start
		for end < len(words) && words[end].raw != ";" {
			end++
		}
		if end > start {
			c, err := newCommand(words[start:end])
			if err != nil {
				return nil, err
			}
			list = append(list, c)
		}
		start = end + 1
	}
	return list, nil
}

func newCommand(words []word) (c command, err error) {
	program, hasArgv0 := words[0].text, false
	for program != "" && strings.IndexByte(prefixes, program[0]) >= 0 {
		if program[0] == '@' {
			hasArgv0 = true
		} else {
			c.prefix += program[:1]
		}
		program = program[1:]
	}
	if program == "" {
		return c, errors.New("a command line has no program")
	}
	if strings.ContainsFunc(program, unicode.IsControl) { // rule: TestUnder
		return c, fmt.Errorf("the name of the program %q has a control character", program)
	}
	if program[0] == '|' {
		return c, errors.New("a command line has the prefix |, which runs it by a shell: gosmc does not know that prefix")
	}
	c.program = program
	words = words[1:]
	if hasArgv0 {
		if len(words) == 0 {
			return c, fmt.Errorf("%s has the prefix @ and no name", program)
		}
		c.argv0, words = words[0].raw, words[1:]
	}
	raw := make([]string, len(words))
	for i, w := range words {
		raw[i] = w.raw
	}
	c.rest = strings.Join(raw, " ")
	return c, nil
}

// under returns the command line with 'gosmc run' before the program.
func (c command) under(gosmc string) string {
	line := c.prefix + gosmc + " run"
	if c.argv0 != "" {
		line += " --argv0 " + c.argv0
	}
	program := quote(c.program)
	if !strings.Contains(c.prefix, ":") { // as an argument it may have variables, which a program has not
		program = strings.ReplaceAll(program, "$", "$$")
	}
	line += " -- " + program
	if c.rest != "" {
		line += " " + c.rest
	}
	return line
}

// isUnder reports whether the program is 'gosmc run'.
func (c command) isUnder() bool {
	name := c.program[strings.LastIndexByte(c.program, '/')+1:]
	return name == "gosmc" && (c.rest == "run" || strings.HasPrefix(c.rest, "run "))
}

// quote returns a word as systemd reads it.
func quote(text string) string {
	if text != "" && !strings.ContainsAny(text, " \t\"'\\;") {
		return text
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

// A word of a command line, as it is there and as systemd understands it. Specifiers and variables
// are left alone.
type word struct{ raw, text string }

// splitWords splits a command line into words, with the quotes and the escapes of systemd.syntax(7).
func splitWords(line string) (list []word, err error) {
	for i := 0; i < len(line); {
		if line[i] == ' ' || line[i] == '\t' {
			i++
			continue
		}
		start, quoted := i, byte(0)
		var text strings.Builder
	letters:
		for ; i < len(line); i++ {
			c := line[i]
			switch {
			case c == '\\':
				if i+1 == len(line) {
					return nil, errors.New("a command line ends with a backslash")
				}
				n, plain := escape(line[i+1:])
				text.WriteString(plain)
				i += n
			case quoted != 0:
				if c == quoted {
					quoted = 0
				} else {
					text.WriteByte(c)
				}
			case c == '"' || c == '\'':
				quoted = c
			case c == ' ' || c == '\t':
				break letters
			default:
				text.WriteByte(c)
			}
		}
		if quoted != 0 {
			return nil, fmt.Errorf("a command line has a %c that is not closed", quoted)
		}
		list = append(list, word{line[start:i], text.String()})
	}
	return list, nil
}

// escape understands the text after a backslash: n is its length in bytes, plain the text that it
// stands for. Text that is no escape is kept, as systemd does.
func escape(rest string) (n int, plain string) {
	simple := map[byte]string{'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
		'\\': "\\", '"': `"`, '\'': "'", 's': " ", ';': ";"}
	if s, ok := simple[rest[0]]; ok {
		return 1, s
	}
	var v uint
	switch {
	case rest[0] == 'x' && len(rest) >= 3:
		if _, err := fmt.Sscanf(rest[1:3], "%02x", &v); err == nil && v != 0 {
			return 3, string([]byte{byte(v)})
		}
	case rest[0] >= '0' && rest[0] <= '7' && len(rest) >= 3:
		if _, err := fmt.Sscanf(rest[:3], "%03o", &v); err == nil && v != 0 && v < 256 {
			return 3, string([]byte{byte(v)})
		}
	}
	return 1, `\` + rest[:1]
}
