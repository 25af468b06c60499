package usage

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// habits are verbs of other tools, and names of tools, with the verb here that does the same: of
// iproute2, systemctl, docker, netcat, tcpdump and smc-tools.
var habits = map[string][]string{
	"connect": {"nc", "netcat", "ncat", "telnet", "curl", "socat"},
	"listen":  {"serve"},
	"run":     {"start", "exec", "smc_run", "smc-run"},
	"service": {"enable", "disable", "systemctl", "services", "unit"},
	"ss":      {"ps", "ls", "list", "netstat", "connections", "smcss", "lsof"},
	"top":     {"htop", "iftop", "watch", "monitor"},
	"info":    {"status", "show"},
	"stats":   {"smcr", "smcd", "statistics", "nstat"},
	"doctor": {"check", "smc_chk", "smc-chk", "why", "diagnose", "ping", "rping", "test", "upgrade",
		"clean"},
	"applicable": {"advise", "smcat"},
	"reason":     {"explain", "reasons", "error"},
	"dump":       {"capture", "tcpdump", "tshark", "wireshark", "trace", "strace"},
	"linkgroup":  {"lg", "linkgroups"},
	"link":       {"links"},
	"device":     {"dev", "devices", "smc_rnics", "rdma"},
	"off":        {"stop", "kill", "uninstall"},
	"config":     {"set", "unset", "sysctl"},
	"pnet":       {"pnetid", "smc_pnet"},
	"agent":      {"daemon"},
	"metrics":    {"prometheus", "exporter"},
}

// FlagHabits are flags of other tools that a verb does not have, and what to do in their place.
var FlagHabits = map[string]map[string]string{
	"ss": {
		"-K": "restart a program to end its connections; 'gosmc off --now' keeps new ones on TCP",
		"-x": "of Unix sockets: ss -x. Connections of 'gosmc run' are here, with the mode Unix",
		"-w": "all is TCP here",
		"-f": "-4 or -6 chooses the version of IP",
		"-A": "all is TCP here",
		"-E": "--watch 1 shows changes",
		"-r": "addresses are numbers; 'getent hosts ADDRESS' has the name",
		"-Z": "--columns has user, namespace and container",
		"-b": "--json has more",
		"-M": "all is TCP here",
		"-k": "-H leaves the heading out, and --json | jq counts",
	},
	"top": {
		"-p": "a filter chooses: gosmc top program NAME; and --by program shows process IDs",
		"-u": "users are in: gosmc ss --columns process,user,peer-user",
		"-i": "a filter chooses: src ADDRESS or dst PREFIX",
		"-H": "--by program has a line for each process",
		"-s": "-d SECONDS is the time between two looks",
		"-f": "a filter is words without a flag, as in: gosmc top sport = :6379",
		"-P": "ports are shown",
	},
	"connect": {
		"-u": "SMC is for TCP",
		"-l": "gosmc listen PORT",
		"-p": "--source ADDRESS chooses the address, and no flag the port",
		"-s": "--source ADDRESS",
		"-k": "gosmc listen --keep PORT",
		"-U": "a Unix socket needs no SMC",
		"-N": "the end of the input is passed on as it is",
		"-q": "the end of the input is passed on, and the peer's end awaited",
		"-e": "gosmc run PROGRAM starts a program whose connections leave TCP",
		"-x": "proxies are not known here",
		"-X": "proxies are not known here",
		"-t": "there is no Telnet here",
		"-I": "Config.RcvBuf of package smc sets sizes",
	},
	"listen": {
		"-u": "SMC is for TCP",
		"-p": "the port has no flag: gosmc listen PORT",
		"-s": "HOST:PORT names the address",
		"-e": "gosmc run PROGRAM starts a server whose connections leave TCP",
		"-z": "gosmc connect -z HOST PORT",
		"-w": "--discard and --echo serve until interrupted",
		"-U": "a Unix socket needs no SMC",
		"-q": "the end of the input is passed on, and the peer's end awaited",
		"-N": "the end of the input is passed on as it is",
	},
	"dump": {
		"-T": "--json has one object for each message, --html FILE a page",
		"-V": "-v shows all fields",
		"-O": "-v shows all fields",
		"-z": "--stats, --list, --flow and --problems sum up",
		"-e": "--json | jq chooses fields",
		"-E": "--json | jq chooses fields",
		"-f": "--port, --host and --type choose; tcpdump -w FILE FILTER captures less",
		"-s": "whole packets are captured",
		"-A": "-x shows bytes",
		"-X": "-x shows bytes",
		"-q": "--list has a line for each connection",
		"-a": "timeout 60 gosmc dump -i any",
		"-b": "tcpdump -C SIZE -W COUNT -w FILE captures to files in turn; gosmc dump reads them",
		"-C": "tcpdump -C SIZE -W COUNT -w FILE captures to files in turn; gosmc dump reads them",
		"-W": "tcpdump -C SIZE -W COUNT -w FILE captures to files in turn; gosmc dump reads them",
		"-o": "-v shows all fields; gosmc dump has no preferences",
		"-t": "--time absolute has the date, --time delta the time since the line before",
		"-p": "it is so unless --promiscuous is given",
		"-d": "ports with SMC are found by themselves",
		"-l": "each line is written at once",
		"-S": "numbers of TCP are in: tshark -r FILE",
	},
	"run": {
		"-v":        "GOSMC_LOG=stderr has warnings on standard error; 'gosmc ss --why' has reasons",
		"-d":        "'gosmc service enable NAME' is for services",
		"-p":        "--listen-port and --connect-port choose ports",
		"--port":    "--listen-port and --connect-port choose ports",
		"-r":        "SMC-R is for programs with package smc: docs/smcr.md",
		"-t":        "docs/limits.md lists sizes of buffers",
		"-e":        "variables stand before it: A=1 gosmc run PROGRAM",
		"--env":     "variables stand before it: A=1 gosmc run PROGRAM",
		"--verbose": "GOSMC_LOG=stderr has warnings on standard error; 'gosmc ss --why' has reasons",
	},
	"metrics": {
		"--port":                         "--listen 127.0.0.1:9254",
		"--web.listen-address":           "--listen 127.0.0.1:9254",
		"--once":                         "without --listen and --textfile it prints once",
		"--collector.textfile.directory": "--textfile FILE, a file in that directory",
	},
	"doctor": {
		"--all":     "all is checked without a flag",
		"-a":        "all is checked without a flag",
		"-v":        "all is shown; --json has more",
		"--verbose": "all is shown; --json has more",
		"-p":        "the process ID has no flag: gosmc doctor PID",
		"-t":        "a name that is no address is a service",
	},
	"applicable": {
		"--seconds": "--for 60s",
		"--watch":   "--for 5m samples longer",
		"--user":    "--json | jq chooses",
		"-t":        "--for 60s",
		"-n":        "--for 60s",
	},
	"stats": {
		"-a":      "all is shown",
		"-d":      "--watch SECONDS shows what has changed",
		"-r":      "counters begin with a program; --watch SECONDS shows what has changed",
		"--reset": "counters begin with a program; --watch SECONDS shows what has changed",
	},
	"info":    {"-a": "all is shown; --json has more"},
	"service": {"--user": "units of users are not known here: put gosmc run into ExecStart of the unit"},
	"version": {"-s": "--json has the parts"},
}

