// Package sockdiag asks the kernel about sockets of the network namespace of the calling thread:
// sock_diag(7) over netlink, and /proc/net where netlink is forbidden. It knows of no program and no
// protocol above.
package sockdiag
