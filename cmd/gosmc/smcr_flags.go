package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc"
)

// smcrFlags are the settings that SMC-R with other hosts needs, with the names of the configuration
// file. They take the place of environment and file, as the fields that a program sets in
// smc.Config do.
type smcrFlags struct {
	ueids, peers, devices []string
	v1                    bool
}

// aboutSMCR is part of the help of the verbs that have these flags.
const aboutSMCR = `With another host a connection can use SMC-R if both have a UEID in common and expect each other: by --peer, or by 'gosmc agent' on both.
--ueid, --peer and --device may come several times, or have lists with commas. Without them counts what environment and
configuration file say: see 'gosmc ueid --help'.`

func (f *smcrFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.ueids, "ueid", nil, "user-defined enterprise `ID`, in order of preference")
	flags.StringSliceVar(&f.peers, "peer", nil, "expect SMC-R at these hosts: `address` or prefix, with the server's port or without")
	flags.StringSliceVar(&f.devices, "device", nil, "`address`, or prefix of addresses, that SMC-R may send from; rdma:NAME, an RDMA device of the kernel that it may use")
	flags.BoolVar(&f.v1, "smcr-v1", false, "version 1 of SMC-R too, over RoCEv2, which needs no UEID")
}

// host makes the host of the command. c has the rest of its configuration.
func (f *smcrFlags) host(c smc.Config) (*smc.Host, error) {
	for _, given := range []struct {
		flag, field string
		c           smc.Config
	}{
		{"ueid", "UEIDs", smc.Config{UEIDs: f.ueids}},
		{"peer", "SMCRPeers", smc.Config{SMCRPeers: f.peers}},
		{"device", "SMCRDevices", smc.Config{SMCRDevices: f.devices}},
	} {
		h, err := smc.NewHost(&given.c) // which touches nothing yet
		if err == nil {
			h.Close()
			continue
		}
		text := strings.TrimPrefix(err.Error(), "smc: ")
		return nil, usagef("--%s: %s", given.flag, strings.TrimPrefix(text, given.field+": ")) // the name that the user knows
	}
	c.UEIDs, c.SMCRPeers, c.SMCRDevices, c.SMCRv1 = f.ueids, f.peers, f.devices, f.v1
	return smc.NewHost(&c)
}
