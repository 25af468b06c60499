// Package inventory lists the connections, listeners and counters of a machine: those that hosts
// report, and those of programs of 'gosmc run', which only the kernel knows. It gives connections
// that are TCP the cause and the remedy, chooses by filters in the words of ss(8), and sums by server.
// It lists link groups and devices, and ends a link. Link groups, links and counters have their tables here,
// with the columns that Linux's tools have.
package inventory
