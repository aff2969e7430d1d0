package program

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Trust is a set of authorities whose certificates some hosts ask their clients for. It is immutable.
type Trust struct {
	// Digest is equal for equal sets.
	Digest string
	// Hint tells clients which of their certificates are meant; nil when those of any authority are, or when it would be longer than a
	// handshake carries well.
	Hint *x509.CertPool
}

// maxHint bounds the names of the authorities in a handshake, in bytes.
const maxHint = 8 << 10

// AsksClients says whether there is a host whose clients are asked for certificates.
func (p *Program) AsksClients() bool { return len(p.trusts) > 0 }

// Trust is what the routes ask that requests to the host may come to: its own, those of its wildcard and those of any host. Host is
// in the form of path.Host. Nil = no certificate is asked for.
func (p *Program) Trust(host string) *Trust {
	if t := p.trusts[host]; t != nil {
		return t
	}
	if t := p.trusts[wildcard(host)]; t != nil {
		return t
	}
	return p.trusts[""]
}

// Certified says whether what a client has shown counts on the route: by the certificate itself, or because a token may be bound to it.
func (p *Program) Certified(r *Route, shown *auth.Shown) bool {
	if r.Policy < 0 {
		return false
	}
	policy := &p.Policies[r.Policy]
	return asksClients(policy) || shown.Any() && (policy.JWT != nil || policy.Introspection != nil)
}

// asksClients says whether the policy needs a client's certificate.
func asksClients(p *snapshot.Policy) bool { return p.MTLS != nil || p.CertificateBound() }

// Misdirected is the reason to refuse a certificate, or its absence, with: the connection's handshake has asked for what the policies of
// another host trust, or those of this one before they changed, so another connection may do better (RFC 9110, section 15.5.20).
func (p *Program) Misdirected(why reason.Reason, host string, shown *auth.Shown) reason.Reason {
	if !why.Certificate() || shown == nil {
		return why
	}
	asks := ""
	if t := p.Trust(host); t != nil {
		asks = t.Digest
	}
	if shown.Trust == asks {
		return why
	}
	return reason.Misdirected
}

// wildcard is the pattern that takes the host.
func wildcard(host string) string {
	if _, parent, ok := strings.Cut(host, "."); ok {
		return "*." + parent
	}
	return ""
}

// asking are the policies by which a route asks for certificates.
func asking(r *snapshot.Route, names *resolver) (policies []int32) {
	if !names.certificates {
		return nil
	}
	for _, id := range append([]string{r.Auth}, r.Policies...) {
		if n := names.policy(id); n >= 0 && asksClients(&names.shared.Policies[n]) {
			policies = append(policies, n)
		}
	}
	return policies
}

// ask notes that clients of the host are asked by the policies.
func (sh *shard) ask(host string, policies []int32) {
	for _, n := range policies {
		if sh.asked == nil {
			sh.asked = map[string][]int32{}
		}
		if !slices.Contains(sh.asked[host], n) {
			sh.asked[strings.Clone(host)] = append(sh.asked[host], n)
		}
	}
}

// compileTrusts fills trusts from what the shards' routes ask.
func (p *Program) compileTrusts() error {
	asked := map[string][]int32{}
	for _, sh := range p.shards {
		for host, policies := range sh.asked {
			asked[host] = append(asked[host], policies...)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	p.trusts = make(map[string]*Trust, len(asked))
	same := map[string]*Trust{}
	for host, policies := range asked {
		all := slices.Clone(policies)
		if host != "" && !strings.HasPrefix(host, "*.") {
			all = append(all, asked[wildcard(host)]...)
		}
		if host != "" {
			all = append(all, asked[""]...)
		}
		t, err := p.trustOf(all)
		if err != nil {
			return fmt.Errorf("%w: %w", errProgram, err)
		}
		if same[t.Digest] == nil {
			same[t.Digest] = t
		}
		p.trusts[host] = same[t.Digest]
	}
	return nil
}

// trustOf puts the authorities of policies together. A token may be bound to a certificate of any.
func (p *Program) trustOf(policies []int32) (*Trust, error) {
	texts, anyone := make([]string, 0, len(policies)), false
	for _, n := range policies {
		if m := p.Policies[n].MTLS; m != nil {
			texts = append(texts, m.CA)
		} else {
			anyone = true
		}
	}
	slices.Sort(texts)
	t, h, size := &Trust{Hint: x509.NewCertPool()}, sha256.New(), 0
	for _, text := range slices.Compact(texts) {
		writeName(h, text)
		all, err := snapshot.Authorities(text)
		if err != nil {
			return nil, err
		}
		for _, c := range all {
			t.Hint.AddCert(c)
			size += len(c.RawSubject)
		}
	}
	if anyone {
		writeName(h, "any")
	}
	if t.Digest = hex.EncodeToString(h.Sum(nil)); anyone || size > maxHint {
		t.Hint = nil
	}
	return t, nil
}
