// Package client offers connections of a program of package smc to programs of 'gosmc run', as the
// library of package preload does for its programs: it makes a pair of Unix sockets and asks the
// supervisor of the server to hand one end over.
package client
