package main

import (
	"slices"

	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/test/interop/talk"
)

// The runs of the ping-pong cases.
var (
	allSizes = []pingPong{
		{size: 1, rounds: 1000}, {size: 2, rounds: 1000}, {size: 63, rounds: 1000}, {size: 1024, rounds: 1000},
		{size: 1025, rounds: 1000}, {size: 4096, rounds: 1000}, {size: 65536, rounds: 1000}, {size: 1 << 20, rounds: 200},
	}
	withLoss = []pingPong{
		{size: 1, rounds: 1000}, {size: 1025, rounds: 300}, {size: 4096, rounds: 200}, {size: 65536, rounds: 50}, {size: 1 << 20, rounds: 5},
	}
	someSizes = []pingPong{
		{size: 1, rounds: 200}, {size: 4096, rounds: 200}, {size: 4097, rounds: 200}, {size: 65536, rounds: 200}, {size: 1 << 20, rounds: 10},
	}
)

// The conditions under which cases run. UDP sockets without privilege are the rule.
var (
	losing = conditions{loss: true}
	lossy  = conditions{lossy: true}
	caught = conditions{lossy: true, guard: true}
	ipv6   = conditions{ipv6: true}
	jumbo  = conditions{jumbo: true}
	packet = conditions{headers: udp.HeadersAlways}
	twin   = conditions{twin: true}
	device = conditions{device: true}
	both   = conditions{headers: udp.HeadersAlways, loss: true}
)

// The conversations of the cases of SMC-R.
var (
	echoes = visits(says(talk.Echo, 1), says(talk.Echo, 100), says(talk.Echo, 65_536), says(talk.Echo, 1_000_003), says(talk.Echo, 8<<20))
	// A program of this library has link groups of its own, and each conversation is another program.
	onDevice = visit{list: []conversation{
		says(talk.Echo, 1), says(talk.Echo, 65_536), says(talk.Echo, 1_000_003), says(talk.Duplex, 3_000_000),
		says(talk.Echo, 30_000).times(20), says(talk.Half, 300_000),
	}, groups: 6}
	bulk     = visits(says(talk.Duplex, 100_000_000))
	many     = visits(says(talk.Echo, 100_000).times(50), says(talk.Echo, 1000).times(50))
	growth   = visit{list: []conversation{says(talk.Echo, 30_000).times(40), says(talk.Duplex, 30_000).times(40)}, maxConns: 16, groups: 3}
	release0 = visit{list: []conversation{says(talk.Echo, 1_000_003), says(talk.Duplex, 1_000_000).times(4)}, version: "2.0"}
	ends     = visits(says(talk.Half, 300_000), says(talk.Unread, 100_000), says(talk.Reset, 100_000), says(talk.Echo, 1000))

	// Linux net/smc has limits. Data that it sends has to be shorter than a buffer, as it forgets
	// the urgent byte when all bytes before it are read while it waits for room. And a byte that is
	// read with MSG_OOB while there is nothing before it stays in the stream, for which the other
	// side waits.
	urgentSent  = visits(urgentData(talk.Urgent, 2), urgentData(talk.Urgent, 5000), urgentData(talk.UrgentInline, 1), urgentData(talk.UrgentInline, 5000), urgentData(talk.UrgentPush, 1_000_003))
	urgentTaken = visits(urgentData(talk.Urgent, 2), urgentData(talk.Urgent, 5000), urgentData(talk.UrgentInline, 1), urgentData(talk.UrgentInline, 5000))

	endsAndGone = visits(says(talk.Half, 300_000), says(talk.Unread, 100_000), says(talk.Reset, 100_000), says(talk.Gone, 1000), says(talk.Echo, 1000))

	// One connection after the other: rxe does a registration of memory again when it goes back to
	// a lost packet from before, which fails, and ends the queue pair. The kernel registers memory
	// for a connection while others have data on their way.
	underLoss = visits(says(talk.Echo, 1000), says(talk.Echo, 100_000), says(talk.Echo, 1_000_000), says(talk.Duplex, 3_000_000), says(talk.Half, 300_000))

	// Not Duplex: a connection of Linux one half of which has ended loses the bytes that are on
	// their way when its link fails.
	crowd      = says(talk.Both, 300_000).times(100)
	fourMovers = says(talk.Both, 6_000_000).times(4)

	declined = []string{"declined"}
	// On a slow machine a turn may come after the 10 s for which gosmc dump waits.
	lateOrDeclined = []string{"declined", "timeout"}
	endOfLink      = []string{"NAK", "timeout", "reset"}
	staleToo       = []string{"NAK", "timeout", "reset", "violation"} // where soft-RoCE sends old messages again over a link that was given up, once its path is back
	reset          = []string{"reset"}                                // of TCP, which is not always faster than its end in order
	abortsTwice    = []string{"reset", "violation", "declined"}       // programs that close with bytes unread: Linux answers by two Aborts
	portDown       = []string{"guest link_downed"}
	ofFailover     = ofVanished
	ofLeft         = []string{"guest link_downed", "guest send_err"}
	ofVanished     = []string{"guest link_downed", "guest send_err", "guest retry_exceeded_err", "guest out_of_seq_request", "guest rcvd_seq_err"}
)

