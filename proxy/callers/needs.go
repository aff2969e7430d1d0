package callers

import (
	"github.com/cellgate/cellgate/proxy/secrets"
	"github.com/cellgate/cellgate/snapshot"
)

// Needs lists the secrets that policies and identity keys name.
func Needs(policies []snapshot.Policy, keys ...snapshot.IdentityKey) (all []secrets.Need) {
	for _, k := range keys {
		all = append(all, identityKey(k.File))
	}
	for _, p := range policies {
		if p.Introspection != nil {
			all = append(all, secrets.Text(p.Introspection.ClientSecretFile))
		}
		if p.Session != nil {
			all = append(all, sessionKeys(p.Session.KeysFile))
		}
	}
	for _, p := range policies {
		if p.MTLS != nil {
			for _, name := range p.MTLS.CRLFiles {
				all = append(all, revocations(name))
			}
		}
	}
	for _, p := range policies {
		if p.Decision != nil && p.Decision.SecretFile != "" {
			all = append(all, secrets.Text(p.Decision.SecretFile))
		}
	}
	return all
}
