package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gosmc/smc/internal/sockdiag"
)

// Unmodified programs of both hosts: under 'gosmc run' here, where the bytes pass an engine, and on AF_SMC
// sockets of the guest's kernel, by guest/smcrun.c. Nothing names the peer: TCP option 254 says who speaks
// SMC-R.

// fileSize is how many bytes the programs move at once.
const fileSize = 20_000_000

// onSMC is how a shell of the guest starts a program on AF_SMC sockets.
const onSMC = "LD_PRELOAD=/lib/smcrun.so "

// A service is a pair of programs: a server, and what its clients do.
type service struct {
	name   string                                     // of the server's program
	server func(dir, addr string, port uint16) string // a shell command
	client []request
}

// A request is what a client does, a shell command in which $A and $P are the server's address and port. The
// standard output has to be like want; empty: the hash of the file.
type request struct {
	command string
	want    string
	conns   uint64 // over SMC-R, at least
	left    uint64 // over TCP
}

// orphan is a client whose supervisor is gone: its connection stays TCP, though the server waits for CLC.
var orphan = request{command: `pkill -KILL -f "run-supervise $GOSMC_DIR"; curl -sS http://$A:$P/file | sha256sum`, left: 1}

// The file of both ends is in dir: random bytes, and their hash.
var services = []service{
	{
		name: "redis-server",
		server: func(dir, addr string, port uint16) string {
			return fmt.Sprintf("exec redis-server --bind %s --port %d --protected-mode no --save '' --dir %s", addr, port, dir)
		},
		client: []request{
			{command: "redis-cli -h $A -p $P ping", want: "PONG", conns: 1},
			{command: "redis-cli -h $A -p $P -x set big <$D/file", want: "OK", conns: 1},
			{command: fmt.Sprintf("redis-cli -h $A -p $P --raw get big | head -c %d | sha256sum", fileSize), conns: 1},
			{command: "redis-benchmark -h $A -p $P -n 3000 -c 20 -P 4 -q -t set,get >/dev/null && echo done", want: "done", conns: 40},
		},
	},
	{
		name: "nginx",
		server: func(dir, addr string, port uint16) string {
			return fmt.Sprintf(`echo "daemon off; user root; master_process off; pid %s/nginx.pid; events {} http { access_log off; `+
				`client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s; `+
				`server { listen %s:%d; root %[1]s; } }" >%[1]s/nginx.conf; exec nginx -p %[1]s -e stderr -c %[1]s/nginx.conf`, dir, addr, port)
		},
		client: []request{
			{command: "curl -sS http://$A:$P/file | sha256sum", conns: 1},
			{command: "for i in 1 2 3 4 5 6 7 8; do curl -sS http://$A:$P/file | sha256sum >$D/sum$i & done; wait; cat $D/sum? | sort -u", conns: 8},
			{command: "curl -sS http://$A:$P/file http://$A:$P/file -o /dev/null -o $D/got && sha256sum <$D/got", conns: 1},
		},
	},
}

