// Package agent does the privileged work for processes that use SMC. It puts TCP option 254 on the
// segments of sockets that ask for it, and shares UDP port 4791 of an address among processes.
// 'gosmc agent' runs it.
//
// It is on no data path. Its objects are in the kernel, pinned, and stay when it ends: the programs
// that write the option, the steering of packets, the sockets of processes. An agent that is
// started again, or one of another version, finds all of it. See docs/agent.md.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/wire/roce"
)

// Config has the settings of an [Agent].
type Config struct {
	Socket string // path of its Unix socket, in a directory that exists
	Cgroup string // control group that can ask for the option; empty for the root of them all
	Pins   string // where programs are pinned; empty for [bpf.DefaultPins]

	Version   string // of the command
	NoOption  bool   // do not write TCP option 254
	NoPairing bool   // do not pair sockets
	NoPort    bool   // do not share ports
	Policy    Policy

	NoIntroduce bool             // do not introduce processes to each other
	Introduce   *introduce.Users // that are introduced to other users; nil for all
	Keeper      []string         // command that calls [Keep]; empty for none

	Logger *slog.Logger // nil for none

	lookPeriod, vacancyTime time.Duration // 0 for the limits; tests set others
}

// An Agent serves until it is closed.
type Agent struct {
	cfg      Config
	log      *slog.Logger
	option   *bpf.Option // nil with NoOption and NoPairing
	ports    *ports      // nil with NoPort
	intro    *introducer // nil with NoIntroduce, or if the kernel pairs no sockets
	noIntro  error       // why it is nil
	listener *net.UnixListener
	inode    uint64 // of the socket, so that Close removes no other
	lock     *os.File
	started  time.Time
	netns    uint64 // cookie of its network namespace

	clients chan struct{} // a token for each that is served
	wg      sync.WaitGroup

	mu      sync.Mutex
	conns   map[*net.UnixConn]account // the client's account
	served  Counters
	stopped bool
}

// Status is the answer that [port.Ask] gets for "status".
type Status struct {
	PID     int            `json:"pid"`
	Version string         `json:"version"` // of the command
	Started time.Time      `json:"started"`
	Socket  string         `json:"socket"`
	Pins    string         `json:"pins"`
	Option  OptionStatus   `json:"option"`
	Pairing PairingStatus  `json:"pairing"`
	Ports   []PortStatus   `json:"ports"`
	Vacant  []VacantStatus `json:"vacant_ports"`
	Served  Counters       `json:"requests"`

	Introductions IntroductionStatus `json:"introductions"`
}

// IntroductionStatus is the status of the introduction service.
type IntroductionStatus struct {
	Enabled    bool   `json:"enabled"`
	Why        string `json:"why,omitempty"` // it is not
	Namespaces int    `json:"network_namespaces"`
	introduce.Counters
}

// OptionStatus is the status of TCP option 254.
type OptionStatus struct {
	Enabled  bool               `json:"enabled"`
	Attached bool               `json:"attached"` // somebody may have detached it
	Cgroup   string             `json:"cgroup,omitempty"`
	Counters bpf.OptionCounters `json:"counters"`
}

// PairingStatus is the status of the pairing of sockets. Reason says why there is none.
type PairingStatus struct {
	Enabled  bool                `json:"enabled"`
	Reason   string              `json:"reason,omitempty"`
	Counters bpf.PairingCounters `json:"counters"`
}

// PortStatus is the status of a shared port.
type PortStatus struct {
	Address   string         `json:"address"`
	Namespace uint64         `json:"netns_cookie"`
	Sockets   []SocketStatus `json:"sockets"`
}

// SocketStatus is the status of a socket on a shared port.
type SocketStatus struct {
	FirstQPN uint32 `json:"first_qpn"`
	QPNs     uint32 `json:"qpns"`
	Process  uint32 `json:"pid"` // that it was given to; 0 if that is not known
	User     uint32 `json:"uid"`
}

// VacantStatus is the status of a shared port whose last process has ended a short time ago. The
// agent answers queue pairs that still send to it.
type VacantStatus struct {
	Address   string    `json:"address"`
	Namespace uint64    `json:"netns_cookie"`
	Until     time.Time `json:"until"`   // end of the answers, at the latest
	Answers   uint64    `json:"answers"` // to queue pairs that would have gone on
}

