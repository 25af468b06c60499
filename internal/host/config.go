package host

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/gosmc/smc/internal/admission"
	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/smcr"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/sysinfo"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/llc"
)

// Config is what a host is made with. The zero value is useful. The exported smc.Config
// describes the fields.
type Config struct {
	Disabled      bool
	Dir           string
	UEIDs         []string
	NoSEID        bool
	Spin          time.Duration // 0: default; negative: never
	ReadBuffer    int           // bytes; 0: default
	MemoryBudget  int64         // bytes; 0: default
	AnyUser       bool
	ShortAfter    int               // short connections to a server, one after another, after which others stay TCP; 0: what the configuration says, negative: none does
	Listen        config.Filter     // servers here that may have SMC; empty lists: those of the configuration
	Connect       config.Filter     // servers with which programs here may have it; in the same way
	SMCRPeers     []string          // addresses and prefixes, see parsePeer
	SMCRDevices   []string          // addresses and prefixes that devices may have; empty: that of the TCP connection, and others on its LAN for further links
	SMCRLinks     int               // symmetric links of a link group, at most: 1 to 8; 0: 2. More than 2 in version 1 only
	PNET          map[string]string // PNETIDs by the name of the interface; nil: those of the configuration file
	SMCRSpread    string            // what links are to have the same of: smcr.SpreadConnections, the default, or smcr.SpreadBytes
	SMCRKeepAlive time.Duration     // how long a link may be silent before the peer is asked; 0: core.TestLinkInterval, negative: for ever
	SMCRv1        bool              // offer and accept version 1 of SMC-R, over RoCEv2
	Logger        *slog.Logger
	SweepEvery    time.Duration // 0: sweepEvery; for tests that cannot wait as long
	CheckEvery    time.Duration // 0: that of the rendezvous; for tests that cannot wait as long
	Option        optionSource  // of TCP option 254; for tests; nil: by gosmc agent
	Release0      bool          // speak version 2.0 of SMC and not 2.1; for tests
	RDMA          rdma.Config   // of the devices; for tests
	Namespace     func(func())  // calls a function on a thread in the network namespace of the devices; for tests; nil: at once
	ReleaseIdle   bool          // keep nothing of the system, and no goroutine, while nobody uses the host
	Program       string        // what the program was started as; for tests; empty: by os.Args

	policy *config.Policy // of Listen, Connect and what the configuration says of programs
}

// withDefaults returns a copy in which every field has its final value.
func (c Config) withDefaults() (Config, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if err := c.settle(); err != nil {
		return c, err
	}
	value := os.Getenv(config.EnvDisabled)
	if _, known := config.ParseDisabled(value); !known {
		c.Logger.Warn("all connections are TCP, because of a variable whose value is neither yes nor no", "variable", config.EnvDisabled+"="+value)
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
			c.ReadBuffer = int(min(int64(c.ReadBuffer), max(sysinfo.Budget()/budgetedBuffers, minDefaultBuffer)))
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
	switch c.SMCRSpread {
	case "":
		c.SMCRSpread = smcr.SpreadConnections
	case smcr.SpreadConnections, smcr.SpreadBytes:
	default:
		return c, fmt.Errorf("SMCRSpread: %q is neither %q nor %q", c.SMCRSpread, smcr.SpreadConnections, smcr.SpreadBytes)
	}
	if c.Option == nil {
		c.Option = agentOption{}
	}
	if c.Namespace == nil {
		c.Namespace = func(f func()) { f() }
	}
	if c.ShortAfter == 0 {
		c.ShortAfter = admission.DefaultAfter
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

// CheckBuffer says what is wrong with a wanted buffer size; 0 is the default.
func CheckBuffer(n int) error {
	if n == 0 {
		return nil
	}
	_, err := bufferSize(n)
	return err
}
