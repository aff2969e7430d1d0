package auth

import "github.com/cellgate/cellgate/reason"

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

// bound says whether the claims are those of whoever holds a key (RFC 7800, RFC 8705 section 3): shown without a proof, which
// nobody asks for here, they say nothing.
func bound(m map[string]any) bool {
	_, is := m["cnf"]
	return is
}

// permitted says whether the identity has all of the scopes that its policy wants.
func permitted(id *Identity, wanted []string) reason.Reason {
	if !all(wanted, id.Scopes) {
		return reason.ScopeMissing
	}
	return reason.None
}
