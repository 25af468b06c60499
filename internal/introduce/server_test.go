package introduce

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
)

func TestMain(m *testing.M) { smctest.MainDescriptors(m) }

const patience = 20 * time.Second

// A fakeKernel has pairing tokens for sockets by their cookies, as the kernel has. It also says which
// user a process is of that connects: the next of a list.
type fakeKernel struct {
	mu     sync.Mutex
	next   uint64
	tokens map[uint64][2]uint64
	who    []Identity
}

func cookieOf(fd int) uint64 {
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		panic(err)
	}
	return cookie
}

func (k *fakeKernel) Tokens(fd int) (mine, theirs uint64, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t, ok := k.tokens[cookieOf(fd)]
	if !ok {
		return 0, 0, unix.ENOENT
	}
	return t[0], t[1], nil
}

func (k *fakeKernel) identify(*net.UnixConn) (Identity, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.who) == 0 {
		return Identity{PID: int32(os.Getpid())}, nil
	}
	who := k.who[0]
	k.who = k.who[1:]
	return who, nil
}

// willSee has the next processes that connect be of these users.
func (k *fakeKernel) willSee(who ...Identity) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.who = who
}

// A connection is a TCP connection with tokens at both ends.
type connection struct{ client, server *os.File }

// connect makes one.
func (k *fakeKernel) connect(t testing.TB) connection {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	var both connection
	for i, end := range []net.Conn{c, s} {
		f, err := end.(*net.TCPConn).File()
		if err != nil {
			t.Fatal(err)
		}
		end.Close()
		t.Cleanup(func() { f.Close() })
		if i == 0 {
			both.client = f
		} else {
			both.server = f
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next += 2
	k.tokens[cookieOf(int(both.client.Fd()))] = [2]uint64{k.next, k.next + 1}
	k.tokens[cookieOf(int(both.server.Fd()))] = [2]uint64{k.next + 1, k.next}
	return both
}

// A bureau is a server with its kernel.
type bureau struct {
	*Server
	kernel  *fakeKernel
	address string
}

func newBureau(t testing.TB, change ...func(*Config)) *bureau {
	t.Helper()
	k := &fakeKernel{tokens: make(map[uint64][2]uint64)}
	cfg := Config{
		Verifier: k, Users: anyone, BootID: [16]byte{1},
		Overcommit: func() uint8 { return 1 }, Identify: k.identify,
	}
	for _, f := range change {
		f(&cfg)
	}
	b := &bureau{Server: NewServer(cfg), kernel: k, address: filepath.Join(t.TempDir(), "agent")}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: b.address})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { b.Serve(l, nil); close(served) }()
	t.Cleanup(func() { l.Close(); <-served; b.Close() })
	return b
}

