package smc

import "github.com/gosmc/smc/internal/smctest"

func childIdle(p *smctest.Parent) {}
