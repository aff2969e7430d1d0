package snapshot

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
)

var errTorn = errors.New("snapshot: a block of PEM is damaged or cut off")

// PEMBlocks are all blocks of a text (RFC 7468), in their order; what stands around them is passed over. encoding/pem also passes over
// blocks that it can't read, and goes on with the next: of a file that was half written, or damaged in one place, it would make one
// that says less than its author thinks. That is an error here.
func PEMBlocks(text []byte) (all []*pem.Block, err error) {
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		all = append(all, block)
	}
	if bytes.Count(text, []byte("-----BEGIN ")) != len(all) {
		return nil, errTorn
	}
	return all, nil
}

// validPair says whether the text holds a certificate and its private key, as a node wants it: the first certificate counts.
func validPair(text string) bool {
	blocks, err := PEMBlocks([]byte(text))
	if err != nil {
		return false
	}
	var public, own crypto.PublicKey
	for _, block := range blocks {
		switch {
		case block.Type == "CERTIFICATE" && public == nil:
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return false
			}
			public = c.PublicKey
		case strings.HasSuffix(block.Type, "PRIVATE KEY") && own == nil:
			key, ok := privateKey(block.Bytes).(crypto.Signer)
			if !ok {
				return false
			}
			own = key.Public()
		}
	}
	k, ok := public.(interface{ Equal(crypto.PublicKey) bool })
	return ok && own != nil && k.Equal(own)
}

// privateKey reads the three forms that crypto/tls knows; nil = it is none of them.
func privateKey(der []byte) (key any) {
	var err error
	if key, err = x509.ParsePKCS8PrivateKey(der); err == nil {
		return key
	}
	if key, err = x509.ParsePKCS1PrivateKey(der); err == nil {
		return key
	}
	if key, err = x509.ParseECPrivateKey(der); err == nil {
		return key
	}
	return nil
}
