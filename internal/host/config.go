package host

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/handshake"
	"github.com/gosmc/smc/internal/paired"
	"github.com/gosmc/smc/internal/pnet"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/smcr"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/sysinfo"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/llc"
)

// Config is the configuration of a host. The zero value is useful. The exported smc.Config
// describes the fields.
type Config struct {
	Disabled     bool
	Dir          string
	UEIDs        []string
	NoSEID       bool
	Spin         time.Duration // 0: default; negative: never
	ReadBuffer   int           // bytes; 0: default
	MemoryBudget int64         // bytes; 0: default
	AnyUser      bool          // as Users with any
	Users        []string      // other users, see config.NewUsers; empty: the configuration's

	// ShortAfter counts short connections to a server, one after another, after which others stay TCP.
	// 0: as the configuration says; negative: none stays TCP.
	ShortAfter int

	// Listen selects the servers here that may have SMC, and Connect the servers with which
	// programs here may have it. Empty lists: the lists of the configuration.
	Listen, Connect config.Filter

	SMCRPeers []string // addresses and prefixes, see config.ParsePeers

	// SMCRDevices are addresses and prefixes that devices may have. Empty: the address of the TCP
	// connection, and others on its LAN for further links.
	SMCRDevices []string

	// SMCRLinks bounds the symmetric links of a link group: 1 to 8, and above 2 in version 1 only; 0: 2.
	SMCRLinks int

	PNET       map[string]string // PNETIDs by the name of the interface; nil: the configuration's
	SMCRConns  int               // connections of a link group, 16 to 255; 0: 255
	SMCRSpread string            // smcr.SpreadConnections, the default, or smcr.SpreadBytes

	// SMCRKeepAlive is how long a link may be silent before the peer is asked. 0: llcflow.TestLinkInterval;
	// negative: for ever.
	SMCRKeepAlive time.Duration

	SMCRv1      bool // offer and accept version 1 of SMC-R, over RoCEv2
	Logger      *slog.Logger
	ReleaseIdle bool // keep nothing of the system, and no goroutine, while nobody uses the host

	// The rest is for tests.
	SweepEvery time.Duration     // 0: sweepEvery
	CheckEvery time.Duration     // 0: the rendezvous's own
	Option     optionSource      // of TCP option 254; nil: by gosmc agent
	Pairing    paired.Kernel     // nil: by gosmc agent
	Release0   bool              // speak version 2.0 of SMC and not 2.1
	RDMA       rnic.DeviceConfig // of the devices
	Namespace  func(func())      // calls a function on a thread in the devices' namespace; nil: at once
	Program    string            // the name that the program was started as; empty: by os.Args

	follower *config.Follower // of the configuration file
	users    config.Users     // other users whose programs may be peers; they do not change
	machine  config.Machine   // servers that can be on this machine
	first    config.Settings  // those when the host was made
}

