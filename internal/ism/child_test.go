package ism

const childRole = "GOSMC_ISM_TEST_CHILD"

func runChild(role string) int { return 2 }
