// Package paired finds out which process is at the other end of a TCP connection that has pairing
// tokens. The process may be of another user and in another network namespace, and addresses may have
// been translated on the way. It answers a dial and an accepted connection with a peering, or with the
// reason why there is none; it knows no CLC and no buffers.
//
// The kernel gives each end of such a connection two tokens: its own and the peer's. Only the
// processes that hold the two ends know both. A client that has connected sends a [Message] to the
// processes of which it knows that they have accepted connections to the same address. The message
// proves that the client has the tokens, without telling them. If none of these processes has the
// connection, the client asks the agent to introduce the process that has it ([introduce.Client]). A
// server whose connection has tokens, and that has heard of no client, does the same. So two processes
// are introduced once, and need no agent after that.
package paired
