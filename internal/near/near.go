// Package near says how far a word is from another one, to name the word that was probably meant.
package near

// Distance is the number of letters to be put in, taken out or replaced to make b of a. Words that are
// more than twice as long as b, and two letters, are not compared: the result is their length.
func Distance(a, b string) int {
	if len(a) > 2*len(b)+2 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// Nearest returns the first of those words that are nearest to a word, or "" if it is near to none: if
// three letters differ, or all of them.
func Nearest(word string, words []string) string {
	least, best := 3, ""
	for _, w := range words {
		if d := Distance(word, w); d < least && d < len(w) { // rule: TestNearest: d < len(w) -> true
			least, best = d, w
		}
	}
	return best
}
