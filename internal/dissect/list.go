package dissect

// A list has values in the order in which they were used last. A full table drops the oldest value,
// and the oldest value becomes overdue first. Each value has an entry for every list that it can be
// in, and adding, using and removing it allocates nothing.
type list[T any] struct {
	oldest, newest *entry[T]
	len            int
}

// An entry is a value's place in a list; the zero entry is in none.
type entry[T any] struct {
	of           *T // nil if it is in no list
	older, newer *entry[T]
}

// add makes v the newest; e is the entry of v.
func (l *list[T]) add(e *entry[T], v *T) {
	l.remove(e)
	e.of, e.older = v, l.newest
	if l.newest != nil {
		l.newest.newer = e
	} else {
		l.oldest = e
	}
	l.newest = e
	l.len++
}

// touch makes a value that is in the list the newest; any other it leaves alone.
func (l *list[T]) touch(e *entry[T]) {
	if l.newest != e && e.of != nil {
		l.add(e, e.of)
	}
}

// remove takes a value from the list, if it is in it.
func (l *list[T]) remove(e *entry[T]) {
	if e.of == nil {
		return
	}
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		l.oldest = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		l.newest = e.older
	}
	*e = entry[T]{}
	l.len--
}

// first returns the oldest value, nil if there is none.
func (l *list[T]) first() *T {
	if l.oldest == nil {
		return nil
	}
	return l.oldest.of
}
