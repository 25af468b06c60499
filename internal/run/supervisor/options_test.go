package supervisor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/proto"
)

// An optionDifference is an option that a moved connection does not have as TCP has it.
type optionDifference struct {
	level, name int
	reason      string
}

// optionValues are the options with values that differ, before or after they were set; errors and
// lengths do not.
var optionValues = []optionDifference{
	{unix.SOL_SOCKET, unix.SO_SNDBUF, "what a pair holds is another thing than what TCP does"},
	{unix.SOL_SOCKET, unix.SO_RCVBUF, "the same"},
	{unix.SOL_SOCKET, unix.SO_MEMINFO, "the same"},
	{unix.SOL_SOCKET, unix.SO_BUF_LOCK, "the library has set the size of the send buffer"},
	{unix.SOL_SOCKET, unix.SO_RCVLOWAT, "TCP gives at most half of its own receive buffer"},
	{unix.SOL_SOCKET, unix.SO_COOKIE, "each socket has another one"},
	{unix.SOL_SOCKET, unix.SO_PEERNAME, "the ports of two connections"},
	{unix.SOL_SOCKET, unix.SO_INCOMING_CPU, "the processor that the program runs on"},
	{unix.IPPROTO_IP, 52, "a port"},
	{unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, "TCP has that of the client's SYN, and no use for it"},
	{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, "the same"},
	{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, "the same"},
	{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, "TCP has that of the listener"},
	{unix.IPPROTO_TCP, unix.TCP_MAXSEG, "that of the loopback interface; TCP begins with a half of its first window"},
	{unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, "there is no window"},
	{unix.IPPROTO_TCP, unix.TCP_INFO, "there are no counters"},
	{unix.IPPROTO_TCP, unix.TCP_CC_INFO, "the same"},
	{unix.IPPROTO_TCP, unix.TCP_TIMESTAMP, "a clock"},
}

// optionsUnkept are options of sockets that are as good as options of TCP and IP: a value that was
// set is not read back, and means nothing.
var optionsUnkept = []optionDifference{
	{unix.SOL_SOCKET, unix.SO_NO_CHECK, "the library keeps something there"},
	{unix.SOL_SOCKET, unix.SO_REUSEPORT, "a Unix socket has none"},
	{unix.SOL_SOCKET, unix.SO_TXTIME, "the same"},
	{unix.SOL_SOCKET, unix.SO_TXREHASH, "the same"},
	{unix.SOL_SOCKET, unix.SO_RCVMARK, "the same"},
	{unix.SOL_SOCKET, 82, "the same, of SO_RCVPRIORITY"},
}

// optionsRefused cannot be set, though TCP takes them.
var optionsRefused = []optionDifference{
	{unix.SOL_SOCKET, unix.SO_ZEROCOPY, "nobody says when bytes of a pair were sent"},
	{unix.IPPROTO_TCP, unix.TCP_REPAIR, "of what goes over a pair no TCP connection can be made, nor the other way round"},
}

func differs(list []optionDifference, level, name int) bool {
	for _, d := range list {
		if d.level == level && d.name == name {
			return true
		}
	}
	return false
}

// An optionAnswer is a line of testdata/options.c: the question, the result with its length, and
// the value.
type optionAnswer struct {
	level, name           int
	asked, result, values string
	after                 string // the value after a set that has succeeded
}

func (a optionAnswer) String() string {
	return fmt.Sprintf("level %d option %d %s:%s|%s%s", a.level, a.name, a.asked, a.result, a.values, a.after)
}

// optionAnswers parses lines, and joins the value that was read after a set to that.
func optionAnswers(t *testing.T, text string) (list []optionAnswer) {
	t.Helper()
	for line := range strings.Lines(text) {
		var a optionAnswer
		asked, result, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		fields := strings.SplitN(asked, " ", 3)
		if !ok || len(fields) != 3 {
			t.Fatalf("line %q", line)
		}
		fmt.Sscan(fields[0], &a.level)
		fmt.Sscan(fields[1], &a.name)
		a.asked = fields[2]
		if strings.HasPrefix(a.asked, "after") {
			list[len(list)-1].after = result
			continue
		}
		a.result, a.values, _ = strings.Cut(result, "|")
		list = append(list, a)
	}
	return list
}

// equal says whether an answer is TCP's, but for the differences that are listed.
func (a optionAnswer) equal(tcp optionAnswer) bool {
	if a.level != tcp.level || a.name != tcp.name || a.asked != tcp.asked {
		return false
	}
	set := strings.HasPrefix(a.asked, "set")
	if set && differs(optionsRefused, a.level, a.name) && a.result != tcp.result {
		return tcp.result == " ok" && a.result == " "+map[int]string{unix.SO_ZEROCOPY: "EOPNOTSUPP", unix.TCP_REPAIR: "EPERM"}[a.name]
	}
	if a.result != tcp.result {
		return false
	}
	values := differs(optionValues, a.level, a.name)
	// Options of TCP and IP that were set are kept nowhere, but for two.
	kept := a.level == unix.SOL_SOCKET && !differs(optionsUnkept, a.level, a.name) ||
		a.level == unix.IPPROTO_TCP && (a.name == unix.TCP_NODELAY || a.name == unix.TCP_CORK)
	return (values || a.values == tcp.values) && (values || !kept || a.after == tcp.after)
}

// TestOptions has every option that there may be, read and set with lengths and values good and bad, come out as over TCP.
func TestOptions(t *testing.T) {
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	path := filepath.Join(t.TempDir(), "options")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/options.c")
	say := func(t *testing.T, args []string, environ ...string) []optionAnswer {
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
		defer stop()
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Env = append(os.Environ(), environ...)
		var complaints strings.Builder
		cmd.Stderr = &complaints
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s", environ, err, complaints.String())
		}
		return optionAnswers(t, string(out))
	}
	for _, args := range [][]string{{"4", "c", "0"}, {"4", "s", "1"}, {"6", "c", "1"}, {"6", "s", "0"}} {
		t.Run(strings.Join(args, "-"), func(t *testing.T) {
			tcp := say(t, args)
			moved := say(t, args, "MOVED=1", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
			if len(tcp) != len(moved) || len(tcp) == 0 {
				t.Fatalf("%d answers of TCP, and %d", len(tcp), len(moved))
			}
			wrong := 0
			for i := range tcp {
				if !moved[i].equal(tcp[i]) {
					if wrong++; wrong <= 20 {
						t.Errorf("%v, and with TCP %v", moved[i], tcp[i])
					}
				}
			}
			if wrong > 20 {
				t.Errorf("%d answers are wrong", wrong)
			}
		})
	}
}
