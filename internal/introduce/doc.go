// Package introduce has the introduction service of 'gosmc agent': the agent introduces two processes that
// hold the two ends of one TCP connection to each other, whatever their users, network namespaces and
// addresses are.
//
//	client process                 agent                 server process
//	  connect
//	  Ask(socket, client) ---->   waits
//	                              pairs     <---- Ask(socket, server)   accept
//	  <---- Introduced                             Introduced ---->
//
// Each process proves that it holds its end by the socket itself, which comes with the question
// (SCM_RIGHTS). The agent reads the two pairing tokens that the kernel has stored with the socket
// ([Verifier]), and closes its copy. Two sockets are the ends of one connection if the token of each
// is the peer's token of the other. If the users policies of both processes and of the machine admit
// it, each process gets one end of a socket pair, and the kernel's word about the other process. The
// agent is on no data path: both processes speak over their socket pair, and go on when the agent
// ends.
//
// A [Server] is the agent's part, a [Client] the part of a process.
package introduce
