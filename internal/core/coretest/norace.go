//go:build !race

package coretest

// defaultSeeds is how many seeds each simulation plays. With the race detector they are fewer: the machines
// have no goroutines, and their code is ten times slower.
const defaultSeeds = 4000
