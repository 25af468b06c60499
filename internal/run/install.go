package run

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/user"
)

// install puts the library where programs can load it, and returns its path: the run directory, or where nothing there may be
// executed, the user's cache.
func install(dir string, library []byte) (string, error) {
	if library == nil {
		return "", errors.New("there is no library for this architecture")
	}
	if err := rundir.Prepare(dir); err != nil {
		return "", err
	}
	places := []string{rundir.Path(dir, rundir.Run)}
	if cache, err := os.UserCacheDir(); err == nil {
		places = append(places, filepath.Join(cache, "gosmc"))
	}
	var failure error
	for _, place := range places {
		path, err := installIn(place, library)
		if err == nil {
			return path, nil
		}
		failure = errors.Join(failure, err)
	}
	return "", failure
}

func installIn(dir string, library []byte) (string, error) {
	if strings.ContainsAny(dir, " :") { // LD_PRELOAD is a list
		return "", fmt.Errorf("%s: a library cannot be preloaded from a path with a space or colon", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return "", &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if fs.Flags&unix.ST_NOEXEC != 0 {
		return "", fmt.Errorf("%s: nothing can be executed there", dir)
	}
	sum := sha256.Sum256(library)
	path := filepath.Join(dir, fmt.Sprintf("libgosmc-%s-%d.so", hex.EncodeToString(sum[:8]), os.Geteuid()))
	if installed(path, library) {
		return path, nil
	}
	f, err := os.CreateTemp(dir, ".new-"+strconv.Itoa(os.Getpid()))
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name()) // nothing, once it is renamed
	_, err = f.Write(library)
	err = errors.Join(err, f.Chmod(0o555), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil && !installed(path, library) {
		err = fmt.Errorf("%s: somebody else writes there", path)
	}
	return path, err
}

// installed reports whether a file is the library, and can be changed by nobody but us and root.
func installed(path string, library []byte) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o022 != 0 {
		return false
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	if owner != 0 && !user.Ours(owner) {
		return false
	}
	have, err := os.ReadFile(path)
	return err == nil && bytes.Equal(have, library)
}
