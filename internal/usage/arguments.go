package usage

import (
	"cmp"
	"context"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/exit"
)

// VerbOf names a command as people do: without the program, unless it is that.
func VerbOf(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

// NoArguments is the check of a verb that takes flags only.
func NoArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return exit.Usagef("%s takes no arguments, but got %q%s", VerbOf(cmd), args[0],
		instead(CommandHabits, cmd, args[0]))
}

// OneAddress is the check of a verb that takes one address, as JoinAddress has it.
func OneAddress(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return exit.Usagef("%s needs an address, HOST:PORT", VerbOf(cmd))
	case 1, 2:
		return CheckAddress(JoinAddress(args))
	}
	return exit.Usagef("%s takes one address, HOST:PORT or HOST PORT, but got %d arguments",
		VerbOf(cmd), len(args))
}

// JoinAddress makes HOST:PORT of arguments in the forms that netcat takes, too: HOST PORT, and a
// number alone, which is a port of this machine. Other words stay as they are.
func JoinAddress(args []string) string {
	if len(args) == 2 {
		return net.JoinHostPort(strings.Trim(args[0], "[]"), args[1])
	}
	if _, err := strconv.ParseUint(args[0], 10, 16); err == nil {
		return ":" + args[0]
	}
	return args[0]
}

// CheckAddress finds an address that cannot be meant before anything is opened.
func CheckAddress(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	switch {
	case err == nil && !strings.Contains(port, "/"): // else it is a URL
	case addr != "" && isNumber(addr):
		port = addr
	default:
		return exit.Usagef("address %q: want HOST:PORT, with brackets around an IPv6 address%s", addr,
			meant(addr))
	}
	digits := strings.TrimPrefix(port, "-")
	_, err = strconv.ParseUint(port, 10, 16)
	if digits != "" && isNumber(digits) && err != nil { // rule: TestCheckAddress
		return exit.Usagef("address %q: want a port from 0 to 65535, or the name of a service", addr)
	}
	return nil
}

// meant says which address may have been meant by a URL, or by a host without a port.
func meant(addr string) string {
	if u, err := url.Parse(addr); err == nil && u.Host != "" {
		return ", as in " + net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), u.Scheme))
	}
	if addr == "" || strings.ContainsAny(addr, ":/[]") {
		return ""
	}
	return ", as in " + addr + ":7000"
}

func isNumber(s string) bool { return strings.Trim(s, "0123456789") == "" }

// CheckListen checks an address to listen on, which has to have a port.
func CheckListen(ctx context.Context, address string) error {
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
		return exit.Usagef("address %q: want HOST:PORT or :PORT", address)
	} else if _, err := net.DefaultResolver.LookupPort(ctx, "tcp", port); err != nil {
		return exit.Usagef("address %q: want a port from 0 to 65535, or the name of a service", address)
	}
	return nil
}
