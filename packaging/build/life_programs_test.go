package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Programs that run under gosmc run while their package is upgraded, downgraded and removed. They
// are of another user than root. Each server answers each line with the path of its library, and
// with whether that file has been replaced since. Clients keep their connections to the end.
const (
	serverProgram = `use IO::Socket; use IO::Select; $| = 1;
my $l = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => $ARGV[0], Listen => 9, ReuseAddr => 1) or die $!;
sub library { open(my $m, "<", "/proc/self/maps"); my ($line) = grep { /libgosmc/ } <$m>; $line =~ s/^(\S+\s+){5}//; chomp $line; $line }
my $s = IO::Select->new($l); print "ready\n";
while (my @r = $s->can_read) { for my $c (@r) {
  if ($c == $l) { $s->add($l->accept) }
  elsif (sysread($c, my $b, 99)) { syswrite($c, library() . "\n") } else { $s->remove($c); close $c }
} }`
	clientProgram = `use IO::Socket; $| = 1; my $c = IO::Socket::INET->new("127.0.0.1:$ARGV[0]") or die $!; print $c->sockport, "\n";
while (<STDIN>) { if (/^new/) { system("perl", "-e", $ENV{NEXT}, $ARGV[0]); next } my $a; for (1 .. 200) { syswrite($c, "x\n"); $a = <$c>; } print $a; }`
	// A program that a client starts: it has the client's environment, and the library that is in place by then.
	nextProgram = `use IO::Socket; my $c = IO::Socket::INET->new("127.0.0.1:$ARGV[0]") or die $!; my $a; for (1 .. 200) { syswrite($c, "x\n"); $a = <$c>; } print $a;`
)

// Ports of the servers: one starts with the old version, the other one with the new version.
const (
	oldServer = 7777
	newServer = 7778
)

// A server is one of programs that run.
type server struct {
	*exec.Cmd
	port int
}

// A talk is a client with a connection that it keeps.
type talk struct {
	*exec.Cmd
	server int // its port
	port   int // of the client
	in     io.WriteCloser
	out    *bufio.Scanner
}

// underRun is the command that starts a perl program under gosmc run as another user than root.
func underRun(program string, port int) *exec.Cmd {
	cmd := exec.Command("gosmc", "run", "perl", "-e", program, strconv.Itoa(port))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Env, cmd.Dir, cmd.Stderr = append(os.Environ(), "HOME=/nonexistent", "NEXT="+nextProgram), "/", os.Stdout
	return cmd
}

// serve starts a server.
func (l *life) serve(port int) {
	s := &server{underRun(serverProgram, port), port}
	out, err := s.StdoutPipe()
	if err == nil {
		err = s.Start()
	}
	if err == nil {
		l.servers = append(l.servers, s)
		_, err = out.Read(make([]byte, 16)) // it is ready
	}
	if err != nil {
		l.errorf("server %d: %v", port, err)
	}
}

// connect starts a client. Its connection has to leave TCP.
func (l *life) connect(port int) {
	t := &talk{Cmd: underRun(clientProgram, port), server: port}
	in, err := t.StdinPipe()
	if err != nil {
		l.errorf("%v", err)
		return
	}
	out, err := t.StdoutPipe()
	if err == nil {
		err = t.Start()
	}
	if err != nil {
		l.errorf("client of %d: %v", port, err)
		return
	}
	t.in, t.out = in, bufio.NewScanner(out)
	l.talks = append(l.talks, t)
	t.port, _ = strconv.Atoi(t.ask(""))
	if answer := t.ask("go\n"); !strings.HasPrefix(answer, "/usr/lib/gosmc/lib") {
		l.errorf("the library of the server %d is %q", port, answer)
	}
	if mode := l.mode(t.port); mode != "Unix" {
		l.errorf("the connection from port %d to %d has the mode %q", t.port, port, mode)
	}
}

// ask sends a client a line, and returns its answer.
func (t *talk) ask(line string) string {
	if _, err := io.WriteString(t.in, line); err != nil {
		return err.Error()
	}
	if !t.out.Scan() {
		return fmt.Sprintf("end of the client: %v", t.out.Err())
	}
	return t.out.Text()
}

// mode is the mode of the connection of a client, as root sees it.
func (l *life) mode(port int) string {
	var report struct {
		Connections []struct{ Local, Mode string }
	}
	if err := json.Unmarshal([]byte(l.sh("gosmc ss --json")), &report); err != nil {
		l.errorf("gosmc ss: %v", err)
	}
	for _, c := range report.Connections {
		if c.Local == fmt.Sprintf("127.0.0.1:%d", port) {
			return c.Mode
		}
	}
	return ""
}

func (l *life) use() {
	l.serve(oldServer)
	l.connect(oldServer)
}

// useNext checks, after another version was installed, that what runs goes on, and that programs
// of the version connect to all servers that run. With a port it starts a server there, too.
func (l *life) useNext(port int) {
	if port != 0 {
		l.serve(port)
	}
	l.goOn()
	for _, t := range l.talks {
		if mode := l.mode(t.port); mode != "Unix" { // told by the other version
			l.errorf("the connection from port %d to %d has the mode %q now", t.port, t.server, mode)
		}
	}
	for _, s := range l.servers {
		l.connect(s.port)
	}
	// The supervisor of the first client is of the old version. The library that the client's child loads is the new one's.
	if answer := l.talks[0].ask("new\n"); !strings.HasPrefix(answer, "/usr/lib/gosmc/lib") {
		l.errorf("a program that a client of the old version starts has got %q", answer)
	}
}

// goOn checks that every connection still carries bytes, and that servers have the library that
// they were started with, though its file is another one's or nobody's by now.
func (l *life) goOn() {
	for _, t := range l.talks {
		answer := t.ask("go\n")
		library, replaced := strings.CutSuffix(answer, " (deleted)")
		if !strings.HasPrefix(library, "/usr/lib/gosmc/lib") || !strings.HasSuffix(library, "/libgosmc-run.so") {
			l.errorf("the connection from port %d to %d answers %q", t.port, t.server, answer)
		}
		if t.server == oldServer && !replaced {
			l.errorf("the server %d has the library %q: that file was replaced", t.server, answer)
		}
	}
}

// end ends all programs, and waits for their supervisors.
func (l *life) end() {
	for _, t := range l.talks {
		t.in.Close()
		if err := t.Wait(); err != nil {
			l.errorf("client of %d: %v", t.server, err)
		}
	}
	for _, s := range l.servers {
		s.Process.Kill()
		s.Wait()
	}
	for deadline := time.Now().Add(20 * time.Second); len(processes()) > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.errorf("the supervisors have not ended: %q", processes())
			return
		}
	}
}
