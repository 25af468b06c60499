package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/internal/text"
	"github.com/gosmc/smc/wire/clc"
)

// betweenTimeout bounds the connection to another host with its handshake, and plainTimeout the
// connection without SMC that follows if TCP did not connect.
const (
	betweenTimeout = 30 * time.Second
	plainTimeout   = 5 * time.Second
)

// A trial is one connection to a server on another host, with the facts that it has shown.
type trial struct {
	server netip.AddrPort
	status *control.Status // of the host of the trial, after the dial
	peer   *peerWord       // what 'gosmc doctor --serve' said; nil: something else listens
	nonce  nonce

	arrived atomic.Int64 // datagrams from UDP port 4791 of the peer
	reached bool         // a datagram of ours has reached the peer; false if peer is nil
}

// between connects to a server on another host, and names the first condition that fails.
// The connection sends no byte to the program there, unless that is 'gosmc doctor --serve', or one that
// sends back what it gets, as the options say.
func (r *Report) between(ctx context.Context, server netip.AddrPort) {
	ctx, cancel := context.WithTimeout(ctx, betweenTimeout+plainTimeout+2*talkTimeout)
	defer cancel()
	t := &trial{server: server, nonce: newNonce()}
	cfg := host.Config{ShortAfter: -1}
	cfg.RDMA.Drop = func([]byte) bool { t.arrived.Add(1); return false }
	h, err := host.New(cfg)
	if err != nil {
		r.add(Fail, "configuration", errorText(err), "edit "+config.Path())
		return
	}
	defer h.Close()
	c, err := t.dial(ctx, h)
	t.status = statusOf(h)
	if err != nil {
		r.noConnection(ctx, t, err)
		return
	}
	defer c.Close()
	if !r.opts.Echo { // a server that only answers says nothing by itself
		t.listen(c)
	}
	if c.Mode() == conn.ModeTCP {
		r.stayedTCP(t, c)
		return
	}
	agreed := c.Agreed()
	r.add(OK, "between", fmt.Sprintf("%v: %v%s%s", server, c.Mode(), prefixed(" ", agreed.Version),
		prefixed(", EID ", agreed.EID)), "")
	if c.Mode() == conn.ModeSMCR {
		r.data(t, h, c)
	}
}

// dial connects, while datagrams with the nonce go to UDP port 4791 of the server's address.
func (t *trial) dial(ctx context.Context, h *host.Host) (conn.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, betweenTimeout)
	defer cancel()
	stop := t.nonce.send(t.server.Addr())
	defer stop()
	return h.Dial(ctx, "tcp", t.server.String(), host.DialOptions{})
}

// statusOf is the state of a host with its connections and link groups.
func statusOf(h *host.Host) *control.Status {
	s := h.Status()
	return &s
}

// proposed reports whether the handshake of the trial got so far that a Proposal was sent.
func (t *trial) proposed() bool {
	return slices.ContainsFunc(t.status.Counters.CLC, func(m control.MessageCount) bool {
		return m.Type == "Proposal" && m.Sent > 0
	})
}

// noConnection finds the cause of a dial that failed: TCP itself, TCP option 254 on its SYN, or a
// server that does not speak CLC although TCP option 254 or the configuration says that it does.
func (r *Report) noConnection(ctx context.Context, t *trial, err error) {
	if t.proposed() {
		r.noCLC(t, err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, plainTimeout)
	defer cancel()
	var d net.Dialer
	plain, plainErr := d.DialContext(ctx, "tcp", t.server.String())
	if plainErr == nil {
		plain.Close()
	}
	how := "answers nothing to"
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) {
		how = "refuses"
	}
	switch {
	case plainErr == nil && t.status.Capabilities.TCPOption.Available: // rule: cmd/gosmc TestDoctorBetween
		r.add(Fail, "tcp-option", t.at("the path "+how+" SYNs with TCP option 254, and lets those "+
			"without it through: a firewall on the way drops or rejects the option"),
			"let the firewalls between the hosts pass TCP option 254 (RFC 6994); until then: "+
				t.exclude())
	case how == "refuses":
		r.add(Fail, "tcp", t.at("TCP is refused: nobody listens on the port, or a "+
			"firewall rejects it"),
			"start the server, or let the firewalls pass TCP port "+t.port())
	default:
		r.add(Fail, "tcp", t.at("TCP does not connect: "+errorText(err)),
			"ping "+t.server.Addr().String()+"; look at the route, and at firewalls that drop TCP "+
				"port "+t.port())
	}
}

