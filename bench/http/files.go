//go:build linux

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"strings"
	"time"
)

// What the document and the load are made of: half of the routes on one host, which HTTP/2's load asks for.
const (
	routeCount  = 100_000
	oneHost     = 50_000
	otherHosts  = 999
	mostTokens  = 10_000
	usualTokens = 2_000
	consumers   = 100
	issuer      = "https://id.example.com"
	audience    = "api"
)

// files writes everything the processes read.
func (s *stage) files() error {
	edge, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	idp, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	texts := map[string]string{
		"nginx.conf": s.nginx(), "haproxy.conf": s.haproxy(),
		"full.yaml": s.document(true), "bare.yaml": s.document(false),
		"jwks": keySet(&idp.PublicKey), "1k": strings.Repeat("x", 1000), "100k": strings.Repeat("x", 100_000),
	}
	if texts["cert.pem"], texts["key.pem"], err = certificate(edge); err != nil {
		return err
	}
	texts["haproxy.pem"] = texts["cert.pem"] + texts["key.pem"]
	if texts["idp.pem"], err = publicPEM(&idp.PublicKey); err != nil {
		return err
	}
	list, err := tokens(idp)
	if err != nil {
		return err
	}
	texts["token"], texts["tokens"] = list[0], strings.Join(list, "\n")+"\n"
	for _, dir := range []string{"steady", "swapping"} {
		if err := os.Mkdir(s.path(dir), 0o700); err != nil {
			return err
		}
	}
	for name, text := range texts {
		if err := os.WriteFile(s.path(name), []byte(text), 0o644); err != nil { //nolint:gosec // nginx's worker reads them as another user
			return err
		}
	}
	return os.Chmod(s.dir, 0o755) //nolint:gosec // the same
}

func (s *stage) nginxWith(name, body string) string {
	paths := ""
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		paths += fmt.Sprintf("  %s_temp_path %s;\n", kind, s.path(name+"-"+kind))
	}
	return fmt.Sprintf(`worker_processes 1;
daemon off;
pid %s;
error_log %s;
events { worker_connections 4096; }
http {
  access_log off;
  keepalive_requests 1000000000;
%s%s
}
`, s.path(name+".pid"), s.path(name+".err"), paths, body)
}

func (s *stage) nginx() string {
	server := func(listen string) string {
		return fmt.Sprintf("  server { listen %s; location / { proxy_pass http://be; proxy_http_version 1.1; proxy_set_header Connection \"\"; } }\n", listen)
	}
	return s.nginxWith("nginx", fmt.Sprintf(`  upstream be { server %s; keepalive 128; keepalive_requests 1000000000; }
  ssl_certificate %s;
  ssl_certificate_key %s;
  ssl_protocols TLSv1.3;
%s%s%s`, s.at(backendPort), s.path("cert.pem"), s.path("key.pem"), server(s.at(nginxPlain)), server(s.at(nginxTLS)+" ssl"), server(s.at(nginxH2)+" ssl http2")))
}

func (s *stage) haproxy() string {
	return fmt.Sprintf(`global
  nbthread 1
  maxconn 4096
  ssl-default-bind-options ssl-min-ver TLSv1.3
defaults
  mode http
  timeout connect 3s
  timeout client 60s
  timeout server 60s
  http-reuse always
  default_backend b
frontend plain
  bind %s
frontend tls
  bind %s ssl crt %s alpn h2,http/1.1
frontend jwt
  bind %s
  stick-table type string len 64 size 100k expire 10s store http_req_rate(1s)
  http-request set-var(txn.bearer) http_auth_bearer
  http-request deny unless { var(txn.bearer),jwt_verify("ES256","%s") 1 }
  http-request track-sc0 var(txn.bearer),jwt_payload_query('$.sub')
  http-request deny deny_status 429 if { sc_http_req_rate(0) gt 1000000 }
backend b
  server s %s
`, s.at(haproxyPlain), s.at(haproxyTLS), s.path("haproxy.pem"), s.at(haproxyJWT), s.path("idp.pem"), s.at(backendPort))
}

// document has every route, with a policy and limits on each of them or on none.
func (s *stage) document(full bool) string {
	var b strings.Builder
	policy := ""
	b.WriteString("version: v1\n")
	fmt.Fprintf(&b, "upstreams: [{id: be, endpoints: [%q], pool: {max_connections: 128}}]\n", s.at(backendPort))
	if full {
		policy = ", auth: callers, limits: {tenant: 1000000000/second, user: 1000000/second}"
		fmt.Fprintf(&b, "policies: [{id: callers, jwt: {issuer: %q, audience: %s, jwks: \"http://%s/jwks\", algorithms: [ES256], consumer_claim: consumer}}]\n",
			issuer, audience, s.at(backendPort))
		b.WriteString("plans: [{id: plan, rate_per_sec: 1000000000}]\nconsumers:\n")
		for i := range consumers {
			fmt.Fprintf(&b, "  - {id: c%d, plan: plan}\n", i)
		}
	}
	b.WriteString("routes:\n")
	for i := range routeCount {
		host := 0
		if i >= oneHost {
			host = 1 + i%otherHosts
		}
		fmt.Fprintf(&b, "  - {id: r%d, match: {host: h%d.example.com, path: \"/v1/s%d/items/{id}\", methods: [GET]}, upstream: be%s}\n", i, host, i, policy)
	}
	for host := range otherHosts + 1 {
		fmt.Fprintf(&b, "  - {id: large%d, match: {host: h%d.example.com, path_prefix: /large}, upstream: be%s}\n", host, host, policy)
	}
	return b.String()
}

func certificate(key *ecdsa.PrivateKey) (cert, private string, err error) {
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "example.com"}, DNSNames: []string{"*.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return "", "", err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", err
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", raw), nil
}

func publicPEM(key *ecdsa.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	return encode("PUBLIC KEY", der), err
}

func encode(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func url64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// keySet is the provider's key set (RFC 7517).
func keySet(key *ecdsa.PublicKey) string {
	raw, err := key.Bytes() // 4, X, Y
	if err != nil {
		panic(err) // a key that was just made
	}
	return fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","use":"sig","kid":"k","x":%q,"y":%q}]}`, url64(raw[1:33]), url64(raw[33:]))
}

// tokens are signed JWTs of as many users (RFC 7515, ES256).
func tokens(key *ecdsa.PrivateKey) ([]string, error) {
	head := url64([]byte(`{"alg":"ES256","typ":"JWT","kid":"k"}`))
	now := time.Now()
	var list []string
	for i := range mostTokens {
		claims, err := json.Marshal(map[string]any{"iss": issuer, "aud": audience, "sub": fmt.Sprintf("user-%d", i), "consumer": fmt.Sprintf("c%d", i%consumers),
			"iat": now.Add(-time.Minute).Unix(), "exp": now.Add(12 * time.Hour).Unix()})
		if err != nil {
			return nil, err
		}
		signed := head + "." + url64(claims)
		sum := sha256.Sum256([]byte(signed))
		r, v, err := ecdsa.Sign(rand.Reader, key, sum[:])
		if err != nil {
			return nil, err
		}
		var signature [64]byte
		r.FillBytes(signature[:32])
		v.FillBytes(signature[32:])
		list = append(list, signed+"."+url64(signature[:]))
	}
	return list, nil
}
