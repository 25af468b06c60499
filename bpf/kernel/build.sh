#!/bin/sh
# Builds the objects that are committed in the directory above, for machines of both byte orders. Needs Debian's clang,
# llvm and libbpf-dev, or the like; 'make bpf' runs it. Without debugging information the same compiler makes the
# same bytes.
set -eu
cd "$(dirname "$0")"
include=/usr/include/$(uname -m)-linux-gnu # asm/types.h, on Debian
for source in *.bpf.c; do
	for target in bpfel bpfeb; do
		object=../${source%.bpf.c}_$target.o
		clang -O2 -g -Wall -Werror -mcpu=v2 -target $target -fdebug-compilation-dir=. -I"$include" -c "$source" -o "$object"
		llvm-strip -g "$object"
	done
done
