// Package library puts the library of package preload where programs can load it, and removes copies
// that nobody uses any more. It is given the library as bytes.
package library
