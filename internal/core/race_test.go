//go:build race

package core

// defaultSeeds is how many seeds each simulation plays.
const defaultSeeds = 1000
