package rdma

import "github.com/gosmc/smc/internal/verbs"

// Verbs returns d as package verbs has devices. The wrapper is for the making of objects
// alone: queue pairs, completion queues and regions come from this package, without one.
func Verbs(d *Device) verbs.Device { return device{d} }

// device makes [Device] a [verbs.Device].
type device struct{ *Device }

// Type implements [verbs.Device].
func (device) Type() string { return "RoCEv2" }

// WholePages implements [verbs.Device].
func (device) WholePages() bool { return false }

// NewPD implements [verbs.Device].
func (d device) NewPD() (verbs.PD, error) {
	p, err := d.Device.NewPD()
	if err != nil {
		return nil, err
	}
	return p.Verbs(), nil
}

// NewCQ implements [verbs.Device].
func (d device) NewCQ(depth int, handler func(verbs.CQ)) (verbs.CQ, error) {
	c, err := d.Device.NewCQ(depth, handler)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Verbs returns the domain as package verbs has domains.
func (pd *PD) Verbs() verbs.PD { return domain{pd} }

// domain makes [PD] a [verbs.PD].
type domain struct{ *PD }

// RegisterMR implements [verbs.PD].
func (p domain) RegisterMR(mem []byte, access Access) (verbs.MR, error) {
	m, err := p.PD.RegisterMR(mem, access)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// NewQP implements [verbs.PD].
func (p domain) NewQP(cfg verbs.QPConfig) (verbs.QP, error) {
	send, _ := cfg.SendCQ.(*CQ)
	recv, _ := cfg.RecvCQ.(*CQ)
	q, err := p.PD.NewQP(QPConfig{SendCQ: send, RecvCQ: recv, MaxSend: cfg.MaxSend, MaxRecv: cfg.MaxRecv})
	if err != nil {
		return nil, err
	}
	return q, nil
}

// Close implements [verbs.CQ]. Memory is all that a queue has.
func (c *CQ) Close() error { return nil }

// These make the compiler check that the types of the data path are used without wrappers.
var (
	_ verbs.QP      = (*QP)(nil)
	_ verbs.CQ      = (*CQ)(nil)
	_ verbs.MR      = (*MR)(nil)
	_ verbs.Guarded = (*MR)(nil)
	_ verbs.Counted = (*MR)(nil)
)
