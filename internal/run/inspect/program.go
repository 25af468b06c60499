package inspect

import (
	"bufio"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxInterpreters bounds scripts with an interpreter that is a script, as the kernel does.
const maxInterpreters = 4

// Obstacle returns why the library cannot be loaded into a program, "" if it can, as far as can be
// told from its file. For a script, the file of its interpreter counts.
func Obstacle(path string) string {
	for range maxInterpreters {
		interpreter, err := scriptInterpreter(path)
		if err != nil || interpreter == "" {
			break
		}
		path = interpreter
	}
	if why := privileged(path); why != "" {
		return why
	}
	f, err := elf.Open(path)
	if err != nil {
		return "it is no ELF program"
	}
	defer f.Close()
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	if f.Class != elf.ELFCLASS64 || f.Machine != machine {
		return "it is for another architecture"
	}
	loader := ""
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP && p.Filesz < unix.PathMax {
			b := make([]byte, p.Filesz)
			if _, err := p.ReadAt(b, 0); err == nil {
				loader = strings.TrimRight(string(b), "\x00")
			}
		}
	}
	switch {
	case loader == "":
		return "it is statically linked"
	case strings.Contains(filepath.Base(loader), "musl"):
		return "it uses musl, not glibc"
	case f.Section(".go.buildinfo") != nil:
		return "it is a Go program, which does not use libc for its sockets; let it use package smc"
	}
	return ""
}

// scriptInterpreter returns the program that runs a script, "" for a file that is no script.
func scriptInterpreter(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	line, err := bufio.NewReader(io.LimitReader(f, 256)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	rest, ok := strings.CutPrefix(line, "#!")
	words := strings.Fields(rest)
	if !ok || len(words) == 0 {
		return "", nil
	}
	if filepath.Base(words[0]) == "env" {
		for _, w := range words[1:] {
			if !strings.HasPrefix(w, "-") && !strings.Contains(w, "=") {
				return exec.LookPath(w)
			}
		}
	}
	return words[0], nil
}

// privileged returns why the loader will not look at LD_PRELOAD: the program gets privileges that
// we do not have.
func privileged(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	st := info.Sys().(*syscall.Stat_t)
	if info.Mode()&os.ModeSetuid != 0 && int(st.Uid) != os.Geteuid() {
		return "it is setuid"
	}
	if info.Mode()&os.ModeSetgid != 0 && int(st.Gid) != os.Getegid() {
		return "it is setgid"
	}
	if n, err := unix.Getxattr(path, "security.capability", nil); err == nil && n > 0 && os.Geteuid() != 0 {
		return "it has file capabilities"
	}
	return ""
}
