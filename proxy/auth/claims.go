package auth

import (
	"crypto/sha256"

	"github.com/cellgate/cellgate/reason"
)

// who reads the claims that say who somebody is, which mean the same in tokens, in what providers say of tokens and in
// sessions: sub, jti, client, scopes, and the one that names the consumer, which must be there if the policy wants it.
func who(m map[string]any, consumer string, id *Identity) bool {
	ok := text(m, "sub", &id.Subject)
	if consumer != "" {
		ok = ok && text(m, consumer, &id.Consumer) && id.Consumer != ""
	}
	if id.ClientID, _ = m["client_id"].(string); id.ClientID == "" {
		id.ClientID, _ = m["azp"].(string)
	}
	return ok && text(m, "jti", &id.TokenID) && scopes(m, id)
}

// bind reads the key that the claims are bound to (RFC 7800). The hash of a certificate alone (RFC 8705, section 3.1) is something
// that a client can prove here, by its handshake; claims that are bound to anything else say nothing without a proof, unless the
// policy ignores it.
func bind(m map[string]any, ignore, must bool, id *Identity) bool {
	cnf, bound := m["cnf"]
	if ignore || !bound {
		return !must
	}
	members, _ := cnf.(map[string]any)
	text, _ := members["x5t#S256"].(string)
	sum, ok := decode(text)
	id.Bound = string(sum)
	return ok && len(sum) == sha256.Size && len(members) == 1
}

// permitted says whether the identity has all of the scopes that its policy wants.
func permitted(id *Identity, wanted []string) reason.Reason {
	if !all(wanted, id.Scopes) {
		return reason.ScopeMissing
	}
	return reason.None
}
