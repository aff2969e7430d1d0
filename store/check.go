package store

import (
	"errors"
	"fmt"
)

// ErrClosed is what every method of a closed store returns.
var ErrClosed = errors.New("store: closed")

// Check refuses commits out of bounds before any store sees them, so that all stores refuse the same.
func Check(conds []Cond, ops []Op) error {
	if len(conds) > MaxOps || len(ops) > MaxOps {
		return fmt.Errorf("%w: %d conditions, %d operations", ErrTooLarge, len(conds), len(ops))
	}
	total := 0
	seen := make(map[string]bool, len(ops))
	for _, c := range conds {
		if c.Key == "" || len(c.Key) > MaxKey {
			return fmt.Errorf("%w: condition on a key of %d bytes", ErrTooLarge, len(c.Key))
		}
		total += len(c.Key)
	}
	for _, op := range ops {
		if op.Key == "" || len(op.Key) > MaxKey || len(op.Value) > MaxValue {
			return fmt.Errorf("%w: key of %d bytes, value of %d", ErrTooLarge, len(op.Key), len(op.Value))
		}
		if seen[op.Key] {
			return fmt.Errorf("%w: two operations on %s", ErrTooLarge, op.Key)
		}
		seen[op.Key] = true
		total += len(op.Key) + len(op.Value)
	}
	if total > MaxCommit {
		return fmt.Errorf("%w: %d bytes", ErrTooLarge, total)
	}
	return nil
}
