package main

import "net"

var (
	benchBulk64K = &benchmark{
		name: "bulk-64k", title: "one way, writes and reads of 64 KiB", unit: "GB/s",
		subjects: []string{transportTCP, transportUnix, transportSMCD, transportLimit},
		settings: workSettings{Size: 64 << 10, Reads: 64 << 10},
		work:     oneWay, value: gigabytes,
		bounds: []bound{
			{transportSMCD, transportTCP, 4, 10},
			{transportSMCD, transportUnix, 2.5, 0},
			{transportSMCD, transportLimit, 0, 0.85},
		},
	}
	benchBulk1M = &benchmark{
		name: "bulk-1m", title: "one way, writes and reads of 1 MiB", unit: "GB/s",
		subjects: []string{transportTCP, transportUnix, transportSMCD, transportLimit},
		settings: workSettings{Size: 1 << 20, Reads: 1 << 20},
		work:     oneWay, value: gigabytes,
		bounds: []bound{
			{transportSMCD, transportTCP, 3, 0},
			{transportSMCD, transportLimit, 0, 0.8},
		},
	}
	benchStream100 = &benchmark{
		name: "stream-100", title: "one way, writes of 100 bytes back to back", unit: "messages/s",
		subjects: []string{transportTCP, transportUnix, transportSMCD},
		settings: workSettings{Size: 100, Reads: 64 << 10},
		work:     oneWay, value: func(r roundResult) float64 { return r.bytes / 100 },
		bounds: []bound{{transportSMCD, transportTCP, 20, 60}},
	}
	benchCPU = &benchmark{
		name: "cpu", title: "CPU time of both processes for a gigabyte, in bulk-64k", unit: "s/GB", lower: true,
		subjects: []string{transportTCP, transportUnix, transportSMCD, transportLimit},
		from:     "bulk-64k", value: cpuPerGigabyte,
		bounds: []bound{{transportSMCD, transportTCP, 0.5, 0.15}},
	}
)

const gigabyte = 1e9

func gigabytes(r roundResult) float64 { return r.bytes / gigabyte }

func cpuPerGigabyte(r roundResult) float64 {
	if r.bytes == 0 {
		return 0
	}
	return r.cpu / gigabytes(r)
}

// oneWay writes as fast as the other side reads. The reader counts.
var oneWay = &workload{
	server: func(m *meter, l net.Listener) error {
		c, err := m.accept(l)
		if err != nil {
			return err
		}
		defer c.Close()
		b := make([]byte, m.settings.Reads)
		for {
			n, err := c.Read(b)
			m.count(1, n)
			if err != nil {
				if gone(err) {
					return nil
				}
				return err
			}
		}
	},
	client: func(m *meter, dial dialFunc) error {
		c, err := dial()
		if err != nil {
			return err
		}
		defer c.Close()
		b := make([]byte, m.settings.Size)
		for i := range b {
			b[i] = byte(i)
		}
		for !m.stopped() {
			if _, err := c.Write(b); err != nil {
				return err
			}
			m.start()
		}
		return nil
	},
}
