#!/bin/sh
# Builds the library for both architectures into this directory: build.sh [flags for the compiler].
# Needs gcc, and gcc-aarch64-linux-gnu for arm64.
set -eu
cd "$(dirname "$0")"
flags="-std=gnu11 -O2 -fPIC -shared -fvisibility=hidden -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wl,-z,relro,-z,now,-z,defs"
build() {
	"$1" $flags -Wl,-soname,libgosmc.so -o "libgosmc_$2.so.new" src/*.c
	"$3" --strip-unneeded "libgosmc_$2.so.new"
	chmod 644 "libgosmc_$2.so.new"
	mv "libgosmc_$2.so.new" "libgosmc_$2.so"
}
# talk is what 'gosmc bench' measures where no program of others will do.
talk() {
	"$1" -std=gnu11 -O2 -Wall -Wextra -Werror -o "bench/talk_$2.new" bench/talk.c
	"$3" --strip-all "bench/talk_$2.new"
	mv "bench/talk_$2.new" "bench/talk_$2"
}
build "${CC_AMD64:-x86_64-linux-gnu-gcc}" amd64 "${STRIP_AMD64:-x86_64-linux-gnu-strip}"
build "${CC_ARM64:-aarch64-linux-gnu-gcc}" arm64 "${STRIP_ARM64:-aarch64-linux-gnu-strip}"
talk "${CC_AMD64:-x86_64-linux-gnu-gcc}" amd64 "${STRIP_AMD64:-x86_64-linux-gnu-strip}"
talk "${CC_ARM64:-aarch64-linux-gnu-gcc}" arm64 "${STRIP_ARM64:-aarch64-linux-gnu-strip}"
