package regionctl

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/proxy/session"
	"github.com/cellgate/cellgate/snapshot"
)

// sessionCommand gathers what a login service needs that doesn't link package proxy/session.
func sessionCommand() *cobra.Command {
	c := group("session", "Make keys of sessions and seal claims into cookies")
	c.AddCommand(sessionKeyCommand(), sealCommand())
	return c
}

type keyFile struct {
	Keys []keyOfFile `json:"keys"`
}

type keyOfFile struct {
	ID     string `json:"id"`
	Secret string `json:"secret"`
}

func sessionKeyCommand() *cobra.Command {
	var id, file string
	var out output
	cmd := &cobra.Command{
		Use: "key", Short: "Print a file of keys with a new key ahead of those of --keys, which still open what they have sealed",
		Example: "  regionctl session key --id 2026-12 --keys session.keys > session.keys.new",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if id == "" {
				return usage(errors.New("--id is required: the new key's name, such as --id 2026-12"))
			}
			secret := make([]byte, 32)
			if _, err := rand.Read(secret); err != nil {
				return err
			}
			next := keyFile{[]keyOfFile{{id, base64.StdEncoding.EncodeToString(secret)}}}
			if file != "" {
				var old keyFile
				raw, err := readSome(file, cmd.InOrStdin())
				if err != nil {
					return err
				}
				if _, err := session.ParseKeys(raw); err != nil {
					return err
				}
				if err := json.Unmarshal(raw, &old); err != nil {
					return fmt.Errorf("%s: not a file of keys", file)
				}
				next.Keys = append(next.Keys, old.Keys...)
			}
			raw, err := json.MarshalIndent(next, "", "  ")
			if err != nil {
				return err
			}
			if _, err := session.ParseKeys(raw); err != nil {
				return usage(fmt.Errorf("--id %q: %w", id, err))
			}
			return out.print(cmd.OutOrStdout(), next, func(t *tabwriter.Writer) { fmt.Fprintf(t, "%s\n", raw) })
		},
	}
	out.flags(cmd)
	cmd.Flags().StringVar(&id, "id", "", "`name` of the new key: letters, digits, '-', '_'")
	cmd.Flags().StringVar(&file, "keys", "", "`file` with the keys so far")
	return cmd
}

// sealed is what seal prints as json or yaml.
type sealed struct {
	Cookie string `json:"cookie"`
	Value  string `json:"value"`
}

func sealCommand() *cobra.Command {
	var s session.Scope
	var keys, claims, mode string
	var out output
	cmd := &cobra.Command{
		Use: "seal", Short: "Seal claims, the JSON object of a JWT with iat and exp, into the value of a cookie",
		Example: "  regionctl session seal --keys session.keys --policy web --tenant shop --cookie __Host-session --claims claims.json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if keys == "" || claims == "" || s.Policy == "" || s.Cookie == "" || mode != "encrypted" && mode != "signed" {
				return usage(fmt.Errorf("--keys, --claims, --policy and --cookie are required; --mode is encrypted or signed"))
			}
			s.Encrypted = mode == "encrypted"
			value, err := seal(s, keys, claims, cmd.InOrStdin())
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), sealed{s.Cookie, value}, func(t *tabwriter.Writer) { row(t, value) })
		},
	}
	out.flags(cmd)
	cmd.Flags().StringVar(&keys, "keys", "", "`file` of keys; the first one seals")
	cmd.Flags().StringVar(&claims, "claims", "", "`file` with the claims; - = standard input")
	cmd.Flags().StringVar(&s.Policy, "policy", "", "`id` of the session policy")
	cmd.Flags().StringVar(&s.Tenant, "tenant", snapshot.DefaultTenant, "`id` of the tenant that owns the host")
	cmd.Flags().StringVar(&s.Cookie, "cookie", "", "`name` of the cookie")
	cmd.Flags().StringVar(&mode, "mode", "encrypted", "`mode` of the policy: encrypted or signed")
	return cmd
}

func seal(s session.Scope, keysFile, claimsFile string, stdin io.Reader) (string, error) {
	raw, err := readSome(keysFile, stdin)
	if err != nil {
		return "", err
	}
	keys, err := session.ParseKeys(raw)
	if err != nil {
		return "", err
	}
	claims, err := readSome(claimsFile, stdin)
	if err != nil {
		return "", err
	}
	var object map[string]any
	if err := json.Unmarshal(claims, &object); err != nil {
		return "", fmt.Errorf("%s: not a JSON object", claimsFile)
	}
	if object["iat"] == nil || object["exp"] == nil {
		return "", fmt.Errorf("%s: a session needs iat and exp", claimsFile)
	}
	compact, err := json.Marshal(object)
	if err != nil {
		return "", err
	}
	return keys.Seal(s, compact, rand.Reader)
}

// readSome reads a small file, or standard input for -.
func readSome(name string, stdin io.Reader) ([]byte, error) {
	const most = 64 << 10
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		stdin = f
	}
	raw, err := io.ReadAll(io.LimitReader(stdin, most+1))
	if err == nil && len(raw) > most {
		err = fmt.Errorf("%s: larger than %d bytes", name, most)
	}
	return raw, err
}
