/*
 * verbspeer PORT SECONDS: the guest's end of the RDMA cases, on libibverbs.
 *
 * It accepts one connection on TCP port PORT and does what the lines that arrive there say, one
 * answer line for each: "ok ...", or "error ..." and what went wrong. It ends when the connection
 * does, and after SECONDS in any case. One protection domain, one memory region (the region), one
 * completion queue and one RC queue pair; places in the region are given as offsets. Numbers are in
 * any form that strtoull takes.
 *
 *   open DEVICE GID SIZE MAXSEND MAXRECV ACCESS  ok QPN ADDRESS RKEY
 *        GID: 32 hexadecimal digits; SIZE of the region in bytes; ACCESS of the queue pair, as in
 *        enum ibv_access_flags. The region may be written to
 *   connect QPN GID MTU RECVPSN SENDPSN TIMEOUT RETRIES RNRRETRIES MINRNR    ok
 *        to the peer with QPN and GID; MTU in bytes, the rest as in struct ibv_qp_attr
 *   fill OFFSET LENGTH SEED                      ok
 *   sum OFFSET LENGTH                            ok FNV1A
 *   recv ID OFFSET LENGTH OFFSET LENGTH          ok
 *   send ID FLAGS IMM OFFSET LENGTH OFFSET LENGTH                  ok
 *   write ID FLAGS IMM ADDRESS RKEY OFFSET LENGTH OFFSET LENGTH    ok
 *        a LENGTH of 0: no such SGE. FLAGS: 1 signaled, 2 solicited, 4 with immediate data IMM
 *   poll MILLISECONDS                            ok ID STATUS OPCODE BYTES IMM, or ok none
 *        the next completion. STATUS and OPCODE as in struct ibv_wc, IMM 0 if there is none
 *   state                                        ok STATE
 *        as in enum ibv_qp_state
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FLAG_SIGNALED = 1, FLAG_SOLICITED = 2, FLAG_IMM = 4, MAX_WORDS = 16, PAGE = 4096 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static uint8_t *region;
static uint64_t region_size;
static int gid_index = -1;
static FILE *out;

static void answer(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(out, format, args);
	va_end(args);
	fputc('\n', out);
	fflush(out);
}

static void failed(const char *what, int error)
{
	answer("error %s: %s", what, strerror(error));
}

/* Reads 32 hexadecimal digits; returns 0 if that is what text is. */
static int parse_gid(const char *text, union ibv_gid *gid)
{
	if (strlen(text) != 32)
		return -1;
	for (int i = 0; i < 16; i++)
		if (sscanf(text + 2 * i, "%2hhx", &gid->raw[i]) != 1)
			return -1;
	return 0;
}

static int find_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	if (list)
		ibv_free_device_list(list);
	return context ? 0 : -1;
}

static int find_gid(const union ibv_gid *wanted)
{
	struct ibv_port_attr port;
	union ibv_gid gid;

	if (ibv_query_port(context, 1, &port))
		return -1;
	for (int i = 0; i < port.gid_tbl_len; i++)
		if (!ibv_query_gid(context, 1, i, &gid) && !memcmp(&gid, wanted, sizeof gid))
			return i;
	return -1;
}

/* open DEVICE GID SIZE MAXSEND MAXRECV ACCESS */
static void do_open(char **word, const uint64_t *number)
{
	union ibv_gid gid;

	if (qp || parse_gid(word[2], &gid) || find_device(word[1]))
		return failed("open: device or GID", EINVAL);
	gid_index = find_gid(&gid);
	if (gid_index < 0)
		return failed("open: no such GID on the device", ENOENT);

	region_size = number[3];
	region = aligned_alloc(PAGE, (region_size + PAGE - 1) / PAGE * PAGE);
	pd = ibv_alloc_pd(context);
	if (!region || !pd)
		return failed("open: memory", ENOMEM);
	memset(region, 0, region_size);
	mr = ibv_reg_mr(pd, region, region_size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	cq = ibv_create_cq(context, number[4] + number[5], NULL, NULL, 0);
	if (!mr || !cq)
		return failed("open: memory region or completion queue", errno);

	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = number[4], .max_recv_wr = number[5], .max_send_sge = 2, .max_recv_sge = 2 },
	};
	qp = ibv_create_qp(pd, &init);
	if (!qp)
		return failed("open: queue pair", errno);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = number[6],
	};
	int error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (error)
		return failed("open: to INIT", error);
	answer("ok %u %" PRIu64 " %u", qp->qp_num, (uint64_t)(uintptr_t)region, mr->rkey);
}

