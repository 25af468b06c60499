package main

// sometimes begins the reason of a difference that does not show in every run.
const sometimes = "sometimes: "

// expected are the tests that fail over SMC-D and pass over TCP, by package, with the reason for each.
var expected = map[string]map[string]string{}

// noConnections are the packages whose tests make no TCP connection between two ends that could use SMC.
var noConnections = map[string]bool{
	"net/textproto": true,
}
