//go:build !race

package link

// raceEnabled says that the race detector makes everything some ten times slower.
const raceEnabled = false
