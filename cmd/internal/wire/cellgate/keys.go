package cellgate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/cellgate/cellgate/apikey"
	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/trust"
)

// leafLife is how long certificates are valid that every `up` issues anew.
const leafLife = 365 * 24 * time.Hour

// The identity provider's names in tokens.
const (
	tokenIssuer   = "https://id.gw.test"
	tokenAudience = "api"
	tokenLife     = 365 * 24 * time.Hour
	tokenRenew    = 90 * 24 * time.Hour // tokens with less life left are replaced at the next `up`
)

// tokens are the world's credentials for callers.
type tokens struct {
	Admin    string    `json:"admin"`
	Customer string    `json:"customer"`
	Limited  string    `json:"limited"`
	APIKey   string    `json:"api_key"`
	Expires  time.Time `json:"expires"`
}

// keyring is everything secret that a world starts with. The CAs, the identity provider's key and the tokens are kept;
// leaf certificates are issued at every start.
type keyring struct {
	home     home
	internal *trust.CA // between our processes
	edge     *trust.CA // of the front doors, admin servers and APIs
	idp      *ecdsa.PrivateKey
	tokens   tokens
	now      time.Time
}

func openKeyring(h home, now time.Time) (*keyring, error) {
	k := &keyring{home: h, now: now}
	var err error
	if k.internal, err = k.authority("internal-ca"); err != nil {
		return nil, err
	}
	if k.edge, err = k.authority("edge-ca"); err != nil {
		return nil, err
	}
	if k.idp, err = k.idpKey(); err != nil {
		return nil, err
	}
	if err := k.openTokens(); err != nil {
		return nil, err
	}
	if err := writeFile(h.caFile(), k.edge.CertPEM()); err != nil {
		return nil, err
	}
	return k, writeFile(h.path("api-key"), []byte(k.tokens.APIKey+"\n"))
}

// authority loads a CA or makes it. Key and certificate stand in one file, so that no crash leaves one without the other.
func (k *keyring) authority(name string) (*trust.CA, error) {
	path := k.home.path("keys", name+".both.pem")
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		ca, err := trust.NewCA(worldName, k.now)
		if err != nil {
			return nil, err
		}
		key, err := ca.KeyPEM()
		if err != nil {
			return nil, err
		}
		if err := durable.Write(path, append(ca.CertPEM(), key...)); err != nil {
			return nil, err
		}
		return ca, writeFile(k.home.path("keys", name+".pem"), ca.CertPEM())
	}
	if err != nil {
		return nil, err
	}
	_, key := pem.Decode(raw)
	ca, err := trust.LoadCA(raw, key)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w (remove the directory to start a new world)", path, err)
	}
	return ca, writeFile(k.home.path("keys", name+".pem"), ca.CertPEM())
}

func (k *keyring) internalCA() string { return k.home.path("keys", "internal-ca.pem") }

// identity issues the certificate of one of our processes and writes it with its key.
func (k *keyring) identity(role trust.Role, id cells.NodeID, ips ...netip.Addr) (cert, key string, err error) {
	c, p, err := k.internal.Issue(trust.Identity{World: worldName, Role: role, ID: id}, ips, nil, k.now, leafLife)
	if err != nil {
		return "", "", err
	}
	return k.pair("id-"+fileName(string(role)+"/"+string(id)), c, p)
}

// server issues a certificate of the edge CA.
func (k *keyring) server(name string, names []string, ips ...netip.Addr) (cert, key string, err error) {
	c, p, err := k.edge.Issue(trust.Identity{World: worldName, Role: "server", ID: cells.NodeID(name)}, ips, names, k.now, leafLife)
	if err != nil {
		return "", "", err
	}
	return k.pair("tls-"+fileName(name), c, p)
}

func (k *keyring) pair(name string, certPEM, keyPEM []byte) (cert, key string, err error) {
	cert, key = k.home.path("keys", name+".pem"), k.home.path("keys", name+".key")
	if err := writeFile(cert, certPEM); err != nil {
		return "", "", err
	}
	return cert, key, writeFile(key, keyPEM)
}

// ticketSecrets is the file of a cell's secret for session tickets.
func (k *keyring) ticketSecrets(cell cells.CellID) (path string, err error) {
	path = k.home.path("keys", fileName(string(cell))+".tickets")
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return path, durable.Write(path, []byte(base64.StdEncoding.EncodeToString(b[:])+"\n"))
}

func (k *keyring) idpKey() (*ecdsa.PrivateKey, error) {
	path := k.home.path("keys", "idp.key")
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, err
		}
		return key, durable.Write(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	}
	if err != nil {
		return nil, err
	}
	return parseIDPKey(path, raw)
}

func parseIDPKey(path string, raw []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, fmt.Errorf("%s is damaged: no PEM block", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", path, err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s is damaged: not an ECDSA key", path)
	}
	return ec, nil
}

// keyID names a signing key by the start of the digest of its public half.
func keyID(key *ecdsa.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:8]), nil
}

func (k *keyring) openTokens() error {
	path := k.home.path("keys", "tokens.json")
	if _, err := readJSON(path, &k.tokens); err != nil {
		return err
	}
	t := &k.tokens
	if t.Admin == "" {
		t.Admin = randomText()
	}
	if t.APIKey == "" {
		t.APIKey, _ = apikey.New(rand.Reader)
	}
	if t.Expires.Sub(k.now) < tokenRenew {
		t.Expires = k.now.Add(tokenLife)
		var err error
		if t.Customer, err = k.mint("customer", t.Expires); err != nil {
			return err
		}
		if t.Limited, err = k.mint("limited", t.Expires); err != nil {
			return err
		}
	}
	raw, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return durable.Write(path, raw)
}

// mint makes a bearer token (RFC 7519, RFC 9068's claims) for a consumer of the sample document.
func (k *keyring) mint(consumer string, expires time.Time) (string, error) {
	kid, err := keyID(&k.idp.PublicKey)
	if err != nil {
		return "", err
	}
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: k.idp, KeyID: kid}},
		(&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", fmt.Errorf("token of %s: %w", consumer, err)
	}
	claims, err := json.Marshal(map[string]any{
		"iss": tokenIssuer, "aud": tokenAudience, "sub": "user-" + consumer, "consumer": consumer, "scope": "orders",
		"iat": k.now.Add(-time.Minute).Unix(), "nbf": k.now.Add(-time.Minute).Unix(), "exp": expires.Unix(), "jti": randomText(),
	})
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(claims)
	if err != nil {
		return "", fmt.Errorf("token of %s: %w", consumer, err)
	}
	return signed.CompactSerialize()
}

// randomText is 256 bits in URL-safe letters.
func randomText() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// hashOf is the stored form of a secret: "sha256:" and the hex digest.
func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return "sha256:" + hex.EncodeToString(sum[:])
}
