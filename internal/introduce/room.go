package introduce

import (
	"crypto/ed25519"
	"encoding/base64"
	"strings"
)

// A Room is a listening abstract Unix socket of an agent. The name has the public half of a key, and the
// agent signs with the other half, which is in its memory only and ends with it. The kernel tells the name
// to processes even after an agent was killed. Whoever listens there then cannot sign.
type Room struct{ key ed25519.PrivateKey }

// roomPrefix begins the name of each room. 43 characters of base64 follow.
const roomPrefix = "gosmc-"

// signed is the purpose of a room's signatures.
const signed = "gosmc introductions: this is the agent\x00"

// NewRoom returns a room with a new key.
func NewRoom() *Room {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		panic("introduce: impossible error of the kernel's random numbers: " + err.Error())
	}
	return &Room{key}
}

// Name returns the name of the room's socket, of 49 bytes, without the zero byte in front.
func (r *Room) Name() string {
	return roomPrefix + base64.RawURLEncoding.EncodeToString(r.key.Public().(ed25519.PublicKey))
}

// sign answers the challenge of a process. A nil room is the agent's path, which needs no signature.
func (r *Room) sign(challenge [16]byte) (signature [64]byte) {
	if r != nil {
		copy(signature[:], ed25519.Sign(r.key, append([]byte(signed), challenge[:]...)))
	}
	return signature
}

// isRoom reports whether the agent of the room at an address has signed a challenge.
func isRoom(address string, challenge [16]byte, signature [64]byte) bool {
	encoded, ok := strings.CutPrefix(address, "@"+roomPrefix)
	if !ok {
		return false
	}
	public, err := base64.RawURLEncoding.DecodeString(encoded)
	return err == nil && len(public) == ed25519.PublicKeySize &&
		ed25519.Verify(public, append([]byte(signed), challenge[:]...), signature[:])
}
