package main

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
)

var sshd = &program{
	name: "sshd", what: "ssh, scp both ways, sftp, a forwarded port; sshd executes itself again for each connection",
	packages: []string{"openssh-server", "openssh-client", "socat"},
	needs:    []string{"sshd", "ssh", "scp", "sftp", "ssh-keygen", "socat"},
	root:     true, // other users may be locked
	run: func(l *lab) {
		l.must(os.MkdirAll("/run/sshd", 0o755))
		l.helper("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(l.dir, "host"))
		l.helper("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(l.dir, "user"))
		sftpServer := found("/usr/lib/openssh/sftp-server")
		conf := l.file("sshd_config", fmt.Sprintf(`ListenAddress 127.0.0.1
HostKey %s/host
PidFile none
AuthorizedKeysFile %[1]s/user.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
Subsystem sftp %s
`, l.dir, sftpServer))
		port, forwarded, target := l.port(), l.port(), l.port()
		l.serve(port, found("sshd"), "-D", "-e", "-f", conf, "-p", strconv.Itoa(port))
		me, err := user.Current()
		l.must(err)
		options := []string{"-F", "none", "-i", filepath.Join(l.dir, "user"), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=" + filepath.Join(l.dir, "known"), "-o", "LogLevel=ERROR", "-o", "BatchMode=yes"}
		to := me.Username + "@127.0.0.1"
		ssh := func(args ...string) []string {
			return append(append([]string{"-p", strconv.Itoa(port)}, options...), args...)
		}
		l.result("a command", l.client("ssh", ssh(to, "echo", "hello")...))
		cmd := l.command("ssh", ssh(to, "exit", "7")...)
		l.result("exit status", isExit(cmd.Run(), 7))
		l.result("addresses", len(strings.Fields(l.client("ssh", ssh(to, "echo", "$SSH_CONNECTION")...))))
		in := l.random("in", 30_000_000)
		copied := func(name string) string { return filepath.Join(l.dir, name) }
		scp := append(append([]string{"-q", "-P", strconv.Itoa(port)}, options...), "-O")
		for _, legacy := range []bool{true, false} {
			if !legacy {
				scp = scp[:len(scp)-1]
			}
			up, down := copied(fmt.Sprint("up-", legacy)), copied(fmt.Sprint("down-", legacy))
			l.client("scp", append(append([]string{}, scp...), in, to+":"+up)...)
			l.client("scp", append(append([]string{}, scp...), to+":"+up, down)...)
			l.result(fmt.Sprint("scp ", legacy), fmt.Sprint(l.sum(up) == l.sum(in), l.sum(down) == l.sum(in)))
		}
		batch := l.file("batch", fmt.Sprintf("put %s %s\nget %[2]s %s\nrm %[2]s\n", in, copied("sftp-up"), copied("sftp-down")))
		l.client("sftp", append(append([]string{"-q", "-P", strconv.Itoa(port), "-b", batch}, options...), to)...)
		l.result("sftp", l.sum(copied("sftp-down")) == l.sum(in))

		// A port that the client forwards, and bytes both ways through it.
		l.serve(target, "socat", fmt.Sprintf("TCP4-LISTEN:%d,fork,reuseaddr,bind=127.0.0.1", target), "EXEC:cat")
		f := l.start(l.command("ssh", ssh("-N", "-L", fmt.Sprintf("127.0.0.1:%d:127.0.0.1:%d", forwarded, target), to)...))
		l.awaitListener(forwarded, f)
		through := l.command("socat", "-t", "30", "-", fmt.Sprintf("TCP4:127.0.0.1:%d", forwarded))
		b, err := os.ReadFile(in)
		l.must(err)
		through.Stdin = strings.NewReader(string(b))
		l.result("forwarded", sumOf(l.finish(through)) == l.sum(in))
		l.shown(port)
		l.counted(5)
	},
}
