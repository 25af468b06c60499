package main

import (
	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/terminal"
	"github.com/gosmc/smc/internal/text"
)

// Short names of functions of package text and others that are frequent here.
var (
	printable     = text.Printable
	orNA          = text.OrNA
	lgID          = inventory.GroupID
	errorText     = text.Error
	process       = text.Process
	formatBytes   = text.Bytes
	writeJSON     = text.JSON
	writeJSONLine = text.JSONLine
	isTerminal    = terminal.Is
	newProgress   = terminal.NewProgress
)

type (
	table    = text.Table
	column   = text.Column
	byteSize = text.ByteSize
)
