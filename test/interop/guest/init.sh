#!/bin/sh
# The first process of the guest. It brings up two network interfaces and soft-RoCE on the first:
#
#   eth0  the data network: rxe0 is on it, and netem when a case asks for loss
#   eth1  the control network: a shell for the host program, and what the test programs say over TCP
#
# The kernel's command line has addr4=, addr6= and control= (addresses with prefix lengths), mtu=
# (bytes, of eth0) and port= (of the shell).
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev

for word in $(cat /proc/cmdline); do
	case $word in
	addr4=* | addr6=* | control=* | mtu=* | port=*) eval "${word%%=*}=${word#*=}" ;;
	esac
done

# busybox gives the kernel the compressed module first, hence "Invalid ELF header magic", then the
# one that it has unpacked itself.
for module in virtio_net sch_netem ifb sch_ingress cls_matchall act_mirred crc32_generic rdma_rxe ib_uverbs tcp_diag smc smc_diag; do
	modprobe "$module" || echo "init: no module $module"
done

# Not fq_codel, the kernel's: where this machine has no time for the guest, what waits grows old, and is dropped for that, which no counter of an interface says.
echo pfifo_fast >/proc/sys/net/core/default_qdisc
for i in eth0 eth2; do /bin/ip link set $i txqueuelen 10000; done
/bin/ip link set lo up
/bin/ip link set eth1 up
/bin/ip addr add "$control" dev eth1
/bin/ip link set eth0 mtu "$mtu" up
/bin/ip addr add "$addr4" dev eth0
/bin/ip -6 addr add "$addr6" dev eth0 nodad
/bin/rdma link add rxe0 type rxe netdev eth0 || echo "init: no rxe0"
echo 0 >/sys/class/infiniband/rxe0/ports/1/hw_counters/lifespan # count at once, not every 10 ms

# Packets on their way in pass ifb0, so that netem can lose some of them as well.
[ -d /sys/class/net/ifb0 ] || /bin/ip link add ifb0 type ifb
/bin/ip link set ifb0 txqueuelen 10000 up

# Go's runtime interrupts a goroutine by a signal, and Linux ends a connect(2) of AF_SMC that a signal finds between Proposal and Accept: EINTR,
# and the connection is gone (smc_clc_wait_msg).
export GODEBUG=asyncpreemptoff=1

# One shell for each connection. What arrives on the control network comes from the host program.
nc -ll -p "$port" -e sh
poweroff -f
