package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gosmc/smc/internal/udp"
)

// A class says when a counter may have counted.
type class int

const (
	always   class = iota + 1 // traffic
	ifLate                    // a timer fired because the guest is slow: a few, see lateLimit
	ifBusy                    // a timer that waits longer fired: packets were lost, or this machine had no time for the guest
	ifLosing                  // the network loses or reorders packets
	ifHidden                  // our socket does not show the IPv4 identifications that rxe sends
	ifAsked                   // the case says that it provokes this, or may
)

// lateLimit returns how many packets of a case may have been sent again, or answered again, because
// a timer did not wait for a guest that is emulated on a busy machine: rxe's of 67 ms, which is all
// that ibv_rc_pingpong allows, and our fast one. A packet that is lost or overtaken shows in
// counters that have no such allowance.
func lateLimit(packets uint64) uint64 { return 20 + packets/20 }

// counterClasses has every counter of both sides: the counters of rxe by the names of the files in
// hw_counters, ours by their names in JSON.
var counterClasses = map[string]class{
	"guest sent_pkts":              always,
	"guest rcvd_pkts":              always,
	"guest rdma_sends":             always,
	"guest rdma_recvs":             always,
	"guest ack_deferred":           always, // despite its name, acknowledgements that arrived
	"guest completer_retry_err":    ifLate,
	"guest duplicate_request":      ifLate,
	"guest out_of_seq_request":     ifLosing,
	"guest rcvd_seq_err":           ifLosing,
	"guest send_err":               ifAsked,
	"guest link_downed":            ifAsked,
	"guest rcvd_rnr_err":           ifAsked,
	"guest send_rnr_err":           ifAsked,
	"guest retry_exceeded_err":     ifAsked,
	"guest retry_rnr_exceeded_err": ifAsked,

	"our sent_pkts":          always,
	"our sent_bytes":         always,
	"our rcvd_pkts":          always,
	"our rcvd_bytes":         always,
	"our sent_acks":          always,
	"our rcvd_acks":          always,
	"our messages":           always,
	"our rcvd_messages":      always,
	"our probes":             ifLate,
	"our retransmitted":      ifLate,
	"our unexpected_acks":    ifLate,
	"our duplicate_request":  ifLate,
	"our rewinds":            ifBusy,
	"our timeouts":           ifBusy,
	"our rcvd_seq_err":       ifLosing,
	"our sent_seq_err":       ifLosing,
	"our out_of_seq_request": ifLosing,
	"our device handed_on":   ifAsked,
	"our device handed_over": ifAsked,
	"our device hand_on_err": ifAsked,
	"our dropped":            ifLosing,
	"our rcvd_rnr_err":       ifAsked,
	"our send_rnr_err":       ifAsked,
	"our rcvd_fatal_err":     ifAsked,
	"our sent_fatal_err":     ifAsked,

	"our device rcvd_pkts":     always,
	"our device icrc_solved":   ifHidden,
	"our device truncated":     ifAsked,
	"our device malformed":     ifAsked,
	"our device unknown_qp":    ifAsked,
	"our device wrong_peer":    ifAsked,
	"our device wrong_pkey":    ifAsked,
	"our device rcvd_icrc_err": ifAsked,
	"our device send_err":      ifAsked,
	"our device rcvd_err":      ifAsked,
	"our device rcvd_cnp":      ifAsked,
}

// An excuse allows a case to count more than it provokes.
type excuse struct {
	lost bool // a kernel has dropped packets, since a queue was full
	late bool // others had this machine's processors, so that timers were late
}

// checkCounters checks the counters of a case: nothing that was not provoked, and all that was.
func checkCounters(counted map[string]uint64, c testCase, x excuse) error {
	wrong := make(map[string]uint64)
	losing := c.loss || c.lossy && !c.guard || x.lost
	for name, n := range counted {
		class, known := counterClasses[name]
		allowed := false
		switch {
		case !known:
			return fmt.Errorf("counter %q is not in counterClasses", name)
		case class == always, slices.Contains(c.provokes, name), slices.Contains(c.tolerates, name):
			allowed = true
		case class == ifLate:
			// Several queue pairs and the program share the guest's one processor where it speaks SMC-R.
			allowed = losing || x.late || strings.HasPrefix(c.name, "smcr/") || n <= lateLimit(counted["guest sent_pkts"]+counted["guest rcvd_pkts"])
		case class == ifBusy:
			allowed = losing || x.late
		case class == ifLosing:
			allowed = losing
		case class == ifHidden:
			allowed = !c.ipv6 && c.headers != udp.HeadersAlways
		}
		if n != 0 && !allowed {
			wrong[name] = n
		}
	}
	for _, name := range c.provokes {
		if n, known := counted[name]; !known || n == 0 {
			return fmt.Errorf("counted no %q; other counters: %s", name, showCounters(counted))
		}
	}
	if len(wrong) != 0 {
		return fmt.Errorf("counted what nobody provoked: %s; in all %s", showCounters(wrong), showCounters(counted))
	}
	return nil
}

// showCounters prints those that are not zero.
func showCounters(counted map[string]uint64) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(counted)) {
		if counted[name] != 0 {
			words = append(words, fmt.Sprintf("%s %d", name, counted[name]))
		}
	}
	return strings.Join(words, ", ")
}

// guestCounters returns the counters of rxe0, and of rxe1 added to them if that is there.
func (l *lab) guestCounters(ctx context.Context) (map[string]uint64, error) {
	text, err := l.vm.run(ctx, commandTimeout, "cd /sys/class/infiniband; grep . rxe0/ports/1/hw_counters/* rxe1/ports/1/hw_counters/* 2>/dev/null; true")
	if err != nil {
		return nil, err
	}
	counters := make(map[string]uint64)
	for line := range strings.Lines(text) {
		file, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		name := path.Base(file)
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("counters of the guest: %w in\n%s", err, text)
		}
		if name != "lifespan" { // how long the kernel keeps them, in milliseconds
			counters[name] += n
		}
	}
	if len(counters) == 0 {
		return nil, fmt.Errorf("rxe0 has no counters")
	}
	return counters, nil
}

// addStats adds a struct of counters to ours.
func (l *lab) addStats(prefix string, stats any) error {
	text, err := json.Marshal(stats)
	if err != nil {
		return err
	}
	var counters map[string]uint64
	if err := json.Unmarshal(text, &counters); err != nil {
		return err
	}
	for name, n := range counters {
		if name == "round_trip_ns" || name == "window" || name == "budget" { // of one queue pair: nothing to add up
			continue
		}
		l.ours[prefix+name] += n
	}
	return nil
}
