package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The networks between this process and the guest. The data network carries RoCE, and is the one
// that loses packets; the control network carries the guest's shell and the messages of test
// programs to each other over TCP, and loses none. Both sides have a second interface on the data
// network, which is down but in cases with two links.
var (
	ourAddr4     = netip.MustParseAddr("192.168.76.1")
	guestAddr4   = netip.MustParseAddr("192.168.76.2")
	ourAddr6     = netip.MustParseAddr("fd00:76::1")
	guestAddr6   = netip.MustParseAddr("fd00:76::2")
	ourControl   = netip.MustParseAddr("192.168.77.1")
	guestControl = netip.MustParseAddr("192.168.77.2")

	// Of the second interfaces on the data network. Linux net/smc takes no GID of another IP
	// network for another link.
	ourSecond   = netip.MustParseAddr("192.168.76.3")
	guestSecond = netip.MustParseAddr("192.168.76.4")
)

const (
	prefix4   = "/24"
	prefix6   = "/64"
	shellPort = 7000

	dataTap    = "data0"
	secondTap  = "data1"
	controlTap = "ctl0"

	standardMTU = 1500 // of Ethernet: path MTU 1024
	jumboMTU    = 9000 // path MTU 4096

	// A tap drops packets that do not fit into its queue. This is more than the path MTUs of the
	// largest message that a case sends.
	tapQueueLen = "10000"
)

// A vm is the guest, which runs.
type vm struct {
	kernel  string // release
	accel   string // the accelerator of qemu
	console string // file
	mtu     int    // of the data network now
	cmd     *exec.Cmd
	done    chan struct{} // closed when qemu has ended
	err     error         // of qemu, once done is closed
}

// makeNetworks makes the taps of the two networks.
func makeNetworks(ctx context.Context) error {
	ip := func(args ...string) error {
		_, err := run(ctx, "ip", args...)
		return err
	}
	queue := func(tap string) error { // a machine's default may drop packets that have waited for long
		_, err := run(ctx, "tc", "qdisc", "replace", "dev", tap, "root", "pfifo", "limit", tapQueueLen)
		return err
	}
	return errors.Join(
		ip("link", "set", "lo", "up"),
		ip("tuntap", "add", dataTap, "mode", "tap"),
		ip("tuntap", "add", secondTap, "mode", "tap"),
		ip("tuntap", "add", controlTap, "mode", "tap"),
		queue(dataTap),
		queue(secondTap),
		ip("addr", "add", ourAddr4.String()+prefix4, "dev", dataTap),
		ip("addr", "add", ourAddr6.String()+prefix6, "dev", dataTap, "nodad"),
		ip("addr", "add", ourControl.String()+prefix4, "dev", controlTap),
		ip("link", "set", dataTap, "txqueuelen", tapQueueLen, "up"),
		ip("link", "set", controlTap, "up"),
	)
}

// bootVM starts the guest. It returns when the guest's shell answers. The one before, if there was
// one, has ended.
func bootVM(ctx context.Context, opt options) (*vm, error) {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	if _, err := run(ctx, "ip", "link", "set", dataTap, "mtu", strconv.Itoa(standardMTU)); err != nil {
		return nil, err
	}
	accels := []string{opt.accel}
	if opt.accel == "auto" {
		if accels = []string{"kvm", "tcg"}; !kvmWorks() {
			accels = accels[1:]
		}
	}
	if len(accels) == 2 {
		// KVM may be there and not be good enough, in a virtual machine above all.
		ctx, cancel := context.WithTimeout(ctx, kvmBootTimeout)
		v, err := startVM(ctx, opt, accels[0])
		cancel()
		if err == nil {
			return v, nil
		}
		accels = accels[1:]
	}
	v, err := startVM(ctx, opt, accels[0])
	if err != nil && ctx.Err() == nil { // a kernel that is emulated may panic as it starts: one in some ten did
		v, err = startVM(ctx, opt, accels[0])
	}
	return v, err
}