// dial connects as a process of a user.
func (b *bureau) dial(t testing.TB, gid byte, users Users, who ...Identity) *Client {
	t.Helper()
	b.kernel.willSee(who...)
	c, err := Dial(t.Context(), b.address, gidOf(gid), users)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// held returns how many ends of pairs the server holds.
func (b *bureau) held() int {
	b.table.mu.Lock()
	defer b.table.mu.Unlock()
	return b.table.held
}

func ask(t testing.TB, c *Client, role Role, f *os.File) *Question {
	t.Helper()
	q, err := c.Ask(role, f.Fd(), MaxWait)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func await(t testing.TB, q *Question) Answer {
	t.Helper()
	select {
	case a := <-q.Answer():
		if a.Socket >= 0 {
			t.Cleanup(func() { unix.Close(a.Socket) })
		}
		if q.offer == offerEither && a.Memory >= 0 {
			unix.Close(a.Memory) // which these tests are not about
		}
		return a
	case <-time.After(patience):
		t.Fatal("no answer")
	}
	panic("unreachable")
}

func wantRefused(t testing.TB, what string, a Answer, want Refusal) {
	t.Helper()
	if a.Socket >= 0 || a.Reason != want {
		t.Errorf("%s: %+v, want refused: %v", what, a, want)
	}
}

var anyone = Users{Mode: ModeAny}

// TestIntroduce has the two ends ask, in both orders. Each gets a socket to the other, and the
// kernel's word about it.
func TestIntroduce(t *testing.T) {
	b := newBureau(t)
	alice := b.dial(t, 1, anyone, Identity{PID: int32(os.Getpid()), UID: 1001, GID: 2001})
	bob := b.dial(t, 2, anyone, Identity{PID: 77, UID: 1002, GID: 2002})
	if alice.BootID() != [16]byte{1} || alice.StrictOvercommit() {
		t.Errorf("welcome %+v", alice.welcome)
	}
	for _, first := range []Role{RoleClient, RoleServer} {
		c := b.kernel.connect(t)
		var qa, qb *Question
		if first == RoleClient {
			qa = ask(t, alice, RoleClient, c.client)
			qb = ask(t, bob, RoleServer, c.server)
		} else {
			qb = ask(t, bob, RoleServer, c.server)
			qa = ask(t, alice, RoleClient, c.client)
		}
		a, o := await(t, qa), await(t, qb)
		if a.GID != gidOf(2) || a.UID != 1002 || a.Group != 2002 ||
			o.GID != gidOf(1) || o.UID != 1001 || o.Group != 2001 {
			t.Errorf("%d first: client gets %+v, server %+v", first, a, o)
		}
		if a.Secret != o.Secret || a.Secret == ([16]byte{}) {
			t.Errorf("secrets %x and %x", a.Secret, o.Secret)
		}
		if a.PID != 77 || o.PID != os.Getpid() {
			t.Errorf("processes %d and %d", a.PID, o.PID)
		}
		if _, err := unix.Write(a.Socket, []byte("word")); err != nil {
			t.Fatal(err)
		}
		var buf [8]byte
		if n, err := unix.Read(o.Socket, buf[:]); err != nil || string(buf[:n]) != "word" {
			t.Errorf("over the sockets: %q, %v", buf[:n], err)
		}
	}
	if n := b.Status(); n.Introduced != 2 || n.Waiting != 0 {
		t.Errorf("status %+v", n)
	}
}

// TestUsers has processes of two users, with policies at both ends and in the middle.
func TestUsers(t *testing.T) {
	same := Users{}
	list := func(users, groups []uint32) Users { return Users{ModeList, users, groups, nil} }
	for _, tt := range []struct {
		name            string
		alice, bob, all Users
		admitted        bool
	}{
		{"any", anyone, anyone, anyone, true},
		{"the client's own", same, anyone, anyone, false},
		{"the server's own", anyone, same, anyone, false},
		{"the machine's", anyone, anyone, same, false},
		{"listed user", list([]uint32{1002}, nil), anyone, anyone, true},
		{"listed group", anyone, list(nil, []uint32{2001}), anyone, true},
		{"listed supplementary group", anyone, list(nil, []uint32{3001}), anyone, true},
		{"another listed", anyone, list([]uint32{1009}, []uint32{2002}), anyone, false},
		{"any but one", anyone, Users{Mode: ModeAny, Excepted: []uint32{1001}}, anyone, false},
		{"any but another", anyone, Users{Mode: ModeAny, Excepted: []uint32{1002}}, anyone, true},
		{"both on the machine's list", anyone, anyone, list([]uint32{1001, 1002}, nil), true},
		{"one on the machine's list", anyone, anyone, list([]uint32{1001}, nil), false},
	} {
		b := newBureau(t, func(cfg *Config) { cfg.Users = tt.all })
		alice := b.dial(t, 1, tt.alice, Identity{UID: 1001, GID: 2001, Groups: []uint32{3001}})
		bob := b.dial(t, 2, tt.bob, Identity{UID: 1002, GID: 2002})
		c := b.kernel.connect(t)
		qa, qb := ask(t, alice, RoleClient, c.client), ask(t, bob, RoleServer, c.server)
		for _, a := range []Answer{await(t, qa), await(t, qb)} {
			if tt.admitted && a.Socket < 0 {
				t.Errorf("%s: %+v, want an introduction", tt.name, a)
			} else if !tt.admitted {
				wantRefused(t, tt.name, a, RefusedUsers)
			}
		}
	}
	b := newBureau(t, func(cfg *Config) { cfg.Users = same })
	alice, bob := b.dial(t, 1, same, Identity{UID: 1001}), b.dial(t, 2, same, Identity{UID: 1001})
	c := b.kernel.connect(t)
	qa, qb := ask(t, alice, RoleClient, c.client), ask(t, bob, RoleServer, c.server)
	if a, o := await(t, qa), await(t, qb); a.Socket < 0 || o.Socket < 0 {
		t.Errorf("one user: %+v, %+v", a, o)
	}
}

// TestProofs passes sockets that prove nothing.
func TestProofs(t *testing.T) {
	b := newBureau(t)
	c := b.dial(t, 1, anyone)
	file := func(fd int, err error) *os.File {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "proof")
		t.Cleanup(func() { f.Close() })
		return f
	}
	withTokens := func(f *os.File) *os.File {
		b.kernel.mu.Lock()
		defer b.kernel.mu.Unlock()
		b.kernel.next += 2
		b.kernel.tokens[cookieOf(int(f.Fd()))] = [2]uint64{b.kernel.next, b.kernel.next + 1}
		return f
	}
	listening := withTokens(file(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)))
	if err := unix.Listen(int(listening.Fd()), 1); err != nil {
		t.Fatal(err)
	}
	dead := b.kernel.connect(t)
	err := unix.SetsockoptLinger(int(dead.client.Fd()), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	if err != nil {
		t.Fatal(err)
	}
	dead.client.Close() // resets the server
	smctest.Eventually(t, patience, "the reset", func() bool {
		info, err := unix.GetsockoptTCPInfo(int(dead.server.Fd()), unix.IPPROTO_TCP, unix.TCP_INFO)
		return err == nil && info.State != unix.BPF_TCP_ESTABLISHED
	})
	self := file(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0))
	if err := unix.Bind(int(self.Fd()), &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(int(self.Fd()))
	if err == nil {
		err = unix.Connect(int(self.Fd()), name)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.kernel.mu.Lock()
	b.kernel.tokens[cookieOf(int(self.Fd()))] = [2]uint64{99, 99}
	b.kernel.mu.Unlock()
	memory := file(unix.MemfdCreate("proof", 0))
	for _, tt := range []struct {
		name string
		f    *os.File
		want Refusal
	}{
		{"a file", memory, RefusedSocket},
		{"UDP", withTokens(file(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0))), RefusedSocket},
		{"Unix", withTokens(file(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0))), RefusedSocket},
		{"unconnected", withTokens(file(unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0))), RefusedSocket},
		{"listening", listening, RefusedSocket},
		{"reset", dead.server, RefusedSocket},
		{"connected to itself", self, RefusedToken},
	} {
		wantRefused(t, tt.name, await(t, ask(t, c, RoleClient, tt.f)), tt.want)
	}
	plain := b.kernel.connect(t)
	b.kernel.mu.Lock()
	delete(b.kernel.tokens, cookieOf(int(plain.client.Fd())))
	b.kernel.mu.Unlock()
	wantRefused(t, "without tokens", await(t, ask(t, c, RoleClient, plain.client)), RefusedToken)
}

