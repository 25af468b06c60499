package usage

import "github.com/spf13/cobra"

// habits are verbs of other tools, and names of tools, with the verb here that does the same: of
// iproute2, systemctl, docker, netcat, tcpdump and smc-tools.
var habits = map[string][]string{
	"connect":   {"nc", "netcat", "telnet", "curl"},
	"listen":    {"serve"},
	"run":       {"start", "exec", "smc_run", "smc-run"},
	"service":   {"enable", "disable", "systemctl", "services"},
	"ss":        {"ps", "ls", "list", "netstat", "connections", "smcss"},
	"info":      {"status", "show"},
	"stats":     {"smcr", "smcd"},
	"doctor":    {"check", "smc_chk", "why", "diagnose"},
	"reason":    {"explain", "reasons"},
	"dump":      {"capture", "tcpdump", "tshark", "trace"},
	"linkgroup": {"lg", "linkgroups"},
	"link":      {"links"},
	"device":    {"dev", "devices", "smc_rnics"},
	"off":       {"stop"},
	"config":    {"set", "unset"},
	"pnet":      {"pnetid", "smc_pnet"},
	"agent":     {"daemon"},
	"metrics":   {"prometheus", "exporter"},
}

// SuggestHabits has commands be suggested for the verbs that other tools have in their place.
func SuggestHabits(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		cmd.SuggestFor = habits[cmd.Name()]
	}
}
