package ism

import "testing"

func BenchmarkColdAttach(b *testing.B) {
	x := newPair(b)
	ctx := testContext(b)
	b.ReportAllocs()
	for b.Loop() {
		d, err := x.pa.NewDMB(128<<10, nil)
		if err != nil {
			b.Fatal(err)
		}
		w, err := x.pb.Attach(ctx, d.Token(), 128<<10)
		if err != nil {
			b.Fatal(err)
		}
		w.Release(false)
		d.Release(false)
	}
}

func BenchmarkCachedAttach(b *testing.B) {
	x := newPair(b)
	ctx := testContext(b)
	b.ReportAllocs()
	for b.Loop() {
		d, err := x.pa.NewDMB(128<<10, nil)
		if err != nil {
			b.Fatal(err)
		}
		w, err := x.pb.Attach(ctx, d.Token(), 128<<10)
		if err != nil {
			b.Fatal(err)
		}
		w.Release(true)
		d.Release(true)
	}
}

func BenchmarkPoll(b *testing.B) {
	x := newPair(b)
	b.ReportAllocs()
	for b.Loop() {
		x.b.Poll()
	}
}

func BenchmarkDial(b *testing.B) {
	x := newPair(b)
	for b.Loop() {
		p, err := x.b.Peer(b.Context(), x.a.GID())
		if err != nil {
			b.Fatal(err)
		}
		p.Close()
		<-x.rb.gone
		<-x.ra.ups
		<-x.ra.gone
	}
}
