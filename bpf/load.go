package bpf

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/option"
	"github.com/gosmc/smc/internal/pairing"
)

// changeSpec lets tests take functions of the kernel away.
var changeSpec = func(*ebpf.CollectionSpec) {}

// errNoPairing is that pairing was left out by request.
var errNoPairing = errors.New("the agent was told not to pair sockets")

// load loads the programs with all parts that are wanted and that the kernel can do. The kernel
// refuses programs that call functions it does not have, except in a part that is switched off. So
// the features are not asked for: they are tried.
func (o *Option) load(pins string) (*ebpf.Collection, error) {
	spec, err := load(optionObject)
	if err != nil {
		return nil, err
	}
	changeSpec(spec)
	options := ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: pins}}
	var refused error
	for _, try := range []struct{ pairing, process bool }{{true, true}, {true, false}, {false, false}} {
		if try.pairing && o.parts.NoPairing {
			refused = errNoPairing
			continue
		}
		s := spec.Copy()
		if err := o.choose(s, try.pairing, try.process); err != nil {
			return nil, fmt.Errorf("bpf: %w", err)
		}
		c, err := ebpf.NewCollectionWithOptions(s, options)
		switch {
		case err == nil:
			o.noPair = nil
			if !try.pairing {
				o.noPair = refused
			}
			return c, nil
		case errors.Is(err, ebpf.ErrMapIncompatible), !privileged():
			return nil, err
		}
		refused = kernelLacks(err)
		if !try.pairing {
			return nil, err
		}
	}
	panic("bpf: impossible: the last attempt returns")
}

// choose sets the constants of the programs.
func (o *Option) choose(spec *ebpf.CollectionSpec, pair, process bool) error {
	yes := map[bool]uint8{true: 1}
	for name, value := range map[string]any{
		"option_name": option.Name, "pairing_name": pairing.Name, "service_option": pairing.NameOption,
		"with_option": yes[!o.parts.NoOption], "with_pairing": yes[pair], "with_process": yes[process],
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("constant %s: %w", name, err)
		}
	}
	return nil
}

// kernelLacks returns the reason for which the kernel does not pair sockets.
func kernelLacks(err error) error {
	var refused *ebpf.VerifierError
	if errors.As(err, &refused) {
		for _, line := range refused.Log { // the last one that is no statistics
			if !strings.HasPrefix(line, "processed ") {
				err = fmt.Errorf("%w: %s", refused.Cause, line)
			}
		}
	}
	var name unix.Utsname
	_ = unix.Uname(&name)
	release := unix.ByteSliceToString(name.Release[:])
	return fmt.Errorf("the programs for it need Linux 5.15, and Linux %s does not load them: %w",
		release, err)
}
