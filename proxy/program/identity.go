package program

import (
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/snapshot"
)

// Identity is the part of a program that decides who calls.
type Identity struct {
	// APIKeys finds the index in Program.Consumers of an API key. Never nil in a compiled program.
	APIKeys   *auth.KeyTable
	verifiers []*auth.Verifier // by the index in Program.Policies; nil where the policy is no JWT policy
}

// CompileIdentity compiles policies and consumers; both are in the order of the program's lists.
func CompileIdentity(policies []snapshot.Policy, consumers []snapshot.Consumer) (Identity, error) {
	keys, err := auth.NewKeyTable(consumers)
	if err != nil {
		return Identity{}, err
	}
	id := Identity{APIKeys: keys, verifiers: make([]*auth.Verifier, len(policies))}
	for i, p := range policies {
		if p.JWT != nil {
			id.verifiers[i] = auth.NewVerifier(*p.JWT)
		}
	}
	return id, nil
}

// Verifier is that of the policy with the id; nil when there is none or it takes no tokens.
func (p *Program) Verifier(policy string) *auth.Verifier {
	lo, hi := 0, len(p.Policies)
	for lo < hi {
		if mid := (lo + hi) / 2; p.Policies[mid].ID < policy {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == len(p.Policies) || p.Policies[lo].ID != policy || lo >= len(p.Identity.verifiers) {
		return nil
	}
	return p.Identity.verifiers[lo]
}
