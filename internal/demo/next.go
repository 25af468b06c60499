package demo

import "io"

// WriteWithNext writes a report for people, and after two containers the next step.
func (r *Report) WriteWithNext(w io.Writer, s Setting) error {
	if err := r.Write(w); err != nil {
		return err
	}
	if !r.OK || s != Containers { // rule: TestWriteWithNext: !r.OK || s != Containers -> s != Containers
		return nil
	}
	_, err := io.WriteString(w, containersNext)
	return err
}

// containersNext tells those who have seen two containers of the demo how to do that with their own.
const containersNext = `
Your own containers do the same once 'sudo gosmc agent' runs on this machine. They need no volume and no setting:
a Go program with package smc is all, and for others 'gosmc run PROGRAM' at both ends. See docs/agent.md.
`
