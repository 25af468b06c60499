package proto

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strings"
)

// namePrefix begins the abstract names of pairs, after the zero byte, which [golang.org/x/sys/unix]
// and /proc/net/unix write as "@".
const namePrefix = "@gosmc/1/"

// Roles of an end, in its name.
const (
	RoleClient = 'c'
	RoleServer = 's'
	RoleEngine = 'e' // of a connection between hosts; with the program's addresses

	roles = "cse"
)

// A Name is the name of one end of a pair: it says which TCP connection the pair stands for.
// preload/identity.c has the layout.
type Name struct {
	Role        byte           // RoleClient, RoleServer or RoleEngine
	IPv6        bool           // the program sees AF_INET6
	Local, Peer netip.AddrPort // unmapped
	// the cookie of the client's end, in the names of both; another one where somebody else had
	// taken the server's
	Unique uint64
}

// String returns the name as [golang.org/x/sys/unix] writes it.
func (n Name) String() string {
	b := []byte(namePrefix)
	family := byte('4')
	if n.IPv6 {
		family = '6'
	}
	b = append(b, n.Role, '/', family, '/')
	for _, a := range []netip.AddrPort{n.Local, n.Peer} {
		ip := a.Addr().As16()
		b = hex.AppendEncode(b, ip[:])
		b = append(b, '.')
		b = hex.AppendEncode(b, binary.BigEndian.AppendUint16(nil, a.Port()))
		b = append(b, '/')
	}
	return string(hex.AppendEncode(b, binary.BigEndian.AppendUint64(nil, n.Unique)))
}

// ParseName reads the name of an end. It reports false for any other Unix socket's.
func ParseName(s string) (n Name, ok bool) {
	rest, ok := strings.CutPrefix(s, namePrefix)
	fields := strings.Split(rest, "/")
	if !ok || len(fields) != 5 || len(fields[0]) != 1 || len(fields[4]) != 16 {
		return Name{}, false
	}
	n.Role = fields[0][0]
	n.IPv6 = fields[1] == "6"
	if !strings.ContainsRune(roles, rune(n.Role)) || fields[1] != "4" && fields[1] != "6" {
		return Name{}, false
	}
	for i, a := range []*netip.AddrPort{&n.Local, &n.Peer} {
		ip, port, _ := strings.Cut(fields[2+i], ".")
		address, err1 := hex.DecodeString(ip)
		number, err2 := hex.DecodeString(port)
		if err1 != nil || err2 != nil || len(address) != 16 || len(number) != 2 {
			return Name{}, false
		}
		*a = netip.AddrPortFrom(netip.AddrFrom16([16]byte(address)).Unmap(), binary.BigEndian.Uint16(number))
	}
	unique, err := hex.DecodeString(fields[4])
	if err != nil {
		return Name{}, false
	}
	n.Unique = binary.BigEndian.Uint64(unique)
	return n, true
}
