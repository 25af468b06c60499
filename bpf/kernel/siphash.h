// SipHash-2-4: J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF", 2012. The input is a number of words of
// 64 bits, each in the byte order of the machine.

struct key {
	__u64 k[2];
};

struct sip {
	__u64 v0, v1, v2, v3, bytes;
};

static __always_inline __u64 sip_turn(__u64 x, int by) {
	return x << by | x >> (64 - by);
}

static __always_inline void sip_round(struct sip *h) {
	h->v0 += h->v1;
	h->v1 = sip_turn(h->v1, 13) ^ h->v0;
	h->v0 = sip_turn(h->v0, 32);
	h->v2 += h->v3;
	h->v3 = sip_turn(h->v3, 16) ^ h->v2;
	h->v0 += h->v3;
	h->v3 = sip_turn(h->v3, 21) ^ h->v0;
	h->v2 += h->v1;
	h->v1 = sip_turn(h->v1, 17) ^ h->v2;
	h->v2 = sip_turn(h->v2, 32);
}

static __always_inline void sip_block(struct sip *h, __u64 word) {
	h->v3 ^= word;
	sip_round(h);
	sip_round(h);
	h->v0 ^= word;
}

static __always_inline void sip_begin(struct sip *h, const struct key *key) {
	h->v0 = key->k[0] ^ 0x736f6d6570736575ULL; // the constants of the paper, section 2.1
	h->v1 = key->k[1] ^ 0x646f72616e646f6dULL;
	h->v2 = key->k[0] ^ 0x6c7967656e657261ULL;
	h->v3 = key->k[1] ^ 0x7465646279746573ULL;
	h->bytes = 0;
}

static __always_inline void sip_add(struct sip *h, __u64 word) {
	sip_block(h, word);
	h->bytes += 8;
}

static __always_inline __u64 sip_end(struct sip *h) {
	sip_block(h, h->bytes << 56);
	h->v2 ^= 0xff;
	sip_round(h);
	sip_round(h);
	sip_round(h);
	sip_round(h);
	return h->v0 ^ h->v1 ^ h->v2 ^ h->v3;
}
