// Package control is the control socket: how the tools see a host from outside, and end a link of
// it. It has the types that they read, the client that they use, and the server, which knows of its
// host no more than [Host] says.
//
// Every host listens on the Unix stream socket <run directory>/ctl/<name>. A client writes one JSON
// object on a line, and gets one JSON object on a line back; it may ask again on the same socket.
//
//	-> {"version":1,"request":"status"}
//	<- {"version":1,"status":{...}}      see [Status]
//	<- {"version":1,"error":"..."}       when the request cannot be answered
//
// The request "trace" makes the socket a stream of events:
//
//	-> {"version":1,"request":"trace","history":256,"cursors_ms":250}
//
// asks for the newest events, at most history of them, and for all that come; with cursors_ms also for the
// cursors of every SMC connection, so often. The answer is a line, and then a line for every event
// until one of both has enough. The client sends nothing more: a byte ends it as closing does.
//
//	<- {"version":1,"trace":{"history":12}}     so many of the events that follow are old
//	<- {"event":{...}}                          see [TraceEvent]
//	<- {"end":true}                             the host was closed
//
// The request "delete-link" has a host that has links begin the end of one, in order:
//
//	-> {"version":1,"request":"delete-link","link_group":26,"link":2}
//	<- {"version":1,"done":{}}                  or an error, which says why it cannot be
//
// A socket that ends without the last line belongs to a process that has died, or that was not read
// from for too long.
//
// The file has mode 0600, and the server also looks at the caller's user (SO_PEERCRED): only
// the same user and root are answered. Root of the machine asks a host in a user namespace, where it
// has no number, as that host's user, see dialHost. A name in ctl that begins with a dot is a socket
// in the making.
package control

// Version is the version of the control protocol and of [Status] in it. Fields may be
// added within a version; their meaning does not change.
const Version = 1
