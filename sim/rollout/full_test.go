//go:build long

package rollout

// full plays more rollouts.
const full = true
