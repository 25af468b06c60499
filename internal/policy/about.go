package policy

// AboutFile says where the configuration is, and which words it has.
const AboutFile = `The file is /etc/gosmc.conf, or what GOSMC_CONFIG names. Lines are a word and its
value; # begins a comment:

  ueid    EXAMPLE.PLEX1    user-defined enterprise ID, in order of preference    GOSMC_UEIDS
  seid    off              do without the system's own EID: on, off              GOSMC_SEID
  peer    192.0.2.0/24     a peer that speaks SMC-R; [2001:db8::/32]:443 with    GOSMC_SMCR_PEERS
                           the server's port
  device  192.0.2.1        address or prefix that SMC-R may send from; rdma:rxe0 GOSMC_SMCR_DEVICES
                           an RDMA device of the kernel that SMC-R may use
  smcr-v1 on               version 1 of SMC-R too, over RoCEv2: on, off          GOSMC_SMCR_V1
  pnet    NET1 eth1        PNETID of an interface
  between-hosts on         programs of gosmc run speak SMC-R with peers: on, off GOSMC_BETWEEN_HOSTS

Values of package smc about speed and memory. Names of Linux (sysctl) and AIX with the same meaning
stand for them, too: smcr_max_links_per_lgr, smcr_max_conns_per_lgr or conns_per_lg,
smcr_testlink_time, rmem.

  smcr-links     2         links of a link group of SMC-R: 1 to 8                GOSMC_SMCR_LINKS
  smcr-conns     255       connections of a link group: 16 to 255                GOSMC_SMCR_CONNS
  smcr-spread    bytes     what links share evenly: connections, bytes           GOSMC_SMCR_SPREAD
  smcr-keepalive 30s       silence before a link is tested; off: never           GOSMC_SMCR_KEEPALIVE
  spin           50us      longest spin of a Read or Write; off: none            GOSMC_SPIN
  read-buffer    1MiB      of each connection: 16KiB to 8MiB                     GOSMC_READ_BUFFER

For on and off stand also yes, true and 1, and no, false and 0; in GOSMC_DISABLED too. What may
leave TCP, by the library and by gosmc run. Ports and addresses are the server's, on both sides of a
connection; ! makes an exception, and where a list has other entries than exceptions, what is not in
it is refused:

  smc             on           off: every connection is TCP                      GOSMC_DISABLED, the opposite
  program         !sshd        by the name a program was started as              GOSMC_PROGRAMS
  listen-port     8000-8999    of servers here: port or range; any, none         GOSMC_LISTEN_PORTS
  listen-address  127.0.0.1    address or prefix; any, none                      GOSMC_LISTEN_ADDRESSES
  connect-port    !5432        of servers that programs here connect to          GOSMC_CONNECT_PORTS
  connect-address 10.0.0.0/8                                                     GOSMC_CONNECT_ADDRESSES
  users           any          whose programs may be at the other end: same,     GOSMC_USERS
                               any, NAME, @GROUP, !NAME
  machine-address 198.51.100.0/24  of servers that can be containers here, for   GOSMC_MACHINE_ADDRESSES
                               the agent; instead of private networks; any, none
  memory          512MiB       what a process receives into, at most             GOSMC_MEMORY
  ring-after      64KiB        bytes in a direction before a ring joins a        GOSMC_RING_AFTER
                               connection of gosmc run
  short-after     16           short connections of a program to a server, after GOSMC_SHORT_AFTER
                               which others stay TCP; off: none

A variable of the environment, with commas or spaces between its values, takes the place of all
lines of its word, and what a program sets in smc.Config that of both. 'gosmc config show
--effective' says which words programs that run follow, and which they read at their start.`
