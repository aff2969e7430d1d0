// Package program compiles a snapshot into the machinery that a node runs: one immutable value behind one pointer.
// Validation is its dry run, explain is its look-up with the working shown.
package program
