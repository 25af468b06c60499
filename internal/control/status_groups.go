package control

// The link groups, links and devices of a host. Names and words are those that operators know from
// smcr and smcd.

// A StatusGroup is a link group: all connections with one peer, in one role.
type StatusGroup struct {
	ID      uint32 `json:"lg_id"`   // ours, unique in the host
	Mode    string `json:"mode"`    // "SMC-D", "SMC-R"
	Version string `json:"version"` // "2.1"; empty before the first contact is over
	State   string `json:"state"`   // "Pending": first contact under way; "Active"
	Role    string `json:"role"`    // ours: "client" or "server"
	// of SMC-R, its redundancy: "NONE", "SINGLE", "ASYMMETRIC", "SYMMETRIC"; empty for SMC-D
	Type        string `json:"type"`
	VLAN        uint16 `json:"vlan"`    // 0: none
	PNETID      string `json:"pnet_id"` // empty: none
	EID         string `json:"eid"`     // agreed on; empty in version 1
	Peer        string `json:"peer"`    // of SMC-R: its GID; of SMC-D: its device's GID
	PeerID      string `json:"peer_id"` // of SMC-R: instance and MAC address
	PeerHost    string `json:"peer_host"`
	PeerOS      string `json:"peer_os"`
	Direct      bool   `json:"direct"`      // of SMC-R: no router in between
	Conns       int    `json:"conns"`       // with those in the handshake
	MaxConns    int    `json:"max_conns"`   // as agreed
	RMBBytes    int64  `json:"rmb_bytes"`   // of SMC-R: all our RMBs, those in use and those kept
	RMBs        int    `json:"rmbs"`        // how many these are
	IdleRMBs    int    `json:"idle_rmbs"`   // of them, that wait for a connection
	Quarantined int    `json:"quarantined"` // of them, that the peer may still write, and nobody uses again
	// of SMC-R: links that it has lost, or given up, while it had others
	Failovers uint64 `json:"failovers"`
	Moved     uint64 `json:"moved"` // connections that went on over another link then
	// of SMC-R, the unit that its links share evenly: "connections", "bytes"
	Spread string   `json:"spread"`
	Links  LinkList `json:"links"`
}

// A LinkList has the links of a link group.
type LinkList = boundedList[StatusLink]

// A StatusLink is a link of a group of SMC-R: a queue pair of ours, and one of the peer's.
type StatusLink struct {
	Number uint8 `json:"link"` // in its group, from 1; 0: the server has not told it yet
	// "LINK_ACTIVATING", "LINK_ACTIVE"; "LINK_LEAVING": it ends in order, or has and the peer has
	// not answered; "LINK_INACTIVE"
	State     string `json:"state"`
	NetDev    string `json:"net_dev"`  // interface of our device
	Device    string `json:"device"`   // address of our device
	Port      int    `json:"port"`     // of the device: always 1
	UID       uint32 `json:"link_uid"` // ours: CONFIRM LINK tells it to the peer
	LocalGID  string `json:"local_gid"`
	PeerGID   string `json:"peer_gid"`
	LocalQPN  uint32 `json:"local_qpn"`
	PeerQPN   uint32 `json:"peer_qpn"`
	MTU       int    `json:"mtu"` // of the path, in bytes of payload; 0: not agreed yet
	Conns     int    `json:"conns"`
	Why       string `json:"why,omitempty"` // it has failed
	SentCDC   uint64 `json:"sent_cdc"`
	RcvdCDC   uint64 `json:"rcvd_cdc"`
	SentLLC   uint64 `json:"sent_llc"`
	RcvdLLC   uint64 `json:"rcvd_llc"`
	SentBytes uint64 `json:"sent_bytes"` // by RDMA WRITE

	SentPackets   uint64 `json:"sent_pkts"`
	RcvdPackets   uint64 `json:"rcvd_pkts"`
	Retransmitted uint64 `json:"retransmitted"` // of SentPackets
	RoundTrip     uint64 `json:"round_trip_ns"` // smoothed, nanoseconds; 0: not known
}

// A StatusDevice is a device of SMC-R that the host has open, or could not open. It is opened when
// a connection first needs it.
type StatusDevice struct {
	NetDev   string `json:"net_dev"`  // interface; empty if it could not be opened
	Address  string `json:"address"`  // that its packets come from
	Port     int    `json:"port"`     // always 1: a device is one address
	State    string `json:"state"`    // "ACTIVE", "DOWN", "FAILED"
	Why      string `json:"why"`      // not ACTIVE
	Type     string `json:"type"`     // "RoCEv2"
	Critical bool   `json:"critical"` // a link group would end with it
	GID      string `json:"gid"`
	MAC      string `json:"mac"`
	MTU      int    `json:"mtu"` // path MTU, bytes of payload
	Links    int    `json:"links"`
	PNETID   string `json:"pnet_id"` // empty: none

	RcvdPackets uint64 `json:"rcvd_pkts"`
	BadICRC     uint64 `json:"rcvd_icrc_err"`
	UnknownQP   uint64 `json:"unknown_qp"`
	SendErrors  uint64 `json:"send_err"`
}

// A MessageCount says how many messages of a type there were, in both directions.
type MessageCount struct {
	Type string `json:"type"` // "Proposal", "CONFIRM LINK"
	Sent uint64 `json:"sent"`
	Rcvd uint64 `json:"rcvd"`
}
