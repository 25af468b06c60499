package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// tree makes a directory of files, the same in all ways.
func (l *lab) tree(name string, size int) string {
	for i := range 200 {
		l.random(fmt.Sprintf("%s/d%d/f%d", name, i%7, i), i*i*size/3_000_000)
	}
	l.random(name+"/large", size)
	return filepath.Join(l.dir, name)
}

// treeSum returns a hash of all files below a directory, with their names.
func (l *lab) treeSum(dir string) string {
	var lines []string
	l.must(filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || !info.Mode().IsRegular() || strings.Contains(path, "/.git/") {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		lines = append(lines, rel+" "+l.sum(path))
		return err
	}))
	slices.Sort(lines)
	return fmt.Sprint(len(lines), " files ", sumOf(strings.Join(lines, "\n")))
}

var rsync = &program{
	name: "rsync", what: "a daemon: a tree there and back, what has changed, compressed",
	packages: []string{"rsync"},
	needs:    []string{"rsync"},
	run: func(l *lab) {
		port := l.port()
		l.must(os.Mkdir(filepath.Join(l.dir, "store"), 0o777))
		who := ""
		if os.Geteuid() == 0 {
			who = "uid = root\ngid = root\n"
		}
		conf := l.file("rsyncd.conf", fmt.Sprintf("use chroot = no\n%s[store]\npath = %s/store\nread only = no\n", who, l.dir))
		l.serve(port, "rsync", "--daemon", "--no-detach", "--port", strconv.Itoa(port), "--address", "127.0.0.1", "--config", conf)
		from := l.tree("from", 20_000_000)
		want := l.treeSum(from)
		l.result("the tree", want)
		url := fmt.Sprintf("rsync://127.0.0.1:%d/store/", port)
		l.client("rsync", "-a", from+"/", url+"one/")
		l.result("there", l.treeSum(filepath.Join(l.dir, "store/one")) == want)
		l.client("rsync", "-az", url+"one/", filepath.Join(l.dir, "back"))
		l.result("and back", l.treeSum(filepath.Join(l.dir, "back")) == want)
		l.random("from/d1/f1", 777)
		l.random("from/new", 70_000)
		l.must(os.Remove(filepath.Join(from, "d2/f2")))
		l.client("rsync", "-a", "--delete", "--checksum", from+"/", url+"one/")
		l.result("changed", l.treeSum(filepath.Join(l.dir, "store/one")))
		l.shown(port)
		l.counted(3)
	},
}

var git = &program{
	name: "git", what: "git daemon: clone, push, fetch",
	packages: []string{"git"},
	needs:    []string{"git", "/usr/lib/git-core/git-daemon"},
	run: func(l *lab) {
		from := l.tree("from", 3_000_000)
		run := func(dir string, args ...string) string {
			cmd := l.plain("git", args...)
			cmd.Dir = dir
			cmd.Env = append(cmd.Env, l.gitEnviron()...)
			return strings.TrimSpace(l.finish(cmd))
		}
		over := func(dir string, args ...string) {
			cmd := l.command("git", args...)
			cmd.Dir = dir
			cmd.Env = append(cmd.Env, l.gitEnviron()...)
			l.finish(cmd)
		}
		run(from, "init", "-q", "-b", "main")
		run(from, "add", ".")
		run(from, "commit", "-q", "-m", "all")
		l.result("commit", run(from, "rev-parse", "HEAD"))
		run(l.dir, "clone", "-q", "--bare", from, "store.git")
		port := l.port()
		cmd := l.command("git", "daemon", "--reuseaddr", "--listen=127.0.0.1", "--port="+strconv.Itoa(port), "--base-path="+l.dir, "--export-all", "--enable=receive-pack")
		cmd.Env = append(cmd.Env, l.gitEnviron()...)
		l.serveCommand(port, cmd)
		url := fmt.Sprintf("git://127.0.0.1:%d/store.git", port)
		over(l.dir, "clone", "-q", url, "one")
		one := filepath.Join(l.dir, "one")
		l.result("cloned", l.treeSum(one) == l.treeSum(from))
		l.random("one/more", 1_000_000)
		run(one, "add", ".")
		run(one, "commit", "-q", "-m", "more")
		over(one, "push", "-q", "origin", "main")
		l.result("pushed", run(filepath.Join(l.dir, "store.git"), "rev-parse", "main"))
		over(from, "fetch", "-q", url, "main")
		l.result("fetched", run(from, "rev-parse", "FETCH_HEAD"))
		// Many at a time.
		script := l.file("clones.sh", `for i in 1 2 3 4 5 6 7 8; do git clone -q "$1" "$2/c$i" & done; wait; for i in 1 2 3 4 5 6 7 8; do git -C "$2/c$i" rev-parse HEAD; done | sort -u`)
		all := l.command("sh", script, url, l.dir)
		all.Env = append(all.Env, l.gitEnviron()...)
		l.result("eight at a time", l.finish(all))
		l.shown(port)
		l.counted(11)
	},
}

