package snapshot

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// CORS says which pages' scripts may ask, and read the answers (Fetch standard, CORS protocol). All lists are sorted.
type CORS struct {
	// Origins are exact, such as "https://app.example.com"; "https://*.example.com" is one label more; "null" is opaque origins;
	// "*" alone is every origin.
	Origins []string `json:"origins"`
	Methods []string `json:"methods,omitempty"` // empty = what the route takes
	Headers []string `json:"headers,omitempty"` // lower case; that scripts may set
	Expose  []string `json:"expose,omitempty"`  // lower case; that scripts may read
	// Credentials lets cookies and HTTP authentication pass.
	Credentials    bool          `json:"credentials,omitempty"`
	MaxAge         time.Duration `json:"max_age,omitempty"` // of a preflight's answer, whole seconds; 0 = the browser's own
	PrivateNetwork bool          `json:"private_network,omitempty"`
}

// AnyOrigin is the origin of CORS that stands for all, and the header and method that do.
const AnyOrigin = "*"

const maxCORS = 64 // entries of a list

type docCORS struct {
	Origins        []string `yaml:"origins,flow"`
	Methods        []string `yaml:"methods,omitempty,flow"`
	Headers        []string `yaml:"headers,omitempty,flow"`
	Expose         []string `yaml:"expose,omitempty,flow"`
	Credentials    bool     `yaml:"credentials,omitempty"`
	MaxAge         string   `yaml:"max_age,omitempty"`
	PrivateNetwork bool     `yaml:"private_network,omitempty"`
}

func formatCORS(p *Policy, into *docPolicy) {
	c := p.CORS
	into.CORS = &docCORS{c.Origins, c.Methods, c.Headers, c.Expose, c.Credentials, optional(c.MaxAge), c.PrivateNetwork}
}

func decodeCORS(d *decoder, n *yaml.Node, p *at, into *Policy) {
	o, ok := d.object(n, p, []string{"origins", "methods", "headers", "expose", "credentials", "max_age", "private_network"})
	if !ok {
		return
	}
	c := &CORS{Origins: o.strings("origins", maxCORS), Credentials: o.bool("credentials"), PrivateNetwork: o.bool("private_network")}
	if len(c.Origins) == 0 && o.noneOf("origins") {
		o.wrong("origins", "names no origin", `such as ["https://app.example.com"]`)
	}
	for _, origin := range c.Origins {
		if fault, hint := originFault(origin); fault != "" {
			o.wrong("origins", strconv.Quote(clip(origin))+" "+fault, hint)
		}
	}
	if slices.Contains(c.Origins, AnyOrigin) && len(c.Origins) > 1 {
		o.wrong("origins", "names every origin and others", "keep * alone, or leave it out")
	}
	c.Methods = o.strings("methods", maxCORS)
	o.some("methods", "leave it out for those that the route takes")
	for _, m := range c.Methods {
		if m != AnyOrigin {
			o.routable(m)
		}
	}
	slices.Sort(c.Methods)
	c.Headers, c.Expose = o.fields("headers"), o.fields("expose")
	if c.Credentials {
		for key, list := range map[string][]string{"origins": c.Origins, "methods": c.Methods, "headers": c.Headers, "expose": c.Expose} {
			if slices.Contains(list, AnyOrigin) {
				o.wrong(key, "has * beside credentials", "name each one; with credentials browsers take * for a name")
			}
		}
	}
	if c.MaxAge, ok = o.duration("max_age", time.Second, 24*time.Hour); ok && c.MaxAge%time.Second != 0 {
		o.wrong("max_age", "is no whole number of seconds", "such as 600s")
	}
	slices.Sort(c.Origins)
	into.CORS = c
}

// noneOf says that nothing was reported of the key's items: it is absent or empty.
func (o object) noneOf(key string) bool {
	n := o.d.resolve(o.get(key))
	return n == nil || n.Kind == yaml.SequenceNode && len(n.Content) == 0
}

// some refuses a list without items, where an absent one stands for something.
func (o object) some(key, hint string) {
	if o.get(key) != nil && o.noneOf(key) {
		o.wrong(key, "names none", hint)
	}
}

// fields reads a sorted list of field names, in lower case.
func (o object) fields(key string) []string {
	all := o.strings(key, maxCORS)
	for i, t := range all {
		if !isToken(t) || len(t) > 64 {
			o.wrong(key, strconv.Quote(clip(t))+" is no name", "letters, digits and '-', at most 64")
		}
		all[i] = strings.ToLower(t)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// originFault says what keeps s from being an origin as browsers write it (RFC 6454, section 6.2), with at most one label of wildcard.
func originFault(s string) (fault, hint string) {
	if s == AnyOrigin || s == "null" {
		return "", ""
	}
	scheme, host, found := strings.Cut(s, "://")
	switch {
	case !found || scheme == "" || strings.Trim(scheme, "abcdefghijklmnopqrstuvwxyz0123456789+.-") != "":
		return "is not an origin", "such as https://app.example.com, in lower case"
	case strings.ContainsAny(host, "/?#@"):
		return "has more than scheme, host and port", "leave out what follows the host"
	case host != strings.ToLower(host):
		return "is not in lower case", "browsers send origins in lower case"
	}
	port := ""
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host, port = host[:i], host[i+1:]
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || port != strconv.FormatUint(n, 10) {
			return "has a port that is none", "such as https://app.example.com:8443"
		}
	}
	if scheme == "https" && port == "443" || scheme == "http" && port == "80" {
		return "names the port that its scheme has anyway", "browsers leave it out"
	}
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil && a.Zone() == "" && a.Is6() == strings.HasPrefix(host, "[") {
		return "", ""
	}
	name, wild := strings.CutPrefix(host, "*.")
	if strings.Contains(name, "*") || wild && !strings.Contains(name, ".") {
		return "has a wildcard that is not one label of a domain", "such as https://*.example.com"
	}
	if !validHostname(name) {
		return "has no host", "such as https://app.example.com"
	}
	return "", ""
}
