package clc

import (
	"encoding/binary"

	"github.com/gosmc/smc/wire"
)

// ParamsR has the parameters that an SMC-R peer needs in order to send to the message's sender.
//
//	offset  size  field
//	     8     8  peer ID
//	    16    16  GID
//	    32     6  MAC
//	    38     3  QPN
//	    41     4  RKey
//	    45     1  RMB element index
//	    46     4  alert token
//	    50     1  RMB element size (4 bits), MTU (4)
//	    51     1  reserved
//	    52     8  RMB virtual address
//	    60     1  reserved
//	    61     3  initial PSN
//
// Layout: RFC 7609 p.98, SMCv2 p.66.
type ParamsR struct {
	PeerID     wire.PeerID
	GID        wire.GID
	MAC        wire.MAC // next hop on a direct link, else informational
	QPN        wire.QPN
	RKey       wire.RKey
	RMBEIndex  uint8 // 1 to 255 (RFC 7609 p.15); 0 is not rejected here
	AlertToken wire.AlertToken
	RMBESize   wire.SizeCode
	MTU        wire.MTU // may be reserved unless it is a first contact
	RMBAddr    uint64   // any number: an address in the peer's terms
	PSN        wire.PSN
}

func (p *ParamsR) append(b []byte) []byte {
	b = append(b, p.PeerID[:]...)
	b = append(b, p.GID[:]...)
	b = append(b, p.MAC[:]...)
	b = appendUint24(b, uint32(p.QPN))
	b = binary.BigEndian.AppendUint32(b, uint32(p.RKey))
	b = append(b, p.RMBEIndex)
	b = binary.BigEndian.AppendUint32(b, uint32(p.AlertToken))
	b = append(b, byte(p.RMBESize)<<4|byte(p.MTU), 0)
	b = binary.BigEndian.AppendUint64(b, p.RMBAddr)
	b = append(b, 0)
	return appendUint24(b, uint32(p.PSN))
}

// parseParamsR decodes the parameters of the message b, which has at least 64 bytes.
func parseParamsR(b []byte) *ParamsR {
	return &ParamsR{
		PeerID:     wire.PeerID(b[8:16]),
		GID:        wire.GID(b[16:32]),
		MAC:        wire.MAC(b[32:38]),
		QPN:        wire.QPN(uint24(b[38:])),
		RKey:       wire.RKey(binary.BigEndian.Uint32(b[41:])),
		RMBEIndex:  b[45],
		AlertToken: wire.AlertToken(binary.BigEndian.Uint32(b[46:])),
		RMBESize:   wire.SizeCode(b[50] >> 4),
		MTU:        wire.MTU(b[50] & 0x0f),
		RMBAddr:    binary.BigEndian.Uint64(b[52:]),
		PSN:        wire.PSN(uint24(b[61:])),
	}
}

func (p *ParamsR) validate(message string) error {
	switch {
	case p.QPN > wire.MaxQPN:
		return invalid(message, "QPN %v has more than 24 bits", p.QPN)
	case p.PSN > wire.MaxPSN:
		return invalid(message, "PSN %v has more than 24 bits", p.PSN)
	case p.RMBESize > wire.MaxSizeCode:
		return invalid(message, "RMB element size code %d has more than 4 bits", uint8(p.RMBESize))
	case p.MTU > 15:
		return invalid(message, "MTU %d has more than 4 bits", uint8(p.MTU))
	}
	return nil
}

// ParamsD has the parameters that an SMC-D peer needs in order to send to the message's sender.
//
//	offset  size  field
//	     8     8  GID                 part 1 of an Extended GID
//	    16     8  DMB token
//	    24     1  DMB element index
//	    25     1  DMB element size (4 bits), reserved (4)
//	    26     2  reserved
//	    28     4  link ID
//
// The CHID and part 2 of the GID follow at offsets 32 and 66, in version 2 only: see [Accept].
//
// Layout: SMCv2 p.63.
type ParamsD struct {
	GID       wire.ISMGID // Lo is zero unless CHID belongs to an Emulated-ISM device
	CHID      wire.CHID   // version 2 only
	Token     wire.Token
	DMBEIndex uint8 // from 0
	DMBESize  wire.SizeCode
	LinkID    wire.LinkID
}

func (p *ParamsD) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, p.GID.Hi)
	b = binary.BigEndian.AppendUint64(b, uint64(p.Token))
	b = append(b, p.DMBEIndex, byte(p.DMBESize)<<4, 0, 0)
	return binary.BigEndian.AppendUint32(b, uint32(p.LinkID))
}

// parseParamsD decodes the parameters of the message b, which has at least 32 bytes.
func parseParamsD(b []byte) *ParamsD {
	return &ParamsD{
		GID:       wire.ISMGID{Hi: binary.BigEndian.Uint64(b[8:])},
		Token:     wire.Token(binary.BigEndian.Uint64(b[16:])),
		DMBEIndex: b[24],
		DMBESize:  wire.SizeCode(b[25] >> 4),
		LinkID:    wire.LinkID(binary.BigEndian.Uint32(b[28:])),
	}
}

func (p *ParamsD) validate(message string, v Version) error {
	switch {
	case p.DMBESize > wire.MaxSizeCode:
		return invalid(message, "DMB element size code %d has more than 4 bits", uint8(p.DMBESize))
	case v == V1 && p.CHID.IsEmulated():
		return invalid(message, "Emulated-ISM device %v in version 1", p.CHID)
	case p.GID.Lo != 0 && !p.CHID.IsEmulated():
		return invalid(message, "Extended GID %v with CHID %v of a native ISM device", p.GID, p.CHID)
	}
	return nil
}
