package metrics

import (
	"encoding/json"
	"strconv"
	"strings"
)

// A Format is a text format for metrics.
type Format int

// Formats.
const (
	OpenMetrics Format = iota // OpenMetrics 1.0.0
	Prometheus                // the text format of Prometheus, 0.0.4, for the files of node_exporter
)

// ContentType is the type that HTTP names for the format.
func (f Format) ContentType() string {
	if f == OpenMetrics {
		return "application/openmetrics-text; version=1.0.0; charset=utf-8"
	}
	return "text/plain; version=0.0.4; charset=utf-8"
}

// Kinds of families, in the words of the formats.
const (
	counter   = "counter"
	gauge     = "gauge"
	histogram = "histogram"
)

// A Family is a metric with all its series. The name of a counter ends in "_total".
type Family struct {
	Name string `json:"name"`
	Kind string `json:"type"` // "counter", "gauge" or "histogram"
	Help string `json:"help"` // one sentence

	samples []sample
}

// A Series is the value of a series, as JSON has it. The name has the suffix of a histogram.
type Series struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
	Value  json.Number       `json:"value"`
}

// Series returns the series of the family, in the order of the text.
func (f *Family) Series() []Series {
	list := make([]Series, 0, len(f.samples))
	for _, s := range f.samples {
		labels := make(map[string]string)
		for i := 0; i+1 < len(s.labels); i += 2 {
			labels[s.labels[i]] = s.labels[i+1]
		}
		list = append(list, Series{f.Name + s.suffix, labels, json.Number(s.value)})
	}
	return list
}

// A sample is the value of one series.
type sample struct {
	suffix string // of the name: "_bucket", "_sum" and "_count" of a histogram
	labels []string
	value  string
}

// add adds a series. labels are names and values in turn.
func (f *Family) add(value string, labels ...string) {
	f.samples = append(f.samples, sample{labels: labels, value: value})
}

// addHistogram adds a series of a histogram: its counts up to each of the bounds, which are seconds,
// its number of observations and their sum in seconds. counts are those between two bounds.
func (f *Family) addHistogram(bounds []float64, counts []uint64, sum float64, labels ...string) {
	total := uint64(0)
	for i, n := range counts {
		total = addUp(total, n)
		le := "+Inf"
		if i < len(bounds) {
			le = formatFloat(bounds[i])
		}
		f.samples = append(f.samples, sample{"_bucket", append(labels[:len(labels):len(labels)], "le", le),
			formatCount(total)})
	}
	f.samples = append(f.samples, sample{"_sum", labels, formatFloat(sum)},
		sample{"_count", labels, formatCount(total)})
}

// appendTo appends the family in a format.
func (f *Family) appendTo(b []byte, format Format) []byte {
	name := f.Name
	if format == OpenMetrics { // where a family has no suffix
		name = strings.TrimSuffix(name, "_total")
	}
	b = append(b, "# HELP "+name+" "+escape(f.Help, false)+"\n# TYPE "+name+" "+f.Kind+"\n"...)
	for _, s := range f.samples {
		b = append(b, f.Name+s.suffix...)
		for i := 0; i+1 < len(s.labels); i += 2 {
			b = append(b, "{,"[min(i, 1)])
			b = append(b, s.labels[i]+`="`+escape(s.labels[i+1], true)+`"`...)
		}
		if len(s.labels) > 1 {
			b = append(b, '}')
		}
		b = append(b, " "+s.value+"\n"...)
	}
	return b
}

// Append appends families in a format.
func Append(b []byte, families []Family, format Format) []byte {
	for i := range families {
		b = families[i].appendTo(b, format)
	}
	if format == OpenMetrics {
		b = append(b, "# EOF\n"...)
	}
	return b
}

// escape makes text fit for a line: in help texts, and between the quotation marks of a label. Bytes
// that are not UTF-8 become question marks.
func escape(s string, quoted bool) string {
	s = strings.ToValidUTF8(s, "?")
	s = strings.ReplaceAll(s, `\`, `\\`)
	s = strings.ReplaceAll(s, "\n", `\n`)
	if quoted {
		s = strings.ReplaceAll(s, `"`, `\"`)
	}
	return s
}

func formatCount(n uint64) string { return strconv.FormatUint(n, 10) }

func formatFloat(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
