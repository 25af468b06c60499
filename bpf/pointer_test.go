package bpf

import "unsafe"

func pointer[T any](p *T) unsafe.Pointer { return unsafe.Pointer(p) }
