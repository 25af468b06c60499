package launch

import "time"

const (
	// launchTimeout bounds how long the start of a program waits for its supervisor.
	launchTimeout = 10 * time.Second
)
