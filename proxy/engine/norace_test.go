//go:build !race

package engine_test

// allocsAllowed is the hot path's budget per request.
const allocsAllowed = 0