// Counters count requests.
type Counters struct {
	Granted uint64 `json:"granted"` // sockets
	Refused uint64 `json:"refused"` // by the policy, a limit or the system
	Unfit   uint64 `json:"unfit"`   // no request, or none in time
}

// Start sets up the agent by cfg, and serves. The error says which part is missing.
func Start(cfg Config) (*Agent, error) {
	a := &Agent{cfg: cfg, log: cfg.Logger, started: time.Now(), clients: make(chan struct{}, maxClients),
		conns: make(map[*net.UnixConn]account)}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	if err := a.start(); err != nil {
		a.Close()
		return nil, err
	}
	a.wg.Go(a.acceptLoop)
	return a, nil
}

func (a *Agent) start() (err error) {
	cfg := &a.cfg
	if cfg.Pins == "" {
		cfg.Pins = bpf.DefaultPins
	}
	if err := a.takeLock(); err != nil {
		return err
	}
	if a.netns, err = netnsCookie(); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	if err := bpf.PreparePins(cfg.Pins); err != nil {
		return err
	}
	if !cfg.NoOption || !cfg.NoPairing {
		if cfg.Cgroup == "" {
			if cfg.Cgroup, err = bpf.CgroupRoot(); err != nil {
				return err
			}
		}
		parts := bpf.Parts{NoOption: cfg.NoOption, NoPairing: cfg.NoPairing}
		if a.option, err = bpf.Attach(cfg.Cgroup, cfg.Pins, parts); err != nil {
			return err
		}
		a.log.Info("TCP option 254", "cgroup", cfg.Cgroup, "taken over", a.option.Found)
		if _, err := a.option.Pairing(); err != nil {
			a.log.Warn("sockets are not paired", "reason", err)
		}
	}
	if !cfg.NoIntroduce {
		if a.intro, a.noIntro = a.startIntroducer(); a.noIntro != nil {
			a.log.Warn("programs are not introduced to each other", "reason", a.noIntro)
		}
	}
	if !cfg.NoPort {
		if a.ports, err = newPorts(cfg, a.netns, a.log); err != nil {
			return err
		}
		a.log.Info("shared ports", "found", len(a.ports.open))
	}
	return a.listen()
}

// takeLock makes sure that there is one agent for a socket.
func (a *Agent) takeLock() error {
	f, err := os.OpenFile(a.cfg.Socket+".lock", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("agent: another one serves %s", a.cfg.Socket)
		}
		return fmt.Errorf("agent: lock %s: %w", f.Name(), err)
	}
	a.lock = f
	return nil
}

// listen makes the socket under another name, and moves it into place when it has its mode. A
// client that connects is told in words if it may not ask.
func (a *Agent) listen() error {
	early := a.cfg.Socket + ".new"
	if err := os.Remove(early); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("agent: %w", err)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: early})
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	l.SetUnlinkOnClose(false)
	a.listener = l
	var st unix.Stat_t
	if err = os.Chmod(early, 0o666); err == nil {
		if err = unix.Lstat(early, &st); err == nil {
			err = os.Rename(early, a.cfg.Socket)
		}
	}
	if err != nil {
		os.Remove(early)
		return fmt.Errorf("agent: %w", err)
	}
	a.inode = st.Ino
	a.log.Info("serving", "socket", a.cfg.Socket)
	return nil
}

func (a *Agent) acceptLoop() {
	for {
		c, err := a.listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(acceptPause)
			continue
		}
		a.clients <- struct{}{} // bounded: each client is served under deadlines
		who, err := identify(c)
		if err != nil || !a.track(c, &who) {
			// There is room in a new socket: this does not wait.
			send(c, port.Answer{Error: fmt.Sprintf("%d requests of user %d are being served", maxAccountClients, who.user), Code: port.CodeBusy}, -1)
			dispose.Conn(c) // rule: internal/host TestPodsAttacked
			<-a.clients
			continue
		}
		a.wg.Go(func() {
			defer func() { <-a.clients }()
			if a.intro != nil && a.hands(c, &who) {
				return
			}
			a.serve(c, &who)
			a.untrack(c)
		})
	}
}

