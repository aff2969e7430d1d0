//go:build !linux

package engine_test

func engines() map[string]maker { return map[string]maker{"goroutine": goroutines} }