// Counters that show that the network has lost packets, or it would prove nothing.
var (
	lostToGuest = []string{"our rcvd_seq_err", "our retransmitted", "guest out_of_seq_request"}
	lostToUs    = []string{"guest rcvd_seq_err", "guest completer_retry_err", "our out_of_seq_request"}
	lostBoth    = slices.Concat(lostToGuest, lostToUs)
)

// allCases returns the cases, in the order in which they run. Those with jumbo frames are at the
// end, since a change of the MTU takes the guest's device away.
func allCases() []testCase {
	const (
		asClient = "ibv_rc_pingpong is the server and we are its client"
		asServer = "ibv_rc_pingpong is our client"
		toGuest  = "RDMA WRITEs of 1 B to 1 MiB into the guest"
		toUs     = "RDMA WRITEs of 1 B to 1 MiB by the guest into our memory"
	)
	client, server, write, written := pingPongs(true, allSizes), pingPongs(false, allSizes), writes(true), writes(false)
	end := refuseRegion - 10
	return []testCase{
		{name: "guest/panic", what: "the guest's kernel panics: the case runs once more, with another guest", run: panicOnce},

		{name: "smcr/echo/client", what: "SMC-R: echo of 1 B to 8 MiB, the guest's kernel is the server", run: echoes.client},
		{name: "smcr/echo/server", what: "SMC-R: the same, the guest's kernel is the client", run: echoes.server},
		{name: "smcr/duplex/client", what: "SMC-R: 100 MB each way at once, we are the client", run: bulk.client},
		{name: "smcr/duplex/server", what: "SMC-R: 100 MB each way at once, the guest is the client", run: bulk.server},
		{name: "smcr/many/client", what: "SMC-R: 50 connections at once, then 50 more in the same link group, we are the client", run: many.client},
		{name: "smcr/many/server", what: "SMC-R: the same, the guest is the client", run: many.server},
		{name: "smcr/growth/client", what: "SMC-R: 40 connections at once in link groups that take 16, we are the client", run: growth.client},
		{name: "smcr/growth/server", what: "SMC-R: the same, the guest is the client", run: growth.server},
		{name: "smcr/release/client", what: "SMC-R: version 2.0, where the guest has 2.1; we are the client", run: release0.client},
		{name: "smcr/release/server", what: "SMC-R: the same, the guest is the client", run: release0.server},
		{name: "smcr/end/client", what: "SMC-R: half close, close with unread data, reset; we are the client", run: ends.client, mayFind: reset},
		{
			name: "smcr/end/server", what: "SMC-R: the same, and the guest's process is killed; the guest is the client", run: endsAndGone.server, mayFind: reset,
		},
		{name: "smcr/urgent/client", what: "SMC-R: MSG_OOB both ways, in line and out of line, and with a full window; we are the client", run: urgentSent.client},
		{name: "smcr/urgent/server", what: "SMC-R: MSG_OOB both ways, in line and out of line; the guest is the client", run: urgentTaken.server},
		{
			name: "smcr/loss/client", what: "SMC-R: echo and duplex where packets are lost, we are the client",
			run: underLoss.client, conditions: lossy, provokes: []string{"guest out_of_seq_request", "guest rcvd_seq_err"}, finds: []string{"NAK"},
		},
		{
			name: "smcr/loss/server", what: "SMC-R: the same, the guest is the client",
			run: underLoss.server, conditions: lossy, provokes: []string{"guest out_of_seq_request", "guest rcvd_seq_err"}, finds: []string{"NAK"},
		},
		{name: "smcr/mismatch/client", what: "SMC-R: no UEID in common, the guest declines; then TCP", run: strangers.client, finds: declined},
		{name: "smcr/mismatch/server", what: "SMC-R: no UEID in common, we decline; then TCP", run: strangers.server, finds: declined},
		{name: "smcr/decline/client", what: "SMC-R: we dial without a device, and decline; then TCP", run: deviceless.client, finds: declined},
		{name: "smcr/decline/server", what: "SMC-R: the guest dials without a UEID, and declines; then TCP", run: nameless.server, finds: declined},
		{name: "smcr/killed/client", what: "SMC-R: the guest's server is killed in the middle of a transfer; then another connection", run: killed.client, mayFind: reset},
		{name: "smcr/killed/server", what: "SMC-R: the same, the guest is the client", run: killed.server, mayFind: reset},
		{
			name: "smcr/vanished/client", what: "SMC-R: the guest's interface goes down in the middle of a transfer; then another connection",
			run: vanished.client, tolerates: ofVanished, mayFind: endOfLink,
		},
		{name: "smcr/vanished/server", what: "SMC-R: the same, the guest is the client", run: vanished.server, tolerates: ofVanished, mayFind: endOfLink},
		{name: "smcr/agent/client", what: "SMC-R: two processes of ours share an address and gosmc agent, and dial the guest", run: sharedClient},
		{name: "smcr/agent/server", what: "SMC-R: the same, the guest is the client of both", run: sharedServer},
		{
			name: "smcr/left/client", what: "SMC-R: a process of ours dials the guest and ends right after Close; gosmc agent answers the guest's queue pair",
			run: leftClient, tolerates: ofLeft, mayFind: endOfLink,
		},
		{
			name: "smcr/left/server", what: "SMC-R: the guest is the client of a process of ours that is killed; gosmc agent answers the guest's queue pair",
			run: leftServer, tolerates: ofLeft, mayFind: endOfLink,
		},
		{name: "smcr/links/client", what: "SMC-R: two adapters on each side, and two links; we are the client", run: twoLinks(true), conditions: twin},
		{name: "smcr/links/server", what: "SMC-R: the same, the guest is the client", run: twoLinks(false), conditions: twin},
		{
			name: "smcr/failover/client", what: "SMC-R: an interface goes down in the middle of a transfer, either end's of either link, and returns; we are the client",
			run: failover{fourMovers, downs}.client, conditions: twin, tolerates: ofFailover, mayFind: staleToo,
		},
		{
			name: "smcr/failover/server", what: "SMC-R: the same, the guest is the client",
			run: failover{fourMovers, downs}.server, conditions: twin, tolerates: ofFailover, mayFind: staleToo,
		},
		{
			name: "smcr/silence/client", what: "SMC-R: packets of a link vanish in the middle of a transfer, both ways or one; we are the client",
			run: failover{fourMovers, silences}.client, conditions: twin, tolerates: ofFailover, mayFind: staleToo,
		},
		{
			name: "smcr/silence/server", what: "SMC-R: the same, the guest is the client",
			run: failover{fourMovers, silences}.server, conditions: twin, tolerates: ofFailover, mayFind: staleToo,
		},
		{
			name: "smcr/removed/client", what: "SMC-R: a device is removed in the middle of a transfer, either of the guest's or one of ours, and comes back; we are the client",
			run: failover{fourMovers, removals}.client, conditions: twin, tolerates: ofFailover, mayFind: staleToo,
		},
		{
			name: "smcr/removed/server", what: "SMC-R: the same, the guest is the client",
			run: failover{fourMovers, removals}.server, conditions: twin, tolerates: ofFailover, mayFind: staleToo,
		},
		{
			name: "smcr/asymmetric/client", what: "SMC-R: the guest gets its second adapter in the middle of a transfer; we are the client",
			run: oneSided{fourMovers, false}.client, conditions: twin, tolerates: ofFailover, mayFind: staleToo,
		},
		{
			name: "smcr/asymmetric/server", what: "SMC-R: we get our second adapter in the middle of a transfer; the guest is the client",
			run: oneSided{fourMovers, true}.server, conditions: twin, tolerates: ofFailover, mayFind: staleToo,
		},
		{
			name: "smcr/crowd/client", what: "SMC-R: 100 connections with traffic when an interface goes down, either end's; we are the client",
			run: failover{crowd, downs[1:3]}.client, conditions: twin, tolerates: ofFailover, mayFind: staleToo,
		},
		{
			name: "smcr/crowd/server", what: "SMC-R: the same, the guest is the client",
			run: failover{crowd, downs[1:3]}.server, conditions: twin, tolerates: ofFailover, mayFind: staleToo,
		},

		{
			name: "smcr/run/server", what: "SMC-R: redis-server and nginx under gosmc run, redis-cli and curl on AF_SMC sockets of the guest",
			run: runServer, mayFind: abortsTwice,
		},
		{name: "smcr/run/client", what: "SMC-R: the same, with the servers in the guest", run: runClient, mayFind: abortsTwice},
		{name: "smcr/sockets", what: "SMC-R: what the guest's kernel says of its sockets and counts, as gosmc ss and metrics read it", run: kernelSockets},
		{
			name: "smcr/doctor", what: "gosmc doctor where AF_SMC sockets of the guest listen: healthy, and with faults", run: doctor,
			finds: declined, mayFind: []string{"NAK", "timeout", "reset"}, tolerates: ofVanished,
		},
		{name: "smcr/rush/server", what: "SMC-R: 500 programs of the guest dial at once", run: rush{500}.server, mayFind: lateOrDeclined},
		{
			name: "smcr/window/client", what: "SMC-R: the window is full, the guest reads everything, and the word of it is lost with its link; we are the client",
			run: fullWindow{true}.run, conditions: twin, tolerates: ofFailover, mayFind: staleToo,
		},
		{
			name: "smcr/window/server", what: "SMC-R: the same, the guest is the client",
			run: fullWindow{false}.run, conditions: twin, tolerates: ofFailover, mayFind: staleToo,
		},
		{
			name: "smcr/word/client", what: "SMC-R: the guest's program is killed with a full window, and its kernel's word of it is lost with its link; we are the client",
			run: lostWord{}.client, conditions: twin, tolerates: ofFailover, mayFind: staleToo,
		},
		{name: "smcr/guard", what: "SMC-R where packets are lost that must not be: the checks of counters and of gosmc dump have to object", run: underLoss.client, conditions: caught},

		{name: "pingpong/client", what: asClient, run: client},
		{name: "pingpong/server", what: asServer, run: server},
		{name: "pingpong/client/loss", what: asClient, run: pingPongs(true, withLoss), conditions: losing, provokes: lostBoth},
		{name: "pingpong/server/loss", what: asServer, run: pingPongs(false, withLoss), conditions: losing, provokes: lostBoth},
		{name: "pingpong/client/ipv6", what: asClient, run: pingPongs(true, someSizes), conditions: ipv6},
		{name: "pingpong/server/packet", what: asServer, run: pingPongs(false, someSizes), conditions: packet},

		{name: "write/to-guest", what: toGuest, run: write},
		{name: "write/from-guest", what: toUs, run: written},
		{name: "write/to-guest/loss", what: toGuest, run: write, conditions: losing, provokes: lostToGuest},
		{name: "write/from-guest/loss", what: toUs, run: written, conditions: losing, provokes: lostToUs},
		{name: "write/to-guest/ipv6", what: toGuest, run: write, conditions: ipv6},
		{name: "write/from-guest/ipv6", what: toUs, run: written, conditions: ipv6},
		{name: "write/to-guest/packet", what: toGuest, run: write, conditions: packet},
		{name: "write/from-guest/packet-loss", what: toUs, run: written, conditions: both, provokes: lostToUs},

		{
			name: "device/client", what: "SMC-R: the guest's program uses this library on the guest's rxe, and serves us, who use software RoCE",
			run: onDevice.client, conditions: device,
		},
		{name: "device/server", what: "SMC-R: the same, the guest's program is the client", run: onDevice.server, conditions: device},
		{name: "device/killed/server", what: "SMC-R: the guest's program is killed in the middle of a transfer; then another connection", run: deviceKilled.server, conditions: device, mayFind: reset},
		{
			name: "device/down/client", what: "SMC-R: the interface of the guest's device goes down in the middle of a transfer; then another connection; we are the client",
			run: deviceDown.client, conditions: device, tolerates: ofVanished, mayFind: endOfLink,
		},
		{name: "device/down/server", what: "SMC-R: the same, the guest is the client", run: deviceDown.server, conditions: device, tolerates: ofVanished, mayFind: endOfLink},
		{
			name: "device/removed/client", what: "SMC-R: the guest's device is removed in the middle of a transfer; then another connection; we are the client",
			run: deviceGone.client, conditions: device, tolerates: ofVanished, mayFind: endOfLink,
		},
		{name: "device/removed/server", what: "SMC-R: the same, the guest is the client", run: deviceGone.server, conditions: device, tolerates: ofVanished, mayFind: endOfLink},

		{name: "uverbs/list", what: "internal/uverbs lists the guest's devices", run: uverbsListed, tolerates: portDown},
		{name: "uverbs/loop", what: "internal/uverbs: two queue pairs of an rxe device move data, every byte is compared", run: uverbsCase("loop rxe1", false)},
		{
			name: "uverbs/errors", what: "internal/uverbs: wrong keys, ranges and rights; flushed work", run: uverbsCase("errors rxe1", false),
			tolerates: []string{"guest send_err", "guest out_of_seq_request", "guest rcvd_seq_err"},
		},
		{name: "uverbs/down", what: "internal/uverbs: the interface of the device goes down and comes up", run: uverbsCase("down rxe1 eth2", false), tolerates: portDown},
		{name: "uverbs/removed", what: "internal/uverbs: the device is removed while it is used", run: uverbsCase("removed rxe1", true)},

		{
			name: "refuse/access/by-guest", what: "our WRITE with a wrong key, and outside the region: remote access error",
			provokes: []string{"our rcvd_fatal_err"},
			run:      refused(badWrite(0, messageLen, 1), badWrite(0, messageLen, 1<<8), badWrite(end, 11, 0), badWrite(-1, 5000, 0)),
		},
		{
			name: "refuse/access/by-us", what: "the same from the guest, and without permission to write",
			provokes: []string{"our sent_fatal_err"}, tolerates: []string{"our dropped"},
			run: refused(badGuestWrite(0, messageLen, 1, true), badGuestWrite(0, messageLen, 1<<8, true),
				badGuestWrite(end, 11, 0, true), badGuestWrite(-1, 5000, 0, true), badGuestWrite(0, 5000, 0, false)),
		},
		{
			name: "refuse/opcode", what: "a WRITE to a queue pair that allows none: invalid request, both ways",
			provokes: []string{"our rcvd_fatal_err", "our sent_fatal_err"}, tolerates: []string{"our dropped"}, run: notAllowed,
		},
		{
			name: "refuse/ended", what: "the guest sends to a queue pair that is gone: remote operation error, not again for ever",
			provokes: []string{"our device unknown_qp"}, tolerates: []string{"guest completer_retry_err"}, run: refused(endedPeer),
		},
		{
			name: "refuse/length/by-guest", what: "our SEND is longer than the guest's receive: remote operation error, as rxe has it",
			provokes: []string{"our rcvd_fatal_err"}, run: refused(tooLong(16, messageLen), tooLong(2048, 3000)),
		},
		{
			name: "refuse/length/by-us", what: "the guest's SEND is longer than our receive: invalid request",
			provokes: []string{"our sent_fatal_err"}, tolerates: []string{"our dropped"},
			run: refused(guestTooLong(16, messageLen), guestTooLong(2048, 3000)),
		},
		{
			name: "rnr/by-guest", what: "our SEND before the guest's receive: RNR NAK, and on when there is one",
			provokes:  []string{"our rcvd_rnr_err", "guest send_rnr_err", "our rewinds", "our retransmitted"},
			tolerates: []string{"our rcvd_seq_err", "guest out_of_seq_request"}, // of packets behind
			run:       refused(lateReceive),
		},
		{
			name: "rnr/by-us", what: "the same from the guest",
			provokes:  []string{"our send_rnr_err", "guest rcvd_rnr_err"},
			tolerates: []string{"our sent_seq_err", "our out_of_seq_request", "guest rcvd_seq_err"},
			run:       refused(guestLateReceive),
		},
		{
			name: "rnr/never", what: "no receive at all: both give up",
			provokes: []string{"our rcvd_rnr_err", "guest send_rnr_err", "our send_rnr_err", "guest rcvd_rnr_err", "guest retry_rnr_exceeded_err"},
			tolerates: []string{"our rewinds", "our retransmitted", "our rcvd_seq_err", "our sent_seq_err", "our out_of_seq_request", "our dropped",
				"guest rcvd_seq_err", "guest out_of_seq_request"},
			run: neverReceive,
		},
		{
			name: "gone", what: "the other queue pair is gone: both give up, at once where ours was given up",
			provokes:  []string{"our timeouts", "guest retry_exceeded_err"},
			tolerates: []string{"our rewinds", "our retransmitted", "our dropped"}, run: neverAnswer,
		},

		{name: "limits/overcommit", what: "SMC-D where the kernel promises no memory: no page is missing, then TCP", run: strictOvercommit},
		{name: "limits/mappings", what: "SMC-D until the mappings of a process run out, then TCP", run: fewMappings},
		{name: "limits/cgroup", what: "SMC-D of a process that may have 64 MiB, to one that does not read", run: smallGroup},

		{name: "pingpong/client/jumbo", what: asClient, run: pingPongs(true, someSizes), conditions: jumbo},
		{name: "pingpong/server/jumbo", what: asServer, run: pingPongs(false, someSizes), conditions: jumbo},
		{name: "write/to-guest/jumbo", what: toGuest, run: write, conditions: jumbo},
		{name: "write/from-guest/jumbo", what: toUs, run: written, conditions: jumbo},
	}
}
