package regionctl

import (
	"encoding/json"
	"net/http"

	"github.com/cellgate/cellgate/snapshot"
)

func (d *draft) merge(*snapshot.Config) (*snapshot.Config, error) {
	return nil, fault(http.StatusNotImplemented, "no_owner_publish", "Publishing by owner is not possible yet", "owner %q", d.owner)
}

// document is a configuration in canonical form.
func document(cfg *snapshot.Config) (string, error) {
	b, err := json.MarshalIndent(cfg, "", "  ")
	return string(b) + "\n", err
}
