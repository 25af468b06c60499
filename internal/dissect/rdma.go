package dissect

type flow struct{}
type region struct{}
type regionTable struct{}
type call struct{}
type moment struct{}
type linkTable struct{}

func (l *linkTable) init() {}

func (t *Tracker) udp(l *layers)         {}
func (t *Tracker) fragment(l *layers)    {}
func (t *Tracker) undecodable(l *layers) {}

func (t *Tracker) learn(c *Conn) {}

func (t *Tracker) leaveGroup(c *Conn) {}
