package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
)

// sharedProgram is a server at the address AT of the environment, of a user that it becomes if there is one, or with a port a client. The client says of each of 20 connections whether it is one of TCP (2) or not (1), as
// the kernel has it.
const sharedProgram = `
use IO::Socket;
my ($getsockopt, $port, $uid) = @ARGV;
$> = $uid if $uid;
$| = 1;
if ($port) {
	for (1 .. 20) {
		my $c = IO::Socket::INET->new(PeerAddr => ($ENV{AT} // "127.0.0.1") . ":$port") or die;
		my $domain = pack("i", 0);
		my $length = pack("i", 4);
		syscall($getsockopt, fileno($c), 1, 39, $domain, $length) == 0 or die $!; # SOL_SOCKET, SO_DOMAIN
		print unpack("i", $domain);
		syswrite($c, "x"); sysread($c, my $b, 1);
	}
	print "\n";
} else {
	my $l = IO::Socket::INET->new(Listen => 10, LocalAddr => $ENV{AT} // "127.0.0.1");
	print $l->sockport, "\n";
	while (my $c = $l->accept) { sysread($c, my $b, 1); syswrite($c, "x"); }
}
`

// TestRunShared has users share a run directory: each has a place of its own in it, in which clients remember that connections were short. A program that has become another
// user finds the servers of that one.
func TestRunShared(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: another user")
	}
	if _, err := exec.LookPath("perl"); err != nil {
		t.Skip("needs perl, which every user can run")
	}
	t.Setenv(config.EnvDisabled, "")
	const nobody = 65534
	environ := append(runEnviron(t), config.EnvFile+"=/dev/null")
	dir := strings.TrimPrefix(environ[len(environ)-2], "GOSMC_DIR=")
	if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	path := copyForAll(t)
	command := func(uid uint32, args ...string) *exec.Cmd {
		cmd := runCommand(t, environ, append([]string{"--short-after", "16", "perl", "-e", sharedProgram, strconv.Itoa(unix.SYS_GETSOCKOPT)}, args...)...)
		cmd.Path, cmd.Stderr = path, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		return cmd
	}
	listen := func(cmd *exec.Cmd) (port string) {
		t.Helper()
		line, err := startTalker(t, cmd).out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(line)
	}
	ports := map[uint32]string{0: listen(command(0)), nobody: listen(command(nobody))}
	const moved, tcp = "1", "2"
	short := strings.Repeat(moved, 16) + strings.Repeat(tcp, 4)
	for _, tt := range []struct {
		client, server uint32
		become         string
		want           string
	}{
		{0, 0, "", short},
		{nobody, nobody, "", short},
		{0, nobody, "", strings.Repeat(tcp, 20)},
		{nobody, 0, "", strings.Repeat(tcp, 20)},
		{0, nobody, "65534", strings.Repeat(moved, 20)}, // it cannot write to the table of those that it was started with
		{0, 0, "65534", strings.Repeat(tcp, 20)},
	} {
		out, err := command(tt.client, ports[tt.server], tt.become).Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != tt.want {
			t.Errorf("a client of user %d (later %q), a server of %d: %s, %v; want %s", tt.client, tt.become, tt.server, got, err, tt.want)
		}
	}
	for _, name := range []string{"run-0", "run-65534"} {
		found, _ := filepath.Glob(filepath.Join(dir, "*", name, "admission"))
		if len(found) != 1 {
			t.Errorf("%s has no table", name)
		}
	}
	// A server that gives up its privileges before it listens is one of the user that has started
	// it, for programs of that user, as one is that does so later. Another process that the first
	// one has started is not told from those of other users.
	changed := listen(command(0, "", strconv.Itoa(nobody)))
	below := command(0)
	i := slices.Index(below.Args, "perl")
	below.Args = slices.Concat(below.Args[:i], []string{"sh", "-c", `"$@"; true`, "sh"}, below.Args[i:], []string{"", strconv.Itoa(nobody)})
	below.SysProcAttr.Setpgid = true
	other := listen(below)
	defer syscall.Kill(-below.Process.Pid, syscall.SIGKILL)
	for _, tt := range []struct {
		name, server string
		client       uint32
		want         string
	}{
		{"a client of the user before", changed, 0, short},
		{"a client of the user after", changed, nobody, strings.Repeat(tcp, 20)},
		{"a server that another program starts", other, 0, strings.Repeat(tcp, 20)},
	} {
		out, err := command(tt.client, tt.server).Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != tt.want {
			t.Errorf("%s: %s, %v; want %s", tt.name, got, err, tt.want)
		}
	}
	out, _ := exec.Command("env", append(slices.Clone(environ), path, "run", "--explain", "127.0.0.1:"+changed, "--user", strconv.Itoa(nobody))...).CombinedOutput()
	if want := "it was started as root (0) and has become nobody (65534)"; !strings.Contains(string(out), want) {
		t.Errorf("--explain says %s, want %q in it", out, want)
	}
}