// startVM starts qemu, and waits for the guest's shell.
func startVM(ctx context.Context, opt options, accel string) (*vm, error) {
	v := &vm{accel: accel, mtu: standardMTU, console: filepath.Join(opt.inside, "console-"+accel), done: make(chan struct{})}
	cpu := "max"
	if accel == "kvm" {
		cpu = "host,arch-capabilities=off" // a virtual machine with KVM may be refused that one
	}
	args := []string{
		"-accel", accel, "-cpu", cpu,
		"-nodefaults", "-display", "none", "-monitor", "none", "-no-reboot", "-m", "512",
		"-serial", "file:" + v.console,
		"-kernel", filepath.Join(opt.inside, "vmlinuz"), "-initrd", filepath.Join(opt.inside, "initrd"),
		"-append", strings.Join([]string{
			"console=ttyS0 quiet panic=-1 no_timer_check", // which an emulated timer on a busy machine does not always pass
			"addr4=" + guestAddr4.String() + prefix4, "addr6=" + guestAddr6.String() + prefix6,
			"control=" + guestControl.String() + prefix4,
			"mtu=" + strconv.Itoa(standardMTU), "port=" + strconv.Itoa(shellPort),
		}, " "),
		// Without offloads: packets are on the data network as they were sent, for -pcap above all.
		"-netdev", "tap,id=tap0,ifname=" + dataTap + ",script=no,downscript=no,vnet_hdr=off",
		"-netdev", "tap,id=tap1,ifname=" + secondTap + ",script=no,downscript=no,vnet_hdr=off",
		"-netdev", "tap,id=control,ifname=" + controlTap + ",script=no,downscript=no,vnet_hdr=off",
		// A hub joins both taps and the guest's eth0 and eth2: one LAN, in which each side has two
		// interfaces.
		"-netdev", "hubport,id=port0,hubid=0,netdev=tap0",
		"-netdev", "hubport,id=port1,hubid=0,netdev=tap1",
		"-netdev", "hubport,id=data,hubid=0",
		"-netdev", "hubport,id=second,hubid=0",
		"-device", "virtio-net-pci,netdev=data,mac=52:54:00:00:00:02,addr=4,romfile=",
		"-device", "virtio-net-pci,netdev=control,mac=52:54:00:00:00:03,addr=5,romfile=",
		"-device", "virtio-net-pci,netdev=second,mac=52:54:00:00:00:04,addr=6,romfile=",
	}
	if opt.pcap != "" {
		args = append(args, "-object", "filter-dump,id=dump,netdev=data,file="+opt.pcap)
	}
	output, err := os.Create(filepath.Join(opt.inside, "qemu-"+accel))
	if err != nil {
		return nil, err
	}
	defer output.Close()
	v.cmd = exec.Command("qemu-system-x86_64", args...)
	v.cmd.Stdout, v.cmd.Stderr = output, output
	v.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // a Ctrl-C is for us
	if err := v.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		v.err = v.cmd.Wait()
		close(v.done)
	}()

	for {
		release, err := v.run(ctx, shellTimeout, "uname -r")
		if err == nil {
			v.kernel = strings.TrimSpace(release)
			return v, nil
		}
		said := tail(output.Name())
		switch {
		case v.ended():
			return nil, fmt.Errorf("qemu ended: %v\n%s\n%s", v.err, said, tail(v.console))
		case strings.Contains(said, "KVM internal error"): // and qemu waits for somebody to look
			v.close()
			return nil, fmt.Errorf("qemu stopped:\n%s", said)
		case ctx.Err() != nil:
			v.close()
			return nil, fmt.Errorf("the guest does not answer: %w\n%s", err, tail(v.console))
		}
		select {
		case <-v.done:
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// kvmWorks reports whether this process may make virtual machines.
func kvmWorks() bool {
	const createVM = 0xae01 // KVM_CREATE_VM, linux/kvm.h
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	fd, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), createVM, 0)
	if errno != 0 {
		return false
	}
	syscall.Close(int(fd))
	return true
}

// close ends the guest. It has nothing worth a shutdown.
func (v *vm) close() {
	v.cmd.Process.Kill()
	<-v.done
}

func (v *vm) ended() bool {
	select {
	case <-v.done:
		return true
	default:
		return false
	}
}

// panicked reports whether the guest has ended since its kernel panicked.
func (v *vm) panicked() bool {
	return v.ended() && strings.Contains(tail(v.console), "Kernel panic")
}

// tail returns the end of a text file.
func tail(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	const keep = 8 << 10
	return string(text[max(0, len(text)-keep):])
}

// run runs a shell script in the guest and returns its output. The error says so if it ended with
// another status than 0, and has the output. The end of ctx ends the wait, not the script.
func (v *vm) run(ctx context.Context, timeout time.Duration, script string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	output, err := v.start(ctx, script)
	if err != nil {
		return "", err
	}
	return output()
}

// start starts a shell script in the guest, and returns a function that waits for its end: it
// returns the output of the script, and the error that run describes. The end of ctx ends the wait,
// and closes the script's standard output; the script has to set other bounds itself.
func (v *vm) start(ctx context.Context, script string) (wait func() (string, error), err error) {
	address := netip.AddrPortFrom(guestControl, shellPort).String()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	closed := context.AfterFunc(ctx, func() { conn.Close() })
	mark := "status-" + rand.Text() // no output has it by chance
	if _, err := fmt.Fprintf(conn, "( %s\n) </dev/null 2>&1; echo %s $?; exit\n", script, mark); err != nil {
		conn.Close()
		return nil, err
	}
	return func() (string, error) {
		defer conn.Close()
		defer closed()
		const maxOutput = 4 << 20
		text, err := io.ReadAll(io.LimitReader(conn, maxOutput))
		output, status, found := strings.Cut(string(text), mark)
		switch {
		case ctx.Err() != nil:
			return output, fmt.Errorf("in the guest: %s: %w\n%s", script, ctx.Err(), output)
		case err != nil:
			return output, err
		case !found:
			return output, fmt.Errorf("in the guest: %s: the shell ended\n%s", script, output)
		case strings.TrimSpace(status) != "0":
			return output, fmt.Errorf("in the guest: %s: status %s\n%s", script, strings.TrimSpace(status), output)
		}
		return output, nil
	}, nil
}