// at is a sentence about the server.
func (t *trial) at(sentence string) string { return t.server.String() + ": " + sentence }

// port is the server's.
func (t *trial) port() string { return fmt.Sprint(t.server.Port()) }

// exclude is the command that keeps connections to the server on TCP.
func (t *trial) exclude() string {
	return "gosmc policy add connect-address '!" + t.server.Addr().String() + "'"
}

// noCLC is for a server that has got a Proposal and has not answered with CLC.
func (r *Report) noCLC(t *trial, err error) {
	accepted := slices.ContainsFunc(t.status.Counters.CLC, func(m control.MessageCount) bool {
		return m.Type == "Accept" && m.Rcvd > 0
	})
	late, isLate := errors.AsType[*core.TimeoutError](err)
	switch {
	case accepted && isLate && late.Awaited == "CONFIRM LINK": // Linux on soft-RoCE does not decline then
		r.filtered(t)
	case accepted:
		r.add(Fail, "clc", t.at("the SMC handshake broke off after the Accept: "+errorText(err)),
			"gosmc dump --port "+t.port()+" --problems, on both hosts")
	case t.configured():
		r.add(Fail, "clc", t.at("an entry 'peer' of the configuration says that the server speaks "+
			"SMC, and it answers no CLC Proposal: "+errorText(err)),
			"start the server with SMC; or remove its entry 'peer': gosmc config show --effective")
	default:
		r.add(Fail, "tcp-option", t.at("TCP option 254 came back, and nobody answers the CLC "+
			"Proposal: the server, or a box on the way, echoes TCP options ("+errorText(err)+")"),
			"have the server or the box not echo TCP option 254; until then: "+t.exclude())
	}
}

// configured reports whether the configuration says that the server speaks SMC.
func (t *trial) configured() bool {
	s, _ := config.Load() // the settings were checked before
	peers, _ := config.ParsePeers(s.Peers)
	return peers.Speak(t.server.Addr(), t.server.Port())
}

// stayedTCP finds the cause of a connection that is plain TCP.
func (r *Report) stayedTCP(t *trial, c conn.Conn) {
	reason := c.Reason()
	side := "this host declined: "
	if c.ByPeer() {
		side = "the peer declined: "
	}
	said := t.at(fmt.Sprintf("%s%s [%s 0x%08x] ", side, reason.Sentence, reason.Tag,
		uint32(reason.Code)))
	switch reason.Code {
	case clc.DiagPeerNoSMC, clc.DiagNoToken: // the latter if an agent's programs have offered tokens, too
		if !c.ByPeer() { // else it is the code of a Decline
			r.silentPeer(t)
			return
		}
	case clc.DiagTimeoutConfirmLink, clc.DiagFiltered:
		r.filtered(t)
		return
	case clc.DiagNotLocal, clc.DiagNoAgent, clc.DiagNoListener:
		r.add(Fail, "agent", t.at("nothing tells the peer that this host speaks SMC: no agent "+
			"puts TCP option 254 on its SYNs, and no entry 'peer' names it"),
			"on both hosts: sudo systemctl enable --now gosmc-agent; or: gosmc config set peer "+
				t.server.String())
		return
	case clc.DiagNoUEID, clc.DiagNoSEID:
		if ours, theirs := t.versions(); ours != theirs {
			r.add(Fail, "version", t.at("this host speaks version "+ours+" of SMC-R only, and the peer "+
				"version "+theirs), "gosmc ueid add NAME, with one name on both hosts, for version 2")
			return
		}
		r.add(Fail, "eid", said+t.ueids(), "gosmc ueid add NAME, with one name on both hosts")
		return
	case clc.DiagNoDevice:
		if c.ByPeer() && t.peer == nil { // Linux smc_listen_find_device has this code for both
			r.add(Fail, "device", said+"Linux says so, too, if it has none of our UEIDs. "+t.ueids(),
				"there: 'smcr device' and 'gosmc device' list the devices, 'smcr ueid' and "+
					"'gosmc ueid' the UEIDs; one device has to be active, and one UEID the "+
					"same on both hosts")
			return
		}
	}
	if id, iface := pnetOf(c.LocalAddr()); id != "" && !c.ByPeer() && checks[reason.Code] == "device" {
		r.add(Fail, "pnet", said+"The connection goes over an interface with the PNETID "+id+" of "+
			iface+": no device that SMC-R may use has it.",
			"gosmc pnet shows the PNETIDs; the entries 'device' and 'pnet' have to fit")
		return
	}
	r.add(Fail, cmp.Or(checks[reason.Code], "between"), said+reason.Cause, reason.Advice)
}

