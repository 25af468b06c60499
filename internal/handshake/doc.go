// Package handshake drives CLC handshakes: it carries out the decisions of core over TCP, and turns
// a pending connection into one that is SMC or plain TCP.
//
//	[Driver]   runs the handshakes of one host
//	[Request]  asks for one handshake, over one of several paths
//	[Backlog]  handshakes of one listener with clients of other machines
//
// A handshake knows neither its host nor a fabric. It reaches its peer by paths of package
// transport, and an [Owner] counts its outcome. It runs on the goroutine that asks for it. Steps of
// the first link of SMC-R come from other goroutines.
package handshake