// withDefaults returns a copy in which every field has its final value.
func (c Config) withDefaults() (Config, error) {
	if c.Logger == nil {
		c.Logger = config.DefaultLogger()
	}
	if err := c.settle(); err != nil {
		return c, err
	}
	value := os.Getenv(config.EnvDisabled)
	if _, known := config.ParseDisabled(value); !known {
		c.Logger.Warn("all connections are TCP, because of a variable whose value is neither yes nor no",
			"variable", config.EnvDisabled+"="+value)
	}
	if c.Dir == "" {
		c.Dir = rundir.Default()
	}
	switch {
	case c.Spin == 0:
		c.Spin = stream.DefaultSpin
	case c.Spin < 0:
		c.Spin = 0
	}
	if c.ReadBuffer == 0 {
		c.ReadBuffer = sysinfo.Buffer()
		if c.MemoryBudget == 0 {
			c.ReadBuffer = int(min(int64(c.ReadBuffer),
				max(sysinfo.Budget()/budgetedBuffers, minDefaultBuffer)))
		}
	}
	size, err := bufferSize(c.ReadBuffer)
	if err != nil {
		return c, fmt.Errorf("ReadBuffer: %w", err)
	}
	c.ReadBuffer = size
	if c.MemoryBudget == 0 {
		c.MemoryBudget = sysinfo.Budget()
	}
	if c.MemoryBudget < 0 {
		return c, fmt.Errorf("MemoryBudget: %d is negative", c.MemoryBudget)
	}
	switch {
	case c.SMCRLinks == 0:
		c.SMCRLinks = defaultSMCRLinks
	case c.SMCRLinks < 1 || c.SMCRLinks > llc.MaxLinks:
		return c, fmt.Errorf("SMCRLinks: %d is not 1 to %d", c.SMCRLinks, llc.MaxLinks)
	}
	switch {
	case c.SMCRConns == 0:
		c.SMCRConns = handshake.MaxConnsPerGroup
	case c.SMCRConns < handshake.MinConnsPerGroup || c.SMCRConns > handshake.MaxConnsPerGroup: // rule: TestTuningInvalid
		return c, fmt.Errorf("SMCRConns: %d is not %d to %d", c.SMCRConns, handshake.MinConnsPerGroup,
			handshake.MaxConnsPerGroup)
	}
	switch c.SMCRSpread {
	case "":
		c.SMCRSpread = smcr.SpreadConnections
	case smcr.SpreadConnections, smcr.SpreadBytes:
	default:
		return c, fmt.Errorf("SMCRSpread: %q is neither %q nor %q", c.SMCRSpread, smcr.SpreadConnections,
			smcr.SpreadBytes)
	}
	if c.Pairing == nil {
		c.Pairing = &paired.AgentKernel{Dir: c.Dir}
	}
	if c.Option == nil {
		c.Option = agentOption{}
	}
	if c.Namespace == nil {
		c.Namespace = func(f func()) { f() }
	}
	if c.SweepEvery == 0 {
		c.SweepEvery = sweepEvery
	}
	return c, nil
}

// bufferSize rounds a wanted size up to one that the handshake can express.
func bufferSize(n int) (int, error) {
	if n < minBuffer || n > maxBuffer {
		return 0, fmt.Errorf("%d is not in the range of %d to %d bytes", n, minBuffer, maxBuffer)
	}
	return wire.SizeCodeFor(n).Bytes(), nil
}

// CheckBuffer returns an error if a wanted buffer size is invalid; 0 is the default.
func CheckBuffer(n int) error {
	if n == 0 {
		return nil
	}
	_, err := bufferSize(n)
	return err
}

// settle fills in the fields that the program leaves to the environment and the configuration file:
// see package config. Entries that are not understood there go to the logger and are left out: they
// are not the program's mistake, and the program goes on with TCP. The error is about the fields
// that the program sets.
func (c *Config) settle() error {
	follower, s, err := config.Follow()
	if err != nil {
		c.Logger.Warn("parts of the configuration are left out", "err", err)
	}
	c.follower, c.first = follower, s
	for _, l := range []struct {
		word  string
		list  *[]string
		value []string
		check func([]string) error
	}{
		{config.UEID, &c.UEIDs, s.UEIDs, func(l []string) error { _, err := pnet.ParseUEIDs(l); return err }},
		{config.Peer, &c.SMCRPeers, s.Peers,
			func(l []string) error { _, err := config.ParsePeers(l); return err }},
		{config.Device, &c.SMCRDevices, s.Devices,
			func(l []string) error { _, _, err := config.ParseDevices(l); return err }},
	} {
		if len(*l.list) > 0 {
			continue
		}
		if err := l.check(l.value); err != nil {
			c.Logger.Warn("a part of the configuration is left out", "word", l.word, "variable",
				config.Variables[l.word], "err", err)
			continue
		}
		*l.list = l.value
	}
	c.SMCRv1 = c.SMCRv1 || s.SMCRv1
	c.NoSEID = c.NoSEID || s.NoSEID && len(c.UEIDs) > 0 // else there would be no EID at all
	if c.PNET == nil {
		c.PNET = s.PNET
	}
	t := &s.Tuning
	c.SMCRLinks, c.SMCRConns = cmp.Or(c.SMCRLinks, t.SMCRLinks), cmp.Or(c.SMCRConns, t.SMCRConns)
	c.SMCRSpread, c.SMCRKeepAlive = cmp.Or(c.SMCRSpread, t.SMCRSpread), cmp.Or(c.SMCRKeepAlive,
		t.SMCRKeepAlive)
	c.Spin, c.ReadBuffer = cmp.Or(c.Spin, t.Spin), cmp.Or(c.ReadBuffer, t.ReadBuffer)
	c.Disabled = c.Disabled || s.Off
	if c.MemoryBudget == 0 {
		c.MemoryBudget = s.Memory
	}
	if c.Program == "" {
		c.Program = config.ProgramName(os.Args[0])
	}
	if _, err = s.PolicyFor(c.Listen, c.Connect, c.Program); err != nil {
		return err
	}
	if c.machine, err = config.NewMachine(s.Machine); err != nil {
		return err
	}
	list := s.Users
	if len(c.Users) > 0 { // rule: TestIntroducedUsers
		list = c.Users
	} else if c.AnyUser {
		list = []string{"any"}
	}
	if c.users, err = config.LogUsers(list, c.Logger); len(c.Users) > 0 {
		return err
	}
	return nil // as of other parts of the configuration
}

