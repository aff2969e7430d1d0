// Package trust is who may speak: the internal CA, role identities in URI SANs, mutual TLS between our processes,
// and signed envelopes around everything that is applied.
package trust

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/cellgate/cellgate/cells"
)

// Role is what a certificate's holder may do.
type Role string

// The roles of our processes and operators.
const (
	RoleProxy      Role = "proxy"
	RoleRouter     Role = "globalrouter"
	RoleController Role = "regionctl"
	RoleProber     Role = "healthd"
	RolePlanner    Role = "capacityd"
	RoleEtcd       Role = "etcd"
	RoleOperator   Role = "operator"
)

// Identity is the holder of a certificate: spiffe://<world>/<role>/<node id>.
type Identity struct {
	World string
	Role  Role
	ID    cells.NodeID
}

// URI is the identity as the URI SAN of its certificate.
func (i Identity) URI() *url.URL {
	return &url.URL{Scheme: "spiffe", Host: i.World, Path: "/" + string(i.Role) + "/" + string(i.ID)}
}

func (i Identity) String() string { return i.URI().String() }

// ParseIdentity reads the URI SAN form.
func ParseIdentity(u *url.URL) (Identity, error) {
	role, id, ok := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	if u.Scheme != "spiffe" || u.Host == "" || !ok || role == "" || id == "" {
		return Identity{}, fmt.Errorf("trust: %q is not spiffe://<world>/<role>/<id>", u)
	}
	return Identity{World: u.Host, Role: Role(role), ID: cells.NodeID(id)}, nil
}
