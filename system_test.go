package smc_test

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// Programs that import this package build on every system, and gosmc on every processor that Linux has in numbers.
func TestOtherSystems(t *testing.T) {
	if testing.Short() {
		t.Skip("builds for other systems")
	}
	build := func(system string, packages ...string) {
		t.Run(system, func(t *testing.T) {
			goos, goarch, _ := strings.Cut(system, "/")
			cmd := exec.Command("go", append([]string{"build", "-o", os.DevNull}, packages...)...)
			cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("go build %s: %v\n%s", strings.Join(packages, " "), err, out)
			}
		})
	}
	for _, system := range []string{"darwin/arm64", "windows/amd64", "freebsd/amd64"} {
		build(system, ".")
	}
	for _, system := range []string{"linux/386", "linux/arm"} {
		if system != runtime.GOOS+"/"+runtime.GOARCH {
			build(system, "./cmd/gosmc")
		}
	}
}
