package bench

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/gosmc/smc"
)

// Names of transports, as tables and JSON show them.
const (
	transportTCP   = "tcp"
	transportUnix  = "unix"
	transportSMCD  = "smc-d"
	transportSMCR  = "smc-r"
	transportSMC   = "smc" // the library in its default settings, which chooses the mode of a connection
	transportLimit = "limit"

	// SMC-R with so many links in the link group.
	transportLink  = "1 link"
	transportLinks = "2 links"

	transportUDP      = "udp"
	transportRDMA     = "rdma"
	transportLossless = "lossless" // RDMA, where the other one loses packets

	// RDMA with so many queue pairs.
	transportQP8    = "8 qps"
	transportQP64   = "64 qps"
	transportQP1000 = "1000 qps"
)

// An endpoint is one transport in one worker.
type endpoint struct {
	listen func() (net.Listener, error)
	dial   func(addr string) (net.Conn, error)
	check  func(net.Conn, *meter) error // refuses a connection that is not of the transport
	close  func()
}

// transports is the registry: each function makes the endpoint of a worker.
var transports = map[string]func(workerSpec) (*endpoint, error){
	transportTCP:   tcpEndpoint,
	transportUnix:  unixEndpoint,
	transportSMCD:  smcdEndpoint,
	transportSMCR:  smcrEndpoint,
	transportSMC:   smcAnyEndpoint,
	transportLimit: limitEndpoint,
	transportLink:  smcrLinks(1),
	transportLinks: smcrLinks(2),

	// Those that are not net.Conns have one for control.
	transportUDP:      tcpEndpoint,
	transportRDMA:     tcpEndpoint,
	transportLossless: tcpEndpoint,
	transportQP8:      tcpEndpoint,
	transportQP64:     tcpEndpoint,
	transportQP1000:   tcpEndpoint,
}

const dialTimeout = 10 * time.Second

// tcpEndpoint is package net as it comes, without a delay.
func tcpEndpoint(spec workerSpec) (*endpoint, error) {
	local := netip.AddrPortFrom(spec.Local, 0)
	dialer := net.Dialer{Timeout: dialTimeout}
	if spec.Local.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(local)
	} else {
		local = netip.AddrPortFrom(loopback, 0)
	}
	return netEndpoint("tcp", local.String(), &dialer), nil
}

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

func unixEndpoint(workerSpec) (*endpoint, error) {
	return netEndpoint("unix", abstractName(), &net.Dialer{Timeout: dialTimeout}), nil
}

func netEndpoint(network, local string, dialer *net.Dialer) *endpoint {
	return &endpoint{
		listen: func() (net.Listener, error) { return net.Listen(network, local) },
		dial:   func(addr string) (net.Conn, error) { return dialer.Dial(network, addr) },
		check: func(_ net.Conn, m *meter) error {
			m.note(network, 0)
			return nil
		},
		close: func() {},
	}
}

// abstractName is a Unix address without a file.
func abstractName() string { return fmt.Sprintf("@gosmc-bench-%d", os.Getpid()) }

// smcdEndpoint is this library in its default settings; a connection in another mode is an error.
func smcdEndpoint(spec workerSpec) (*endpoint, error) {
	return smcEndpoint(spec, smc.Config{}, smc.RequireSMCD, smc.ModeSMCD)
}

// smcAnyEndpoint is the same where a connection may also be TCP.
func smcAnyEndpoint(spec workerSpec) (*endpoint, error) {
	e, err := smcEndpoint(spec, smc.Config{}, smc.AnyMode, smc.ModeTCP)
	if err == nil {
		e.check = func(c net.Conn, m *meter) error {
			m.note("any", 0)
			return nil
		}
	}
	return e, err
}

// smcrConfig is for any peer.
var smcrConfig = smc.Config{UEIDs: []string{"GOSMC.BENCH"}, SMCRPeers: []string{"0.0.0.0/0"}}

// smcrLinks is SMC-R with so many links, over the interfaces of a site with as many veth pairs.
func smcrLinks(n int) func(workerSpec) (*endpoint, error) {
	return func(spec workerSpec) (*endpoint, error) {
		config := smcrConfig
		config.SMCRDevices, config.SMCRLinks = []string{vethNet.String()}, n
		return smcEndpoint(spec, config, smc.RequireSMCR, smc.ModeSMCR)
	}
}

// smcrEndpoint is the same for SMC-R with any peer.
func smcrEndpoint(spec workerSpec) (*endpoint, error) {
	config := smcrConfig
	if !spec.Local.IsLoopback() {
		return smcEndpoint(spec, config, smc.RequireSMCR, smc.ModeSMCR)
	}
	// The other worker is on this machine too, but must not be found there: they would share memory.
	dir, err := os.MkdirTemp("", "gosmc-bench-")
	if err != nil {
		return nil, err
	}
	config.Dir = dir
	e, err := smcEndpoint(spec, config, smc.RequireSMCR, smc.ModeSMCR)
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	closeHost := e.close
	e.close = func() {
		closeHost()
		os.RemoveAll(dir)
	}
	return e, nil
}

func smcEndpoint(spec workerSpec, config smc.Config, require smc.Requirement,
	mode smc.Mode) (*endpoint, error) {
	if spec.Settings.NoSpin {
		config.Spin = -1
	}
	h, err := smc.NewHost(&config)
	if err != nil {
		return nil, err
	}
	d := smc.Dialer{Host: h, Require: require, Timeout: dialTimeout}
	local := netip.AddrPortFrom(loopback, 0)
	if spec.Local.IsValid() {
		local = netip.AddrPortFrom(spec.Local, 0)
		d.LocalAddr = net.TCPAddrFromAddrPort(local)
	}
	return &endpoint{
		listen: func() (net.Listener, error) {
			return (&smc.ListenConfig{Host: h}).Listen(context.Background(), "tcp", local.String())
		},
		dial: func(addr string) (net.Conn, error) { return d.Dial("tcp", addr) },
		check: func(c net.Conn, m *meter) error {
			conn, ok := c.(*smc.Conn)
			if !ok {
				return fmt.Errorf("not an SMC connection but a %T", c)
			}
			st := conn.State()
			if st.Mode != mode {
				return fmt.Errorf("mode is %v, not %v: %v", st.Mode, mode, st.Reason)
			}
			m.note(st.Mode.String(), st.ReadBuffer)
			return nil
		},
		close: func() { h.Close() },
	}, nil
}

// limitEndpoint is the ring in descriptor 3.
func limitEndpoint(workerSpec) (*endpoint, error) {
	const ringDescriptor = 3 // the first of exec.Cmd.ExtraFiles
	f := os.NewFile(ringDescriptor, "limit ring")
	if f == nil {
		return nil, os.ErrInvalid
	}
	c, err := openRing(f)
	if err != nil {
		return nil, err
	}
	return &endpoint{
		listen: func() (net.Listener, error) { return &ringListener{conn: c, closed: make(chan struct{})}, nil },
		dial:   func(string) (net.Conn, error) { return c, nil },
		check: func(_ net.Conn, m *meter) error {
			m.note("shared memory", len(c.data))
			return nil
		},
		close: func() {},
	}, nil
}
