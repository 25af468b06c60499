package stream

const childVariable = "GOSMC_STREAM_CHILD"

func runChild() int { return 0 }
