//go:build race

package accesslog

// allocsAllowed: under the race detector sync.Pool forgets at random.
const allocsAllowed = 3
