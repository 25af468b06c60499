package library

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// WritePrefix writes this command, and a library, below dir as an installation has them: bin/gosmc and
// lib/gosmc. An image of gosmc has no other program that could copy them. Errors are of files.
func WritePrefix(dir string, lib []byte) error {
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	to, err := os.CreateTemp(bin, ".gosmc-")
	if err != nil {
		return err
	}
	defer os.Remove(to.Name()) // which is not there any more if all went well
	_, err = io.Copy(to, self)
	if err = errors.Join(err, to.Chmod(0o755), to.Close()); err != nil {
		return err
	}
	if err := os.Rename(to.Name(), filepath.Join(bin, "gosmc")); err != nil {
		return err
	}
	return Write(filepath.Join(dir, "lib/gosmc"), lib)
}
