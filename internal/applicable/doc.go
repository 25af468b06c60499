// Package applicable estimates, before anything is switched on, which TCP connections of a machine
// would gain by shared memory. It samples the connections of all network namespaces and users by
// sock_diag, and finds the programs at their ends in /proc. It sums the traffic by pair of programs,
// and names for each pair the obstacle or the expected gain. It changes nothing, and asks no program.
package applicable