/* connect QPN GID MTU RECVPSN SENDPSN TIMEOUT RETRIES RNRRETRIES MINRNR */
static void do_connect(char **word, const uint64_t *number)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };

	if (parse_gid(word[2], &attr.ah_attr.grh.dgid))
		return failed("connect: GID", EINVAL);
	switch (number[3]) {
	case 256: attr.path_mtu = IBV_MTU_256; break;
	case 512: attr.path_mtu = IBV_MTU_512; break;
	case 1024: attr.path_mtu = IBV_MTU_1024; break;
	case 2048: attr.path_mtu = IBV_MTU_2048; break;
	case 4096: attr.path_mtu = IBV_MTU_4096; break;
	default: return failed("connect: MTU", EINVAL);
	}
	attr.dest_qp_num = number[1];
	attr.rq_psn = number[4];
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = number[9];
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.sgid_index = gid_index;
	attr.ah_attr.grh.hop_limit = 64;
	int error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (error)
		return failed("connect: to RTR", error);

	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = number[5];
	attr.timeout = number[6];
	attr.retry_cnt = number[7];
	attr.rnr_retry = number[8];
	attr.max_rd_atomic = 1;
	error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
	if (error)
		return failed("connect: to RTS", error);
	answer("ok");
}

static int inside(uint64_t offset, uint64_t length)
{
	return offset <= region_size && length <= region_size - offset;
}

/* fill OFFSET LENGTH SEED: byte i of the range is byte i%8 of the splitmix64 number i/8. */
static void do_fill(char **word, const uint64_t *number)
{
	(void)word;
	if (!inside(number[1], number[2]))
		return failed("fill", EINVAL);
	for (uint64_t i = 0, z = 0; i < number[2]; i++, z >>= 8) {
		if (i % 8 == 0) {
			z = number[3] + (i / 8 + 1) * 0x9e3779b97f4a7c15;
			z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
			z = (z ^ z >> 27) * 0x94d049bb133111eb;
			z ^= z >> 31;
		}
		region[number[1] + i] = (uint8_t)z;
	}
	answer("ok");
}

/* sum OFFSET LENGTH */
static void do_sum(char **word, const uint64_t *number)
{
	uint64_t hash = 0xcbf29ce484222325;

	(void)word;
	if (!inside(number[1], number[2]))
		return failed("sum", EINVAL);
	for (uint64_t i = 0; i < number[2]; i++)
		hash = (hash ^ region[number[1] + i]) * 0x100000001b3;
	answer("ok %" PRIu64, hash);
}

/* Makes up to two SGEs of OFFSET LENGTH OFFSET LENGTH. They may lie outside the region: the device
 * must refuse that. */
static int gather(struct ibv_sge *sge, const uint64_t *number)
{
	int count = 0;

	for (int i = 0; i < 2; i++)
		if (number[2 * i + 1])
			sge[count++] = (struct ibv_sge){
				.addr = (uint64_t)(uintptr_t)region + number[2 * i],
				.length = number[2 * i + 1],
				.lkey = mr->lkey,
			};
	return count;
}

/* recv ID OFFSET LENGTH OFFSET LENGTH */
static void do_recv(char **word, const uint64_t *number)
{
	struct ibv_sge sge[2];
	struct ibv_recv_wr *bad, wr = { .wr_id = number[1], .sg_list = sge, .num_sge = gather(sge, number + 2) };
	int error = ibv_post_recv(qp, &wr, &bad);

	(void)word;
	if (error)
		return failed("recv", error);
	answer("ok");
}

static void post(struct ibv_send_wr *wr, uint64_t flags, uint64_t imm)
{
	struct ibv_send_wr *bad;

	if (flags & FLAG_SIGNALED)
		wr->send_flags |= IBV_SEND_SIGNALED;
	if (flags & FLAG_SOLICITED)
		wr->send_flags |= IBV_SEND_SOLICITED;
	wr->imm_data = htonl(imm);
	int error = ibv_post_send(qp, wr, &bad);
	if (error)
		return failed("post", error);
	answer("ok");
}

