#!/bin/sh
# Builds the committed files again, elsewhere, and compares: verify.sh. With a directory it compares with what was built there.
# Exit status: 0 if all bytes are equal. 1 if they differ though the compiler is the one that has made the committed file, or if a
# file has another interface. 3 if the compiler is another one: the bytes cannot
# tell then, and the interface is the same. 2 if something is missing.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
built=${1:-$work}
command -v readelf >/dev/null || { echo "verify.sh: there is no readelf: apt-get install binutils" >&2 && exit 2; }
if [ $# = 0 ]; then
	for arch in ${ARCHES:-amd64 arm64}; do
		case $arch in
		amd64) cc=${CC_AMD64:-x86_64-linux-gnu-gcc} ;;
		*) cc=${CC_ARM64:-aarch64-linux-gnu-gcc} ;;
		esac
		if ! command -v "$cc" >/dev/null; then
			echo "verify.sh: there is no $cc: apt-get install gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross" >&2
			exit 2
		fi
	done
	OUT=$built sh build.sh
fi

compiler() { readelf -p .comment "$1" | sed -n 's/^ *\[ *[0-9a-f]*\]  *//p' | sort -u; }
# interface is what a file has of others, and others of it: libraries, versions, and the names and kinds of symbols.
interface() {
	readelf -dW "$1" | sed -n 's/.*(\(NEEDED\|SONAME\|FLAGS\|FLAGS_1\)) *//p'
	readelf -W --dyn-syms "$1" | awk '$1 ~ /^[0-9]+:$/ { print $4, $5, $6, $7 == "UND", $8 }' | sort
}
# sections lists the names of the sections that differ.
sections() {
	for section in $(readelf -SW "$1" | sed -n 's/^ *\[ *[0-9]*\] \(\.[^ ]*\) .*/\1/p'); do
		for file in "$1" "$2"; do
			readelf -x "$section" "$file" 2>/dev/null | tail -n +3 >"$work/$([ "$file" = "$1" ] && echo a || echo b)"
		done
		cmp -s "$work/a" "$work/b" || printf ' %s' "$section"
	done
}

status=0
for arch in ${ARCHES:-amd64 arm64}; do
	for file in libgosmc_$arch.so bench/talk_$arch; do
		if cmp -s "$file" "$built/$file"; then
			echo "$file: equal, $(sha256sum "$file" | cut -d ' ' -f 1)"
			continue
		fi
		made=$(compiler "$file") here=$(compiler "$built/$file")
		interface "$file" >"$work/interface.committed"
		interface "$built/$file" >"$work/interface.built"
		if [ "$made" = "$here" ]; then
			echo "$file: DIFFERS from what this compiler makes of the source, in$(sections "$file" "$built/$file")"
			status=1
		elif ! diff "$work/interface.committed" "$work/interface.built" >"$work/diff"; then
			echo "$file: DIFFERS in its interface (< committed, > built here):"
			cat "$work/diff"
			status=1
		else
			echo "$file: not verified: made by $made; here is $here. The interface is the same; other sections:$(sections "$file" "$built/$file")"
			[ $status = 1 ] || status=3
		fi
	done
done
exit $status
