package report

// MaxChanged bounds the routes that a Change names of each kind.
const MaxChanged = 64

// Change is what a node knows of the contents that it serves beside those that it served before, since the swap.
type Change struct {
	Version uint64 `json:"version"` // that is served
	// Asked are the requests of routes that both contents have, otherwise defined, and that the node was asked for before.
	Asked map[string]uint64 `json:"asked,omitempty"`
	// Refused are the requests that the gateway refused and would have let through before, by the route that was there for them.
	Refused map[string]uint64 `json:"refused,omitempty"`
	// Lost are routes that both contents have, of which the new one refuses a request that was answered well lately.
	Lost []string `json:"lost,omitempty"`
}

// fits says that a received change keeps the bounds.
func (c *Change) fits() bool {
	return c == nil || len(c.Asked) <= MaxChanged && len(c.Refused) <= MaxChanged && len(c.Lost) <= MaxChanged
}
