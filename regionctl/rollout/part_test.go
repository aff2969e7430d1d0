//go:build !long

package rollout

const full = false
