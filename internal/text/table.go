package text

import (
	"cmp"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Table is printed with its columns aligned and two spaces between them. The zero value has no
// columns. A Table is for one goroutine.
type Table struct {
	Columns []Column
	Bare    bool // without the titles

	rows  [][]string       // each as long as Columns, or shorter
	notes map[int][]string // lines below a row, by its index
}

// A Column of a [Table].
type Column struct {
	Title string // "" for none
	Right bool   // aligned right, as numbers are
}

// Add adds a row. It has at most as many cells as the table has columns.
func (t *Table) Add(cells ...string) { t.rows = append(t.rows, cells) }

// Below adds lines below the last row. There has to be one.
func (t *Table) Below(lines ...string) {
	if t.notes == nil {
		t.notes = make(map[int][]string)
	}
	i := len(t.rows) - 1
	t.notes[i] = append(t.notes[i], lines...)
}

// Pick leaves the columns with these indexes, in their order. It comes after the last Add.
func (t *Table) Pick(columns []int) {
	pick := func(row []string) []string {
		var cells []string
		for _, c := range columns {
			cell := ""
			if c < len(row) {
				cell = row[c]
			}
			cells = append(cells, cell)
		}
		return cells
	}
	all := t.Columns
	t.Columns = nil
	for _, c := range columns {
		t.Columns = append(t.Columns, all[c])
	}
	for i, row := range t.rows {
		t.rows[i] = pick(row)
	}
}

// Sort orders the rows by a column: numbers, which are aligned right, from the largest, and text by
// its bytes. Rows that are equal there stay in order. Lines below a row stay below it.
func (t *Table) Sort(column int) {
	type line struct {
		cells, notes []string
		number       uint64
	}
	lines := make([]line, len(t.rows))
	for i, row := range t.rows {
		lines[i] = line{cells: row, notes: t.notes[i]}
		lines[i].number, _ = strconv.ParseUint(strings.ReplaceAll(row[column], " ", ""), 10, 64)
	}
	slices.SortStableFunc(lines, func(a, b line) int {
		if t.Columns[column].Right {
			return cmp.Compare(b.number, a.number)
		}
		return strings.Compare(a.cells[column], b.cells[column])
	})
	t.notes = make(map[int][]string)
	for i, l := range lines {
		t.rows[i], t.notes[i] = l.cells, l.notes
	}
}

// Len returns the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// Write prints the table. It leaves out trailing spaces, and columns that have neither a title nor
// a cell. The error comes from w.
func (t *Table) Write(w io.Writer) error {
	width := make([]int, len(t.Columns))
	for i, c := range t.Columns {
		if !t.Bare {
			width[i] = utf8.RuneCountInString(c.Title)
		}
	}
	for _, row := range t.rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	line := func(cells []string) {
		var l strings.Builder
		first := true
		for i, cell := range cells {
			if width[i] == 0 {
				continue
			}
			if !first {
				l.WriteString("  ")
			}
			first = false
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if t.Columns[i].Right {
				l.WriteString(pad + cell)
			} else {
				l.WriteString(cell + pad)
			}
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	titles := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		titles[i] = c.Title
	}
	if strings.Join(titles, "") != "" && !t.Bare {
		line(titles)
	}
	for i, row := range t.rows {
		line(row)
		for _, note := range t.notes[i] {
			b.WriteString("        " + note + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
