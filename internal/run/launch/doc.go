// Package launch starts programs with the library of package preload: it puts the library in place,
// starts a supervisor and makes the environment of the program.
package launch
