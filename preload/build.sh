#!/bin/sh
# Builds the library, and the program of the bench, for the architectures in ARCHES (amd64 and arm64) into OUT (this directory).
# Needs gcc, and gcc-aarch64-linux-gnu for arm64. The same compiler and linker make the same bytes: verify.sh.
set -eu
out=${OUT:-$(dirname "$0")}
mkdir -p "$out/bench"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")"
flags="-std=gnu11 -O2 -fPIC -shared -fvisibility=hidden -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wl,-z,relro,-z,now,-z,defs"
build() {
	"$1" $flags -Wl,-soname,libgosmc.so -o "$out/libgosmc_$2.so.new" src/*.c
	"$3" --strip-unneeded "$out/libgosmc_$2.so.new"
	chmod 644 "$out/libgosmc_$2.so.new"
	mv "$out/libgosmc_$2.so.new" "$out/libgosmc_$2.so"
}
# talk is what 'gosmc bench' measures where no program of others will do.
talk() {
	"$1" -std=gnu11 -O2 -Wall -Wextra -Werror -o "$out/bench/talk_$2.new" bench/talk.c
	"$3" --strip-all "$out/bench/talk_$2.new"
	mv "$out/bench/talk_$2.new" "$out/bench/talk_$2"
}
for arch in ${ARCHES:-amd64 arm64}; do
	case $arch in
	amd64) cc=${CC_AMD64:-x86_64-linux-gnu-gcc} strip=${STRIP_AMD64:-x86_64-linux-gnu-strip} ;;
	arm64) cc=${CC_ARM64:-aarch64-linux-gnu-gcc} strip=${STRIP_ARM64:-aarch64-linux-gnu-strip} ;;
	*) echo "build.sh: unknown architecture $arch" >&2 && exit 2 ;;
	esac
	build "$cc" "$arch" "$strip"
	talk "$cc" "$arch" "$strip"
done
