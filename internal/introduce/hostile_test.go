package introduce

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
)

// mallory has quotas.
var mallory = Identity{UID: 1009, Account: Account{User: 1009}, Limited: true}

// rude connects as mallory and says Hello, but has no [Client] that reads the answers.
func (b *bureau) rude(t testing.TB) *net.UnixConn {
	t.Helper()
	b.kernel.willSee(mallory)
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: b.address})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := c.Write((&Message{Kind: KindHello, GID: gidOf(9)}).Append(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, maxMessage)); err != nil { // the Welcome: the identity was taken
		t.Fatal(err)
	}
	return c
}

// account returns what the server knows of mallory.
func (b *bureau) account() *account {
	b.table.mu.Lock()
	defer b.table.mu.Unlock()
	return b.table.accounts[mallory.Account]
}

// TestRoom has a program answer at the name of a room that it has not made.
func TestRoom(t *testing.T) {
	room, other := NewRoom(), NewRoom()
	challenge := [16]byte{1, 2, 3}
	at := "@" + room.Name()
	if len(room.Name()) > 60 {
		t.Errorf("the name %s is too long for the kernel's table", room.Name())
	}
	if !isRoom(at, challenge, room.sign(challenge)) {
		t.Error("the room is not believed")
	}
	var none *Room
	if isRoom(at, challenge, other.sign(challenge)) || isRoom(at, challenge, none.sign(challenge)) ||
		isRoom(at, [16]byte{}, room.sign(challenge)) {
		t.Error("another one is believed")
	}
	for _, name := range []string{"", "@", "@gosmc-", "@gosmc-0123456789abcdef", "/run/agent"} {
		if isRoom(name, challenge, room.sign(challenge)) {
			t.Errorf("%q is a room", name)
		}
	}
}

// TestUnreadIntroductions has a user introduce its own programs to each other again and again, and read
// nothing. Each answer has a socket.
func TestUnreadIntroductions(t *testing.T) {
	b := newBureau(t)
	client, server := b.rude(t), b.rude(t)
	both := b.kernel.connect(t)
	for i := range uint64(250) {
		for _, end := range []struct {
			conn *net.UnixConn
			role Role
			file *os.File
		}{{client, RoleClient, both.client}, {server, RoleServer, both.server}} {
			m := Message{Kind: KindAsk, ID: i, Role: end.role, Offer: offerDevice, Wait: MaxWait}
			rights := unix.UnixRights(int(end.file.Fd()))
			if _, _, err := end.conn.WriteMsgUnix(m.Append(nil), rights, nil); err != nil {
				t.Fatal(err)
			}
		}
		smctest.Eventually(t, patience, "both questions", func() bool {
			s := b.Status()
			return s.Asked == 2*i+2 && s.Waiting == 0
		})
	}
	smctest.Eventually(t, patience, "refusals", func() bool { return b.Status().Busy > 0 })
	if n := b.Status().Introduced; n == 0 || n > 100 {
		t.Errorf("%d introductions wait for a process that does not read", n)
	}
}

// TestConnectAgain has a user that is over its quota of messages connect again. The quota stays.
func TestConnectAgain(t *testing.T) {
	b := newBureau(t)
	c := b.rude(t)
	b.table.mu.Lock()
	a := b.table.accounts[mallory.Account]
	a.credit, a.filled = 0, time.Now().Add(time.Hour)
	b.table.mu.Unlock()
	c.Close()
	smctest.Eventually(t, patience, "the end", func() bool { return b.Status().Clients == 0 })
	b.kernel.willSee(mallory)
	if _, err := Dial(t.Context(), b.address, gidOf(3), anyone); err == nil {
		t.Error("a process is let in whose user is over its quota")
	}
	b.dial(t, 1, anyone, Identity{UID: 1001, Account: Account{User: 1001}, Limited: true})
	if b.account() == nil {
		t.Error("the user is forgotten")
	}
	b.table.mu.Lock()
	a.credit, a.filled = requestBurst, time.Now()
	b.table.sweepLocked()
	b.table.mu.Unlock()
	if b.account() != nil {
		t.Error("the user is not forgotten")
	}
}

// TestFlood has a user go on although it is refused.
func TestFlood(t *testing.T) {
	b := newBureau(t)
	b.rude(t)
	a := b.account()
	b.table.mu.Lock()
	var c *client
	for c = range b.table.byClient {
	}
	a.credit, a.filled = 0, time.Now().Add(time.Hour)
	b.table.mu.Unlock()
	for range 3 * requestBurst {
		if b.table.spend(c) {
			t.Fatal("a message is served")
		}
	}
	if b.table.mayGoOn(c) {
		t.Error("more messages are read at once")
	}
	c.who.Limited = false
	if !b.table.mayGoOn(c) || !b.table.spend(c) {
		t.Error("a process without quotas has one")
	}
	c.who.Limited = true
}

// TestSlowClose has a user whose descriptors take long to close. It can have no more of them closed, nor
// connect.
func TestSlowClose(t *testing.T) {
	b := newBureau(t)
	c := b.rude(t)
	a := b.account()
	a.closing.Add(maxClosing)
	defer a.closing.Add(-maxClosing)
	for range 2 { // the first one passes, as it was waited for already
		m := Message{Kind: KindAsk, ID: 1, Role: RoleClient, Offer: offerDevice}
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		c.WriteMsgUnix(m.Append(nil), unix.UnixRights(int(null.Fd())), nil)
		null.Close()
	}
	smctest.Eventually(t, patience, "the end", func() bool { return b.Status().Clients == 0 })
	if n := b.Status().Asked; n > 1 {
		t.Errorf("%d questions were heard", n)
	}
	b.kernel.willSee(mallory)
	if _, err := Dial(t.Context(), b.address, gidOf(3), anyone); err == nil {
		t.Error("a process is let in")
	}
	b.dial(t, 1, anyone, Identity{UID: 1001, Account: Account{User: 1001}, Limited: true})
}

// TestQueueFull connects to an agent whose queue is full for a while.
func TestQueueFull(t *testing.T) {
	room := NewRoom()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + room.Name()}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	first, err := net.Dial("unixpacket", "@"+room.Name())
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	if _, err := net.Dial("unixpacket", "@"+room.Name()); !errors.Is(err, unix.EAGAIN) {
		t.Skipf("the queue is not full: %v", err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := newBureau(t)
	served := make(chan struct{})
	time.AfterFunc(20*time.Millisecond, func() { b.Serve(l.(*net.UnixListener), room); close(served) })
	defer func() { l.Close(); <-served }()
	c, err := Dial(t.Context(), "@"+room.Name(), gidOf(1), anyone)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}
