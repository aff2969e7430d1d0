//go:build !race

package engine

// allocsAllowed is the hot path's budget per request.
const allocsAllowed = 0
