package callers

import (
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/reason"
)

// certificate takes the caller from what the client has shown in TLS.
func (a *Authenticator) certificate(c *proxy.Credentials, id *proxy.Identity, now time.Time) reason.Reason {
	v := c.Program.Certificates(c.Policy.ID)
	if v == nil {
		return reason.AuthUnavailable
	}
	r, known := v.Judge(c.Certificate, now)
	c.Fresh = !known
	return a.admit(c, id, r)
}