// followEvery is how long the values of the configuration file are used before somebody who needs
// them looks whether the file has changed.
const followEvery = time.Second

// A rulebook has the values of the configuration that can change while the host is there. A host has
// no goroutine and no descriptor for the file, so that an idle program stays idle: whoever needs the
// policy looks at the file, once a second at most. Several goroutines may use it.
type rulebook struct {
	cfg       *Config
	admission *admission.Client
	current   atomic.Pointer[config.Policy]
}

// policy returns the policy now.
func (r *rulebook) policy() *config.Policy {
	r.follow(followEvery)
	return r.current.Load()
}

// follow takes over values of a file that has changed. Connections that there are keep theirs. A
// file that is being changed is looked at again after the result.
func (r *rulebook) follow(age time.Duration) (again time.Duration) {
	again, err := r.cfg.follower.Look(age, r.apply)
	if err != nil {
		r.cfg.Logger.Warn("the configuration file has changed and is not understood: its values before stay",
			"err", err)
	}
	return again
}

// apply puts values into force.
func (r *rulebook) apply(s *config.Settings) {
	p, err := s.PolicyFor(r.cfg.Listen, r.cfg.Connect, r.cfg.Program)
	if err != nil {
		return // a list of the program's, which New has refused, or of the file, which was checked
	}
	p.Users = r.cfg.users
	r.current.Store(p)
	r.admission.SetAfter(cmp.Or(r.cfg.ShortAfter, s.ShortAfter, admission.DefaultAfter))
}

// status says which words of the file the host follows. It looks at the file before.
func (r *rulebook) status() *control.StatusConfig {
	cfg := r.cfg
	cfg.follower.Settled(func() time.Duration { return r.follow(0) })
	path, err := cfg.follower.State()
	st := &control.StatusConfig{File: path}
	if err != nil {
		st.Error = err.Error()
	}
	own := map[string]bool{ // that the program has set
		config.ListenPort: len(cfg.Listen.Ports) > 0, config.ListenAddress: len(cfg.Listen.Addresses) > 0,
		config.ConnectPort: len(cfg.Connect.Ports) > 0, config.ConnectAddress: len(cfg.Connect.Addresses) > 0,
		config.ShortAfter: cfg.ShortAfter != 0, config.SMC: cfg.Disabled,
	}
	var live []string
	for _, word := range config.Words {
		if config.Takes(word) != config.AtStart && !own[word] && !cfg.follower.Set(word) {
			live = append(live, word)
		}
	}
	st.Live = strings.Join(live, " ")
	return st
}

// refusesDial reports whether the policy keeps connections to a server on TCP. A dial asks p, the
// policy when it began: the server is told what the first answer was.
func (r *rulebook) refusesDial(p *config.Policy, server netip.AddrPort) bool {
	return !r.cfg.Disabled && p.Connect.Refuses(server) != ""
}

// refusesServer reports whether the policy keeps connections to an address of this machine on TCP.
func (r *rulebook) refusesServer(local netip.AddrPort) bool {
	return !r.cfg.Disabled && r.policy().Listen.Refuses(local) != ""
}

// refusesListener reports whether the policy keeps all connections of a listener on TCP.
func (r *rulebook) refusesListener(local netip.AddrPort) bool {
	return !r.cfg.Disabled && r.policy().Listen.RefusesListener(local) != ""
}

// speaksCLC reports whether the configuration says that the program at the other end of a TCP
// connection expects CLC: remote is its address, and port the server's.
func (h *Host) speaksCLC(remote netip.Addr, port uint16) bool {
	return !h.cfg.Disabled && h.peers.Speak(remote, port)
}
