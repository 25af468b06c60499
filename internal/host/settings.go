package host

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/pnet"
)

// settle fills in what the program leaves to the environment and the configuration file: see package config. What is not
// understood there is told to the logger and left out: it is not the program's mistake, and the program goes on with TCP.
// The error is what is wrong with what the program says.
func (c *Config) settle() error {
	s, err := config.Load()
	if err != nil {
		c.Logger.Warn("parts of the configuration are left out", "err", err)
	}
	for _, l := range []struct {
		word  string
		list  *[]string
		value []string
		check func([]string) error
	}{
		{config.UEID, &c.UEIDs, s.UEIDs, func(l []string) error { _, err := pnet.ParseUEIDs(l); return err }},
		{config.Peer, &c.SMCRPeers, s.Peers, func(l []string) error { _, err := parsePeers(l); return err }},
		{config.Device, &c.SMCRDevices, s.Devices, func(l []string) error { _, err := parsePrefixes(l); return err }},
	} {
		if len(*l.list) > 0 {
			continue
		}
		if err := l.check(l.value); err != nil {
			c.Logger.Warn("a part of the configuration is left out", "word", l.word, "variable", config.Variables[l.word], "err", err)
			continue
		}
		*l.list = l.value
	}
	c.SMCRv1 = c.SMCRv1 || s.SMCRv1
	c.NoSEID = c.NoSEID || s.NoSEID && len(c.UEIDs) > 0 // else there would be no EID at all
	if c.PNET == nil {
		c.PNET = s.PNET
	}
	c.Disabled = c.Disabled || s.Off
	if c.MemoryBudget == 0 {
		c.MemoryBudget = s.Memory
	}
	if c.ShortAfter == 0 {
		c.ShortAfter = s.ShortAfter
	}
	for _, l := range []struct{ list, value *[]string }{
		{&c.Listen.Ports, &s.Listen.Ports}, {&c.Listen.Addresses, &s.Listen.Addresses},
		{&c.Connect.Ports, &s.Connect.Ports}, {&c.Connect.Addresses, &s.Connect.Addresses},
	} {
		if len(*l.list) == 0 {
			*l.list = *l.value
		}
	}
	if c.Program == "" {
		c.Program = config.ProgramName(os.Args[0])
	}
	c.policy, err = config.NewPolicy(c.Listen, c.Connect, s.Programs, c.Program)
	return err
}

// refusesDial reports whether the policy keeps connections to a server on TCP.
func (h *Host) refusesDial(server netip.AddrPort) bool {
	return !h.cfg.Disabled && h.cfg.policy.Connect.Refuses(server) != ""
}

// refusesServer reports whether the policy keeps connections to an address of this machine on TCP.
func (h *Host) refusesServer(local netip.AddrPort) bool {
	return !h.cfg.Disabled && h.cfg.policy.Listen.Refuses(local) != ""
}

// refusesListener reports whether the policy keeps all connections of a listener on TCP.
func (h *Host) refusesListener(local netip.AddrPort) bool {
	return !h.cfg.Disabled && h.cfg.policy.Listen.RefusesListener(local) != ""
}

// checkPNET says what is wrong with PNETIDs of interfaces.
func checkPNET(table map[string]string) error {
	for iface, id := range table {
		if _, err := pnet.ParsePNETID(id); err != nil {
			return fmt.Errorf("interface %s: %w", iface, err)
		}
	}
	return nil
}

// Names returns what the host is called by peers: of a Status HostName, SEID and UEIDs.
func (h *Host) Names() *control.Status {
	s := &control.Status{HostName: h.name, UEIDs: append([]string{}, h.cfg.UEIDs...)}
	if !h.seid.IsZero() {
		s.SEID = h.seid.String()
	}
	return s
}