// track remembers a client. It reports false for one too many of an account, and after Close.
func (a *Agent) track(c *net.UnixConn, who *client) bool {
	whose, limited := accountOf(who.user, who.netns, a.netns)
	a.mu.Lock()
	defer a.mu.Unlock()
	own := 0
	for _, other := range a.conns {
		if other == whose {
			own++
		}
	}
	if a.stopped || limited && own >= maxAccountClients {
		return false
	}
	a.conns[c] = whose
	return true
}

func (a *Agent) untrack(c *net.UnixConn) {
	a.forget(c)
	dispose.Conn(c)
}

func (a *Agent) forget(c *net.UnixConn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.conns, c)
}

// hands hands a client over that wants to be introduced. It reports false for one that wants something else.
func (a *Agent) hands(c *net.UnixConn, who *client) bool {
	c.SetDeadline(time.Now().Add(ioTimeout))
	hello, err := isHello(c)
	switch {
	case err != nil:
		a.count(func(n *Counters) { n.Unfit++ })
		a.untrack(c)
		return true
	case !hello:
		return false
	}
	c.SetDeadline(time.Time{})
	a.forget(c)
	a.intro.server.Take(c, who.identity(a.netns))
	return true
}

// serve answers one request of a client.
func (a *Agent) serve(c *net.UnixConn, who *client) {
	c.SetDeadline(time.Now().Add(ioTimeout))
	request, err := receive(c)
	if err != nil {
		a.count(func(n *Counters) { n.Unfit++ })
		if !errors.Is(err, errSilent) {
			send(c, port.Answer{Error: err.Error()}, -1)
		}
		return
	}
	switch request.Request {
	case "status":
		answer := port.Answer{}
		status, err := a.Status()
		if err == nil {
			answer.Status, err = json.Marshal(status)
		}
		if err != nil {
			answer = port.Answer{Error: err.Error()}
		}
		send(c, answer, -1)
	case "port":
		a.servePort(c, who, request)
	default:
		a.count(func(n *Counters) { n.Unfit++ })
		send(c, port.Answer{Error: fmt.Sprintf("unknown request %q, want \"port\" or \"status\"", request.Request)}, -1)
	}
}

func (a *Agent) servePort(c *net.UnixConn, who *client, request port.Request) {
	refused := func(err error) {
		a.count(func(n *Counters) { n.Refused++ })
		a.log.Warn("port refused", "address", request.Address, "pid", who.pid, "uid", who.user, "reason", err)
	}
	answer, fd, err := a.grant(who, request)
	if err != nil {
		refused(err) // before the client knows, which may ask for the numbers next
		refusal := port.Answer{Error: err.Error()}
		if errors.Is(err, errNoPorts) {
			refusal.Code = port.CodeNoPorts
		}
		send(c, refusal, -1)
		return
	}
	err = send(c, answer, fd)
	unix.Close(fd) // the client has it now, or nobody
	if err != nil {
		refused(err)
		return
	}
	a.count(func(n *Counters) { n.Granted++ })
	a.log.Info("port granted", "address", request.Address, "pid", who.pid, "uid", who.user, "first QPN",
		answer.First)
}

var errNoPorts = errors.New("this agent shares no ports")

func (a *Agent) grant(who *client, request port.Request) (port.Answer, int, error) {
	if a.ports == nil {
		return port.Answer{}, -1, errNoPorts
	}
	if err := a.cfg.Policy.allows(who); err != nil {
		return port.Answer{}, -1, err
	}
	udp := request.UDPPort
	if udp == 0 {
		udp = roce.Port
	}
	if udp != roce.Port && who.user != 0 {
		return port.Answer{}, -1, fmt.Errorf("port %d is not %d, that of RoCEv2", udp, roce.Port)
	}
	return a.ports.grant(who, netip.AddrPortFrom(request.Address, udp), request.Thread)
}

func (a *Agent) count(f func(*Counters)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(&a.served)
}

// errSilent is that a client has said nothing.
var errSilent = errors.New("the client has said nothing")

// receive reads a request.
func receive(c *net.UnixConn) (request port.Request, err error) {
	b := make([]byte, port.MaxRequest)
	n, flags, err := readWithoutRights(c, b)
	switch {
	case err != nil || n == 0:
		return request, errSilent
	case flags&unix.MSG_TRUNC != 0:
		return request, fmt.Errorf("the request is longer than %d bytes", port.MaxRequest)
	}
	if err := json.Unmarshal(b[:n], &request); err != nil {
		return request, fmt.Errorf("the request: %w", err)
	}
	if request.Version != port.Version {
		return request, fmt.Errorf("version %d is not spoken here, only %d", request.Version, port.Version)
	}
	return request, nil
}

