package cellgate

import (
	_ "embed"
	"net/netip"
	"strings"
	"text/template"
)

// sampleText is the document that a new world publishes as its version 1, a template over its addresses.
//
//go:embed sample.yaml.tmpl
var sampleText string

// sampleHosts are the hosts that the sample document serves.
func sampleHosts() []string { return []string{sampleHost, "acme." + worldName, "globex." + worldName} }

type sampleData struct {
	Issuer, Audience, JWKS, KeyHash string
	Orders, Catalog                 []string
}

func (l *layout) sample(keyHash string) (string, error) {
	data := sampleData{Issuer: tokenIssuer, Audience: tokenAudience, JWKS: l.idpURL() + "/keys", KeyHash: keyHash}
	for _, b := range l.backends {
		at := netip.AddrPortFrom(b.address, portBackend).String()
		if strings.HasPrefix(b.id, "orders") {
			data.Orders = append(data.Orders, at)
		} else {
			data.Catalog = append(data.Catalog, at)
		}
	}
	tmpl, err := template.New("sample").Option("missingkey=error").Parse(sampleText)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = tmpl.Execute(&b, data)
	return b.String(), err
}