// pnetOf is the PNETID that the configuration gives to the interface with an address, and the
// interface's name. Both are empty if there is none.
func pnetOf(local net.Addr) (id, iface string) {
	s, _ := config.Load() // the settings were checked before
	address, ok := local.(*net.TCPAddr)
	list, err := net.Interfaces()
	if !ok || err != nil {
		return "", ""
	}
	for _, i := range list {
		addrs, err := i.Addrs()
		if err != nil || s.PNET[i.Name] == "" {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(address.IP) {
				return s.PNET[i.Name], i.Name
			}
		}
	}
	return "", ""
}

// checks has a word for each reason that says what differs between the hosts.
var checks = map[clc.Diagnosis]string{
	clc.DiagVersion: "version", clc.DiagRelease: "version", clc.DiagMode: "version",
	clc.DiagConfig: "peer-configuration", clc.DiagPrefix: "subnet",
	clc.DiagNoRoute: "route", clc.DiagIndirect: "route",
	clc.DiagNoDevice: "device", clc.DiagNoSMCRDevice: "device", clc.DiagPortInUse: "device",
	clc.DiagRNICDown: "device", clc.DiagLink: "device", clc.DiagNotAllowed: "policy",
	clc.DiagMemory: "limit", clc.DiagBudget: "limit", clc.DiagLimit: "limit",
	clc.DiagNoFile: "limit",
}

// ueids has the UEIDs of both hosts, as far as they are known.
func (t *trial) ueids() string {
	s := "Here: " + cmp.Or(strings.Join(t.status.UEIDs, ", "), "no UEID")
	if t.peer != nil {
		s += "; there: " + cmp.Or(text.Printable(strings.Join(t.peer.UEIDs, ", ")), "no UEID")
	}
	return s + "."
}

// versions are the versions of SMC-R that this host and the peer speak, if each speaks one of them
// and is known to; else both are empty.
func (t *trial) versions() (ours, theirs string) {
	if t.peer == nil {
		return "", ""
	}
	one := t.status.Capabilities.SMCRv1.Available
	if (len(t.status.UEIDs) > 0) == one || (len(t.peer.UEIDs) > 0) == t.peer.SMCRv1 {
		return "", ""
	}
	names := map[bool]string{true: "1", false: "2"}
	return names[one], names[t.peer.SMCRv1]
}

// silentPeer is for a connection without TCP option 254 on the SYN-ACK.
func (r *Report) silentPeer(t *trial) {
	switch p := t.peer; {
	case p == nil:
		r.add(Fail, "peer", t.at("the peer's SYN-ACK had no TCP option 254: the program there "+
			"does not use SMC, no agent runs there, or a box on the way takes the option away"),
			"start the program there with SMC; to tell the causes apart run 'gosmc doctor "+
				"--serve' there, and this command with its port")
	case !p.Option:
		r.add(Fail, "peer-agent", t.at("no agent puts TCP option 254 on the segments of the peer: "+
			text.Printable(p.OptionWhy)), "there: sudo systemctl enable --now gosmc-agent")
	case len(p.UEIDs) == 0 && !p.SMCRv1:
		r.add(Fail, "eid", t.at("the peer has no UEID. "+t.ueids()),
			"there: gosmc ueid add NAME, with a name that this host has")
	default:
		r.add(Fail, "tcp-option", t.at("both hosts put TCP option 254 on their segments, and it "+
			"does not arrive: a box on the way takes it away"),
			"have firewalls, load balancers and NAT boxes between the hosts pass TCP option 254 "+
				"(RFC 6994); or name the hosts to each other: gosmc config set peer ADDRESS")
	}
}

// filtered is for a link over which RoCE packets did not pass. It says which way they are lost, if
// that can be known.
func (r *Report) filtered(t *trial) {
	const port = ": RoCE packets, UDP port 4791, "
	here := t.arrived.Load() > 0
	check, way := "roce", "do not pass between the hosts"
	switch {
	case here:
		check, way = "roce-out", "arrive here, and do not arrive at the peer"
	case t.reached:
		check, way = "roce-in", "arrive at the peer, and do not arrive here"
	case t.peer != nil:
		way += ", neither way"
	}
	r.add(Fail, check, t.server.String()+port+way+": a firewall drops them",
		"let the firewalls of both hosts, and those between them, pass UDP port 4791 "+
			map[string]string{"roce": "both ways", "roce-out": "from this host to the peer",
				"roce-in": "from the peer to this host"}[check])
}
