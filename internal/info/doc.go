// Package info says what a program that starts here and now could do with SMC, and why not more. A
// host is made for the occasion and asked. It also says how a program's file comes to SMC.
package info
