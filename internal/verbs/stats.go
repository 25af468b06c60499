package verbs

// QPStats has the counters of a queue pair. Where rxe has a counter of the same meaning its name is
// given.
type QPStats struct {
	SentPackets   uint64 `json:"sent_pkts"` // with those sent again, acknowledgements too
	SentBytes     uint64 `json:"sent_bytes"`
	RcvdPackets   uint64 `json:"rcvd_pkts"` // that were addressed to it and intact
	RcvdBytes     uint64 `json:"rcvd_bytes"`
	SentAcks      uint64 `json:"sent_acks"` // of SentPackets: ACK and NAK
	RcvdAcks      uint64 `json:"rcvd_acks"`
	Messages      uint64 `json:"messages"`       // of ours, acknowledged
	RcvdMessages  uint64 `json:"rcvd_messages"`  // of the peer's, complete
	Retransmitted uint64 `json:"retransmitted"`  // packets sent again
	Rewinds       uint64 `json:"rewinds"`        // completer_retry_err: times sending went back
	Timeouts      uint64 `json:"timeouts"`       // of the verbs timer
	Probes        uint64 `json:"probes"`         // of the fast timer, before it
	RcvdSeqNaks   uint64 `json:"rcvd_seq_err"`   // rcvd_seq_err
	RcvdRNRNaks   uint64 `json:"rcvd_rnr_err"`   // rcvd_rnr_err
	RcvdFatalNaks uint64 `json:"rcvd_fatal_err"` // NAK invalid request, access, operation
	SentSeqNaks   uint64 `json:"sent_seq_err"`
	SentRNRNaks   uint64 `json:"send_rnr_err"` // send_rnr_err
	SentFatalNaks uint64 `json:"sent_fatal_err"`
	OutOfSequence uint64 `json:"out_of_seq_request"` // out_of_seq_request: beyond the expected one
	Duplicates    uint64 `json:"duplicate_request"`  // duplicate_request
	AckUnexpected uint64 `json:"unexpected_acks"`    // for packets never sent, or long done
	Dropped       uint64 `json:"dropped"`            // in a state that takes none, or of no use to us
	RoundTrip     uint64 `json:"round_trip_ns"`      // smoothed, nanoseconds; 0 while unknown
	Window        uint64 `json:"window"`             // packets that may be unacknowledged now
	Budget        uint64 `json:"budget"`             // the same of all queue pairs to the peer's address
}

// DeviceStats counts the packets that a device received and could not use, beside the counters of
// its queue pairs.
type DeviceStats struct {
	RcvdPackets    uint64 `json:"rcvd_pkts"`
	Truncated      uint64 `json:"truncated"`     // shorter than its headers say, or cut by the socket
	Malformed      uint64 `json:"malformed"`     // version, opcode, pad
	UnknownQP      uint64 `json:"unknown_qp"`    // no queue pair of that number
	WrongPeer      uint64 `json:"wrong_peer"`    // not from the peer of the queue pair
	WrongPKey      uint64 `json:"wrong_pkey"`    // another partition
	BadICRC        uint64 `json:"rcvd_icrc_err"` // damaged on the way
	SolvedICRC     uint64 `json:"icrc_solved"`   // right with an IPv4 identification that had to be found
	SendErrors     uint64 `json:"send_err"`      // the socket refused a batch
	ReceiveErrors  uint64 `json:"rcvd_err"`      // the socket failed to receive one
	CongestionNote uint64 `json:"rcvd_cnp"`      // congestion notification packets, ignored
	HandedOn       uint64 `json:"handed_on"`     // merged with ours, and sent on to their owners
	HandedOver     uint64 `json:"handed_over"`   // ours, that others have sent on
	HandOnErrors   uint64 `json:"hand_on_err"`   // lost on the way, or from no process of the port
}