func (l *lab) gitEnviron() []string {
	return []string{"HOME=" + l.dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com",
		"GIT_AUTHOR_DATE=2024-01-01T00:00:00Z", "GIT_COMMITTER_DATE=2024-01-01T00:00:00Z"}
}

var xinetd = &program{
	name: "xinetd", what: "programs that get a connection as their descriptors 0 to 2, a service of its own, a redirection",
	packages: []string{"xinetd", "socat"},
	needs:    []string{"xinetd", "socat"},
	root:     true,
	run: func(l *lab) {
		cat, sh, inner, redirected := l.port(), l.port(), l.port(), l.port()
		service := func(name string, port int, more string) string {
			return fmt.Sprintf("service %s\n{\n type = UNLISTED\n socket_type = stream\n protocol = tcp\n bind = 127.0.0.1\n port = %d\n user = root\n wait = no\n %s\n}\n", name, port, more)
		}
		conf := l.file("xinetd.conf", "defaults\n{\n instances = 50\n cps = 1000 1\n}\n"+
			service("cat", cat, "server = /bin/cat")+
			service("hello", sh, "server = /bin/sh\n server_args = "+l.file("hello", "read x\necho hello $x\n"))+
			strings.Replace(service("echo", inner, "id = inner"), "UNLISTED", "INTERNAL UNLISTED", 1)+
			service("there", redirected, fmt.Sprintf("redirect = 127.0.0.1 %d", sh)))
		l.serve(redirected, "xinetd", "-dontfork", "-f", conf, "-pidfile", filepath.Join(l.dir, "pid"))
		in := l.random("in", 5_000_000)
		b, err := os.ReadFile(in)
		l.must(err)
		through := func(what string, port int, in string, options ...string) {
			cmd := l.command("socat", "-t", "30", "-", strings.Join(append([]string{fmt.Sprintf("TCP4:127.0.0.1:%d", port)}, options...), ","))
			to, err := cmd.StdinPipe()
			l.must(err)
			var out strings.Builder
			cmd.Stdout = &out
			s := l.start(cmd)
			_, err = to.Write([]byte(in))
			l.must(err)
			if len(in) > 100 {
				l.moved(port, 1)
			}
			to.Close()
			l.must(s.wait(l))
			if strings.HasPrefix(what, "a script") && out.String() != "hello "+in {
				l.must(fmt.Errorf("%s says %q", what, out.String()))
			}
			l.result(what, sumOf(out.String()))
		}
		through("cat", cat, string(b))
		through("echo", inner, string(b))
		through("redirected", redirected, "there\n", "shut-none") // it takes a half close for the end
		for i := range 20 {
			through(fmt.Sprint("a script ", i), sh, fmt.Sprint(i, "\n"))
		}
	},
}
