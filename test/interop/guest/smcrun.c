/*
 * Has programs of the guest that know TCP alone use AF_SMC sockets, as smc_run of the s390-tools and smc-tools does.
 * Preload it.
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PROTO_SMC 0
#define PROTO_SMC6 1

int socket(int domain, int type, int protocol)
{
	if ((domain == AF_INET || domain == AF_INET6) && (type & 0xf) == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP)) {
		protocol = domain == AF_INET6 ? PROTO_SMC6 : PROTO_SMC;
		domain = AF_SMC;
	}
	return (int)syscall(SYS_socket, domain, type, protocol);
}
