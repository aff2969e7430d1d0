package snapshot

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cellgate/cellgate/problem"
)

// A secret is a file of the node, whose operator says by its place whom it is for: what lies directly in the directory of
// secrets is for everybody, and TENANT/FILE for requests of that tenant alone.

// ValidSecret says whether it is the name of a secret.
func ValidSecret(name string) bool {
	tenant, file, own := strings.Cut(name, "/")
	return validID(tenant) && (!own || validID(file))
}

// SecretFor says whether requests of the tenant may make use of the secret. It doesn't allocate.
func SecretFor(tenant, name string) bool {
	of, _, own := strings.Cut(name, "/")
	return !own || of == tenant
}

// Secrets are the files that the policy names.
func (p *Policy) Secrets() []string {
	switch {
	case p.Introspection != nil:
		return []string{p.Introspection.ClientSecretFile}
	case p.Session != nil:
		return []string{p.Session.KeysFile}
	case p.Decision != nil && p.Decision.SecretFile != "":
		return []string{p.Decision.SecretFile}
	case p.MTLS != nil:
		return p.MTLS.CRLFiles
	}
	return nil
}

// secretsOf checks that the route's policies name no secret of another tenant than the route's.
func (d *decoder) secretsOf(i int, secrets map[string][]string) {
	r, s := &d.cfg.Routes[i], d.routes[i]
	check := func(key, id string) {
		for _, name := range secrets[id] {
			if !SecretFor(d.tenantOf(r.Match.Host), name) {
				d.add(problem.Problem{File: s.file, Line: s.line, Path: s.path() + "." + key,
					Message: fmt.Sprintf("policy %q names the secret %s, and the route is of tenant %q", id, strconv.Quote(name), d.tenantOf(r.Match.Host)),
					Hint:    "TENANT/FILE is for that tenant's hosts alone; a file without a tenant is for everybody"})
			}
		}
	}
	check("auth", r.Auth)
	for _, id := range r.Policies {
		check("policies", id)
	}
}

// tenantOf is the tenant that a route's host belongs to.
func (d *decoder) tenantOf(host string) string {
	if c, ok := d.claims[host]; ok {
		return c.by
	}
	if _, rest, ok := strings.Cut(host, "."); ok {
		if c, ok := d.claims["*."+rest]; ok {
			return c.by
		}
	}
	return DefaultTenant
}
