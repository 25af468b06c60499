/* Descriptors that get other numbers, and go to other processes and programs. */
#include "player.h"

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
