package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// The kernel's messages about link groups. Numbers are of linux/smc.h, names of states and types of
// Linux net/smc.
const (
	genlGetLinks = 3 // SMC_NETLINK_GET_LINK_SMCR: each group, and its links behind it
	genlHeader   = 4
	genlGroup    = 2 // SMC_GEN_LGR_SMCR
	genlLink     = 3 // SMC_GEN_LINK_SMCR

	groupID    = 1 // SMC_NLA_LGR_R_ID
	groupRole  = 2
	groupType  = 3
	groupConns = 6 // SMC_NLA_LGR_R_CONNS_NUM

	linkID      = 1 // SMC_NLA_LINK_ID
	linkDevice  = 2
	linkGID     = 4
	linkPeerGID = 5
	linkConns   = 6
	linkState   = 10 // SMC_NLA_LINK_STATE
)

var (
	groupTypes = []string{"NONE", "SINGLE", "SYMMETRIC", "ASYMMETRIC_PEER", "ASYMMETRIC_LOCAL"}
	groupRoles = []string{"client", "server"}
	linkStates = []string{"UNUSED", "INACTIVE", "ACTIVATING", "ACTIVE"}
)

// showGroups prints a line for each link group of SMC-R, and behind it one for each of its links:
//
//	group ID ROLE TYPE CONNS
//	link NUMBER STATE DEVICE GID PEER-GID CONNS
func showGroups(w io.Writer) error {
	fd, err := netlink(unix.NETLINK_GENERIC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	family, err := smcFamily(fd)
	if err != nil {
		return err
	}
	if err := generic(fd, family, unix.NLM_F_DUMP, genlGetLinks, nil); err != nil {
		return err
	}
	return receive(fd, func(_ uint16, body []byte) (bool, error) {
		if len(body) < genlHeader {
			return false, fmt.Errorf("message of %d bytes", len(body))
		}
		if g, ok := find(body[genlHeader:], genlGroup); ok {
			fmt.Fprintf(w, "group %d %s %s %d\n", number(g, groupID), word(groupRoles, g, groupRole), word(groupTypes, g, groupType), number(g, groupConns))
		}
		if l, ok := find(body[genlHeader:], genlLink); ok {
			fmt.Fprintf(w, "link %d %s %s %s %s %d\n", number(l, linkID), word(linkStates, l, linkState), text(l, linkDevice), text(l, linkGID), text(l, linkPeerGID),
				number(l, linkConns))
		}
		return false, nil
	})
}

// number returns the value of an attribute of 1 or 4 bytes, 0 if there is none.
func number(b []byte, attr uint16) uint32 {
	v, _ := find(b, attr)
	switch len(v) {
	case 1:
		return uint32(v[0])
	case 4:
		return binary.NativeEndian.Uint32(v)
	}
	return 0
}

func text(b []byte, attr uint16) string {
	v, _ := find(b, attr)
	v, _, _ = bytes.Cut(v, []byte{0})
	return string(v)
}

// word returns the name that an attribute has the number of.
func word(names []string, b []byte, attr uint16) string {
	if n := number(b, attr); int(n) < len(names) {
		return names[n]
	}
	return "UNKNOWN"
}