// TestContested has several ask for one end, and one socket be both ends.
func TestContested(t *testing.T) {
	b := newBureau(t)
	alice, bob, eve := b.dial(t, 1, anyone), b.dial(t, 2, anyone), b.dial(t, 3, anyone)
	c := b.kernel.connect(t)
	qa := ask(t, alice, RoleClient, c.client)
	smctest.Eventually(t, patience, "the first question", func() bool { return b.Status().Waiting == 1 })
	wantRefused(t, "the second", await(t, ask(t, eve, RoleClient, c.client)), RefusedContested)
	qb := ask(t, bob, RoleServer, c.server)
	if a, o := await(t, qa), await(t, qb); a.GID != gidOf(2) || o.GID != gidOf(1) {
		t.Errorf("the first: %+v, %+v", a, o)
	}
	// Both roles for one socket, by a verifier that says that it is the end of both.
	both := b.kernel.connect(t)
	qa = ask(t, alice, RoleClient, both.client)
	smctest.Eventually(t, patience, "the question", func() bool { return b.Status().Waiting == 1 })
	b.kernel.mu.Lock()
	cookie := cookieOf(int(both.client.Fd()))
	b.kernel.tokens[cookie] = [2]uint64{b.kernel.tokens[cookie][1], b.kernel.tokens[cookie][0]}
	b.kernel.mu.Unlock()
	wantRefused(t, "one socket", await(t, ask(t, eve, RoleServer, both.client)), RefusedContested)
	qa.Withdraw()
}

