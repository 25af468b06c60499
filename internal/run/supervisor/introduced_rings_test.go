package supervisor

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
)

// A third user of these tests.
const podUserC = 60003

// TestPodsPoured has programs of two users send without end, and so switch to rings while bytes are on
// their way in-band: all come, in their order.
func TestPodsPoured(t *testing.T) {
	n := newPodNet(t)
	server, client := n.pod(0, podUserA), n.pod(1, podUserB)
	port := serveAt(server, n.addr[0], "serve %v")
	smctest.Eventually(t, time.Minute, "moved connections with two rings", func() bool {
		client.Say("pour %v %s 20 500000", n.addr[0], port)
		got := strings.TrimSpace(client.Hear("poured"))
		t.Log(got)
		return got == "20 rings 2"
	})
}

// TestPodsSpoiled has a user write anything into the memory of the rings that its programs share with
// another user's server, and send what does not fit it. The server's other clients notice nothing.
func TestPodsSpoiled(t *testing.T) {
	n := newPodNet(t)
	server, mallory, client := n.pod(0, podUserA), n.pod(1, podUserB), n.pod(1, podUserC)
	port := serveAt(server, n.addr[0], "serve %v")
	dialAll(t, mallory, n.addr[0].String(), port, 1, 2000, 1)
	seed := rand.Uint32()
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	had := 0
	for i := range 10 {
		mallory.Say("spoil %v %s 20 %d", n.addr[0], port, int64(seed)+int64(1000*i))
		var spoiled int
		if _, err := fmt.Sscanf(strings.TrimSpace(mallory.Hear("spoiled")), "%d", &spoiled); err != nil {
			t.Fatal(err)
		}
		had += spoiled
		sees := dialAll(t, client, n.addr[0].String(), port, 2, 300_000, 2)
		if !strings.HasSuffix(sees, " rings 2") {
			t.Errorf("the client sees %q, want two rings", sees)
		}
	}
	if had == 0 {
		t.Error("no connection was spoiled")
	}
}

// TestPodsLied has a user's programs take rings up with another user's server, and write into each a
// word that says neither that the ring is used nor that it is not. The server starts a program, for which
// all rings have to be left, and waits for none of them: there are so many that it would take minutes.
func TestPodsLied(t *testing.T) {
	const connections = 60
	n := newPodNet(t)
	server, mallory := n.pod(0, podUserA), n.pod(1, podUserB)
	port := serveAt(server, n.addr[0], "serve %v starts")
	smctest.Eventually(t, 3*time.Minute, "connections with rings that lie", func() bool {
		mallory.Say("lie %v %s %d", n.addr[0], port, connections)
		var lied int
		if _, err := fmt.Sscanf(strings.TrimSpace(mallory.Hear("lied")), "%d", &lied); err != nil {
			t.Fatal(err)
		}
		return lied > connections/2
	})
}

// TestPodsShort has short connections to a server that only the agent reaches stay TCP after a few,
// and be tried far more seldom than those that no agent has to introduce.
func TestPodsShort(t *testing.T) {
	t.Setenv("GOSMC_RUN_SHORT_AFTER", "2")
	n := newPodNet(t)
	server, client := n.pod(0, podUserA), n.pod(1, podUserB)
	port := serveAt(server, n.addr[0], "serve %v")
	smctest.Eventually(t, time.Minute, "short connections that stay TCP", func() bool {
		client.Say("dial %v %s 2 10", n.addr[0], port)
		return strings.HasPrefix(strings.TrimSpace(client.Hear("dialled")), "2 here 0 ")
	})
	client.Say("dial %v %s 250 10", n.addr[0], port)
	var count, here int
	line := strings.TrimSpace(client.Hear("dialled"))
	if _, err := fmt.Sscanf(line, "%d here %d", &count, &here); err != nil {
		t.Fatal(err)
	}
	if here > 1 { // one in 256; one in 32 were at least two
		t.Errorf("of %d short connections %d were moved, want at most 1", count, here)
	}
}
