package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The requests of smcpeer to its kernel by netlink. Numbers are of linux/smc.h and
// linux/smc_diag.h.
const (
	genlFamily       = "SMC_GEN_NETLINK"
	genlAddUEID      = 10 // SMC_NETLINK_ADD_UEID
	genlRemoveUEID   = 11 // SMC_NETLINK_REMOVE_UEID
	genlEID          = 1  // SMC_NLA_EID_TABLE_ENTRY
	eidLen           = 32
	controlFamily    = 16 // GENL_ID_CTRL
	controlGetFamily = 3  // CTRL_CMD_GETFAMILY
	controlID        = 1  // CTRL_ATTR_FAMILY_ID
	controlName      = 2  // CTRL_ATTR_FAMILY_NAME

	diagBySocketFamily = 20   // SOCK_DIAG_BY_FAMILY
	diagAllExtensions  = 0x1f // SMC_DIAG_CONNINFO .. SMC_DIAG_FALLBACK
	diagFallback       = 5    // SMC_DIAG_FALLBACK
	diagMsgLen         = 4 + 48 + 4 + 8

	netlinkHeader = 16
	attrHeader    = 4
)

func netlink(protocol int) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	return fd, os.NewSyscallError("socket", err)
}

// header returns the beginning of a netlink message. send fills in its length.
func header(typ, flags uint16) []byte {
	b := make([]byte, netlinkHeader)
	binary.NativeEndian.PutUint16(b[4:], typ)
	binary.NativeEndian.PutUint16(b[6:], flags)
	return b
}

func send(fd int, b []byte) error {
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	return os.NewSyscallError("sendto", unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
}

// receive calls each for the messages that come, until it says that it is done or the kernel has no more.
func receive(fd int, each func(typ uint16, body []byte) (done bool, err error)) error {
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		for b := buf[:n]; len(b) >= netlinkHeader; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < netlinkHeader || size > len(b) {
				return fmt.Errorf("netlink message of %d bytes in %d", size, len(b))
			}
			typ, body := binary.NativeEndian.Uint16(b[4:]), b[netlinkHeader:size]
			switch typ {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
					return unix.Errno(-code)
				}
				return nil
			}
			if done, err := each(typ, body); done || err != nil {
				return err
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
}

func attribute(typ uint16, value []byte) []byte {
	b := make([]byte, (attrHeader+len(value)+3)&^3)
	binary.NativeEndian.PutUint16(b, uint16(attrHeader+len(value)))
	binary.NativeEndian.PutUint16(b[2:], typ)
	copy(b[attrHeader:], value)
	return b
}

// find returns the value of an attribute.
func find(b []byte, want uint16) ([]byte, bool) {
	for len(b) >= attrHeader {
		size, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < attrHeader || size > len(b) {
			return nil, false
		}
		if typ&^unix.NLA_F_NESTED == want {
			return b[attrHeader:size], true
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return nil, false
}

// generic sends a message of generic netlink.
func generic(fd int, family uint16, flags uint16, command byte, attrs []byte) error {
	b := append(header(family, unix.NLM_F_REQUEST|flags), command, 1, 0, 0)
	return send(fd, append(b, attrs...))
}

// smcFamily asks for the number of the family of net/smc.
func smcFamily(fd int) (family uint16, err error) {
	if err := generic(fd, controlFamily, 0, controlGetFamily, attribute(controlName, append([]byte(genlFamily), 0))); err != nil {
		return 0, err
	}
	err = receive(fd, func(_ uint16, body []byte) (bool, error) {
		id, ok := find(body[min(4, len(body)):], controlID)
		if !ok || len(id) != 2 {
			return false, fmt.Errorf("no number for %s", genlFamily)
		}
		family = binary.NativeEndian.Uint16(id)
		return true, nil
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", genlFamily, err)
	}
	return family, nil
}

func changeUEID(what, name string) error {
	commands := map[string]byte{"add": genlAddUEID, "del": genlRemoveUEID}
	command, ok := commands[what]
	if !ok || len(name) > eidLen {
		return fmt.Errorf("ueid %s %q", what, name)
	}
	fd, err := netlink(unix.NETLINK_GENERIC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	family, err := smcFamily(fd)
	if err != nil {
		return err
	}
	eid := fmt.Appendf(nil, "%-*s\x00", eidLen, name)
	if err := generic(fd, family, unix.NLM_F_ACK, command, attribute(genlEID, eid)); err != nil {
		return err
	}
	return receive(fd, func(uint16, []byte) (bool, error) { return false, nil })
}

// diagMode asks for the mode of the connection between two ports, as they are in headers.
//
// The kernel tells of many sockets in several messages, and goes on by counting: it leaves one out
// when another one comes or goes between two of them. So it is asked some times.
func diagMode(local, remote [2]byte) (mode string, err error) {
	const tries = 10
	for range tries {
		if mode, err = diagModeOnce(local, remote); mode != "" || err != nil {
			return mode, err
		}
	}
	return "", errors.New("not among the AF_SMC sockets")
}

// diagModeOnce returns an empty string if the kernel has not told of the socket.
func diagModeOnce(local, remote [2]byte) (string, error) {
	fd, err := netlink(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	request := make([]byte, 56) // struct smc_diag_req
	request[0], request[3] = unix.AF_SMC, diagAllExtensions
	if err := send(fd, append(header(diagBySocketFamily, unix.NLM_F_REQUEST|unix.NLM_F_DUMP), request...)); err != nil {
		return "", err
	}
	mode := ""
	err = receive(fd, func(_ uint16, b []byte) (bool, error) {
		if len(b) < diagMsgLen || [2]byte(b[4:6]) != local || [2]byte(b[6:8]) != remote {
			return false, nil
		}
		switch b[2] {
		case 0:
			mode = "mode=smc-r"
		case 1:
			mode = "mode=tcp"
			if why, ok := find(b[diagMsgLen:], diagFallback); ok && len(why) >= 8 {
				mode += fmt.Sprintf(" reason=%#08x peer=%#08x", binary.NativeEndian.Uint32(why), binary.NativeEndian.Uint32(why[4:]))
			}
		case 2:
			mode = "mode=smc-d"
		default:
			mode = fmt.Sprintf("mode=%d", b[2])
		}
		return false, nil // to the end, so that nothing is left to read
	})
	return mode, err
}