// inRun is the shell's command under 'gosmc run' here.
func (l *lab) inRun(ctx context.Context, command string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(l.dir, "gosmc"), "run", "sh", "-c", command)
	cmd.Env = append(os.Environ(), append(l.environ, "GOSMC_DIR="+l.runDir(), "GOSMC_UEIDS="+ueid, "GOSMC_CONFIG=/dev/null",
		"GOSMC_BETWEEN_HOSTS=1", "GOSMC_SHORT_AFTER=off")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	cmd.WaitDelay = killDelay // an engine has the output, too
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// files makes the file at both ends, and returns its hash and the directories.
func (l *lab) files(ctx context.Context) (hash, here, there string, err error) {
	here, there = filepath.Join(l.dir, "files"), "/tmp/files"
	b := make([]byte, fileSize)
	rand.Read(b)
	l.atEnd(func() error { return os.RemoveAll(here) })
	if err := errors.Join(os.MkdirAll(here, 0o755), os.WriteFile(filepath.Join(here, "file"), b, 0o644)); err != nil {
		return "", "", "", err
	}
	lastPort++
	hash = fmt.Sprintf("%x", sha256.Sum256(b))
	c, received, err := l.startServer(ctx, fmt.Sprintf("mkdir -p %s; nc -l -p %d >%[1]s/file; sha256sum <%[1]s/file", there, lastPort), lastPort)
	if err != nil {
		return "", "", "", err
	}
	if _, err := c.Write(b); err != nil {
		return "", "", "", err
	}
	c.Close()
	if said, err := received(); err != nil || !strings.HasPrefix(said, hash) {
		return "", "", "", fmt.Errorf("the guest has received %q, %w", said, err)
	}
	return hash, here, there, nil
}

// runServer has servers under 'gosmc run' here, and clients in the guest.
func runServer(ctx context.Context, l *lab) error {
	return l.services(ctx, services, func(s service, here, there string) (err error) {
		lastPort++
		port := lastPort
		server := l.inRun(ctx, s.server(here, ourAddr4.String(), port))
		var said strings.Builder
		server.Stdout, server.Stderr = &said, &said
		if err := server.Start(); err != nil {
			return err
		}
		ended := make(chan struct{})
		go func() { server.Wait(); close(ended) }()
		defer func() {
			server.Process.Signal(syscall.SIGTERM)
			<-ended
			if err != nil {
				err = fmt.Errorf("%w\n%s", err, said.String())
			}
		}()
		err = try(ctx, s.name+" listens", func() (bool, error) {
			text, err := os.ReadFile("/proc/net/tcp")
			select {
			case <-ended:
				return false, errors.Join(err, errors.New("the server has ended"))
			default:
			}
			return strings.Contains(string(text), isListening(port)), err
		})
		if err != nil {
			return err
		}
		for _, r := range s.client {
			script := fmt.Sprintf("export A=%v P=%d D=%s; %s", ourAddr4, port, there, onSMC)
			if err := l.request(ctx, r, func() (string, error) {
				return l.vm.run(ctx, caseTimeout, script+"sh -c '"+r.command+"'")
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// runClient has servers in the guest, and clients under 'gosmc run' here.
func runClient(ctx context.Context, l *lab) error {
	list := slices.Clone(services)
	last := &list[len(list)-1]
	last.client = append(slices.Clone(last.client), orphan)
	return l.services(ctx, list, func(s service, here, there string) error {
		lastPort++
		port := lastPort
		serving, cancel := context.WithCancel(ctx)
		defer cancel()
		command := strings.ReplaceAll(s.server(there, guestAddr4.String(), port), "'", `"`)
		served, err := l.vm.start(serving, onSMC+"sh -c '"+command+"'")
		if err != nil {
			return err
		}
		if _, err := l.vm.run(ctx, commandTimeout, "until grep -q '"+isListening(port)+"' /proc/net/tcp; do sleep 0.05; done"); err != nil {
			cancel()
			said, _ := served()
			return fmt.Errorf("%w\n%s", err, said)
		}
		for _, r := range s.client {
			err := l.request(ctx, r, func() (string, error) {
				cmd := l.inRun(ctx, fmt.Sprintf("A=%v P=%d D=%s; %s", guestAddr4, port, here, r.command))
				out, err := cmd.Output()
				return string(out), err
			})
			if err != nil {
				return err
			}
		}
		_, err = l.vm.run(ctx, commandTimeout, "killall "+s.name)
		return err
	})
}

// wanted is the hash that requests have to print.
var wanted string

// services does something with each service, and checks that all connections have been SMC-R.
func (l *lab) services(ctx context.Context, list []service, do func(s service, here, there string) error) error {
	if err := l.readyWithAgent(ctx); err != nil {
		return err
	}
	l.atEnd(func() error { return l.enginesEnd(context.WithoutCancel(ctx)) })
	hash, here, there, err := l.files(ctx)
	if err != nil {
		return err
	}
	wanted = hash
	for _, s := range list {
		began := time.Now()
		before, err := l.guestCounts(ctx)
		if err != nil {
			return err
		}
		if err := do(s, here, there); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		after, err := l.guestCounts(ctx)
		if err != nil {
			return err
		}
		var conns, stay uint64
		for _, r := range s.client {
			conns, stay = conns+r.conns, stay+r.left
		}
		moved := after.SMCR.Client - before.SMCR.Client + after.SMCR.Server - before.SMCR.Server
		left := after.ClientFallbacks - before.ClientFallbacks + after.ServerFallbacks - before.ServerFallbacks
		if moved < conns || left != stay {
			return fmt.Errorf("%s: the guest has had %d connections over SMC-R and %d over TCP (%+v), want %d and %d", s.name, moved, left, after.Reasons, conns, stay)
		}
		l.note("%s: %d connections, %.1f s", s.name, moved, time.Since(began).Seconds())
	}
	return nil
}

// enginesEnd waits until no process of 'gosmc run' is left: an engine ends after the programs.
func (l *lab) enginesEnd(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return try(ctx, "end of the engines", func() (bool, error) {
		files, err := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, name := range files {
			text, _ := os.ReadFile(name)
			words := strings.Split(string(text), "\x00")
			if len(words) > 2 && strings.HasPrefix(words[1], "run-") && strings.HasPrefix(words[2], l.runDir()) {
				return false, err
			}
		}
		return true, err
	})
}

// guestCounts is what the guest's kernel has counted.
func (l *lab) guestCounts(ctx context.Context) (counts sockdiag.SMCStats, err error) {
	said, err := l.vm.run(ctx, commandTimeout, "smcpeer counts")
	if err != nil {
		return counts, err
	}
	return counts, json.Unmarshal([]byte(said), &counts)
}

// request does one, and checks what it says.
func (l *lab) request(ctx context.Context, r request, do func() (string, error)) error {
	said, err := do()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", r.command, err, said)
	}
	want := r.want
	if want == "" {
		want = wanted + "  -"
	}
	if got := strings.TrimSpace(said); got != want {
		return fmt.Errorf("%s: %q, want %q", r.command, got, want)
	}
	return nil
}
