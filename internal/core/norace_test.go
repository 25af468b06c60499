//go:build !race

package core

// defaultSeeds is how many seeds each simulation plays. With the race detector they are fewer: core has no goroutines, and
// its code is ten times slower.
const defaultSeeds = 4000