// TestWithdraw has questions end: withdrawn, after their time, and with their process.
func TestWithdraw(t *testing.T) {
	b := newBureau(t)
	alice, bob := b.dial(t, 1, anyone), b.dial(t, 2, anyone)
	c := b.kernel.connect(t)
	ask(t, alice, RoleClient, c.client).Withdraw()
	smctest.Eventually(t, patience, "the end of the question", func() bool {
		return b.Status().Asked == 1 && b.Status().Waiting == 0
	})
	q, err := bob.Ask(RoleServer, c.server.Fd(), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	wantRefused(t, "after its time", await(t, q), RefusedAlone)
	ask(t, alice, RoleClient, c.client)
	smctest.Eventually(t, patience, "the question", func() bool { return b.Status().Waiting == 1 })
	alice.Close()
	smctest.Eventually(t, patience, "the end of the process", func() bool {
		return b.Status().Waiting == 0 && b.Status().Clients == 1
	})
	q, err = bob.Ask(RoleServer, c.server.Fd(), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	wantRefused(t, "after its process", await(t, q), RefusedAlone)
}

// TestDecline has a server leave a connection to TCP, before and after its client asks.
func TestDecline(t *testing.T) {
	b := newBureau(t)
	alice, bob := b.dial(t, 1, anyone), b.dial(t, 2, anyone)
	c := b.kernel.connect(t)
	q := ask(t, alice, RoleClient, c.client)
	bob.Decline(RoleServer, c.server.Fd(), MaxWait)
	wantRefused(t, "declined later", await(t, q), RefusedDeclined)
	bob.Decline(RoleServer, c.server.Fd(), MaxWait)
	smctest.Eventually(t, patience, "the word", func() bool { return b.Status().Waiting == 1 })
	wantRefused(t, "declined before", await(t, ask(t, alice, RoleClient, c.client)), RefusedDeclined)
}

// TestSocketCloses sees to it that the agent keeps no TCP connection open that waits.
func TestSocketCloses(t *testing.T) {
	b := newBureau(t)
	alice := b.dial(t, 1, anyone)
	c := b.kernel.connect(t)
	q := ask(t, alice, RoleClient, c.client)
	smctest.Eventually(t, patience, "the question", func() bool { return b.Status().Waiting == 1 })
	c.client.Close()
	var buf [1]byte
	if n, err := c.server.Read(buf[:]); n != 0 || err == nil {
		t.Errorf("the other end reads %d, %v; want the end", n, err)
	}
	q.Withdraw()
}

// TestServerEnds ends the agent under questions.
func TestServerEnds(t *testing.T) {
	b := newBureau(t)
	alice := b.dial(t, 1, anyone)
	q := ask(t, alice, RoleClient, b.kernel.connect(t).client)
	b.Close()
	wantRefused(t, "without an agent", await(t, q), RefusedBusy)
	select {
	case <-alice.Done():
	case <-time.After(patience):
		t.Fatal("the conversation goes on")
	}
	if _, err := alice.Ask(RoleClient, b.kernel.connect(t).client.Fd(), 0); !errors.Is(err, ErrNoAgent) {
		t.Errorf("Ask: %v, want ErrNoAgent", err)
	}
	_, err := Dial(t.Context(), filepath.Join(t.TempDir(), "none"), gidOf(1), anyone)
	if !errors.Is(err, ErrNoAgent) {
		t.Errorf("Dial: %v, want ErrNoAgent", err)
	}
}

// TestQuotas has a user fill the tables. Another one notices nothing.
func TestQuotas(t *testing.T) {
	eve := Identity{UID: 1003, Account: Account{User: 1003}, Limited: true}
	b := newBureau(t)
	var hers []*Client
	for range 4 {
		hers = append(hers, b.dial(t, 3, anyone, eve))
	}
	b.table.mu.Lock()
	hersAccount := b.table.accounts[eve.Account]
	hersAccount.waiting += maxAccountWaiting - 1
	b.table.mu.Unlock()
	c := b.kernel.connect(t)
	q := ask(t, hers[0], RoleClient, c.client)
	smctest.Eventually(t, patience, "the question", func() bool { return b.Status().Waiting == 1 })
	more := b.kernel.connect(t)
	wantRefused(t, "one too many", await(t, ask(t, hers[1], RoleClient, more.client)), RefusedBusy)
	q.Withdraw()

	b.table.mu.Lock()
	hersAccount.clients += maxAccountClients - len(hers)
	b.table.mu.Unlock()
	b.kernel.willSee(eve)
	if _, err := Dial(t.Context(), b.address, gidOf(3), anyone); err == nil {
		t.Error("a process too many is let in")
	}
	b.table.mu.Lock()
	hersAccount.clients -= maxAccountClients - len(hers)
	hersAccount.credit, hersAccount.filled = 0, time.Now().Add(time.Hour)
	b.table.mu.Unlock()
	wantRefused(t, "too fast", await(t, ask(t, hers[0], RoleClient, c.client)), RefusedBusy)

	alice := b.dial(t, 1, anyone, Identity{UID: 1001, Account: Account{User: 1001}, Limited: true})
	bob := b.dial(t, 2, anyone)
	c = b.kernel.connect(t)
	qa, qb := ask(t, alice, RoleClient, c.client), ask(t, bob, RoleServer, c.server)
	if a, o := await(t, qa), await(t, qb); a.Socket < 0 || o.Socket < 0 {
		t.Errorf("another user: %+v, %+v", a, o)
	}
}

// hangsUp reports whether the agent ends a conversation of raw messages.
func hangsUp(t *testing.T, c net.Conn) bool {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(patience))
	var buf [256]byte
	for {
		n, err := c.Read(buf[:])
		if n == 0 || err != nil {
			return !errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

// TestHostileRights has processes that send what no process sends: no Hello, descriptors where none belong,
// too many of them, none where one belongs, and messages of agents.
func TestHostileRights(t *testing.T) {
	b := newBureau(t)
	hello := Message{Kind: KindHello, GID: gidOf(5)}
	question := Message{Kind: KindAsk, ID: 1, Role: RoleClient, Offer: offerDevice, Wait: MaxWait}
	welcome, withdraw := Message{Kind: KindWelcome}, Message{Kind: KindWithdraw, ID: 5}
	c := b.kernel.connect(t)
	fd := int(c.client.Fd())
	for i, tt := range []struct {
		m      []Message
		rights []int // of the last message
	}{
		{[]Message{question}, []int{fd}},
		{[]Message{hello}, []int{fd}},
		{[]Message{hello, question}, nil},
		{[]Message{hello, question}, []int{fd, fd}},
		{[]Message{hello, question}, []int{fd, fd, fd, fd, fd, fd, fd, fd}},
		{[]Message{hello, withdraw}, []int{fd}},
		{[]Message{hello, hello}, nil},
		{[]Message{hello, welcome}, nil},
	} {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: b.address})
		if err != nil {
			t.Fatal(err)
		}
		for j, m := range tt.m {
			var oob []byte
			if j == len(tt.m)-1 && len(tt.rights) > 0 {
				oob = unix.UnixRights(tt.rights...)
			}
			if _, _, err := conn.WriteMsgUnix(m.Append(nil), oob, nil); err != nil {
				t.Fatal(err)
			}
		}
		if !hangsUp(t, conn) {
			t.Errorf("case %d: the conversation goes on", i)
		}
		conn.Close()
	}
	smctest.Eventually(t, patience, "the end of all", func() bool {
		return b.Status().Clients == 0 && b.Status().Waiting == 0
	})
}

// TestSilent connects, and says nothing.
func TestSilent(t *testing.T) {
	b := newBureau(t)
	conn, err := net.Dial("unixpacket", b.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if !hangsUp(t, conn) {
		t.Error("a silent process is waited for")
	}
}

// TestDeaf asks and does not read the answers. Others are served meanwhile, and the process is dropped.
func TestDeaf(t *testing.T) {
	b := newBureau(t)
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: b.address})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	m := Message{Kind: KindHello, GID: gidOf(5)}
	if _, err := conn.Write(m.Append(nil)); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(100_000) { // until the agent hangs up
		m = Message{Kind: KindAsk, ID: i, Role: RoleClient, Offer: offerDevice}
		_, _, err := conn.WriteMsgUnix(m.Append(nil), unix.UnixRights(int(file.Fd())), nil)
		if err != nil {
			break
		}
	}
	smctest.Eventually(t, patience, "the end of a deaf process", func() bool { return b.Status().Clients == 0 })
}

// TestUntrusted has another user listen at the path of the agent.
func TestUntrusted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	dir := t.TempDir()
	for _, name := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(name, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	address := filepath.Join(dir, "agent")
	listened := make(chan error)
	end := make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the thread has another user
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 60001, ^uintptr(0)) // of this thread
			if errno != 0 {
				err = errno
			}
		}
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrUnix{Name: address})
		}
		if err == nil {
			err = unix.Listen(fd, 1)
		}
		listened <- err
		<-end
		unix.Close(fd)
		listened <- nil
	}()
	defer func() {
		close(end)
		<-listened
	}()
	if err := <-listened; err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(t.Context(), address, gidOf(1), anyone); !errors.Is(err, ErrNoAgent) {
		t.Errorf("Dial: %v, want ErrNoAgent", err)
	}
}

