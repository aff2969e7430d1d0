package snapshot

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Session takes the claims of a caller from a cookie that a login service has sealed (package proxy/session).
type Session struct {
	Cookie string `json:"cookie"`
	// KeysFile names a file in the node's directory of secrets.
	KeysFile string `json:"keys_file"`
	Signed   bool   `json:"signed,omitempty"` // readable; else encrypted
	// MaxAge bounds a session from its iat to its exp; 0 = DefaultSessionAge.
	MaxAge        time.Duration `json:"max_age,omitempty"`
	Issuer        string        `json:"issuer,omitempty"`
	Scopes        []string      `json:"scopes,omitempty"`
	ConsumerClaim string        `json:"consumer_claim,omitempty"`
	// Origins are those of other sites whose pages may make requests that change something.
	Origins []string `json:"origins,omitempty"`
	// ForwardCookie lets the upstream have the cookie; whoever has it is its user.
	ForwardCookie bool `json:"forward_cookie,omitempty"`
}

// DefaultSessionAge bounds a session whose policy says nothing.
const DefaultSessionAge = 12 * time.Hour

func decodeSession(d *decoder, n *yaml.Node, p *at, into *Policy) {
	o, ok := d.object(n, p, []string{"cookie", "keys_file", "mode", "max_age", "issuer", "scopes", "consumer_claim", "origins", "forward_cookie"})
	if !ok {
		return
	}
	o.needs("a session policy needs cookie and keys_file", "cookie", "keys_file")
	s := &Session{Cookie: o.string("cookie"), KeysFile: o.secret("keys_file"), Issuer: o.string("issuer"), Scopes: o.scopes("scopes", maxAuthz),
		ConsumerClaim: o.string("consumer_claim"), Origins: o.strings("origins", 64), ForwardCookie: o.bool("forward_cookie")}
	if s.Cookie != "" && (len(s.Cookie) > 128 || strings.ContainsFunc(s.Cookie, notToken)) {
		o.wrong("cookie", strconv.Quote(clip(s.Cookie))+" is not the name of a cookie", "such as __Host-session")
	}
	s.Signed = o.oneOf("mode", "", "encrypted", "signed") == "signed"
	s.MaxAge = o.usual("max_age", DefaultSessionAge, time.Minute, 30*24*time.Hour)
	for _, origin := range s.Origins {
		fault, hint := originFault(origin)
		if origin == "null" || strings.Contains(origin, "*") {
			fault, hint = "is not one site", "name each one, such as https://app.example.com"
		}
		if fault != "" {
			o.wrong("origins", strconv.Quote(clip(origin))+" "+fault, hint)
		}
	}
	slices.Sort(s.Origins)
	into.Session = s
}

// notToken says what stands in no name of a cookie (RFC 6265, section 4.1.1).
func notToken(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune(`()<>@,;:\"/[]?={}`, r)
}

type docSession struct {
	Cookie        string   `yaml:"cookie"`
	KeysFile      string   `yaml:"keys_file"`
	Mode          string   `yaml:"mode,omitempty"`
	MaxAge        string   `yaml:"max_age,omitempty"`
	Issuer        string   `yaml:"issuer,omitempty"`
	Scopes        []string `yaml:"scopes,omitempty,flow"`
	ConsumerClaim string   `yaml:"consumer_claim,omitempty"`
	Origins       []string `yaml:"origins,omitempty,flow"`
	ForwardCookie bool     `yaml:"forward_cookie,omitempty"`
}

func formatSession(p *Policy, into *docPolicy) {
	s := p.Session
	into.Session = &docSession{s.Cookie, s.KeysFile, "", optional(s.MaxAge), s.Issuer, s.Scopes, s.ConsumerClaim, s.Origins, s.ForwardCookie}
	if s.Signed {
		into.Session.Mode = "signed"
	}
}
