//go:build race

package rdma

// raceEnabled says that the race detector makes everything some ten times slower.
const raceEnabled = true
