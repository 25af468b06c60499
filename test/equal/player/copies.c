/* Descriptors that get other numbers, and go to other processes and programs. */
#include "player.h"

#include <link.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

/* op_dup: SLOT SLOT [dup2|dup3|fcntl]. The second names the copy. With dup2 and dup3 the descriptor that it named before is closed. */
void op_dup(const struct args *a)
{
	struct slot *from = slot_of(a->v[0]), *to = slot_of(a->v[1]);
	int fd;

	if ((has(a, "dup2") || has(a, "dup3")) && to->fd >= 0)
		fd = has(a, "dup2") ? dup2(from->fd, to->fd) : dup3(from->fd, to->fd, O_CLOEXEC);
	else
		fd = has(a, "fcntl") ? fcntl(from->fd, F_DUPFD, 0) : dup(from->fd);
	say_result(fd);
	if (fd >= 0)
		put(to, fd, from->conn, from->side);
	if (w->bare)
		usleep(100);
}

/* op_fork: ACTOR is a copy of this process from now on. */
void op_fork(const struct args *a)
{
	long child = number(a, 0, 1);
	unsigned next = (unsigned)(self - w->step) + 1;
	pid_t pid;

	if (child < 0 || child >= ACTORS || w->pid[child])
		return;
	memcpy(w->slots[child], w->slots[me], sizeof(w->slots[me]));
	pid = fork();
	if (pid == 0)
		act((int)child, 0, next);
	w->pid[child] = pid;
	say("%s", pid > 0 ? "forked" : "not");
}

/* op_exec executes the program of this process anew. Descriptors that are not close-on-exec stay. */
void op_exec(const struct args *a)
{
	char memory[16], actor[16], next[16];
	char *argv[] = {"player", memory, actor, next, NULL};

	(void)a;
	for (int i = 0; i < SLOTS; i++) {
		struct slot *s = &w->slots[me][i];

		if (s->fd >= 0 && (fcntl(s->fd, F_GETFD) & FD_CLOEXEC))
			put(s, -1, -1, 0);
	}
	snprintf(memory, sizeof(memory), "%d", PATH_FD - 1);
	snprintf(actor, sizeof(actor), "%d", me);
	snprintf(next, sizeof(next), "%d", (int)(self - w->step));
	if (strcmp(self->result, "") == 0) {
		say("executed"); /* the new program comes to this step again, and sees it */
		execv(program, argv);
		say_result(-1);
	}
}

/* op_sendfd: SLOT ACTOR sends a descriptor to a process. */
void op_sendfd(const struct args *a)
{
	int fd = fd_of(a->v[0]), to = (int)number(a, 1, 0);
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct slot s = *slot_of(a->v[0]);
	struct iovec one = {&s, sizeof(s)};
	struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.buf)};
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);

	if (to < 0 || to >= ACTORS)
		return;
	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(h), &fd, sizeof(fd));
	say("%s", sendmsg(w->passes[to][0], &m, 0) > 0 ? "sent" : strerrorname_np(errno));
}

/* op_recvfd: SLOT gets the descriptor that was sent to this process. */
void op_recvfd(const struct args *a)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct slot s = {.fd = -1};
	struct iovec one = {&s, sizeof(s)};
	struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.buf)};
	struct cmsghdr *h;
	int fd = -1;

	if (recvmsg(w->passes[me][1], &m, MSG_DONTWAIT) <= 0) {
		say_result(-1);
		return;
	}
	h = CMSG_FIRSTHDR(&m);
	if (h && h->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(h), sizeof(fd));
	say("%d", fd);
	put(slot_of(a->v[0]), fd, s.conn, s.side);
}

/* library takes note of where the code of libgosmc is. */
static int library(struct dl_phdr_info *info, size_t size, void *to)
{
	uint64_t *range = to;

	(void)size;
	for (int i = 0; strstr(info->dlpi_name, "libgosmc") && i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X)) {
			range[0] = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
			range[1] = range[0] + info->dlpi_phdr[i].p_memsz;
		}
	return 0;
}

/* The system calls that programs make on sockets, and that the library may make in their place when there is a filter. */
static const int allowed[] = {
	SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_preadv2, SYS_pwritev2, SYS_recvfrom, SYS_recvmsg, SYS_recvmmsg, SYS_sendto, SYS_sendmsg,
	SYS_sendmmsg, SYS_sendfile, SYS_splice, SYS_close, SYS_close_range, SYS_shutdown, SYS_accept, SYS_accept4, SYS_connect, SYS_bind, SYS_listen, SYS_dup,
	SYS_dup3, SYS_fcntl, SYS_ioctl, SYS_setsockopt, SYS_epoll_create1, SYS_epoll_ctl,
	SYS_epoll_pwait, SYS_epoll_pwait2, SYS_execve, SYS_socket, SYS_futex, SYS_gettid, SYS_tgkill, SYS_prctl, /* the last ones by syscall, and by op_guard */
#ifdef SYS_dup2
	SYS_dup2, SYS_epoll_wait, SYS_epoll_create,
#endif
	SYS_getsockopt, SYS_getsockname, SYS_getpeername, /* the last NAMES ones: a program that goes on asking for names */
};
#define NAMES 3
#define ALLOWED (sizeof(allowed) / sizeof(allowed[0]))
#define LOAD(offset) (struct sock_filter) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (offset))
#define POINTER offsetof(struct seccomp_data, instruction_pointer)

/* op_guard: [names]. This process gets a filter of system calls, which kills it for any that the library makes of its own accord. */
void op_guard(const struct args *a)
{
	uint64_t range[2] = {0, 0};
	struct sock_filter list[9 + 2 * ALLOWED];
	struct sock_fprog all = {.filter = list};
	int n = 0;

	dl_iterate_phdr(library, range);
	if (range[0] >> 32 != range[1] >> 32) {
		say("0");
		return;
	}
	list[n++] = LOAD(POINTER + 4);
	list[n++] = (struct sock_filter) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(range[0] >> 32), 1, 0);
	list[n++] = (struct sock_filter) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	list[n++] = LOAD(POINTER);
	list[n++] = (struct sock_filter) BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)range[0], 0, 2 * ALLOWED + 3);
	list[n++] = (struct sock_filter) BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)range[1], 2 * ALLOWED + 2, 0);
	list[n++] = LOAD(offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < ALLOWED; i++) { /* what is not allowed has the number of a call that is */
		list[n++] = (struct sock_filter) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)allowed[has(a, "names") || i < ALLOWED - NAMES ? i : 0], 0, 1);
		list[n++] = (struct sock_filter) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	list[n++] = (struct sock_filter) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	list[n++] = (struct sock_filter) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW); /* of calls from elsewhere */
	all.len = (unsigned short)n;
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	say_result(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all));
}
