package capture

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"
)

// TestOpenOther opens files that are no captures: the error names the kind of file.
func TestOpenOther(t *testing.T) {
	for _, tt := range []struct{ name, content, want string }{
		{"empty", "", "it is empty"},
		{"text", "hello, world\n", "it begins with 68 65 6c 6c 6f"},
		{"one byte", "\xd4", "it begins with d4"},
		{"zstd", "\x28\xb5\x2f\xfd........", "compressed with zstd"},
		{"xz", "\xfd7zXZ\x00......", "compressed with xz"},
		{"snoop", "snoop\x00\x00\x00\x00\x00\x00\x02", "a snoop capture"},
		{"no gzip", "\x1f\x8bnothing of the kind", "gzip"},
		{"half gzip", "\x1f\x8b", "gzip"},
		{"gzip of text", string(zip([]byte("hello, world\n"))), "it begins with 68 65 6c 6c 6f"},
		{"gzip of nothing", string(zip(nil)), "it is empty"},
		{"no byte order", "\x0a\x0d\x0d\x0a\x1c\x00\x00\x00\x4d\x3c\x2b\x1b", "for the byte order"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := writeTemp(t, "file", []byte(tt.content))
			s, err := Open(path)
			var e *Error
			if s != nil || !errors.Is(err, ErrFormat) || !errors.As(err, &e) || e.Name != path || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Open(%q) = %v, %v; want %v with %q", tt.content, s, err, ErrFormat, tt.want)
			}
		})
	}
	if _, err := Open(t.TempDir() + "/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of a file that is not there: %v, want %v", err, fs.ErrNotExist)
	}
	if _, err := Open(t.TempDir()); err == nil || !strings.HasSuffix(err.Error(), " is a directory: name the captures in it") {
		t.Errorf("Open of a directory: %v, want one that says so", err)
	}
}

func zip(b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	z.Write(b)
	z.Close()
	return out.Bytes()
}

// TestOpenGzip cuts and damages a compressed file: the bytes that were unpacked before are read.
func TestOpenGzip(t *testing.T) {
	file := appendPcapHeader(nil, orders[0], magicMicro, 0, 1)
	for i := range 50 {
		file = appendRecord(file, orders[0], testSeconds, uint32(i), 1000, nil, counting(1000))
	}
	packed := zip(file)
	for n := range packed {
		s, err := newReader(bytesInput(packed[:n]))
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("newReader of %d bytes: %v (%T), want an *Error", n, err, err)
			}
			continue
		}
		got := readAll(t, s)
		if len(got.errs) != 1 || !errors.Is(got.errs[0], ErrTruncated) {
			t.Errorf("%d bytes: %d packets and %v, want %v", n, len(got.packets), got.errs, ErrTruncated)
		}
	}
	damaged := bytes.Clone(packed)
	damaged[len(damaged)-6] ^= 0xff // of the checksum
	got := readBytes(t, damaged)
	if len(got.packets) != 50 || len(got.errs) != 1 || !errors.Is(got.errs[0], gzip.ErrChecksum) {
		t.Errorf("%d packets and %v, want 50 and %v", len(got.packets), got.errs, gzip.ErrChecksum)
	}
	if got := readBytes(t, zip(file)); len(got.packets) != 50 || len(got.errs) > 0 {
		t.Errorf("%d packets and %v, want 50", len(got.packets), got.errs)
	}
}

// failing gives some bytes and then an error.
type failing struct {
	b   []byte
	err error
}

func (f *failing) Read(b []byte) (int, error) {
	if len(f.b) == 0 {
		return 0, f.err
	}
	n := copy(b, f.b[:1]) // one at a time
	f.b = f.b[n:]
	return n, nil
}

// TestReadError has a disk that fails in the middle, and a reader that never gives anything.
func TestReadError(t *testing.T) {
	broken := errors.New("disk on fire")
	file, _ := smallPcap()
	ng, _ := smallNg()
	for _, want := range []error{broken, nil} {
		for _, tt := range []struct {
			file    []byte
			packets int
		}{{file, 3}, {file[:len(file)-1], 2}, {ng, 3}, {ng[:len(ng)-1], 2}} {
			in := bytesInput(nil)
			in.file = &failing{tt.file, want}
			s, err := newReader(in)
			if err != nil {
				t.Fatal(err)
			}
			cause := want
			if cause == nil {
				cause = io.ErrNoProgress
			}
			got := readAll(t, s)
			if len(got.packets) != tt.packets || len(got.errs) != 1 || !errors.Is(got.errs[0], cause) {
				t.Errorf("%d packets and %v, want %d and %v", len(got.packets), got.errs, tt.packets, cause)
			}
		}
		in := bytesInput(nil)
		in.file = &failing{nil, want}
		if s, err := newReader(in); s != nil || err == nil {
			t.Errorf("newReader = %v, %v; want an error", s, err)
		}
	}
}

