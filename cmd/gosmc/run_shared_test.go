package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
)

// sharedProgram is a server, of a user that it becomes if there is one, or with a port a client. The client says of each of 20 connections whether it is one of TCP (2) or not (1), as
// the kernel has it.
const sharedProgram = `
use IO::Socket;
my ($getsockopt, $port, $uid) = @ARGV;
$> = $uid if $uid;
$| = 1;
if ($port) {
	for (1 .. 20) {
		my $c = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port") or die;
		my $domain = pack("i", 0);
		my $length = pack("i", 4);
		syscall($getsockopt, fileno($c), 1, 39, $domain, $length) == 0 or die $!; # SOL_SOCKET, SO_DOMAIN
		print unpack("i", $domain);
		syswrite($c, "x"); sysread($c, my $b, 1);
	}
	print "\n";
} else {
	my $l = IO::Socket::INET->new(Listen => 10, LocalAddr => "127.0.0.1");
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
	ports := make(map[uint32]string)
	for _, uid := range []uint32{0, nobody} {
		line, err := startTalker(t, command(uid)).out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		ports[uid] = strings.TrimSpace(line)
	}
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
}
