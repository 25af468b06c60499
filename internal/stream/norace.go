//go:build !race

package stream

func raceAcquire() {}
func raceRelease() {}
