package house

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Limits of the language.
const maxSentence = 35 // words

// maxPerThousand is how often words may come in a thousand words of comments and documents. As subjects and objects in the place
// of a noun they make sentences hard to read.
var maxPerThousand = []struct {
	name  string
	match *regexp.Regexp
	limit float64
}{
	{"what", regexp.MustCompile(`(?i)\bwhat\b`), 1.5},
	{"who", regexp.MustCompile(`(?i)\bwho\b`), 0.3},
	{"that of, those of", regexp.MustCompile(`(?i)\b(that|those) of\b`), 0.3},
}

var (
	quoted   = regexp.MustCompile("\"[^\"]*\"|`[^`]*`|“[^”]*”") // quotations, and code
	link     = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	sentence = regexp.MustCompile(`[.!?:;]["')\]]*(\s|$)`)
)

// A passage is text without layout: a paragraph.
type passage struct {
	where string
	text  string
}

// comments returns the paragraphs of a file's comments, without tables and examples.
func comments(s *source) (list []passage) {
	for _, group := range s.file.Comments {
		var text []string
		where := s.fset.Position(group.Pos())
		flush := func() {
			if len(text) > 0 {
				list = append(list, passage{fmt.Sprintf("%s:%d", s.name, where.Line), strings.Join(text, " ")})
			}
			text = nil
		}
		for _, c := range group.List {
			for line := range strings.Lines(c.Text) {
				line = strings.TrimRight(strings.TrimPrefix(line, "//"), "\n")
				line, _, _ = strings.Cut(line, "rule: ")
				switch {
				case strings.HasPrefix(c.Text, "//go:"), strings.HasPrefix(line, "\t"), strings.HasPrefix(line, "    "), strings.TrimSpace(line) == "":
					flush()
				default:
					text = append(text, strings.TrimSpace(strings.Trim(line, "/*")))
				}
			}
		}
		flush()
	}
	return list
}

// documents returns the paragraphs of the documents, without tables and code.
func documents(t *testing.T) (list []passage) {
	t.Helper()
	var names []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		rel, _ := filepath.Rel(root, name)
		code := false
		var text []string
		n := 0
		flush := func() {
			if len(text) > 0 {
				list = append(list, passage{fmt.Sprintf("%s:%d", filepath.ToSlash(rel), n), strings.Join(text, " ")})
			}
			text = nil
		}
		for line := range strings.Lines(string(b)) {
			n++
			line = strings.TrimRight(line, "\n")
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				code = !code
				flush()
				continue
			}
			trimmed := strings.TrimSpace(line)
			switch {
			case code, strings.HasPrefix(trimmed, "|"), strings.HasPrefix(trimmed, "#"), trimmed == "":
				flush()
			case strings.HasPrefix(trimmed, "- "), strings.HasPrefix(trimmed, "* "):
				flush()
				text = append(text, trimmed[2:])
			default:
				text = append(text, trimmed)
			}
		}
		flush()
	}
	return list
}

// plain returns a passage without quotations, code and addresses of links.
func plain(text string) string {
	return quoted.ReplaceAllString(link.ReplaceAllString(text, "$1"), "X")
}

// TestSentences checks the length of sentences in comments.
func TestSentences(t *testing.T) {
	long := make(map[string]int)
	found := make(map[string][]string)
	for _, s := range sources(t) {
		for _, p := range comments(s) {
			for _, text := range sentence.Split(plain(p.text), -1) {
				if n := len(strings.Fields(text)); n > maxSentence {
					long[s.dir()]++
					found[s.dir()] = append(found[s.dir()], fmt.Sprintf("%s has one of %d words: %s", p.where, n, text))
				}
			}
		}
	}
	var checked checkedExceptions
	for _, dir := range slices.Sorted(maps.Keys(long)) {
		if !checked.check(t, longSentences, dir, long[dir], 0, fmt.Sprintf("sentences of more than %d words", maxSentence)) {
			t.Log(strings.Join(found[dir], "\n"))
		}
	}
	checked.complete(t, longSentences)
}

// TestWords checks how often words come that stand in the place of a noun.
func TestWords(t *testing.T) {
	var all []passage
	for _, s := range sources(t) {
		all = append(all, comments(s)...)
	}
	all = append(all, documents(t)...)
	words := 0
	hits := make([]int, len(maxPerThousand))
	for _, p := range all {
		text := plain(p.text)
		words += len(strings.Fields(text))
		for i, w := range maxPerThousand {
			hits[i] += len(w.match.FindAllString(text, -1))
		}
	}
	var checked checkedExceptions
	for i, w := range maxPerThousand {
		t.Logf("%q: %d in %d words, %.2f in a thousand; limit %.1f", w.name, hits[i], words, 1000*float64(hits[i])/float64(words), w.limit)
		checked.check(t, frequentWords, w.name, int(1000*1000*float64(hits[i])/float64(words)), int(1000*w.limit), "times in a million words")
	}
	checked.complete(t, frequentWords)
}