// readWithoutRights reads a packet. The kernel throws away descriptors that come along, which may take time.
func readWithoutRights(c *net.UnixConn, b []byte) (n, flags int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	cerr := raw.Read(func(fd uintptr) bool {
		dispose.Hurry(func() {
			for again := true; again; again = err == unix.EINTR {
				n, _, flags, _, err = unix.Recvmsg(int(fd), b, nil, unix.MSG_DONTWAIT)
			}
		})
		return err != unix.EAGAIN
	})
	if cerr != nil {
		err = cerr
	}
	return n, flags, err
}

// send sends an answer, with a descriptor unless that is -1.
func send(c *net.UnixConn, answer port.Answer, fd int) error {
	answer.Version = port.Version
	b, err := json.Marshal(answer)
	if err == nil && len(b) > port.MaxAnswer {
		b, err = json.Marshal(port.Answer{Version: port.Version,
			Error: "the answer does not fit into a message"})
	}
	if err != nil {
		return err
	}
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	_, _, err = c.WriteMsgUnix(b, oob, nil)
	return err
}

// Status returns the agent's state and counts.
func (a *Agent) Status() (Status, error) {
	s := Status{
		PID: os.Getpid(), Version: a.cfg.Version, Started: a.started, Socket: a.cfg.Socket, Pins: a.cfg.Pins,
		Ports: []PortStatus{}, Vacant: []VacantStatus{},
	}
	if a.option != nil {
		s.Option = OptionStatus{
			Enabled: !a.cfg.NoOption, Attached: a.option.Attached(), Cgroup: a.option.Cgroup(),
		}
		var err error
		if s.Option.Counters, err = a.option.Counters(); err != nil {
			return s, err
		}
		if s.Pairing, err = a.pairingStatus(); err != nil {
			return s, err
		}
	} else {
		s.Pairing.Reason = "the agent was told not to pair sockets"
	}
	if a.ports != nil {
		var err error
		if s.Ports, s.Vacant, err = a.ports.status(); err != nil {
			return s, err
		}
	}
	if a.intro != nil {
		s.Introductions = IntroductionStatus{true, "", a.intro.namespaces(), a.intro.server.Status()}
	} else if a.noIntro != nil {
		s.Introductions.Why = a.noIntro.Error()
	}
	a.mu.Lock()
	s.Served = a.served
	a.mu.Unlock()
	return s, nil
}

// pairingStatus returns the status of the pairing of sockets by the programs, which may have been detached.
func (a *Agent) pairingStatus() (s PairingStatus, err error) {
	pairing, reason := a.option.Pairing()
	switch {
	case reason != nil:
		s.Reason = reason.Error()
		return s, nil
	case !a.option.Attached():
		s.Reason = "the programs in the kernel were detached"
	default:
		s.Enabled = true
	}
	s.Counters, err = pairing.Counters()
	return s, err
}

// Close ends the agent. Its objects in the kernel stay: [bpf.DetachOption] takes the programs away.
func (a *Agent) Close() error {
	a.mu.Lock()
	stopped := a.stopped
	a.stopped = true
	for c := range a.conns {
		dispose.Conn(c)
	}
	a.mu.Unlock()
	if stopped {
		return nil
	}
	var err error
	if a.listener != nil {
		var st unix.Stat_t
		if unix.Lstat(a.cfg.Socket, &st) == nil && st.Ino == a.inode {
			err = os.Remove(a.cfg.Socket)
		}
		a.listener.Close()
	}
	a.wg.Wait()
	if a.intro != nil {
		a.intro.close()
	}
	if a.ports != nil {
		a.ports.close()
	}
	if a.option != nil {
		a.option.Close()
	}
	if a.lock != nil {
		a.lock.Close()
	}
	return err
}

// Serve is Start and, when ctx has ended, Close.
func Serve(ctx context.Context, cfg Config) error {
	a, err := Start(cfg)
	if err != nil {
		return err
	}
	<-ctx.Done()
	return a.Close()
}
