package smc

import (
	"log/slog"
	"time"
)

// A Filter says for which servers connections may use SMC. Ports and addresses are the server's,
// whichever side says it. Both lists have to allow a server; an empty one allows all. Entries with
// an exclamation mark are exceptions. If there are other entries, a server that none of these
// matches is refused, and its connections stay TCP.
type Filter struct {
	Ports     []string // ports and ranges: "5432", "8000-8999", "!22"; "any", "none"
	Addresses []string // addresses and prefixes: "127.0.0.1", "192.0.2.0/24", "!::1"; "any", "none"
}

// Config says how a [Host] works. The zero value, and nil, are the defaults. It is copied;
// later changes have no effect.
//
// Fields that are empty, 0 or false take the operator's values, if there are any, before the defaults
// that stand beside them: from the variables of the environment that 'gosmc ueid --help' lists, such
// as GOSMC_UEIDS, else from the file /etc/gosmc.conf, or the file that GOSMC_CONFIG names. Dir has a
// variable only, and Logger is the program's. GOSMC_PROGRAMS and the file may also
// keep programs on TCP altogether. A host follows the file for new connections: its lists for
// Listen, Connect and programs, ShortAfter, and whether SMC is off.
type Config struct {
	// Disabled makes every connection plain TCP. The environment variable
	// GOSMC_DISABLED=1 (also true, yes, on) does the same for a whole process.
	Disabled bool

	// Listen says which servers of this host may use SMC, Connect with which servers it may: others
	// use TCP, and [Conn.State] has the reason NOT_ALLOWED. A listener that is refused is not
	// announced; it is the address to which a connection came that counts.
	Listen, Connect Filter

	// Dir is the run directory, an absolute path, where the programs of one machine find
	// each other. Empty means $GOSMC_DIR, else /run/gosmc if it can be written to, else
	// $XDG_RUNTIME_DIR/gosmc, else /tmp/gosmc-<uid>. Programs that share no run directory
	// use TCP with each other; containers that share one share memory.
	Dir string

	// UEIDs are user-defined enterprise IDs, in order of preference: 1 to 32 characters of
	// A-Z, 0-9, dot and hyphen, at most 8. Two hosts use SMC if they have one in common.
	// Programs on one machine always have one, derived from the kernel's boot id. Empty means $GOSMC_UEIDS, a
	// list with commas; it and the variables below that are malformed count as empty.
	UEIDs []string

	// SMCRPeers says with which hosts connections are to use SMC-R: addresses or prefixes, with the
	// server's port if only connections to that are meant, as in "192.0.2.0/24", "192.0.2.7:8080"
	// or "[2001:db8::/32]:443". It counts for dialing, and for accepting connections from there.
	// Programs at these addresses must expect it, and have a UEID of ours: a program that speaks
	// plain TCP would get bytes that it does not understand. Empty means $GOSMC_SMCR_PEERS, and
	// without that only those that have TCP option 254.
	SMCRPeers []string

	// SMCRDevices are the addresses of this machine, or prefixes of them, over which SMC-R may
	// send: UDP port 4791. Empty means $GOSMC_SMCR_DEVICES, and without that the address of the TCP
	// connection. For further links it means the addresses of other interfaces on the same LAN: in
	// the same IP network, or where interfaces have PNETIDs, with the same one.
	//
	// "rdma:" and a name, such as "rdma:rxe0", let SMC-R use an RDMA device of the kernel at the
	// addresses that are its GIDs. Without such an entry none is used.
	SMCRDevices []string

	// SMCRLinks is how many links a link group of SMC-R has at most, 1 to 8, each between
	// interfaces of its own: where there are several at both ends, connections go on over another
	// link when one is lost. 0 means 2; version 2 of SMC-R has no more than that. 1 leaves other
	// interfaces alone.
	SMCRLinks int

	// SMCRConns is how many connections a link group of SMC-R has at most, 16 to 255: the lesser
	// number of both ends counts, and further connections get link groups of their own. 0 means
	// 255. Version 1 of SMC-R does not negotiate it: the server's number counts.
	SMCRConns int

	// SMCRSpread says how the connections of a link group are spread over its links: "connections",
	// as many on each, which is the default, or "bytes", so that those on each have written as much
	// in their lives. It counts when a connection begins, and for all when a link has come.
	SMCRSpread string

	// SMCRKeepAlive is how long nothing may have come over a link of SMC-R before the peer is asked
	// whether it is there (TEST LINK); without an answer within two seconds the link is lost. 0
	// means 30 seconds; negative asks only if the program turned on keepalive for a connection, in
	// the time that the connection gives.
	SMCRKeepAlive time.Duration

	// SMCRv1 offers and accepts version 1 of SMC-R too, which needs no UEID: between hosts of one
	// IP network. It runs over RoCEv2, as the other versions do, between link-local addresses of
	// the interfaces. Stock Linux kernels want RoCEv1 for it, which this package has not, so it is
	// for hosts that are known to do the same.
	SMCRv1 bool

	// Spin is the longest time that a Read or Write looks for the peer before it sleeps. It adapts
	// below that, and connections with a slow peer do not spin. 0 means 50 microseconds; negative
	// never spins.
	Spin time.Duration

	// ReadBuffer is the size of each connection's receive buffer in bytes, 16 KiB to 8 MiB,
	// rounded up to a power of two. Memory is only taken where the peer writes, and given
	// back when the connection is quiet. 0 chooses by the machine's caches, 1 to 4 MiB, or
	// 128 KiB and more where a control group has little memory.
	ReadBuffer int

	// MemoryBudget bounds the receive buffers of all connections together, in bytes, each counted
	// with its full size. It separately bounds the buffers of peers that are mapped here, and the
	// buffers of SMC-R, receive and send buffers. Above it connections use TCP. 0 means twice the
	// machine's memory, or half of the limit of the process's control group, if that is less.
	MemoryBudget int64

	// Users are the other users whose programs may share memory with us, if they admit us and
	// both use one run directory: "same" for none, "any" for all, users and "@" groups by name or
	// number, and exceptions behind "!". Empty means $GOSMC_USERS, or the lines in the configuration
	// file, else "any" where the run directory is the machine's, as packages prepare /run/gosmc, and
	// "same" elsewhere. Programs of our own user may always. An exception for a name that nobody has
	// leaves no other user.
	Users []string

	// AnyUser is the same as Users with "any". Users comes first.
	AnyUser bool

	// ShortAfter is after how many connections to a server that were too short to gain, one after
	// another, others stay TCP from their beginning, with the reason SHORT: one in 32 to 256 uses
	// SMC all the same, and as soon as one of these has gained all do again. Short is a connection
	// that is closed after fewer than 8 requests with answers and less than 256 KiB. All processes
	// of the program share the knowledge of a server. 0 means $GOSMC_SHORT_AFTER, or the value in
	// the configuration file, else 16; negative: none stays TCP for that. Where Require is set it
	// does not count.
	ShortAfter int

	// Logger gets events that an operator may want to know of. With nil they go to standard error
	// if GOSMC_LOG is stderr, and nowhere otherwise.
	Logger *slog.Logger
}
