//go:build race

package engine_test

// allocsAllowed: under the race detector sync.Pool forgets at random.
const allocsAllowed = 5
