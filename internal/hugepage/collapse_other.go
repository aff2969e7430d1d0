//go:build !linux

package hugepage

func collapse([]byte) {}
