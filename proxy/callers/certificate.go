package callers

import (
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/secrets"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// certificate takes the caller from what the client has shown in TLS.
func (a *Authenticator) certificate(c *proxy.Credentials, id *proxy.Identity, now time.Time) reason.Reason {
	v := c.Program.Certificates(c.Policy.ID)
	if v == nil {
		return reason.AuthUnavailable
	}
	var room [snapshot.MaxCRLFiles]*auth.Revocations
	lists := room[:0]
	for _, name := range c.Policy.MTLS.CRLFiles {
		secret := a.secrets.Get(c.Tenant, name)
		if secret == nil {
			return reason.AuthUnavailable
		}
		l, ok := secret.Value.(*auth.Revocations)
		if !ok { // a newer program takes the file for something else
			return reason.AuthUnavailable
		}
		lists = append(lists, l)
	}
	r, known := v.Judge(c.Certificate, lists, now)
	c.Fresh = !known
	return a.admit(c, id, r)
}

// revocations needs a file of revocation lists. It is no secret, but the node's to have and to renew all the same.
func revocations(name string) secrets.Need {
	return secrets.Need{Name: name, Kind: "revocation lists", Most: auth.MaxRevocations, Read: func(raw []byte) (any, error) { return auth.ParseRevocations(raw) }}
}
