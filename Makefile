# Run 'make help' for the list of targets. Everything is done by the go command; other tools
# are run with 'go run' at the version named here, and fetched through the module proxy.

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

# How long each fuzz target runs.
FUZZTIME ?= 10s

# How long 'make equal-test' plays scripts.
EQUALTIME ?= 3m

# Packages whose tests take longest: they begin first, so that none of them is the last one, alone.
LONGEST = ./internal/run/supervisor ./cmd/gosmc .

# Where 'make install' puts things.
PREFIX ?= /usr/local

# 'gosmc version' prints these. A source archive has no .git: name them, as in make VERSION=v1.2.3 COMMIT=abc123 DATE=2026-11-26T08:00:00Z.
# The go command supplies each one that is empty.
VERSION ?= $(shell git describe --tags --match 'v[0-9]*' --dirty=+changes 2>/dev/null)
COMMIT ?= $(shell git describe --always --exclude '*' --abbrev=40 --dirty=+changes 2>/dev/null)
DATE ?= $(shell TZ=UTC0 git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null)
BIN = bin/gosmc

# Where 'make packages' puts things.
DIST ?= dist

# Where 'make demo-pcap' writes.
PCAP ?= smc.pcap
MEASURE = github.com/gosmc/smc/internal/measure

.DEFAULT_GOAL := help
.PHONY: help build install uninstall man demo-pcap packages package-test test check lint fmt vet cross staticcheck tidy race fuzz bench rules golden bpf preload preload-verify std-test run-test go-test suite-test equal-test container-test interop

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

build: ## build the gosmc command into bin/: one static file, which runs in any container
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X '$(MEASURE).version=$(VERSION)' -X '$(MEASURE).commit=$(COMMIT)' -X '$(MEASURE).date=$(DATE)'" -o $(BIN) ./cmd/gosmc

man: ## write the manual pages into bin/man
	go run ./cmd/gosmc man bin/man

install: build ## install the command, its manual pages and completion: make install PREFIX=/usr DESTDIR=/tmp/package
	install -D $(BIN) $(DESTDIR)$(PREFIX)/bin/gosmc
	$(BIN) run-library $(abspath $(DESTDIR)$(PREFIX)/lib/gosmc)
	$(BIN) man $(DESTDIR)$(PREFIX)/share/man
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(BIN) completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/gosmc
	$(BIN) completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_gosmc
	$(BIN) completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/gosmc.fish

uninstall: ## remove what 'make install' installed, with the same PREFIX and DESTDIR
	rm -f $(DESTDIR)$(PREFIX)/bin/gosmc
	rm -rf $(DESTDIR)$(PREFIX)/lib/gosmc
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/gosmc.1 $(DESTDIR)$(PREFIX)/share/man/man1/gosmc-*.1 $(DESTDIR)$(PREFIX)/share/man/man5/gosmc.conf.5 $(DESTDIR)$(PREFIX)/share/man/man7/gosmc-reasons.7 $(DESTDIR)$(PREFIX)/share/man/man7/gosmc.7 $(DESTDIR)$(PREFIX)/share/man/man8/gosmc-*.8
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/gosmc $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_gosmc
	rm -f $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/gosmc.fish

demo-pcap: ## write smc.pcap, the capture of docs/dump.md, so that its commands can be pasted
	go run ./cmd/gosmc dump --write $(PCAP) wire/roce/testdata/linux-6.12-smcrv2-two-links.pcap.gz internal/dissect/testdata/linux-6.12-smcrv2-two-links-tcp.pcap.gz

packages: ## make a deb, an rpm and an archive for amd64 and arm64, an OCI image, SBOMs and SHA256SUMS in DIST (dist)
	cd packaging/build && go run . -o '$(abspath $(DIST))' -version '$(VERSION)' -commit '$(COMMIT)' -date '$(DATE)'

package-test: ## as root: are packages the same twice? install, upgrade, downgrade, remove and purge them in a copy of this system; SMALL=1 makes those for this machine, once; OLD=COMMIT upgrades from that
	cd packaging/build && go vet . && go test -v -count=1 -timeout 60m $(if $(SMALL),-short) . $(if $(OLD),-old $(OLD))

