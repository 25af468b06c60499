// Package smc moves TCP connections between two programs of one machine to shared memory: they connect over
// TCP as always, agree in the connection itself to leave it, and copy straight into each other's
// buffers from then on. With other machines they can use RDMA over UDP, where both ends are told
// to. Where neither is possible, as to other users and to programs that do not use SMC, the result
// is a TCP connection like any other. [Conn.State] says which it became, and why.
//
// It is shaped like package net. Replace net.Dial with [Dial] and net.Listen with [Listen] on both ends:
//
//	import "github.com/gosmc/smc"
//
//	l, err := smc.Listen("tcp", "127.0.0.1:8080")
//	...
//	http.Serve(l, handler)
//
// In addition to the features of package net, a [Conn] has urgent data, as sockets do with MSG_OOB:
// see [Conn.WriteUrgent].
//
// The protocol is Shared Memory Communications (RFC 7609 and SMCv2), as Linux AF_SMC, z/OS and AIX
// speak it. Within a machine it is SMC-D with an Emulated-ISM device. Between machines it is SMC-R
// with software RoCEv2, which reaches Linux kernels, too. SMC-R is off unless [Config.SMCRPeers]
// names the peer, or both ends have TCP option 254 with the help of gosmc agent.
//
// The package builds on every system, so that programs need no build tags. On systems other than
// Linux all connections are plain TCP with the reason NOT_SUPPORTED, and the methods for urgent
// data fail.
//
// Two programs find each other through the run directory, which any user has: see
// [Config]. Within a machine nothing needs privilege or configuration.
//
// Nothing runs in the background before the first connection or listener, and nothing goes on after
// the last: the goroutines of the default host end 150 ms later, a [Host] of one's own ends with
// Close or Shutdown. In a bubble of testing/synctest use such a Host: while a host is in use
// outside of the bubble, its connections inside are plain TCP, and the other way round, since
// goroutines of the two cannot wake each other. Bubbles that run at the same time need a Host each.
package smc
