// Package rnic manages the software RNICs of one host: it chooses an address for a connection, and
// opens and closes devices of package verbs. It tells links and link groups about the devices'
// state, and knows networks, routes, VLANs and PNETIDs.
//
// Locks: Set.mu ranks before Device.mu. A link group's lock ranks before both: a Device calls a
// Group on a goroutine of its own.
package rnic
