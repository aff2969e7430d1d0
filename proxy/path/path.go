// Package path is the one normalisation of request paths. It happens before routing, so that router, authorization,
// limits, cache and upstream all see the same form; a normalised path is a type of its own.
package path

// Clean is a normalised absolute path. Only Normalize makes one.
type Clean string
