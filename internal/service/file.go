package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
)

const (
	dirMode  = 0o755
	fileMode = 0o644
)

// Write writes a drop-in, at once: systemd reads the old one, the new one, or none. A drop-in that
// somebody has changed is kept unless force is set. It reports false if the file is there already,
// with this text.
func (t *Tree) Write(p *Plan, force bool) (bool, error) {
	file := strings.TrimPrefix(p.Path, "/")
	switch old, err := t.read(file); {
	case err == nil && old == p.Text:
		return false, nil
	case err == nil && !signed(old) && !force: // rule: TestChanged
		return false, t.changed(file)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	parent, err := t.resolve(path.Dir(path.Dir(file)))
	if err != nil {
		return false, err
	}
	dir := path.Join(parent, path.Base(path.Dir(file)))
	if err := t.root.MkdirAll(dir, dirMode); err != nil {
		return false, asRoot(err)
	}
	if dir, err = t.resolve(dir); err != nil {
		return false, err
	}
	early := path.Join(dir, ".gosmc-"+strconv.Itoa(os.Getpid()))
	err = t.root.WriteFile(early, []byte(p.Text), fileMode)
	if err == nil {
		err = t.root.Chmod(early, fileMode) // whatever the umask
	}
	if err == nil {
		err = t.root.Rename(early, path.Join(dir, path.Base(file)))
	}
	if err != nil {
		t.root.Remove(early)
		t.root.Remove(dir) // if it is empty
	}
	return true, asRoot(err)
}

// Remove removes the drop-in of a unit, and its directory if that is empty then. The unit itself
// may be gone. A drop-in that somebody has changed is kept unless force is set.
func (t *Tree) Remove(name Name, force bool) error {
	file := dropInPath(name)
	text, err := t.read(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return next(fmt.Errorf("%s: %w", name.Short(), ErrNone),
			"'gosmc service list' shows those that have one")
	case err != nil:
		return asRoot(err)
	case !signed(text) && !force: // rule: TestChanged
		return t.changed(file)
	}
	dir, err := t.resolve(path.Dir(file))
	if err != nil {
		return err
	}
	if err := t.root.Remove(path.Join(dir, path.Base(file))); err != nil {
		return asRoot(err)
	}
	t.root.Remove(dir) // rule: TestEnableDisable
	return nil
}

// RealName returns the name of a unit of which only an alias may be known. It is the name itself if
// the unit is not there.
func (t *Tree) RealName(name Name) Name {
	if t.exists(dropInPath(name)) {
		return name
	}
	if u, err := t.Unit(name); err == nil {
		return u.Name
	}
	return name
}

func (t *Tree) changed(file string) error {
	return next(fmt.Errorf("%s: %w", t.outside(file), ErrChanged),
		"look at it, and remove it, or use --force")
}

// asRoot adds the next step to an error where only root may write.
func asRoot(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return next(err, "run gosmc as root")
	}
	return err
}

// owner returns the name of the owner of a file, by the users of the tree, or the number.
func (t *Tree) owner(file string) (string, error) {
	real, err := t.resolve(file)
	if err != nil {
		return "", err
	}
	info, err := t.root.Stat(real)
	if err != nil {
		return "", err
	}
	uid := strconv.FormatUint(uint64(info.Sys().(*syscall.Stat_t).Uid), 10)
	users, err := t.read("etc/passwd")
	if err != nil {
		return uid, nil
	}
	for line := range strings.Lines(users) {
		if fields := strings.Split(line, ":"); len(fields) > 2 && fields[2] == uid {
			return fields[0], nil
		}
	}
	return uid, nil
}
