// Package procs reads /proc: which processes a supervisor of 'gosmc run' serves, and which supervisor
// serves a process. It asks nobody and changes nothing.
package procs
