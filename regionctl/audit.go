package regionctl

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cellgate/cellgate/store"
)

// maxAudit is how many entries are kept; the leader forgets the oldest beyond it.
const maxAudit = 10_000

// auditForm is the version of the stored form of AuditEntry.
const auditForm = 1

// audit is the op that records a change; it belongs into the commit of the change itself.
func (c *Controller) audit(a AuditEntry) store.Op {
	a.Form, a.At, a.Region = auditForm, c.opt.Now().UTC(), string(c.opt.Region)
	return store.Put(store.KeyAudit(a.At.UnixNano(), string(c.opt.ID)), encode(a))
}

func (c *Controller) getAudit(r *call) (any, error) {
	limit := 100
	if q := r.URL.Query().Get("limit"); q != "" {
		n, err := strconv.Atoi(q)
		if err != nil || n < 1 || n > maxAudit {
			return nil, badRequest("limit must be 1…%d", maxAudit)
		}
		limit = n
	}
	entries, _, err := c.opt.Global.List(r.Context(), store.PrefixAudit)
	short, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), storePatience)
	defer cancel()
	waiting, _, err2 := c.opt.Regional.List(short, store.PrefixAudit)
	if err != nil && (err2 != nil || len(waiting) == 0) {
		return nil, err
	}
	entries = append(entries, waiting...) // noted in the region while the global store was away
	slices.SortFunc(entries, func(a, b store.Entry) int { return strings.Compare(a.Key, b.Key) })
	entries = slices.CompactFunc(entries, func(a, b store.Entry) bool { return a.Key == b.Key })
	out := []AuditEntry{}
	for i := len(entries) - 1; i >= 0 && len(out) < limit; i-- {
		var a AuditEntry
		if err := json.Unmarshal(entries[i].Value, &a); err != nil {
			return nil, fmt.Errorf("regionctl: audit entry %s: %w", entries[i].Key, err)
		}
		out = append(out, a)
	}
	return out, nil
}

// trim deletes the oldest entries under a prefix beyond keep.
func trim(ctx context.Context, s store.Store, prefix string, keep int, conds ...store.Cond) error {
	entries, _, err := s.List(ctx, prefix)
	if err != nil {
		return err
	}
	for len(entries) > keep {
		n := min(len(entries)-keep, 50)
		ops := make([]store.Op, n)
		for i := range ops {
			ops[i] = store.Delete(entries[i].Key)
		}
		if _, err := s.Commit(ctx, conds, ops); err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}
