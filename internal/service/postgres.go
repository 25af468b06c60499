package service

import (
	"fmt"
	"path"
	"strings"
)

// Debian starts clusters of PostgreSQL by a program that clears the environment, and with it the
// library. So the unit starts postgres itself, as the owner of the cluster's configuration, and
// logs to the journal.
const pgCtlCluster = "pg_ctlcluster"

func (t *Tree) startPostgres(d *dropIn, c command) error {
	u := d.plan.Unit
	version, cluster, ok := strings.Cut(u.Name.instance(), "-")
	if !ok || version == "" || cluster == "" || strings.Trim(version, "0123456789.") != "" {
		return next(fmt.Errorf("%s is not one cluster of PostgreSQL", u.Name.Short()),
			"name the unit of a cluster, such as postgresql@15-main; 'pg_lsclusters' shows them")
	}
	words, err := splitWords(c.rest)
	if err != nil {
		return err
	}
	if n := len(words); n == 0 || words[n-1].raw != "start" {
		return next(fmt.Errorf("%s does not start a cluster by %s", u.Name.Short(), c.program),
			"write the drop-in by hand: see docs/run.md, \"As a service\"")
	}
	name, err := unescape(u.Name.instance()) // as %I in the unit
	if err != nil {
		return fmt.Errorf("%s: %w", u.Name.Short(), err)
	}
	directory := path.Join("/etc/postgresql", name)
	program := path.Join("/usr/lib/postgresql", version, "bin/postgres")
	for _, file := range []string{program, path.Join(directory, "postgresql.conf")} {
		if !t.exists(file) {
			return next(fmt.Errorf("%s needs %s, which is not there", u.Name.Short(), t.outside(file)),
				"'pg_lsclusters' shows the clusters of this machine")
		}
	}
	owner, err := t.owner(path.Join(directory, "postgresql.conf"))
	if err != nil {
		return err
	}
	d.line("ExecStart=%s run -- %s -c config_file=/etc/postgresql/%%I/postgresql.conf", d.o.Command, program)
	d.line("# In place of %s, which clears the environment.", c.program)
	d.line("Type=notify")
	d.line("User=%s", owner)
	d.line("Environment=PG_OOM_ADJUST_FILE=/proc/self/oom_score_adj")
	if environment := path.Join(directory, "environment"); t.says(environment) {
		d.line("EnvironmentFile=/etc/postgresql/%%I/environment")
	}
	d.plan.User = owner
	d.plan.note("postgres logs to the journal, not to /var/log/postgresql, and systemd starts it without %s.",
		pgCtlCluster)
	if options := path.Join(directory, "pg_ctl.conf"); t.says(options) {
		d.plan.note("What %s says may have no effect: the options of pg_ctl.", t.outside(options))
	}
	return nil
}

// says reports whether a file of PostgreSQL has a line that is no comment and sets something.
func (t *Tree) says(file string) bool {
	text, err := t.read(file)
	if err != nil {
		return false
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		_, value, set := strings.Cut(line, "=")
		if line != "" && line[0] != '#' && (!set || strings.Trim(value, " \t'") != "") {
			return true
		}
	}
	return false
}
