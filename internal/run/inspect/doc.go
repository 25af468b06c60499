// Package inspect finds out from outside, without asking a program or a supervisor, which connections
// 'gosmc run' has moved, which ones stayed TCP and why, and whether a program can have the library.
package inspect
