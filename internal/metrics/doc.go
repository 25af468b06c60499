// Package metrics makes metrics in the format of OpenMetrics, and in the text format of Prometheus,
// from the snapshots that hosts give of themselves. It serves them over HTTP and writes them to a
// file.
//
// A writer of its own, of some hundred lines, because no library fits. The numbers are not of this
// process: they come as sums from others, and libraries count for themselves. prometheus/client_golang
// needs protobuf, which opens the program's own file while it is initialized, so that 'gosmc run'
// would not start with few descriptors. VictoriaMetrics/metrics has no protobuf, but writes neither
// help texts nor OpenMetrics, and its histograms have other buckets than those that hosts count.
package metrics
