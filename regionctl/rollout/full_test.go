//go:build long

package rollout

// full plays every world; without the tag long it is a part of them.
const full = true