test: vet ## vet, and every test: what to run after cloning
	go test -timeout 60m $(LONGEST) ./...
	cd examples && go vet ./... && go test ./...

check: lint race fuzz ## what a change must pass: all that 'make test' does, and more

lint: fmt vet cross staticcheck tidy ## the quick parts of 'make check': formatting, vet, other systems, staticcheck, go.mod

fmt: # fails if gofmt would change a file
	@files=$$(gofmt -l .) && if [ -n "$$files" ]; then echo "not formatted; run gofmt -w on:"; echo "$$files"; exit 1; fi

vet:
	go vet ./...

cross: # vet what is built on machines of other kinds: weak memory order, big-endian, 32 bits; and build for other systems
	GOARCH=arm64 go vet ./...
	GOARCH=s390x go vet ./...
	GOARCH=386 go vet ./...
	GOARCH=arm go vet ./...
	GOOS=darwin go build . ./wire/...
	GOOS=windows go build . ./wire/...
	GOOS=freebsd go build . ./wire/...

staticcheck:
	go run $(STATICCHECK) ./...

tidy: # fails if go.mod or go.sum would change
	go mod tidy -diff
	cd examples && go mod tidy -diff

race: # every test with the race detector, in random order
	go test -race -shuffle=on ./...

fuzz: ## run every fuzz target for FUZZTIME (10s), one after the other
	@set -e; for dir in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -r -n 1 dirname | sort -u); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$dir/*_test.go | sort); do \
			echo "fuzz $$dir $$target $(FUZZTIME)"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$dir; \
		done; \
	done

bench: ## measure: the benchmarks of the packages, then SMC-D beside TCP and Unix sockets
	go test -run '^$$' -bench . ./...
	go run ./cmd/gosmc bench

rules: ## take the rules that are marked in the source out, one at a time: does the test beside each fail?
	go run ./test/rules

golden: ## rewrite the expected output in testdata/; look at the difference before you commit it
	@set -e; for dir in $$(grep -rlE --include='*_test.go' 'flag\.Bool\("update"|coretest\.CheckTable\(' . | xargs -r -n 1 dirname | sort -u); do \
		echo "go test $$dir -update"; \
		go test $$dir -update; \
	done
	git diff --stat -- '*/testdata/*'

bpf: ## rebuild the programs that gosmc agent runs in the kernel: needs clang, llvm and libbpf-dev
	sh bpf/kernel/build.sh

preload: ## rebuild the library that gosmc run puts into programs: needs gcc and gcc-aarch64-linux-gnu
	sh preload/build.sh

preload-verify: ## build the committed libraries again, elsewhere, and compare: see docs/operate.md
	sh preload/verify.sh

std-test: ## the tests of Go's own net, net/http, crypto/tls and others over SMC-D: see test/std/README.md
	go run ./test/std

run-test: ## programs of Debian under gosmc run: see docs/run.md; installs them, as root
	go run ./test/run

container-test: ## programs in containers of runc, bare, under gosmc run and with package smc; SMALL=1 leaves out parts that take long; installs what is missing, as root: see test/container/README.md
	go run ./test/container $(if $(SMALL),-small)

go-test: ## released Go programs, compiled by gosmc go build; SMALL=1 leaves out those that compile long: see test/gotest/README.md
	go run ./test/gotest $(if $(SMALL),-small)

suite-test: ## test suites of other projects bare and under gosmc run, compared; TIME= runs a part, SEED= chooses it: see test/suite/README.md
	go run ./test/suite $(if $(TIME),-time $(TIME)) $(if $(SEED),-seed $(SEED))

equal-test: ## random calls over TCP and under gosmc run, compared, for EQUALTIME (3m); SEED= plays one run again: see test/equal/README.md
	go run ./test/equal -time $(EQUALTIME) $(if $(SEED),-seed $(SEED))

interop: ## RDMA against real Linux in a virtual machine: needs root; AGAIN= tries some failed cases twice: see test/interop/README.md
	go test -count=1 -run TestSMCRv1 ./internal/host
	go run ./test/interop $(if $(AGAIN),-again $(AGAIN))
