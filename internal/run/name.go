package run

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
	roleClient = 'c'
	roleServer = 's'
)

// A name is the name of one end of a pair: it says which TCP connection the pair stands for.
// preload/identity.c has the layout.
type name struct {
	role        byte
	ipv6        bool           // the program sees AF_INET6
	local, peer netip.AddrPort // unmapped
	unique      uint64         // the cookie of the client's end, in the names of both; another one where somebody else had taken the server's
}

func (n name) String() string {
	b := []byte(namePrefix)
	family := byte('4')
	if n.ipv6 {
		family = '6'
	}
	b = append(b, n.role, '/', family, '/')
	for _, a := range []netip.AddrPort{n.local, n.peer} {
		ip := a.Addr().As16()
		b = hex.AppendEncode(b, ip[:])
		b = append(b, '.')
		b = hex.AppendEncode(b, binary.BigEndian.AppendUint16(nil, a.Port()))
		b = append(b, '/')
	}
	return string(hex.AppendEncode(b, binary.BigEndian.AppendUint64(nil, n.unique)))
}

// parseName reads the name of an end. It reports false for any other Unix socket's.
func parseName(s string) (n name, ok bool) {
	rest, ok := strings.CutPrefix(s, namePrefix)
	fields := strings.Split(rest, "/")
	if !ok || len(fields) != 5 || len(fields[0]) != 1 || len(fields[4]) != 16 {
		return name{}, false
	}
	n.role = fields[0][0]
	n.ipv6 = fields[1] == "6"
	if n.role != roleClient && n.role != roleServer || fields[1] != "4" && fields[1] != "6" {
		return name{}, false
	}
	for i, a := range []*netip.AddrPort{&n.local, &n.peer} {
		ip, port, _ := strings.Cut(fields[2+i], ".")
		address, err1 := hex.DecodeString(ip)
		number, err2 := hex.DecodeString(port)
		if err1 != nil || err2 != nil || len(address) != 16 || len(number) != 2 {
			return name{}, false
		}
		*a = netip.AddrPortFrom(netip.AddrFrom16([16]byte(address)).Unmap(), binary.BigEndian.Uint16(number))
	}
	unique, err := hex.DecodeString(fields[4])
	if err != nil {
		return name{}, false
	}
	n.unique = binary.BigEndian.Uint64(unique)
	return n, true
}
