package ism

import (
	"encoding/binary"

	"github.com/gosmc/smc/wire"
)

// version is the version of the peering protocol, of the bell segment and of the DMB element.
const version = 1

// A kind is the first byte of a message.
type kind uint8

const (
	kindHello       kind = 1 // opens the peering, both ways; carries the sender's bell
	kindRefuse      kind = 2 // answers a Hello; the connection ends
	kindAttach      kind = 3 // asks the owner of a DMB for its memory
	kindAttachReply kind = 4 // answers Attach; carries the memory
	kindRevoke      kind = 5 // owner: the DMB is no more, unmap it when it is not in use
	kindDrop        kind = 6 // attacher: no longer mapped, cannot be used again
	kindSignal      kind = 7 // bytes for the layer above
)

// String returns the message's name as docs/shared-memory.md spells it.
func (k kind) String() string {
	switch k {
	case kindHello:
		return "Hello"
	case kindRefuse:
		return "Refuse"
	case kindAttach:
		return "Attach"
	case kindAttachReply:
		return "AttachReply"
	case kindRevoke:
		return "Revoke"
	case kindDrop:
		return "Drop"
	case kindSignal:
		return "Signal"
	}
	return "unknown"
}

// An attachStatus is the outcome that AttachReply carries.
type attachStatus uint32

const (
	attachOK        attachStatus = 0 // one descriptor comes along
	attachUnknown   attachStatus = 1 // no DMB has this token
	attachTaken     attachStatus = 2 // its memory was handed out before
	attachSize      attachStatus = 3 // it has another size
	attachResources attachStatus = 4 // the owner could not send the descriptor
)

// Lengths in bytes. Only a Signal varies.
const (
	headerLen      = 8
	helloLen       = 72
	refuseLen      = 16
	attachLen      = 24
	attachReplyLen = 32
	tokenLen       = 16 // Revoke and Drop
	maxMessage     = headerLen + MaxSignal
)

const helloMagic = "gosmcISM"

// A message is any message of the peering; kind says which fields count. Every message starts with
//
//	offset  size  field
//	     0     1  kind
//	     1     1  version   1
//	     2     2  length    of the whole message
//	     4     4  reserved  sent as zero, not checked
//
// Hello, 72 bytes, two descriptors: the bell memfd and the chime.
//
//	 8     8  magic     "gosmcISM"
//	16    16  GID of the sender
//	32    16  GID of the receiver, as the sender knows it
//	48    16  nonce     random; the bell's header repeats it
//	64     4  slots     32768
//	68     4  options   1: the sender has a tray and uses the receiver's; others are ignored
//
// Refuse, 16 bytes.
//
//	 8     4  reason    1 version, 2 user, 3 GID, 4 limit, 5 malformed
//	12     4  reserved
//
// Attach, 24 bytes.
//
//	 8     8  token
//	16     4  size      of the element, as the sender knows it
//	20     4  reserved
//
// AttachReply, 32 bytes, one descriptor if the status is 0, else none.
//
//	 8     8  token
//	16     4  size      of the element; zero unless the status is 0, as slot
//	20     4  slot      in the sender's bell
//	24     4  status    0 attached, 1 unknown, 2 taken, 3 size, 4 resources
//	28     4  reserved
//
// Revoke and Drop, 16 bytes.
//
//	8     8  token
//
// Signal, 8..264 bytes.
//
//	8     -  payload   0..256 bytes
//
// Integers in messages are big-endian, as in every other message of SMC, so that a trace looks
// the same on all machines; words in shared memory are in host order.
type message struct {
	kind    kind
	gid     wire.ISMGID
	peerGID wire.ISMGID
	nonce   [16]byte
	slots   uint32
	options uint32
	reason  refusal
	token   wire.Token
	size    uint32
	slot    uint32
	status  attachStatus
	payload []byte // aliases the buffer that was parsed
}

// length returns the number of bytes that append adds.
func (m *message) length() int {
	switch m.kind {
	case kindHello:
		return helloLen
	case kindRefuse:
		return refuseLen
	case kindAttach:
		return attachLen
	case kindAttachReply:
		return attachReplyLen
	case kindRevoke, kindDrop:
		return tokenLen
	case kindSignal:
		return headerLen + len(m.payload)
	}
	panic("ism: impossible message kind")
}

