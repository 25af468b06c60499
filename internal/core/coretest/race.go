//go:build race

package coretest

// defaultSeeds is how many seeds each simulation plays.
const defaultSeeds = 1000