// TestVersions has an agent that speaks another version, and one that knows no introductions.
func TestVersions(t *testing.T) {
	for i, answer := range []string{"{\"version\":1,\"error\":\"the request\"}", ""} {
		address := filepath.Join(t.TempDir(), fmt.Sprint(i))
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: address})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			var buf [256]byte
			c.Read(buf[:])
			c.Write([]byte(answer))
			c.Close()
		}()
		if _, err := Dial(context.Background(), address, gidOf(1), anyone); !errors.Is(err, ErrAgentVersion) {
			t.Errorf("answer %q: %v, want ErrAgentVersion", answer, err)
		}
		l.Close()
	}
}

// TestNewUsers makes policies of lists of users.
func TestNewUsers(t *testing.T) {
	long := make([]int, MaxUsers+1)
	for _, tt := range []struct {
		name              string
		said, anyUser     bool
		allowed, excepted []int
		want              Users
	}{
		{"nothing said", false, false, nil, nil, Users{Mode: ModeAny}},
		{"same", true, false, nil, nil, Users{Mode: ModeList}},
		{"list", true, false, []int{7, 9}, []int{8}, Users{Mode: ModeList, Users: []uint32{7, 9}, Excepted: []uint32{8}}},
		{"any", true, true, nil, []int{7}, Users{Mode: ModeAny, Excepted: []uint32{7}}},
		{"too long", true, true, nil, long, Users{}},
	} {
		if got := NewUsers(tt.said, tt.anyUser, tt.allowed, tt.excepted); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
