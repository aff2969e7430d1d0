package snapshot

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MTLS takes the caller from the certificate that its client shows in TLS.
type MTLS struct {
	// CA holds the authorities whose certificates count, as PEM, and no others.
	CA string `json:"ca"`
	// Names are those that a certificate may come to, sorted.
	Names []CertificateName `json:"names"`
	// CRLFiles name files of revocation lists in the node's directory of secrets, sorted; none = nobody asks whether one is revoked.
	CRLFiles []string `json:"crl_files,omitempty"`
	// AcceptWithoutCRL lets in certificates whose issuer has no list that is in force; otherwise they are refused.
	AcceptWithoutCRL bool `json:"accept_without_crl,omitempty"`
}

// MaxCRLFiles bounds MTLS.CRLFiles.
const MaxCRLFiles = 8

// sinceCRL is the least form of reader that asks whether a certificate is revoked: an older one would let it in.
const sinceCRL = 13

// CertificateName is one name in certificates and whose it is. Exactly one of SPIFFE, DNS and CommonName is set.
type CertificateName struct {
	// SPIFFE is an id, or with "/*" at its end every id below it.
	SPIFFE string `json:"spiffe,omitempty"`
	// DNS is a name among the alternative ones; "*.example.com" is one label.
	DNS string `json:"dns,omitempty"`
	// CommonName is that of the subject.
	CommonName string `json:"common_name,omitempty"`
	Consumer   string `json:"consumer,omitempty"`
}

const (
	maxAuthorities = 32
	maxCertNames   = 1000
)

// Authorities reads the certificates of a PEM text. Anything else in it is an error.
func Authorities(text string) (all []*x509.Certificate, err error) {
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return all, nil
		}
		if block.Type != "CERTIFICATE" {
			return nil, errors.New("holds something else than certificates")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, errors.New("holds a certificate that can't be read")
		}
		all = append(all, c)
	}
}

