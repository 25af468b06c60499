// Package doctor checks a machine, a server or a program for causes that keep connections on TCP, and
// names the remedy for each. It explains which mode a connection would get, step by step. Both
// reports print themselves.
package doctor