/* send ID FLAGS IMM OFFSET LENGTH OFFSET LENGTH */
static void do_send(char **word, const uint64_t *number)
{
	struct ibv_sge sge[2];
	struct ibv_send_wr wr = { .wr_id = number[1], .sg_list = sge, .num_sge = gather(sge, number + 4) };

	(void)word;
	wr.opcode = number[2] & FLAG_IMM ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
	post(&wr, number[2], number[3]);
}

/* write ID FLAGS IMM ADDRESS RKEY OFFSET LENGTH OFFSET LENGTH */
static void do_write(char **word, const uint64_t *number)
{
	struct ibv_sge sge[2];
	struct ibv_send_wr wr = { .wr_id = number[1], .sg_list = sge, .num_sge = gather(sge, number + 6) };

	(void)word;
	wr.opcode = number[2] & FLAG_IMM ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = number[4];
	wr.wr.rdma.rkey = number[5];
	post(&wr, number[2], number[3]);
}

static uint64_t milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ull + now.tv_nsec / 1000000;
}

/* poll MILLISECONDS */
static void do_poll(char **word, const uint64_t *number)
{
	struct ibv_wc wc;
	uint64_t deadline = milliseconds() + number[1];
	int count;

	(void)word;
	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0 && milliseconds() < deadline)
		usleep(100);
	if (count < 0)
		return failed("poll", errno);
	if (count == 0)
		return answer("ok none");
	int good = wc.status == IBV_WC_SUCCESS; /* what else is in wc counts only then */
	answer("ok %" PRIu64 " %u %u %u %u", wc.wr_id, wc.status, good ? wc.opcode : 0,
		good && wc.opcode & IBV_WC_RECV ? wc.byte_len : 0,
		good && wc.wc_flags & IBV_WC_WITH_IMM ? ntohl(wc.imm_data) : 0);
}

/* state */
static void do_state(char **word, const uint64_t *number)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int error = ibv_query_qp(qp, &attr, IBV_QP_STATE, &init);

	(void)word, (void)number;
	if (error)
		return failed("state", error);
	answer("ok %u", attr.qp_state);
}

static const struct command {
	const char *name;
	int words; /* with the name */
	int needs_qp;
	void (*run)(char **word, const uint64_t *number);
} commands[] = {
	{ "open", 7, 0, do_open },
	{ "connect", 10, 1, do_connect },
	{ "fill", 4, 1, do_fill },
	{ "sum", 3, 1, do_sum },
	{ "recv", 6, 1, do_recv },
	{ "send", 8, 1, do_send },
	{ "write", 10, 1, do_write },
	{ "poll", 2, 1, do_poll },
	{ "state", 1, 1, do_state },
};

static void run_line(char *line)
{
	char *word[MAX_WORDS];
	uint64_t number[MAX_WORDS];
	int words = 0;

	for (char *w = strtok(line, " \n"); w && words < MAX_WORDS; w = strtok(NULL, " \n")) {
		word[words] = w;
		number[words++] = strtoull(w, NULL, 0);
	}
	for (size_t i = 0; words && i < sizeof commands / sizeof *commands; i++) {
		const struct command *c = &commands[i];
		if (strcmp(c->name, word[0]))
			continue;
		if (words != c->words || (c->needs_qp && !qp))
			return failed(c->name, EINVAL);
		return c->run(word, number);
	}
	failed("no such command", EINVAL);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);

	if (argc != 3) {
		fprintf(stderr, "usage: verbspeer PORT SECONDS\n");
		return 2;
	}
	alarm(atoi(argv[2]));
	address.sin_port = htons(atoi(argv[1]));
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1)) {
		perror("verbspeer: listen");
		return 1;
	}
	int conn = accept(listener, NULL, NULL);
	close(listener);
	setsockopt(conn, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	FILE *in = fdopen(conn, "r");
	out = fdopen(dup(conn), "w");
	if (!in || !out) {
		perror("verbspeer: accept");
		return 1;
	}
	char line[512];
	while (fgets(line, sizeof line, in))
		run_line(line);

	/* The kernel would give back what is left, but an error here would be worth knowing. */
	if (qp && ibv_destroy_qp(qp))
		perror("verbspeer: destroy queue pair");
	if (cq && ibv_destroy_cq(cq))
		perror("verbspeer: destroy completion queue");
	if (mr && ibv_dereg_mr(mr))
		perror("verbspeer: deregister memory region");
	if (pd && ibv_dealloc_pd(pd))
		perror("verbspeer: free protection domain");
	if (context)
		ibv_close_device(context);
	return 0;
}