// TestStdin reads standard input from a pipe that stays open, and packets as they come.
func TestStdin(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	stdin := os.Stdin
	os.Stdin = r
	defer func() { os.Stdin = stdin }()
	file, offsets := smallPcap()
	if _, err := w.Write(file[:offsets[1]]); err != nil {
		t.Fatal(err)
	}
	s, err := Open("-")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Name() != "standard input" {
		t.Errorf("Name() = %q, want %q", s.Name(), "standard input")
	}
	if p, err := s.Next(); err != nil || len(p.Data) != 20 {
		t.Fatalf("Next() = %v, %v; want 20 bytes", p, err)
	}
	if _, size, ok := s.(Progresser).Progress(); size != 0 || ok {
		t.Errorf("Progress() = size %d, %v; want unknown", size, ok)
	}
	w.Write(file[offsets[1]:])
	w.Close()
	for _, want := range []int{0, 33} {
		if p, err := s.Next(); err != nil || len(p.Data) != want {
			t.Fatalf("Next() = %v, %v; want %d bytes", p, err, want)
		}
	}
	if p, err := s.Next(); p != nil || err != io.EOF {
		t.Errorf("Next() = %v, %v; want EOF", p, err)
	}
}

// TestCloseWakes closes a pipe from which Next waits for a packet.
func TestCloseWakes(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	file, offsets := smallPcap()
	if _, err := w.Write(file[:offsets[1]+3]); err != nil { // the next is begun
		t.Fatal(err)
	}
	s, err := open("pipe", r, r.Close)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := s.Next()
		done <- err
	}()
	for range 10 {
		runtime.Gosched() // it may be waiting by then, or not: both must work
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != io.EOF {
		t.Errorf("Next() while closed: %v, want EOF", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close() again = %v", err)
	}
}

// TestClosed closes files of which not all was read.
func TestClosed(t *testing.T) {
	pcap, _ := smallPcap()
	ng, _ := smallNg()
	for _, file := range [][]byte{pcap, ng, zip(ng)} {
		s, err := Open(writeTemp(t, "file", file))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if p, err := s.Next(); p != nil || err != io.EOF {
			t.Errorf("Next() after Close = %v, %v; want EOF", p, err)
		}
	}
}

// TestProgress reaches the size of the file, compressed or not.
func TestProgress(t *testing.T) {
	file := appendPcapHeader(nil, orders[0], magicMicro, 0, 1)
	for i := range 500 {
		file = appendRecord(file, orders[0], testSeconds, uint32(i), 1000, nil, counting(1000))
	}
	for _, content := range [][]byte{file, zip(file)} {
		s, err := Open(writeTemp(t, "file.pcap", content))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		p := s.(Progresser)
		before, _, _ := p.Progress()
		if before > int64(len(content)) {
			t.Errorf("Progress() at the beginning = %d, of %d", before, len(content))
		}
		if got := readAll(t, s); len(got.packets) != 500 {
			t.Errorf("%d packets, want 500", len(got.packets))
		}
		if read, size, ok := p.Progress(); read != int64(len(content)) || size != int64(len(content)) || !ok {
			t.Errorf("Progress() = %d, %d, %v; want %d twice", read, size, ok, len(content))
		}
	}
}

// TestMemory reads 256 MB from a pipe, with blocks and packets that lie, and holds no more
// than a few MB at any time.
func TestMemory(t *testing.T) {
	for _, format := range []string{"pcap", "pcapng"} {
		t.Run(format, func(t *testing.T) {
			const chunks, packets = 256, 16
			var head, chunk []byte
			o := orders[0]
			data := counting(60_000)
			if format == "pcap" {
				head = appendPcapHeader(nil, o, magicMicro, 0, 1)
				for i := range packets {
					chunk = appendRecord(chunk, o, testSeconds, uint32(i), len(data), nil, data)
				}
				chunk = appendRecord(chunk, o, testSeconds, 5, 1<<30, nil, nil)
				o.PutUint32(chunk[len(chunk)-8:], 1<<30)
			} else {
				head = appendInterface(appendSection(nil, o), o, 1, 0, nil)
				for i := range packets {
					chunk = appendEnhanced(chunk, o, 0, uint64(i), len(data), data)
				}
				chunk = appendBlock(chunk, o, 4, data) // names, which nobody needs
				chunk = o.AppendUint32(chunk, 6)
				chunk = o.AppendUint32(chunk, 1<<31)
			}
			r, w := io.Pipe()
			go func() {
				w.Write(head)
				for range chunks {
					w.Write(chunk)
				}
				w.Close()
			}()
			in := &input{name: "pipe", file: r, closeFile: r.Close}
			s, err := newReader(in)
			if err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got, errs := 0, 0
			for {
				_, err := s.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					errs++
				} else {
					got++
				}
			}
			runtime.ReadMemStats(&after)
			if got != chunks*packets || errs != chunks {
				t.Errorf("%d packets and %d errors, want %d and %d", got, errs, chunks*packets, chunks)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 8<<20 {
				t.Errorf("allocated %d bytes in all for %d, want at most 8 MB", took, chunks*len(chunk))
			}
		})
	}
}
