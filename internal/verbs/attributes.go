package verbs

import (
	"crypto/rand"
	"encoding/binary"

	"github.com/gosmc/smc/wire"
)

// RTR has the attributes that a queue pair needs before it can receive: IBTA 11.2.4.2.
type RTR struct {
	RemoteGID   wire.GID
	RemoteQPN   wire.QPN
	PathMTU     wire.MTU // at most the device's; the smaller one of both sides
	RecvPSN     wire.PSN // of the peer's first packet
	MinRNRTimer uint8    // code, 5 bits: how long the peer waits when no receive is posted
}

// RTS has the attributes that a queue pair needs before it can send: IBTA 11.2.4.2.
type RTS struct {
	SendPSN    wire.PSN // of our first packet
	Timeout    uint8    // local ACK timeout, 4.096 us << Timeout; 0: wait forever
	RetryCount uint8    // timeouts and sequence NAKs without progress before giving up, 0 to 7
	RNRRetry   uint8    // the same for a peer that has no receive posted; 7: no limit
}

// RandomPSN returns a first packet sequence number that nobody can guess.
func RandomPSN() wire.PSN {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return wire.PSN(binary.LittleEndian.Uint32(b[:])) & wire.MaxPSN
}