// append appends the encoded message to b and returns the extended slice. The payload of a
// Signal must not be longer than [MaxSignal].
func (m *message) append(b []byte) []byte {
	be := binary.BigEndian
	b = append(b, byte(m.kind), version)
	b = be.AppendUint16(b, uint16(m.length()))
	b = be.AppendUint32(b, 0)
	switch m.kind {
	case kindHello:
		gid, peer := m.gid.UUID(), m.peerGID.UUID()
		b = append(b, helloMagic...)
		b = append(b, gid[:]...)
		b = append(b, peer[:]...)
		b = append(b, m.nonce[:]...)
		b = be.AppendUint32(b, m.slots)
		b = be.AppendUint32(b, m.options)
	case kindRefuse:
		b = be.AppendUint32(b, uint32(m.reason))
		b = be.AppendUint32(b, 0)
	case kindAttach:
		b = be.AppendUint64(b, uint64(m.token))
		b = be.AppendUint32(b, m.size)
		b = be.AppendUint32(b, 0)
	case kindAttachReply:
		b = be.AppendUint64(b, uint64(m.token))
		b = be.AppendUint32(b, m.size)
		b = be.AppendUint32(b, m.slot)
		b = be.AppendUint32(b, uint32(m.status))
		b = be.AppendUint32(b, 0)
	case kindRevoke, kindDrop:
		b = be.AppendUint64(b, uint64(m.token))
	case kindSignal:
		b = append(b, m.payload...)
	}
	return b
}

// parse decodes b, which is exactly one message. The payload of the result aliases b.
//
// Errors are of type [*wire.DecodeError]; one with cause wire.ErrVersion means that the header
// is in order but of another version, of which nothing more is known.
func parse(b []byte) (message, error) {
	be := binary.BigEndian
	name := "ism.message"
	fail := func(field string, offset int, err error) (message, error) {
		return message{}, &wire.DecodeError{Message: name, Field: field, Offset: offset, Err: err}
	}
	if len(b) < headerLen {
		return fail("header", len(b), wire.ErrTruncated)
	}
	m := message{kind: kind(b[0])}
	name = "ism." + m.kind.String()
	if b[1] != version { // rule: TestMessageRefused
		return fail("version", 1, wire.ErrVersion)
	}
	want := 0
	switch m.kind {
	case kindHello:
		want = helloLen
	case kindRefuse:
		want = refuseLen
	case kindAttach:
		want = attachLen
	case kindAttachReply:
		want = attachReplyLen
	case kindRevoke, kindDrop:
		want = tokenLen
	case kindSignal:
		want = int(be.Uint16(b[2:4]))
		if want < headerLen || want > maxMessage {
			return fail("length", 2, wire.ErrLength)
		}
	default:
		return fail("kind", 0, wire.ErrType)
	}
	switch {
	case int(be.Uint16(b[2:4])) != want:
		return fail("length", 2, wire.ErrLength)
	case len(b) < want:
		return fail("message", len(b), wire.ErrTruncated)
	case len(b) > want:
		return fail("message", want, wire.ErrLength)
	}
	switch m.kind {
	case kindHello:
		m.gid = wire.ISMGIDFromUUID([16]byte(b[16:32]))
		m.peerGID = wire.ISMGIDFromUUID([16]byte(b[32:48]))
		m.nonce = [16]byte(b[48:64])
		m.slots = be.Uint32(b[64:68])
		m.options = be.Uint32(b[68:72])
		switch {
		case string(b[8:16]) != helloMagic:
			return fail("magic", 8, wire.ErrEyecatcher)
		case m.gid.IsZero():
			return fail("gid", 16, wire.ErrValue)
		case m.slots != SlotCount:
			return fail("slots", 64, wire.ErrValue)
		}
	case kindRefuse:
		m.reason = refusal(be.Uint32(b[8:12]))
	case kindAttach:
		m.token = wire.Token(be.Uint64(b[8:16]))
		m.size = be.Uint32(b[16:20])
	case kindAttachReply:
		m.token = wire.Token(be.Uint64(b[8:16]))
		m.size = be.Uint32(b[16:20])
		m.slot = be.Uint32(b[20:24])
		m.status = attachStatus(be.Uint32(b[24:28]))
		switch {
		case m.status > attachResources:
			return fail("status", 24, wire.ErrValue)
		case m.slot >= SlotCount:
			return fail("slot", 20, wire.ErrValue)
		}
	case kindRevoke, kindDrop:
		m.token = wire.Token(be.Uint64(b[8:16]))
	case kindSignal:
		m.payload = b[headerLen:]
	}
	return m, nil
}

// fdCount returns how many descriptors come with m.
func (m *message) fdCount() int {
	switch {
	case m.kind == kindHello:
		return 2
	case m.kind == kindAttachReply && m.status == attachOK:
		return 1
	}
	return 0
}