// SPIFFEID says whether the text is a SPIFFE id (The SPIFFE Identity and Verifiable Identity Document, section 2).
func SPIFFEID(id string) bool {
	rest, ok := strings.CutPrefix(id, "spiffe://")
	domain, path, below := strings.Cut(rest, "/")
	if !ok || len(id) > 2048 || domain == "" || strings.Trim(domain, "abcdefghijklmnopqrstuvwxyz0123456789.-_") != "" {
		return false
	}
	for segment := range strings.SplitSeq(path, "/") {
		if below && (segment == "" || segment == "." || segment == ".." || strings.Trim(segment, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") != "") {
			return false
		}
	}
	return true
}

func decodeMTLS(d *decoder, n *yaml.Node, p *at, into *Policy) {
	o, ok := d.object(n, p, []string{"ca", "names", "crl_files", "on_crl_loss"})
	if !ok {
		return
	}
	o.needs("an mtls policy needs ca and names", "ca", "names")
	m := &MTLS{}
	if m.CA, _ = d.limited(o.get("ca"), p, "ca", maxText); m.CA != "" {
		o.authorities(m.CA)
	}
	before := len(d.problems) + d.unshown
	d.list(o.get("names"), p.child("names"), maxCertNames, func(_ int, n *yaml.Node, p *at) {
		in, ok := d.object(n, p, []string{"spiffe", "dns", "common_name", "consumer"})
		if !ok {
			return
		}
		one := in.certificateName()
		if one.Consumer != "" {
			d.refer(kindConsumer, one.Consumer, d.ids[name{kindPolicy, into.ID}], in.get("consumer"), "mtls.names")
		}
		if slices.ContainsFunc(m.Names, func(other CertificateName) bool { other.Consumer = one.Consumer; return other == one }) {
			d.wrong(in.line, p, "names what an item before it names", "keep one of them")
		}
		m.Names = append(m.Names, one)
	})
	if o.get("names") != nil && len(m.Names) == 0 && len(d.problems)+d.unshown == before {
		o.wrong("names", "names nobody, so nobody would be let in", "such as [{spiffe: spiffe://example.com/orders, consumer: acme}]")
	}
	slices.SortFunc(m.Names, func(a, b CertificateName) int {
		return cmp.Or(cmp.Compare(a.SPIFFE, b.SPIFFE), cmp.Compare(a.DNS, b.DNS), cmp.Compare(a.CommonName, b.CommonName))
	})
	o.crls(m)
	into.MTLS = m
}

func (o object) crls(m *MTLS) {
	m.CRLFiles = o.strings("crl_files", MaxCRLFiles)
	for _, name := range m.CRLFiles {
		if !ValidSecret(name) {
			o.wrong("crl_files", strconv.Quote(clip(name))+" is not the name of a file", secretHint)
		}
	}
	slices.Sort(m.CRLFiles)
	m.AcceptWithoutCRL = o.oneOf("on_crl_loss", "", "refuse", "accept") == "accept"
	o.some("crl_files", "leave it out if nobody revokes certificates by lists")
	if o.get("crl_files") == nil && o.get("on_crl_loss") != nil {
		o.wrong("on_crl_loss", "has no lists to apply to", "write crl_files beside it")
	}
}

func (o object) authorities(text string) {
	all, err := Authorities(text)
	if _, torn := PEMBlocks([]byte(text)); torn != nil { // what is stored already is read as ever
		err = errors.New("holds a block that is damaged or cut off")
	}
	switch {
	case err != nil:
		o.wrong("ca", err.Error(), "paste whole BEGIN CERTIFICATE blocks, of authorities alone")
	case len(all) == 0 || len(all) > maxAuthorities:
		o.wrong("ca", "holds "+strconv.Itoa(len(all))+" certificates in PEM", "1 to "+strconv.Itoa(maxAuthorities)+" BEGIN CERTIFICATE blocks")
	case slices.ContainsFunc(all, func(c *x509.Certificate) bool { return !c.BasicConstraintsValid || !c.IsCA }):
		o.wrong("ca", "holds a certificate that is no authority's", "CA:TRUE in its basic constraints")
	}
}

func (o object) certificateName() CertificateName {
	c := CertificateName{SPIFFE: o.string("spiffe"), DNS: strings.ToLower(o.string("dns")), CommonName: o.string("common_name"), Consumer: o.string("consumer")}
	given := 0
	for _, key := range []string{"spiffe", "dns", "common_name"} {
		if o.get(key) != nil {
			given++
		}
	}
	if given != 1 {
		o.d.wrong(o.line, o.at, "has exactly one of spiffe, dns and common_name", "such as {spiffe: spiffe://example.com/orders, consumer: acme}")
	}
	if id := strings.TrimSuffix(c.SPIFFE, "/*"); c.SPIFFE != "" && !SPIFFEID(id) {
		o.wrong("spiffe", strconv.Quote(clip(c.SPIFFE))+" is not a SPIFFE id", "such as spiffe://example.com/orders, or spiffe://example.com/* for all below it")
	}
	if host := strings.TrimPrefix(c.DNS, "*."); c.DNS != "" && !validHostname(host) {
		o.wrong("dns", strconv.Quote(clip(c.DNS))+" is not a host name", "such as orders.example.com, or *.example.com for one label more")
	}
	return c
}

type docMTLS struct {
	CA        string               `yaml:"ca"`
	Names     []docCertificateName `yaml:"names"`
	CRLFiles  []string             `yaml:"crl_files,omitempty,flow"`
	OnCRLLoss string               `yaml:"on_crl_loss,omitempty"`
}

type docCertificateName struct {
	SPIFFE     string `yaml:"spiffe,omitempty"`
	DNS        string `yaml:"dns,omitempty"`
	CommonName string `yaml:"common_name,omitempty"`
	Consumer   string `yaml:"consumer,omitempty"`
}

func formatMTLS(p *Policy, into *docPolicy) {
	into.MTLS = &docMTLS{CA: p.MTLS.CA, CRLFiles: p.MTLS.CRLFiles}
	if p.MTLS.AcceptWithoutCRL {
		into.MTLS.OnCRLLoss = "accept"
	}
	for _, n := range p.MTLS.Names {
		into.MTLS.Names = append(into.MTLS.Names, docCertificateName(n))
	}
}