// CommandHabits are words of other tools where a verb has commands, or no arguments, and what to say
// in their place.
var CommandHabits = map[string]map[string]string{
	"service": {
		"status":     "gosmc service list",
		"show":       "gosmc service enable --dry-run NAME",
		"cat":        "gosmc service enable --dry-run NAME",
		"is-enabled": "gosmc service list",
		"is-active":  "gosmc service list",
		"ls":         "gosmc service list",
		"start":      "systemctl start NAME",
		"stop":       "systemctl stop NAME",
		"restart":    "systemctl restart NAME",
		"reload":     "systemctl reload NAME",
		"edit":       "systemctl edit NAME",
		"mask":       "gosmc service disable NAME",
		"add":        "gosmc service enable NAME",
		"remove":     "gosmc service disable NAME",
		"delete":     "gosmc service disable NAME",
	},
	"config": {
		"get":      "gosmc config show --effective",
		"list":     "gosmc config show --effective",
		"cat":      "gosmc config show",
		"edit":     "an editor, and then gosmc config check",
		"validate": "gosmc config check",
		"test":     "gosmc config check",
		"del":      "gosmc config unset WORD",
		"remove":   "gosmc config unset WORD",
		"reload":   "nothing: programs follow the file by themselves",
	},
	"policy": {
		"list":   "gosmc policy show",
		"ls":     "gosmc policy show",
		"remove": "gosmc policy del",
		"delete": "gosmc policy del",
		"rm":     "gosmc policy del",
		"clear":  "gosmc policy flush",
		"set":    "gosmc config set",
	},
	"agent": {
		"start":   "systemctl start gosmc-agent",
		"stop":    "systemctl stop gosmc-agent",
		"restart": "systemctl restart gosmc-agent",
		"status":  "gosmc agent --status",
		"enable":  "systemctl enable gosmc-agent",
	},
	"stats": {"reset": "gosmc stats --watch SECONDS, which shows what has changed", "show": "gosmc stats"},
	"ueid": {
		"list":   "gosmc ueid show",
		"remove": "gosmc ueid del",
		"delete": "gosmc ueid del",
		"set":    "gosmc ueid add",
	},
	"pnet": {
		"list":   "gosmc pnet show",
		"remove": "gosmc pnet del",
		"delete": "gosmc pnet del",
		"set":    "gosmc pnet add",
	},
}

// instead returns the part of an error that says what does the same here as a word of another tool.
func instead(table map[string]map[string]string, cmd *cobra.Command, word string) string {
	if advice := table[VerbOf(cmd)][word]; advice != "" {
		return "; " + advice
	}
	return ""
}

// SuggestHabits has commands be suggested for the verbs that other tools have in their place.
func SuggestHabits(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		cmd.SuggestFor = habits[cmd.Name()]
	}
}

// Netcat reads a command line of netcat, which has flags alone, as the verb that does the same:
// 'gosmc -lk 7000' is 'gosmc listen -k 7000'. Other command lines stay as they are. So does the line of
// connect with -l, as netcat has one command for both.
func Netcat(args []string) []string {
	if len(args) > 0 && args[0] == "connect" {
		args = args[1:]
		if len(args) == 0 || !isListen(args[0]) {
			return append([]string{"connect"}, args...)
		}
	}
	if len(args) == 0 || !isListen(args[0]) {
		return args
	}
	return append([]string{"listen"}, args...)
}

// isListen reports whether a word is a group of flags of netcat with -l in it.
func isListen(word string) bool {
	letters, ok := strings.CutPrefix(word, "-")
	return ok && strings.Contains(letters, "l") && !slices.ContainsFunc([]byte(letters), func(b byte) bool {
		return !strings.ContainsRune("lkvn46", rune(b)) // rule: cmd/gosmc TestNetcatHabits: n46 -> n46z
	})
}
