//go:build long

package steer

// The size that the steering is made for.
const manyLocalities, manyCells = 2000, 20
